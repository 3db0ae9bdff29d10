# SPDX-License-Identifier: Apache-2.0
"""Dates, timestamps and time zones as Spark's CAST has them, one value at a time; without pyarrow, for query nodes."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from datetime import UTC as _UTC
from datetime import datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from forebay.errors import ConfigurationError

# -- Finds time zones by Spark's names, and the offset from UTC of a wall-clock time by java.time's rules.


_LARGEST = 18 * 3600
_EPOCH = datetime(1970, 1, 1, tzinfo=_UTC)
_400_YEARS = 146_097 * 86_400
_FIRST = -62_135_510_400  # 0001-01-02T00:00:00 in seconds since the epoch
_LAST = 253_402_214_399  # 9999-12-30T23:59:59

# java.time.ZoneId.SHORT_IDS
_SHORT_IDS = {
    "ACT": "Australia/Darwin",
    "AET": "Australia/Sydney",
    "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo",
    "AST": "America/Anchorage",
    "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare",
    "CNT": "America/St_Johns",
    "CST": "America/Chicago",
    "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris",
    "EST": "-05:00",
    "HST": "-10:00",
    "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia",
    "MST": "-07:00",
    "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh",
}
_OFFSET = re.compile(r"([+-])(\d\d?)(?:(:?)(\d\d)(?:(:?)(\d\d))?)?", re.ASCII)
_ONE_DIGIT_HOUR = re.compile(r"([+-])(\d):", re.ASCII)
_ONE_DIGIT_MINUTE = re.compile(r"([+-])(\d\d):(\d)$", re.ASCII)
_REGION = re.compile(r"[A-Za-z][A-Za-z0-9~/._+-]+")
_NOT_IN_JAVA = re.compile(r"(?:posix|right|localtime).*|Factory|ROC", re.DOTALL)
"""Names of the system's time zone files that Java's database does not have."""


@dataclass(frozen=True, slots=True)
class Zone:
    """A time zone: a fixed offset, or the rules of a region. Picklable."""

    name: str
    fixed: int | None = None
    """The offset in seconds east of UTC; None for a region."""
    region: ZoneInfo | None = field(default=None, compare=False)

    def offset(self, wall_seconds: int) -> int:
        """Return the offset from UTC in seconds for a wall-clock time in seconds since 1970-01-01T00:00:00.

        As in java.time, a time in an overlap has the earlier offset, and a time in a gap has the offset before the gap.
        """
        if self.region is None:
            return self.fixed or 0
        # Python's calendar has the years 1 to 9999. Rules repeat after 400 years, and long ago the offset is constant.
        if wall_seconds > _LAST:
            wall_seconds -= -(-(wall_seconds - _LAST) // _400_YEARS) * _400_YEARS
        # Arithmetic inside one zone is on the wall clock.
        offset = (_EPOCH.replace(tzinfo=self.region) + timedelta(seconds=max(wall_seconds, _FIRST))).utcoffset()
        return int(offset.total_seconds()) if offset is not None else 0


UTC = Zone("UTC", fixed=0)


@lru_cache(maxsize=1024)
def zone(name: str) -> Zone:
    """Return the zone with a name that Spark accepts, such as `Europe/Paris` or `+1:00`.

    Raises:
        ValueError: The zone is unknown.
    """
    formatted = _ONE_DIGIT_HOUR.sub(r"\g<1>0\2:", name, count=1)
    formatted = _ONE_DIGIT_MINUTE.sub(r"\1\2:0\3", formatted, count=1)
    formatted = _SHORT_IDS.get(formatted, formatted)
    prefix = next((word for word in ("UTC", "GMT", "UT") if formatted.startswith(word)), "")
    offset = formatted[len(prefix) :]
    if (offset == "Z" and not prefix) or (prefix and not offset):
        return Zone(name, fixed=0)
    if offset[:1] in ("+", "-"):
        return Zone(name, fixed=_fixed(offset))
    if not _REGION.fullmatch(formatted) or _NOT_IN_JAVA.fullmatch(formatted):
        raise ValueError(f"{name!r} is not the name of a time zone or an offset")
    try:
        return Zone(name, region=ZoneInfo(formatted))
    except (ZoneInfoNotFoundError, OSError, ValueError) as error:
        raise ValueError(f"{name!r} is not in the time zone files of this machine") from error


def session_zone(name: str) -> Zone:
    """Return the zone that the option `timeZone` names.

    Raises:
        ConfigurationError: The zone is unknown.
    """
    try:
        return zone(name)
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"the option timeZone is {name!r}, which is not a known time zone",
            option="timeZone",
            advice="write an area and a city (Europe/Paris) or an offset (+02:00); on a machine without time zone "
            "files: pip install tzdata",
        ) from None


def _fixed(text: str) -> int:
    match = _OFFSET.fullmatch(text)
    if match is not None:
        sign, hours, colon, minutes, second_colon, seconds = match.groups()
        size = int(hours) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)
        wrong_shape = (len(hours) == 1 and minutes) or (seconds and colon != second_colon)
        if not wrong_shape and int(minutes or 0) <= 59 and int(seconds or 0) <= 59 and size <= _LARGEST:
            return -size if sign == "-" else size
    raise ValueError(f"{text!r} is not a valid offset from UTC")


# -- Parses dates, timestamps and times from strings as Spark's CAST does, one value at a time.
#
# The forms are those of `stringToDate`, `parseTimestampString` and `stringToTime` in Spark's `SparkDateTimeUtils`.
# Results are integers, because Spark has years that Python's `datetime` lacks.


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
    match = _DATE.fullmatch(text.strip(_TRIMMED))
    if match is None:
        return None
    days = days_of(int(match[1]), int(match[2] or 1), int(match[3] or 1))
    return days if days is not None and -_INT32 <= days < _INT32 else None


def parse_timestamp(text: str, session_zone: Zone, *, time_alone: bool = True) -> int | None:
    """Parse a text such as `2024-6-1 12:00:00.5 +02:00` to µs since 1970 UTC; None if the text has another form.

    A text without a zone is wall-clock time in `session_zone`. With `time_alone`, a time without a date is a time of
    today, as in Spark. Options and directory names set it to False, because their meaning must not change from day to
    day.
    """
    parts = _fields(text)
    if parts is None:
        return None
    fields, zone_name, only_time = parts
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
    parts = _fields(text)
    if parts is None or parts[2]:
        return None
    fields, zone_name, _ = parts
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
    parts = _fields(text if half is None else text[: half.start()])
    if parts is None or parts[1] is not None or not parts[2]:
        return None
    fields = parts[0]
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
    time_text: str | None = trimmed.removeprefix("T")
    if date is not None:
        if len(date[1].lstrip("+-")) > _YEAR_DIGITS:
            return None
        day, time_text = [int(date[1]), int(date[2] or 1), int(date[3] or 1)], date[4]
        if time_text is None:
            return [*day, 0, 0, 0, 0], None, False
    elif trimmed[0] != "T" and ":" not in trimmed[:3]:
        return None
    match = _TIME.fullmatch(time_text or "")
    if match is None:
        return None
    micros = int(((match[4] or "") + "000000")[:6])
    return [*day, int(match[1]), int(match[2] or 0), int(match[3] or 0), micros], match[5], date is None
