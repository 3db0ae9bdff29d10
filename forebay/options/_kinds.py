# SPDX-License-Identifier: Apache-2.0
"""The kinds of option values: each kind parses and writes the values of one type.

A kind accepts text from Spark and the command line, and typed values from Python. For an invalid value it raises
`ValueError` with a reason, which `OptionSpec.convert` turns into an error for the user, without secrets.
"""

from __future__ import annotations

import difflib
import math
import operator
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any, Final

from forebay.options.quantities import ByteSize, Duration
from forebay.options.secret import Secret


class InvalidValue(ValueError):
    """An option's value or type is invalid. The text may be empty, and may contain the value, so it may be secret."""


class Kind(ABC):
    """Parses and writes the values of one option type. The base class of all kinds."""

    expects: str
    """What a valid value is, for error texts: `takes a whole number`."""
    example: str
    """A text that `parse` accepts, for error texts."""
    holds_secret = False
    """Whether a value is or contains a `Secret`."""
    ambiguous = False
    """Whether `parse` may convert the result of `text` to another value, so that the writer must check it."""

    @abstractmethod
    def parse(self, value: object, key: str = "") -> Any:
        """Return `value`, a text or a typed value, as a value of this type. `key` is its key if it is in a map."""

    @abstractmethod
    def text(self, value: Any) -> str:
        """Return the text that `parse` converts to `value`."""

    @abstractmethod
    def owns(self, value: object) -> bool:
        """Return whether `value` already has this type."""

    def json(self, value: Any) -> object:
        """Return `value` as an item of a JSON array or object."""
        return self.text(value)


@dataclass(frozen=True)
class Scalar(Kind):
    """The kind of a type whose values are each written as one text without structure."""

    type: type
    expects: str
    example: str
    read: Callable[[object], object]
    write: Callable[[Any], str] = str
    plain: bool = False  # whether JSON has this type
    holds_secret: bool = False

    def parse(self, value: object, key: str = "") -> Any:
        return self.read(value)

    def text(self, value: Any) -> str:
        return self.write(value)

    def owns(self, value: object) -> bool:
        lookalike = {int: (bool, ByteSize), date: (datetime,)}.get(self.type, ())
        return isinstance(value, self.type) and not isinstance(value, lookalike)

    def json(self, value: Any) -> object:
        return value if self.plain else self.write(value)


def _read_str(value: object) -> str:
    if isinstance(value, str):
        return str(value.value) if isinstance(value, Enum) else value
    raise InvalidValue


def _read_bool(value: object) -> bool:
    found = {"true": True, "false": False}.get(value.strip().lower()) if isinstance(value, str) else value
    if isinstance(found, bool):
        return found
    raise InvalidValue


def _read_int(value: object) -> int:
    if isinstance(value, str):
        if re.fullmatch(r"\s*[+-]?[0-9]+\s*", value):
            return int(value)
    elif not isinstance(value, bool) and hasattr(value, "__index__"):
        return int(operator.index(value))
    raise InvalidValue


def _read_float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)) or "_" in str(value):
        raise InvalidValue
    try:
        number = float(value)
    except OverflowError as error:
        raise InvalidValue("too large") from error
    if math.isnan(number):
        raise InvalidValue
    return number


def _read_datetime(value: object) -> datetime:
    if isinstance(value, datetime):
        return value
    return datetime.fromisoformat(_read_str(value).strip())


def _read_date(value: object) -> date:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    return date.fromisoformat(_read_str(value).strip())


def _read_path(value: object) -> Path:
    return Path(value) if isinstance(value, os.PathLike) else Path(_read_str(value))


def _read_duration(value: object) -> Duration:
    if isinstance(value, (timedelta, int, float)) and not isinstance(value, (bool, ByteSize)):
        return Duration(value)
    return Duration(_read_str(value))


def _read_bytes(value: object) -> ByteSize:
    return ByteSize(value if isinstance(value, str) else _read_int(value))


def _read_secret(value: object) -> Secret:
    return value if isinstance(value, Secret) else Secret(_read_str(value))


SCALARS: Final = {
    kind.type: kind
    for kind in (
        Scalar(str, "a text", "abc", _read_str, plain=True),
        Scalar(bool, "true or false", "true", _read_bool, lambda value: str(value).lower(), plain=True),
        Scalar(int, "a whole number", "10", _read_int, plain=True),
        Scalar(float, "a number", "0.5", _read_float, repr, plain=True),
        Scalar(Duration, "a duration with a unit", "30s", _read_duration, lambda value: value.text),
        Scalar(timedelta, "a duration with a unit", "30s", _read_duration, lambda value: Duration(value).text),
        Scalar(ByteSize, "a size in bytes", "128m", _read_bytes, lambda value: value.text),
        Scalar(datetime, "a date and time", "2024-05-01T12:00:00Z", _read_datetime, datetime.isoformat),
        Scalar(date, "a date", "2024-05-01", _read_date, date.isoformat),
        Scalar(Path, "a path", "/data/in", _read_path),
        Scalar(Secret, "a secret or a reference to one", "env:NAME", _read_secret, holds_secret=True),
    )
}
TEXTUAL: Final = (str, Path)  # every text is a valid value of these


class Choice(Kind):
    """The kind of `Literal` and `Enum`: one of a few values."""

    def __init__(self, texts: Sequence[str], values: Sequence[object], also: Iterable[tuple[str, object]] = ()) -> None:
        self.texts, self._values = tuple(texts), tuple(values)
        if not texts:
            raise InvalidValue("the type of the option has no values to choose from")
        if len(set(texts)) < len(texts):
            raise InvalidValue("two values of the option's type are written as the same text")
        exact = {**dict(also), **dict(zip(texts, values, strict=True))}
        folded: dict[str, object] = {}
        for text, value in exact.items():
            folded.setdefault(text.lower(), value)
        self._by_text = {**folded, **exact}
        self.expects = "one of " + ", ".join(repr(text) for text in texts)
        self.example = texts[0]

    def parse(self, value: object, key: str = "") -> Any:
        if isinstance(value, str) and not isinstance(value, Enum):
            wanted = value if value in self._by_text else value.strip().lower()
            if wanted in self._by_text:
                return self._by_text[wanted]
            near = difflib.get_close_matches(value, self.texts, 1)
            raise InvalidValue(f"did you mean {near[0]!r}?" if near else "")
        if self.owns(value):
            return value
        raise InvalidValue

    def text(self, value: Any) -> str:
        return next(t for t, v in zip(self.texts, self._values, strict=True) if type(v) is type(value) and v == value)

    def owns(self, value: object) -> bool:
        return any(type(choice) is type(value) and choice == value for choice in self._values)


def choice_text(choice: object) -> str:
    """Return the text of a choice. The text of an enum member is its value if that is a str, else its name."""
    if isinstance(choice, Enum):
        return choice.value if isinstance(choice.value, str) else choice.name
    return str(choice).lower() if isinstance(choice, bool) else str(choice)
