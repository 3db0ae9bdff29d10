# SPDX-License-Identifier: Apache-2.0
"""Typed errors: one class for each reaction of the user. An error names source, split, position, option and next step.

An error's text has a fixed format, because Spark keeps only the text of an exception that crosses a process border.
`unwrap` parses it back into the typed error.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from itertools import takewhile
from typing import Any, Final, Self

_log = logging.getLogger(__name__)

_LABELS = ("source", "split", "position", "option", "rule", "advice")
_PRINTED = {"advice": "next step"}

_redactors: list[Callable[[str], str]] = []
_explainers: list[Callable[[str], ForebayError]] = []


def redact_texts_with(redact: Callable[[str], str]) -> None:
    """Register the function that hides secrets in the text of every error. Called once, by `forebay.options`."""
    _redactors.append(redact)


def explain_unknown_formats_with(explain: Callable[[str], ForebayError]) -> None:
    """Register the function that makes the error for a format unknown to Spark. Called once, by `forebay.registry`."""
    _explainers.append(explain)


class RemoteTraceback(Exception):
    """A traceback from another process, as text. `unwrap` sets it as the `__cause__` of the error that it returns."""


class ForebayError(Exception):
    """The base class of forebay's errors.

    Args:
        message: What went wrong, in one sentence, without secrets.
        source: The format name or class name of the source.
        split: The id of the split.
        position: The position in the split (a line, a byte offset, a Kafka offset).
        option: The name of the option, as the user wrote it.
        rule: The id of the broken rule, for `ContractError`.
        advice: The next step for the user.
    """

    def __init__(
        self,
        message: str,
        *,
        source: str | None = None,
        split: str | None = None,
        position: object = None,
        option: str | None = None,
        rule: str | None = None,
        advice: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.source = source
        self.split = split
        self.position = None if position is None else str(position)
        self.option = option
        self.rule = rule
        self.advice = advice

    def with_context(self, **labels: str | None) -> Self:
        """Set each given label (`source=`, `split=` …) that is None so far, and return this error itself."""
        for label, value in labels.items():
            if label not in _LABELS:
                raise TypeError(f"an error has no label {label!r}: use one of {', '.join(_LABELS)}")
            if value is not None and getattr(self, label) is None:
                setattr(self, label, str(value))
        return self

    def __str__(self) -> str:
        # Redact before indenting: a secret of several lines could not be found afterwards.
        first, *more = printable(_redacted(self.message), lines=True).split("\n")
        lines = [first, *map(_escaped_line, more)]
        for label in _LABELS:
            value = getattr(self, label)
            if value is not None:
                lines.append(f"  {_PRINTED.get(label, label)}: {_one_line(_redacted(str(value)))}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({_redacted(self.message)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # The process that unpickles the error may not know the secrets. The split id is a key, so it is not redacted.
        labels = {label: getattr(self, label) for label in _LABELS}
        hidden = {label: value and _redacted(value) for label, value in labels.items() if label != "split"}
        return (_rebuild, (type(self), _redacted(self.message), labels | hidden))


class ConfigurationError(ForebayError):
    """An option, the schema or the environment is wrong. The framework never retries after this error."""


class RetriableError(ForebayError):
    """A transient failure of an external system (network, throttling): the framework retries with back-off.

    Args:
        message: What went wrong.
        retry_after: The minimum delay that the service requests: seconds, a timedelta, or the text of an HTTP
            `Retry-After` header, as it came. What is neither a number nor a date is ignored, with a warning in the log.
            It applies to all readers of the source in this process.
        where: The labels of `ForebayError`.
    """

    def __init__(
        self,
        message: str,
        *,
        retry_after: float | timedelta | str | None = None,
        **where: Any,  # noqa: ANN401 - see ForebayError
    ) -> None:
        super().__init__(message, **where)
        self.retry_after = None if retry_after is None else _seconds(retry_after)
        """The minimum delay in seconds; None if the service requests none."""

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild, (cls, message, labels) = super().__reduce__()
        return (rebuild, (cls, message, {**labels, "retry_after": self.retry_after}))


class DataError(ForebayError):
    """A record or a file is damaged or does not match the schema; the option `mode` decides what happens."""


class DataLossError(ForebayError):
    """The external system no longer has data that is still unread (after retention, deletion or replacement)."""


class ContractError(ForebayError):
    """A connector broke the rule `rule` of docs/contract.md."""


class FatalError(ForebayError):
    """A defect or a lost resource, which neither other options nor a retry can repair."""


_BY_NAME = {
    cls.__name__: cls
    for cls in (ForebayError, ConfigurationError, RetriableError, DataError, DataLossError, ContractError, FatalError)
}
_HEAD = re.compile(r"(?<!\()forebay\.errors\.(" + "|".join(_BY_NAME) + r"): ")
"""Not as a plan of Spark shows an expression that would raise the error: as an argument of a function."""
_PLAN: Final = "\n=== Streaming Query ==="
"""What follows the text of an error that ended a streaming query: the query and its plan."""
INDENT = " " * 4
"""Indents lines that must not be parsed as part of the error, such as its cause."""
CAUSED_BY = "caused by:"
"""The line before the traceback of the cause."""
_UNKNOWN_FORMAT = re.compile(r"\[DATA_SOURCE_NOT_FOUND\][^:\n]*: (\S+?)\.?(?:\s|$)")
_CRASHED = re.compile(
    r"Python worker exited unexpectedly \(crashed\)(?:: *(.*?)\s*(?:\n\tat |\nDriver stacktrace|\Z))?", re.DOTALL
)
"""The output of the worker's faulthandler follows the colon."""
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\"}
_ESCAPED = re.compile(r"\\([nrt\\]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")
_LINE = re.compile(r"^  (" + "|".join(_PRINTED.get(label, label) for label in _LABELS) + r"): (.*)$")


def unwrap(error: BaseException) -> ForebayError | None:
    """Return the typed error inside an exception of Spark, or None if the exception contains none.

    Users call this function in an `except` block around a Spark action. It searches the exception, its causes and
    contexts, and their texts. The `__cause__` of the typed error is the connector's own exception, or a
    `RemoteTraceback` if only its text is left. Two errors of Spark itself are converted too: an unknown format to
    `ConfigurationError`, a dead Python worker to `FatalError`.
    """
    seen: set[int] = set()
    link: BaseException | None = error
    texts: list[str] = []
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if isinstance(link, ForebayError):
            return link
        texts.append(str(link))
        if (parsed := parse_text(texts[-1])) is not None:
            return parsed
        link = link.__cause__ or link.__context__
    return next((parsed for text in texts if (parsed := _spark_error(text)) is not None), None)


def _spark_error(text: str) -> ForebayError | None:
    """Return the typed error for an error text of Spark itself; None if the text is not a known one."""
    if unknown := _UNKNOWN_FORMAT.search(text):
        return next((explain(unknown[1]) for explain in _explainers), None)
    crashed = _CRASHED.search(text)
    if crashed is None:
        return None
    trace = (crashed[1] or "").strip()
    error = FatalError(
        "a Python worker process of Spark crashed" + (f": {trace.splitlines()[0]}" if trace else ""),
        advice="read the end of the executor's log and of the system log of its machine: if memory ran out, raise "
        "spark.executor.memoryOverhead, or lower maxBytesPerBatch and queueBytes of a source; if a native library "
        "crashed, set spark.python.worker.faulthandler.enabled to true and run again to see the crashed line",
    )
    error.__cause__ = RemoteTraceback(trace) if trace else None
    return error


def parse_text(text: str) -> ForebayError | None:
    """Return the last forebay error in `text`, which is the outermost one of a traceback; None if there is none."""
    text = text.partition(_PLAN)[0]
    heads = list(_HEAD.finditer(text))
    if not heads:
        return None
    head = next((candidate for candidate in reversed(heads) if not _inside(text, candidate.start())), heads[-1])
    first, *lines = text[head.end() :].split("\n")
    end = next((number for number, line in enumerate(lines) if _ends_message(line)), len(lines))
    message = "\n".join([first, *(line.removeprefix(INDENT) for line in lines[:end])]).rstrip()
    labels: dict[str, str] = {}
    for line in lines[end:]:
        match = _LINE.match(line)
        if match is None:
            break
        shown = match.group(1)
        label = next((known for known, printed in _PRINTED.items() if printed == shown), shown)
        labels[label] = _ESCAPED.sub(
            lambda escape: _ESCAPES.get(escape[1]) or chr(int(escape[1][1:], 16)), match.group(2)
        )
    error = _BY_NAME[head.group(1)](message, **labels)
    error.__cause__ = _remote_cause(lines[end + len(labels) :])
    return error


def _remote_cause(lines: Sequence[str]) -> RemoteTraceback | None:
    """Return the traceback in the lines that follow an error; None if there is none."""
    if CAUSED_BY not in lines:
        return None
    shown = takewhile(lambda line: not line or line.startswith(INDENT), lines[lines.index(CAUSED_BY) + 1 :])
    return RemoteTraceback("\n".join(line.removeprefix(INDENT) for line in shown).strip())


def _inside(text: str, at: int) -> bool:
    """Return whether the error at index `at` is only quoted: its line is indented, or begins with another error."""
    before = text[text.rfind("\n", 0, at) + 1 : at]
    return before.startswith(INDENT) or _HEAD.search(before) is not None


def _ends_message(line: str) -> bool:
    """Return whether a line ends the message: a label, a line of a stack trace, or a blank line."""
    if line.startswith(INDENT):
        return False
    begun = line.lstrip()
    return not begun or begun.startswith(("at ", "Traceback", "Driver stacktrace")) or _LINE.match(line) is not None


def _escaped_line(line: str) -> str:
    """Return a line of a message for printing, indented once more if `parse_text` would not restore it otherwise."""
    return INDENT + line if line.startswith(INDENT) or _ends_message(line) or _HEAD.search(line) else line


def _seconds(retry_after: object) -> float | None:
    """Return `retry_after` in seconds; None, with a warning, for what is neither a number of seconds nor a date.

    RFC 9110, 10.2.3 allows whole seconds and HTTP dates. Services also send fractions, and texts of their own: such a
    header must not hide the failure that it came with.
    """
    seconds = retry_after.total_seconds() if isinstance(retry_after, timedelta) else retry_after
    if isinstance(retry_after, (str, bytes)):
        seconds = _header_seconds(retry_after.decode("latin-1") if isinstance(retry_after, bytes) else retry_after)
    with suppress(OverflowError):  # an int that is too large for a float
        if isinstance(seconds, (int, float)) and math.isfinite(seconds):
            return max(0.0, float(seconds))
    _log.warning(
        "retry_after %.100r is neither seconds nor an HTTP date; it is ignored, and the usual pauses apply", retry_after
    )
    return None


_PLAIN_NUMBER: Final = re.compile(r"\s*[+-]?[0-9]+(\.[0-9]*)?\s*", re.ASCII)


def _header_seconds(text: str) -> float | None:
    """Return the seconds that a `Retry-After` header asks for; None if it is neither a number nor a date."""
    if _PLAIN_NUMBER.fullmatch(text):
        return float(text)
    with suppress(ValueError, TypeError, IndexError, OverflowError):
        at = parsedate_to_datetime(text)
        return (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return None


def _redacted(text: str) -> str:
    for redact in _redactors:
        text = redact(text)
    return text


def printable(text: str, *, lines: bool = False) -> str:
    """Return a text that is safe to print: control characters and direction marks are escaped.

    Call this function for every external name: of a file, a split, a query. With `lines`, line feeds and tabs are kept.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or (lines and char in "\n\t") else char.encode("unicode_escape").decode()
        for char in text
    )


def _one_line(value: object) -> str:
    return printable(str(value).replace("\\", "\\\\"))


def _rebuild(cls: type[ForebayError], message: str, labels: dict[str, Any]) -> ForebayError:
    return cls(message, **labels)
