# SPDX-License-Identifier: Apache-2.0
"""Whatever a connector raises becomes a typed error that says where: one spelling for all hosts and threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from forebay.errors import FatalError, ForebayError


def connector_error(
    error: BaseException, *, source: str, doing: str, split: str | None = None, position: object = None
) -> ForebayError:
    """Return a typed error for whatever a connector raised: its own type and message stay in the text.

    Called by hosts and by the reading side, on any thread. What was raised is the cause of the result.

    Args:
        error: What was raised; a `ForebayError` is returned itself, with the place filled in.
        source: The format name of the source.
        doing: Which call failed, as the author knows it: `schema()`, `discover()`.
        split: The split concerned, if one is known.
        position: The position inside it, if one is known.
    """
    if isinstance(error, ForebayError):
        return error.located(source=source, split=split, position=None if position is None else str(position))
    found = FatalError(
        f"{doing} failed with {type(error).__name__}: {_text(error)}",
        source=source,
        split=split,
        position=position,
        advice="see the cause; raise forebay.RetriableError in the connector for trouble that passes",
    )
    found.__cause__ = error
    return found


def _text(error: BaseException) -> str:
    """Return the error's own text; an error that cannot even say it must not hide that something failed."""
    try:
        return str(error)
    except Exception as second:  # noqa: BLE001 - a connector's class, whatever it does
        return f"(its text cannot be had: {type(second).__name__})"


@contextmanager
def explained(source: str, doing: str, split: str | None = None) -> Iterator[None]:
    """Let every error leave as a `ForebayError` that names the source and the call that failed.

    Put around connector code by hosts, on any thread. A host in another process keeps only the text of an error, so
    the text must say everything; `forebay.errors.unwrap` reads the typed error back from it.

    Args:
        source: The format name.
        doing: The call, as the author of the connector knows it: `schema()`.
        split: The split concerned, if one is known.

    Raises:
        ForebayError: What was raised inside, or a `FatalError` that wraps it.
    """
    try:
        yield
    except Exception as error:
        named = connector_error(error, source=source, doing=doing, split=split)
        if named is error:
            raise
        raise named from error


@contextmanager
def closing(source: str, close: Callable[[], None]) -> Iterator[None]:
    """Call `close` when the block ends, on every path; after an error, a second one of `close` becomes its note.

    Raises:
        ForebayError: What `close` raised, when the block itself did not fail.
    """
    try:
        yield
    except BaseException as error:
        try:
            close()
        except Exception as second:  # noqa: BLE001 - the first error is the one to act on
            error.add_note(f"and then close() failed with {type(second).__name__}: {second}")
        raise
    with explained(source, "close()"):
        close()
