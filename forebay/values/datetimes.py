# SPDX-License-Identifier: Apache-2.0
"""Dates and timestamps from strings as Spark's CAST reads them, one value at a time.

The shapes are those of `stringToDate`, `parseTimestampString` and `stringToTime` in Spark's `SparkDateTimeUtils`.
Results are plain integers, because Spark has years that Python's `datetime` lacks. Formats let Arrow parse the usual
shapes of a block and call this module for the rest; partition directories and `modifiedBefore` come here at once.
"""

from __future__ import annotations

import re
import time

from forebay.values.zones import Zone, zone

MICROS = 1_000_000
_INT32 = 2**31
_INT64 = 2**63
_TRIMMED = "".join(map(chr, range(33))) + "\x7f"
_HALF_OF_DAY = re.compile(r" ?([AaPp])[Mm] *\Z")
_MONTH_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def days_of(year: int, month: int, day: int) -> int | None:
    """Days since 1970-01-01 in the proleptic Gregorian calendar, for any year; None if there is no such day."""
    if not (1 <= month <= 12 and 1 <= day <= _MONTH_DAYS[month - 1]):
        return None
    if month == 2 and day == 29 and not (year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)):
        return None
    shifted = year - (month <= 2)
    era, of_era = divmod(shifted, 400)
    day_of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + day_of_year - 719_468


def parse_date(text: str) -> int | None:
    """Days since 1970-01-01 of `[+-]yyyy[-[m]m[-[d]d[( |T)anything]]]`; None if it is no date."""
    text = text.strip(_TRIMMED)
    sign = -1 if text.startswith("-") else 1
    if text.startswith(("-", "+")):
        text = text[1:]
    parts = text.split("-", 2)
    if len(parts) == 3:
        parts[2] = parts[2].replace("T", " ", 1).split(" ", 1)[0]
    for place, part in enumerate(parts):
        low, high = (4, 7) if place == 0 else (1, 2)
        if not (low <= len(part) <= high and part.isascii() and part.isdigit()):
            return None
    year, month, day = ([int(part) for part in parts] + [1, 1])[:3]
    days = days_of(sign * year, month, day)
    return days if days is not None and -_INT32 <= days < _INT32 else None


class _Shape(Exception):
    """The text has not the shape of a timestamp."""


def parse_timestamp(text: str, session_zone: Zone, *, time_alone: bool = True) -> int | None:
    """Microseconds since the epoch of a timestamp; None if it is none.

    Args:
        text: For example `2024-06-01T12:00:00`, `2024-6-1 12:00:00.5`, `2024-06-01 12:00:00 +02:00`.
        session_zone: The zone of a text that names none.
        time_alone: Take a time without a date for today's, as Spark does. Without it such a text is no timestamp:
            for options and directory names, which must mean the same tomorrow.
    """
    found = _fields(text)
    if found is None:
        return None
    fields, zone_name, only_time = found
    if only_time and not time_alone:
        return None
    try:
        where = session_zone if zone_name is None else zone(zone_name.strip(_TRIMMED))
    except ValueError:
        return None
    if only_time:
        now = int(time.time())
        today = (now + where.offset(now)) // 86_400
        wall = _wall_micros(today, fields)
    else:
        wall = _wall_micros(days_of(*fields[:3]), fields)
    if wall is None:
        return None
    micros = wall - where.offset(wall // MICROS) * MICROS
    return micros if -_INT64 <= micros < _INT64 else None


def parse_timestamp_ntz(text: str, *, allow_zone: bool = False) -> int | None:
    """Microseconds since 1970-01-01T00:00:00 on the wall clock; None if it is none, or has no date.

    Args:
        text: As for `parse_timestamp`.
        allow_zone: Ignore a zone in the text, as Spark's CAST does. Without it such a text is no value, as in
            Spark's CSV and JSON.
    """
    found = _fields(text)
    if found is None or found[2]:
        return None
    fields, zone_name, _ = found
    if zone_name is not None:
        if not allow_zone:
            return None
        try:
            zone(zone_name.strip(_TRIMMED))
        except ValueError:
            return None
    wall = _wall_micros(days_of(*fields[:3]), fields)
    return wall if wall is not None and -_INT64 <= wall < _INT64 else None


def parse_time(text: str) -> int | None:
    """Microseconds since midnight of `[h]h:[m]m[:[s]s[.fraction]]`, and AM or PM; None if it is none."""
    half = _HALF_OF_DAY.search(text)
    found = _fields(text if half is None else text[: half.start()])
    if found is None or found[1] is not None or not found[2]:
        return None
    fields = found[0]
    if half is not None:
        if not 1 <= fields[3] <= 12:
            return None
        fields[3] = fields[3] % 12 + (12 if half[1] in "pP" else 0)
    return _wall_micros(0, fields)


def _wall_micros(days: int | None, fields: list[int]) -> int | None:
    hour, minute, second, micros = fields[3:7]
    if days is None or hour > 23 or minute > 59 or second > 59:
        return None
    return (days * 86_400 + hour * 3600 + minute * 60 + second) * MICROS + micros


def _fields(text: str) -> tuple[list[int], str | None, bool] | None:
    """Year to microsecond, the zone's name, and whether there is only a time; None if the shape is wrong."""
    trimmed = text.strip(_TRIMMED)
    if not trimmed or (trimmed[0] == "T" and text[0] != "T"):
        return None
    try:
        return _Scan(trimmed).fields()
    except _Shape:
        return None


class _Scan:
    """One pass over a text: seven numbers with their separators, then the name of a zone."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._values = [1, 1, 1, 0, 0, 0, 0]
        self._at = 0

    def fields(self) -> tuple[list[int], str | None, bool]:
        sign = {"-": -1, "+": 1}.get(self._text[0])
        if sign is not None:
            self._at = 1
        part = 0
        only_time = False
        if self._text[0] == "T":
            self._at, part, only_time = 1, 3, True
        zone_name: str | None = None
        while True:
            digits = self._digits()
            if self._at == len(self._text):
                self._store(part, digits)
                break
            separator = self._text[self._at]
            if part == 0 and separator == ":" and sign is None:
                part, only_time = 3, True
            self._store(part, digits)
            if part >= 5 and not (part == 5 and separator == "."):
                zone_name = self._text[self._at :]
                break
            if separator not in ("-", "-", " T", ":", ":", ".")[part]:
                raise _Shape
            self._at += 1
            part += 1
        self._values[0] *= sign or 1
        return self._values, zone_name, only_time

    def _digits(self) -> str:
        start = self._at
        while self._at < len(self._text) and self._text[self._at] in "0123456789":
            self._at += 1
        return self._text[start : self._at]

    def _store(self, part: int, digits: str) -> None:
        low, high = (4, 6) if part == 0 else (1, 2)
        if part == 6:
            self._values[6] = int((digits + "000000")[:6])
        elif low <= len(digits) <= high:
            self._values[part] = int(digits)
        else:
            raise _Shape
