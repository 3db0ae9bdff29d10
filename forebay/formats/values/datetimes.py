# SPDX-License-Identifier: Apache-2.0
"""Parses dates, timestamps and times from strings as Spark's CAST does, one value at a time.

The forms are those of `stringToDate`, `parseTimestampString` and `stringToTime` in Spark's `SparkDateTimeUtils`.
Results are integers, because Spark has years that Python's `datetime` lacks.
"""

from __future__ import annotations

import re
import time

from forebay.formats.values.zones import Zone, zone

MICROS = 1_000_000
_INT32 = 2**31
_INT64 = 2**63
_TRIMMED = "".join(map(chr, range(33))) + "\x7f"
_DATE = re.compile(r"([+-]?[0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T](.*))?)?)?", re.DOTALL)
_TIME = re.compile(r"([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?([^0-9].*)?)?)?", re.DOTALL)
_YEAR_DIGITS = 6
"""Maximum digits of a year in a timestamp; a date may have one more."""
_HALF_OF_DAY = re.compile(r" ?([AaPp])[Mm] *\Z")
_MONTH_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def days_of(year: int, month: int, day: int) -> int | None:
    """Return the days since 1970-01-01 of a date in the proleptic Gregorian calendar, for any year.

    Returns None if the calendar has no such day.
    """
    if not (1 <= month <= 12 and 1 <= day <= _MONTH_DAYS[month - 1]):
        return None
    if month == 2 and day == 29 and not (year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)):
        return None
    shifted = year - (month <= 2)
    era, of_era = divmod(shifted, 400)
    day_of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + day_of_year - 719_468


def parse_date(text: str) -> int | None:
    """Parse `[+-]yyyy[-[m]m[-[d]d[( |T)anything]]]` to days since 1970-01-01; None if the text has another form."""
    found = _DATE.fullmatch(text.strip(_TRIMMED))
    if found is None:
        return None
    days = days_of(int(found[1]), int(found[2] or 1), int(found[3] or 1))
    return days if days is not None and -_INT32 <= days < _INT32 else None


def parse_timestamp(text: str, session_zone: Zone, *, time_alone: bool = True) -> int | None:
    """Parse a text such as `2024-6-1 12:00:00.5 +02:00` to µs since 1970 UTC; None if the text has another form.

    A text without a zone is wall-clock time in `session_zone`. With `time_alone`, a time without a date is a time of
    today, as in Spark. Options and directory names set it to False, because their meaning must not change from day to
    day.
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
    now = int(time.time())
    days = (now + where.offset(now)) // 86_400 if only_time else days_of(*fields[:3])
    wall = _wall_micros(days, fields)
    if wall is None:
        return None
    micros = wall - where.offset(wall // MICROS) * MICROS
    return micros if -_INT64 <= micros < _INT64 else None


def parse_timestamp_ntz(text: str, *, allow_zone: bool = False) -> int | None:
    """Parse a text to wall-clock µs since 1970-01-01T00:00:00; None if the text has another form or no date.

    With `allow_zone`, a zone in the text is ignored, as in Spark's CAST. Without it, the result for a text with a zone
    is None, as in CSV and JSON.
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
    """Parse `[h]h:[m]m[:[s]s[.fraction]]`, optionally with AM or PM, to microseconds since midnight.

    Returns None if the text has another form.
    """
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
    """Split a timestamp into its fields from year to microsecond, its zone, and whether its date is missing.

    Returns:
        None if the text has another form.
    """
    trimmed = text.strip(_TRIMMED)
    if not trimmed or (trimmed[0] == "T" and text[0] != "T"):
        return None
    date, day = _DATE.fullmatch(trimmed), [1, 1, 1]
    rest: str | None = trimmed.removeprefix("T")
    if date is not None:
        if len(date[1].lstrip("+-")) > _YEAR_DIGITS:
            return None
        day, rest = [int(date[1]), int(date[2] or 1), int(date[3] or 1)], date[4]
        if rest is None:
            return [*day, 0, 0, 0, 0], None, False
    elif trimmed[0] != "T" and ":" not in trimmed[:3]:
        return None
    found = _TIME.fullmatch(rest or "")
    if found is None:
        return None
    micros = int(((found[4] or "") + "000000")[:6])
    return [*day, int(found[1]), int(found[2] or 0), int(found[3] or 0), micros], found[5], date is None
