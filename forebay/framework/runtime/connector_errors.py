# SPDX-License-Identifier: Apache-2.0
"""Whatever a connector raises becomes a typed error that says where: one spelling for all hosts and threads."""

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
    "install it on every worker (without Spark: here), or send it with spark.addArtifacts or --py-files; "
    "import modules of your own at the top of the source's module, not inside functions, and they travel with it"
)
"""What to do about a module that is not there, in whichever process."""

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
"""Mistakes in the connector's code, KeyError and FrozenInstanceError among them: no retry helps."""
_FOREBAY: Final = str(Path(__file__).absolute().parents[2]) + os.sep


class ConcealedError(Exception):
    """Stands for an exception whose text showed a secret: its type, its text without the secret, its traceback.

    Args:
        text: What is left of its text.
        original: Its type.
    """

    def __init__(self, text: str, original: type[BaseException] = Exception) -> None:
        super().__init__(text)
        self.original = original


def is_programming_error(error: BaseException) -> bool:
    """Whether an exception means a mistake in the connector's code, which no retry and no other reader cures."""
    return issubclass(getattr(error, "original", type(error)), _PROGRAMMING)


def connector_error(
    error: BaseException, *, source: str, doing: str, split: str | None = None, position: object = None
) -> ForebayError:
    """Return a typed error for whatever a connector raised: its own type and message stay in the text.

    Called by hosts and by the reading side, on any thread. What was raised is the cause of the result, unless its text
    shows a secret of the source: then a `ConcealedError` stands for it.

    Args:
        error: What was raised; a `ForebayError` is returned itself, with the place filled in.
        source: The format name of the source.
        doing: Which call failed, as the author knows it: `schema()`, `discover()`.
        split: The split concerned, if one is known.
        position: The position inside it, if one is known.
    """
    shown = without_secrets(error)
    if isinstance(shown, ForebayError):
        return shown.located(source=source, split=split, position=None if position is None else str(position))
    found = FatalError(
        f"{doing} failed with {type(error).__name__}: {redact(_text(error))}",
        source=source,
        split=split,
        position=position,
        advice=redact(_advice(error)),
    )
    found.__cause__ = shown
    return found


def _advice(error: BaseException) -> str:
    place = _place(error)
    if isinstance(error, ModuleNotFoundError):
        return MISSING_MODULE
    if isinstance(error, FrozenInstanceError):
        return (
            f"keep no state on self{place and f' as {place} does'}: use local variables of read(), positions for what "
            "must survive, and a method with @forebay.cached for a client"
        )
    passing = "raise forebay.RetriableError in the connector for trouble that passes"
    if is_programming_error(error):
        return f"correct the connector{place and f' at {place}'}; {passing}"
    return f"see the cause{place and f', at {place}'}; {passing}"


def _place(error: BaseException) -> str:
    """Return the innermost line of the connector's own code that the error came through; empty if there is none.

    Its own code lies beside the first function that forebay called; a client's, further in, tells its author less.
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
    """Return an error that shows no secret, nor does anything in its chain of causes.

    Called by hosts before an error is raised or logged, on any thread. Almost always that is the error itself. One of
    forebay's is changed in place; a foreign one is replaced by a `ConcealedError`, because nobody knows where else it
    keeps its text.
    """
    return _concealed(error, {})


def _concealed(error: BaseException, done: dict[int, BaseException]) -> BaseException:
    if id(error) in done or not isinstance(error, Exception):
        return done.get(id(error), error)
    if not _shows_a_secret(error):
        return error
    told: Exception = error
    if isinstance(error, ForebayError):
        error.message = redact(error.message)
        error.args = (error.message, *error.args[1:])
        for label in ("position", "option", "advice"):  # not the split: it is looked up by its id
            value = getattr(error, label)
            setattr(error, label, None if value is None else redact(value))
    else:
        told = ConcealedError(f"{type(error).__name__}: {redact(_text(error))}", type(error))
        told = told.with_traceback(error.__traceback__)
    if notes := getattr(error, "__notes__", None):
        told.__notes__ = [redact(str(note)) for note in notes]
    done[id(error)] = told
    suppressed = error.__suppress_context__
    told.__context__ = None if error.__context__ is None else _concealed(error.__context__, done)
    told.__cause__ = None if error.__cause__ is None else _concealed(error.__cause__, done)
    told.__suppress_context__ = suppressed
    return told


def _shows_a_secret(error: BaseException) -> bool:
    """Whether a secret is in what a traceback prints of an error and its chain, or in the message of one of ours."""
    texts = ["".join(traceback.format_exception(error, limit=0))]
    if isinstance(error, ForebayError):  # it prints without the secret by itself
        texts += [error.message, repr(error)]
    return any(redact(text) != text for text in texts)


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
        raise named from named.__cause__


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
            error.add_note(f"and then close() failed with {type(second).__name__}: {redact(_text(second))}")
        raise
    with explained(source, "close()"):
        close()
