# SPDX-License-Identifier: Apache-2.0
"""Option types with units: durations and byte sizes."""

from __future__ import annotations

import re
from datetime import timedelta
from fractions import Fraction
from typing import TYPE_CHECKING, Final, Self, TypeAlias

DurationLike: TypeAlias = float | str | timedelta
"""Seconds (int or float), a text with units such as `"10s"`, or a timedelta."""

_MICROSECOND: Final = timedelta(microseconds=1)
_MICROSECONDS: Final = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}
_TIME_WORDS: Final = {
    "us": "us µs usec usecs microsecond microseconds",
    "ms": "ms msec msecs millis millisecond milliseconds",
    "s": "s sec secs second seconds",
    "m": "m min mins minute minutes",
    "h": "h hr hrs hour hours",
    "d": "d day days",
    "w": "w week weeks",
}
_TIME_UNITS: Final = {word: _MICROSECONDS[unit] for unit, words in _TIME_WORDS.items() for word in words.split()}
_PART = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zµ]+)")
_ISO = re.compile(r"p(?:(N)w)?(?:(N)d)?(?:t(?:(N)h)?(?:(N)m)?(?:(N)s)?)?".replace("N", r"[0-9]+(?:\.[0-9]+)?"))
_BYTES = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)")
_BYTE_UNITS: Final = {
    word: 1024**power
    for power, words in enumerate(("b byte bytes", "k kb kib", "m mb mib", "g gb gib", "t tb tib", "p pb pib"))
    for word in words.split()
}


class Duration(timedelta):
    """A timedelta of 0 or more that can be made from seconds or a text. Arithmetic returns plain timedeltas.

    A text has parts with units (`30s`, `500ms`, `1h30m`, `1 minute 30 seconds`), or is in ISO 8601 (`PT1M30S`).

    Args:
        value: Seconds (int or float), a text, or a timedelta.

    Raises:
        ValueError: The text is not a duration or is finer than a microsecond, or the value is negative or too large.
    """

    def __new__(cls, value: DurationLike = 0) -> Self:
        """Create a duration from seconds, a text or a timedelta."""
        try:
            if isinstance(value, str):
                microseconds = _parse_duration(value)
            else:
                microseconds = (value if isinstance(value, timedelta) else timedelta(seconds=value)) // _MICROSECOND
            if microseconds < 0:
                raise ValueError("the duration is negative")
            return super().__new__(cls, microseconds=microseconds)
        except OverflowError as error:
            raise ValueError("the duration is too long") from error

    @property
    def text(self) -> str:
        """The duration in the largest unit that divides it, for example `90s` or `5m`."""
        microseconds = self // _MICROSECOND
        unit = [unit for unit, size in _MICROSECONDS.items() if microseconds % size == 0][-1] if microseconds else "s"
        return f"{microseconds // _MICROSECONDS[unit]}{unit}"

    def __float__(self) -> float:
        return self.total_seconds()

    def __repr__(self) -> str:
        return f"Duration({self.text!r})"

    def __reduce__(self) -> tuple[type[Self], tuple[str]]:
        return (type(self), (self.text,))


if TYPE_CHECKING:

    class DurationField:
        """The static type of a `Duration` option.

        Type checkers take the constructor argument's type from `__set__`.
        """

        def __get__(self, instance: object, owner: object = None) -> Duration: ...
        def __set__(self, instance: object, value: DurationLike) -> None: ...

    class OptionalDurationField:
        """The static type of a `Duration | None` option. See `DurationField`."""

        def __get__(self, instance: object, owner: object = None) -> Duration | None: ...
        def __set__(self, instance: object, value: DurationLike | None) -> None: ...

else:
    DurationField = Duration
    OptionalDurationField = Duration | None


def to_seconds(value: DurationLike) -> float:
    """Return a duration in seconds. A number or timedelta may be negative or infinite.

    Raises:
        ValueError: The text is not a duration, or the value is not a number, text or timedelta.
    """
    if isinstance(value, str):
        value = Duration(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"a {type(value).__name__} is not a duration: use seconds")  # noqa: TRY004 - callers handle one error
    return value


def _parse_duration(text: str) -> int:
    text = text.strip().lower()
    total = Fraction(0)
    if text.startswith("p"):
        match = _ISO.fullmatch(text)
        if match is None or not any(match.groups()) or text.endswith("t"):
            raise ValueError("the value is not an ISO 8601 duration of weeks, days, hours, minutes and seconds")
        for unit, number in zip("wdhms", match.groups(), strict=True):
            total += Fraction(number or 0) * _MICROSECONDS[unit]
    elif text != "0":
        total = _sum_of_parts(text)
    if total.denominator != 1:
        raise ValueError("the duration is not a whole number of microseconds")
    return total.numerator


def _sum_of_parts(text: str) -> Fraction:
    total, at = Fraction(0), 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None:
            raise ValueError("write the duration as numbers with units: us, ms, s, m, h, d or w")
        number, unit = part.groups()
        if unit not in _TIME_UNITS:
            raise ValueError(f"{unit!r} is not a unit of time: use us, ms, s, m, h, d or w")
        total += Fraction(number) * _TIME_UNITS[unit]
        at = part.end()
    if not at:
        raise ValueError("the text is empty")
    return total


class ByteSize(int):
    """A number of bytes: an int that can be made from `64k`, `128m` or `1.5GB`. Units are powers of 1024, as in Spark.

    Args:
        value: The bytes, or a text; fractions of a byte are rounded down.

    Raises:
        ValueError: The text is not a size, or the size is negative.
    """

    def __new__(cls, value: int | str = 0) -> Self:
        """Create a size from a number of bytes or a text."""
        size = _parse_bytes(value) if isinstance(value, str) else int(value)
        if size < 0:
            raise ValueError("the number of bytes is negative")
        return super().__new__(cls, size)

    @property
    def text(self) -> str:
        """The size in the largest unit that divides it, for example `128m`."""
        for unit in ("p", "t", "g", "m", "k"):
            if self and self % _BYTE_UNITS[unit] == 0:
                return f"{self // _BYTE_UNITS[unit]}{unit}"
        return str(int(self))


def _parse_bytes(text: str) -> int:
    match = _BYTES.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError("the value is not a number with an optional unit, such as 64m")
    number, unit = match.groups()
    if unit and unit not in _BYTE_UNITS:
        raise ValueError(f"{unit!r} is not a unit of bytes: use b, k, m, g, t or p")
    return int(Fraction(number) * _BYTE_UNITS[unit or "b"])
