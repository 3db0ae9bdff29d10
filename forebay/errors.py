# SPDX-License-Identifier: Apache-2.0
"""Errors, sorted by what to do about them.

Every error names where it happened (source, split, position, option) and the next step. The text has a fixed
shape, because an engine such as Spark keeps only the text of an exception that crosses a process border:
`unwrap` reads the typed error back from it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from itertools import takewhile
from typing import Any, Self

_redactors: list[Callable[[str], str]] = []
_explainers: list[Callable[[str], ForebayError]] = []


def print_through(redact: Callable[[str], str]) -> None:
    """Let the text of every error pass through a function that hides secrets. Called once, by `forebay.options`.

    Connectors put the message of their client into an error of ours, and its text goes into logs from many places.
    """
    _redactors.append(redact)


_LABELS = ("source", "split", "position", "option", "rule", "advice")
_PRINTED = {"advice": "next step"}


def explain_formats(explain: Callable[[str], ForebayError]) -> None:
    """Let `unwrap` say what is known of a format that an engine did not find. Called once, by `forebay.registry`."""
    _explainers.append(explain)


class RemoteTraceback(Exception):
    """Stands for what a connector raised in another process: its text is that traceback.

    It is the `__cause__` of the error that `unwrap` read back from an engine's text.
    """


class ForebayError(Exception):
    """The base of every error forebay raises on purpose.

    Args:
        message: What went wrong, one sentence, no secrets.
        source: The format name or class name of the source concerned.
        split: The id of the split concerned.
        position: The position inside the split, as text (a line, a byte offset, a Kafka offset).
        option: The name of the option concerned, as the user wrote it.
        rule: The id of the broken rule, for `ContractError`.
        advice: The next step for the reader of this error.
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

    def located(self, **where: str | None) -> Self:
        """Fill in the labels (`source=`, `split=` …) that are still unknown; a known one is never overwritten.

        Called by the framework as an error passes outward through the layers that know more about the place.
        """
        for label, value in where.items():
            if label not in _LABELS:
                raise TypeError(f"an error has no label {label!r}; it has {', '.join(_LABELS)}")
            if value is not None and getattr(self, label) is None:
                setattr(self, label, str(value))
        return self

    def __str__(self) -> str:
        # Secrets go first: one of several lines could not be found any more.
        first, *more = _redacted(self.message).split("\n")
        lines = [first, *map(_moved, more)]
        for label in _LABELS:
            value = getattr(self, label)
            if value is not None:
                lines.append(f"  {_PRINTED.get(label, label)}: {_one_line(_redacted(str(value)))}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({_redacted(self.message)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Who takes it out again may not know the secrets. The split stays: it is looked up by its id.
        labels = {label: getattr(self, label) for label in _LABELS}
        hidden = {label: value and _redacted(value) for label, value in labels.items() if label != "split"}
        return (_rebuild, (type(self), _redacted(self.message), labels | hidden))


class ConfigurationError(ForebayError):
    """The options, the schema or the environment are wrong: fix them and start again. Never retried."""


class RetriableError(ForebayError):
    """Something outside failed for now (network, throttling): the framework retries with back-off.

    Args:
        message: What went wrong.
        retry_after: How long the service asks to be left alone: seconds, a timedelta, or the text of an HTTP
            `Retry-After` header. All readers of the source in this process wait at least as long.
        where: The labels of `ForebayError`.

    Raises:
        ValueError: `retry_after` is none of these.
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
        """Seconds, or None."""

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild, (cls, message, labels) = super().__reduce__()
        return (rebuild, (cls, message, {**labels, "retry_after": self.retry_after}))


class DataError(ForebayError):
    """A record or a file is damaged or does not fit the schema: the option `mode` decides what happens."""


class DataLossError(ForebayError):
    """Positions that should be read no longer exist (retention, deletion, replacement)."""


class ContractError(ForebayError):
    """A connector broke a rule of the contract; `rule` says which one (see docs/contract.md)."""


class FatalError(ForebayError):
    """The framework cannot go on, and neither options nor retries help: a defect or a lost resource."""


_BY_NAME = {
    cls.__name__: cls
    for cls in (ForebayError, ConfigurationError, RetriableError, DataError, DataLossError, ContractError, FatalError)
}
_HEAD = re.compile(r"forebay\.errors\.(" + "|".join(_BY_NAME) + r"): ")
INDENT = " " * 4
"""Before the lines of an error's text that must not be taken for the text itself, such as the error it came from."""
CAUSED_BY = "caused by:"
"""The line before the traceback of the error it came from."""
_UNKNOWN_FORMAT = re.compile(r"\[DATA_SOURCE_NOT_FOUND\][^:\n]*: (\S+?)\.?(?:\s|$)")
_CRASHED = re.compile(
    r"Python worker exited unexpectedly \(crashed\)(?:: *(.*?)\s*(?:\n\tat |\nDriver stacktrace|\Z))?", re.DOTALL
)
"""What a worker's faulthandler wrote stands behind the colon."""
_ESCAPES = {"n": "\n", "r": "\r", "\\": "\\"}
_ESCAPED = re.compile(r"\\([nr\\])")
_LINE = re.compile(r"^  (" + "|".join(_PRINTED.get(label, label) for label in _LABELS) + r"): (.*)$")


def unwrap(error: BaseException) -> ForebayError | None:
    """Give the typed error back from an engine's own exception, or None if it tells nothing of a source.

    Called by users, in an `except` block around a Spark action. Looks at the exception, at its causes and contexts,
    and at its text: Spark raises its own classes with our text inside. What a connector raised is the `__cause__`, as a
    `RemoteTraceback` where only its text is left. Two errors of Spark's own are explained too: a format that it does
    not know is a `ConfigurationError`, a Python worker that died a `FatalError`.
    """
    seen: set[int] = set()
    link: BaseException | None = error
    texts: list[str] = []
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if isinstance(link, ForebayError):
            return link
        texts.append(str(link))
        found = parse_text(texts[-1])
        if found is not None:
            return found
        link = link.__cause__ or link.__context__
    return next((found for text in texts if (found := _engines_own(text)) is not None), None)


def _engines_own(text: str) -> ForebayError | None:
    """Return what an error means that Spark itself raised, where a source is concerned."""
    if unknown := _UNKNOWN_FORMAT.search(text):
        return next((explain(unknown[1]) for explain in _explainers), None)
    crashed = _CRASHED.search(text)
    if crashed is None:
        return None
    told = (crashed[1] or "").strip()
    error = FatalError(
        "a Python worker of Spark died" + (f": {told.splitlines()[0]}" if told else ""),
        advice="look for its end in the log of the executor and of the machine: where memory ran out, lower "
        "maxBytesPerBatch and queueBytes or raise spark.executor.memoryOverhead; where a native library crashed, set "
        "spark.python.worker.faulthandler.enabled to true to see in which line",
    )
    error.__cause__ = RemoteTraceback(told) if told else None
    return error


def parse_text(text: str) -> ForebayError | None:
    """Read the last forebay error printed in `text` (a traceback prints the outermost error last), or None."""
    heads = list(_HEAD.finditer(text))
    if not heads:
        return None
    head = next((one for one in reversed(heads) if not _inside(text, one.start())), heads[-1])
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
        labels[label] = _ESCAPED.sub(lambda found: _ESCAPES[found[1]], match.group(2))
    error = _BY_NAME[head.group(1)](message, **labels)
    error.__cause__ = _remote_cause(lines[end + len(labels) :])
    return error


def _remote_cause(lines: Sequence[str]) -> RemoteTraceback | None:
    """Return the traceback that was printed behind an error, if there is one."""
    if CAUSED_BY not in lines:
        return None
    shown = takewhile(lambda line: not line or line.startswith(INDENT), lines[lines.index(CAUSED_BY) + 1 :])
    return RemoteTraceback("\n".join(line.removeprefix(INDENT) for line in shown).strip())


def _inside(text: str, at: int) -> bool:
    """Whether a head belongs to what an error tells of others: its line is indented, or has one before it."""
    before = text[text.rfind("\n", 0, at) + 1 : at]
    return before.startswith(INDENT) or _HEAD.search(before) is not None


def _ends_message(line: str) -> bool:
    """Whether a line that is not indented cannot be one of a message: a label, an engine's frames, a blank one."""
    if line.startswith(INDENT):
        return False
    begun = line.lstrip()
    return not begun or begun.startswith(("at ", "Traceback", "Driver stacktrace")) or _LINE.match(line) is not None


def _moved(line: str) -> str:
    """Return a message's line as it is printed: what would be taken for something else is indented."""
    return INDENT + line if line.startswith(INDENT) or _ends_message(line) or _HEAD.search(line) else line


def _seconds(asked: float | timedelta | str) -> float:
    """Return a pause in seconds. RFC 9110, 10.2.3: `Retry-After` is a number of seconds, or a date."""
    if isinstance(asked, str):
        text = asked.strip()
        asked = float(text) if text.isdecimal() else parsedate_to_datetime(text) - datetime.now(UTC)
    seconds = asked.total_seconds() if isinstance(asked, timedelta) else float(asked)
    if not math.isfinite(seconds):
        raise ValueError(f"retry_after is {seconds} seconds")
    return max(0.0, seconds)


def _redacted(text: str) -> str:
    for redact in _redactors:
        text = redact(text)
    return text


def _one_line(value: object) -> str:
    return str(value).replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def _rebuild(cls: type[ForebayError], message: str, labels: dict[str, Any]) -> ForebayError:
    return cls(message, **labels)
