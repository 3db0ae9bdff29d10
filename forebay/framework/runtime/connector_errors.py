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
    "install it on every worker (without Spark: on this machine), or send it with spark.addArtifacts or --py-files; "
    "import your own modules at the top of the source's module, not inside functions, so that they are sent with it: "
    "a module that holds what cannot be pickled, such as a lock, is not sent"
)
"""The next step in the error for a missing module, in any process."""

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
"""Exceptions that show a mistake in the connector's code; includes their subclasses, such as KeyError."""
_FOREBAY: Final = str(Path(__file__).absolute().parents[2]) + os.sep


class ConcealedError(Exception):
    """Replaces an exception whose text contained a secret; has its traceback, and its text without the secret."""

    def __init__(self, text: str, original: type[BaseException] = Exception) -> None:
        super().__init__(text)
        self.original = original


def is_programming_error(error: BaseException) -> bool:
    """Whether an exception shows a mistake in the connector's code, so that neither a retry nor a new reader helps."""
    return issubclass(getattr(error, "original", type(error)), _PROGRAMMING)


def connector_error(
    error: BaseException, *, source: str, doing: str, split: str | None = None, position: object = None
) -> ForebayError:
    """Return a `FatalError` whose text has the exception's type and message, and whose cause is the exception.

    If the exception's text contains a secret, the cause is a `ConcealedError`. `doing` names the connector's method
    that failed, such as `schema()`. A `ForebayError` is returned itself, with missing labels filled in. Any thread.
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
    passing = "if the failure is temporary, raise forebay.RetriableError in the connector, so that it is retried"
    if is_programming_error(error):
        return f"correct the connector{place and f' at {place}'}; {passing}"
    return f"see the cause{place and f', at {place}'}; {passing}"


def _place(error: BaseException) -> str:
    """Return file, line and function of the innermost call in the connector's own code; "" without a traceback.

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
    """Return the error without secrets, in itself and in its chain of causes. Any thread.

    An error without a secret is returned unchanged. A `ForebayError` with a secret is changed in place. Any other error
    with one is replaced by a `ConcealedError`, because its class may keep the text in several places.
    """
    return _concealed(error, {})


def _concealed(error: BaseException, concealed: dict[int, BaseException]) -> BaseException:
    if id(error) in concealed or not isinstance(error, Exception):
        return concealed.get(id(error), error)
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
    concealed[id(error)] = shown
    suppressed = error.__suppress_context__
    shown.__context__ = None if error.__context__ is None else _concealed(error.__context__, concealed)
    shown.__cause__ = None if error.__cause__ is None else _concealed(error.__cause__, concealed)
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
    """Raise each exception of the `with` block as the typed error that `connector_error` returns. Any thread.

    Spark keeps only the text of an error that crosses processes; `forebay.errors.unwrap` restores the error from it.

    Raises:
        ForebayError: The exception of the block, wrapped in a `FatalError` unless it is a `ForebayError`.
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
    """Call `close` at the end of the `with` block, on every path.

    Raises:
        ForebayError: The error of `close`. If the block failed too, that error is raised, with this one as a note.
    """
    try:
        yield
    except BaseException as error:
        try:
            close()
        except Exception as second:  # noqa: BLE001 - the first error is the one to act on
            error.add_note(f"and then close() failed too, with {type(second).__name__}: {redact(_text(second))}")
        raise
    with wrap_errors(source, "close()"):
        close()
