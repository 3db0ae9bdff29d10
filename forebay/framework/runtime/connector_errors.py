# SPDX-License-Identifier: Apache-2.0
"""Wraps a connector's exceptions in typed errors that name source, call, split and position."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Final

from forebay.errors import FatalError, ForebayError
from forebay.options import redact

MISSING_MODULE: Final = (
    "install it on every worker (without Spark: here), or send it with spark.addArtifacts or --py-files; import your "
    "own modules at the top of the source's module, not inside functions: then they are sent with it"
)
"""The advice for a missing module, in any process."""

_PROGRAMMING: Final = (
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    SyntaxError,
    TypeError,
)
"""Mistakes in the connector's code, which no retry corrects; includes KeyError and FrozenInstanceError."""
_FOREBAY: Final = str(Path(__file__).absolute().parents[2]) + os.sep


class ConcealedError(Exception):
    """Replaces an exception whose text showed a secret; keeps its traceback and its text without the secret."""

    def __init__(self, text: str, original: type[BaseException] = Exception) -> None:
        super().__init__(text)
        self.original = original


def is_programming_error(error: BaseException) -> bool:
    """Whether an exception is a mistake in the connector's code, which neither a retry nor another reader corrects."""
    return issubclass(getattr(error, "original", type(error)), _PROGRAMMING)


def connector_error(
    error: BaseException, *, source: str, doing: str, split: str | None = None, position: object = None
) -> ForebayError:
    """Return a typed error with the exception's type and message in its text. Any thread.

    The exception is its cause, or a `ConcealedError` if the exception's text shows a secret. `doing` is the call as the
    connector's author knows it, such as `schema()`. A `ForebayError` is returned itself, with missing labels filled in.
    """
    shown = without_secrets(error)
    if isinstance(shown, ForebayError):
        return shown.with_context(source=source, split=split, position=None if position is None else str(position))
    wrapped = FatalError(
        f"{doing} failed with {type(error).__name__}: {redact(_text(error))}",
        source=source,
        split=split,
        position=position,
        advice=redact(_advice(error)),
    )
    wrapped.__cause__ = shown
    return wrapped


def _advice(error: BaseException) -> str:
    place = _place(error)
    if isinstance(error, ModuleNotFoundError):
        return MISSING_MODULE
    if isinstance(error, FrozenInstanceError):
        return (
            f"keep no state on self{place and f' as {place} does'}: use local variables in read(), positions for "
            "progress, and a method with @forebay.cached for a client"
        )
    passing = "raise forebay.RetriableError in the connector for temporary failures"
    if is_programming_error(error):
        return f"correct the connector{place and f' at {place}'}; {passing}"
    return f"see the cause{place and f', at {place}'}; {passing}"


def _place(error: BaseException) -> str:
    """Return the innermost line of the connector's own code in the traceback, or "".

    The connector's code is in the folder of the first function that forebay called; client libraries are elsewhere.
    """
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if not frame.filename.startswith((_FOREBAY, "<string>", "<frozen"))]
    if not outside:  # one of forebay's own sources
        return f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}()" if frames else ""
    home = os.path.dirname(outside[0].filename)
    own = [frame for frame in outside if frame.filename.startswith(home)]
    last = next((frame for frame in reversed(own) if "site-packages" not in frame.filename[len(home) :]), outside[0])
    return f"{last.filename}:{last.lineno} in {last.name}()"


def without_secrets(error: BaseException) -> BaseException:
    """Return an error that shows no secret, also in its chain of causes; usually the same object. Any thread.

    A `ForebayError` that shows a secret is changed in place. Any other error that shows one is replaced by a
    `ConcealedError`, because its class may keep the text in several places.
    """
    return _concealed(error, {})


def _concealed(error: BaseException, done: dict[int, BaseException]) -> BaseException:
    if id(error) in done or not isinstance(error, Exception):
        return done.get(id(error), error)
    if not _shows_a_secret(error):
        return error
    shown: Exception = error
    if isinstance(error, ForebayError):
        error.message = redact(error.message)
        error.args = (error.message, *error.args[1:])
        for label in ("position", "option", "advice"):  # not the split: it is looked up by its id
            value = getattr(error, label)
            setattr(error, label, None if value is None else redact(value))
    else:
        shown = ConcealedError(f"{type(error).__name__}: {redact(_text(error))}", type(error))
        shown = shown.with_traceback(error.__traceback__)
    if notes := getattr(error, "__notes__", None):
        shown.__notes__ = [redact(str(note)) for note in notes]
    done[id(error)] = shown
    suppressed = error.__suppress_context__
    shown.__context__ = None if error.__context__ is None else _concealed(error.__context__, done)
    shown.__cause__ = None if error.__cause__ is None else _concealed(error.__cause__, done)
    shown.__suppress_context__ = suppressed
    return shown


def _shows_a_secret(error: BaseException) -> bool:
    texts = ["".join(traceback.format_exception(error, limit=0))]
    if isinstance(error, ForebayError):  # its `str` hides secrets, so look at the message itself
        texts += [error.message, repr(error)]
    return any(redact(text) != text for text in texts)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as second:  # noqa: BLE001 - `__str__` of a connector's class
        return f"(its text is not available: {type(second).__name__})"


@contextmanager
def wrap_errors(source: str, doing: str, split: str | None = None) -> Iterator[None]:
    """Raise every error of the block as a `connector_error`. Any thread.

    Engines keep only the text of an error that crosses processes; `forebay.errors.unwrap` restores the error from it.

    Raises:
        ForebayError: The error of the block, wrapped in a `FatalError` unless it is one of forebay's own.
    """
    try:
        yield
    except Exception as error:
        wrapped = connector_error(error, source=source, doing=doing, split=split)
        if wrapped is error:
            raise
        raise wrapped from wrapped.__cause__


@contextmanager
def closing(source: str, close: Callable[[], None]) -> Iterator[None]:
    """Call `close` at the end of the block, on every path. Its error becomes a note of an error in the block.

    Raises:
        ForebayError: The error of `close`, if the block itself did not fail.
    """
    try:
        yield
    except BaseException as error:
        try:
            close()
        except Exception as second:  # noqa: BLE001 - the first error is the one to act on
            error.add_note(f"and then close() failed with {type(second).__name__}: {redact(_text(second))}")
        raise
    with wrap_errors(source, "close()"):
        close()
