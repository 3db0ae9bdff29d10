# SPDX-License-Identifier: Apache-2.0
"""Dates, times and time zones written as text, read as Spark's own casts read them.

Used for `modifiedBefore`/`modifiedAfter` and for the values of partition directories. Results are plain integers
(days, microseconds), because Spark knows years that Python's `datetime` does not.
"""

from __future__ import annotations

import datetime as dt
import re
import zoneinfo
from functools import lru_cache

from forebay.errors import ConfigurationError

MICROS_PER_SECOND = 1_000_000
MICROS_PER_DAY = 86_400 * MICROS_PER_SECOND
_DAYS_PER_400_YEARS = 146_097
_EPOCH_ORDINAL = 719_163  # datetime.date(1970, 1, 1).toordinal()

# Short names that Java knows and the time zone database does not (java.time.ZoneId.SHORT_IDS).
_SHORT_IDS = {
    "ACT": "Australia/Darwin", "AET": "Australia/Sydney", "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo", "AST": "America/Anchorage", "BET": "America/Sao_Paulo", "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare", "CNT": "America/St_Johns", "CST": "America/Chicago", "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa", "ECT": "Europe/Paris", "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata", "JST": "Asia/Tokyo", "MIT": "Pacific/Apia", "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland", "PLT": "Asia/Karachi", "PNT": "America/Phoenix", "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles", "SST": "Pacific/Guadalcanal", "VST": "Asia/Ho_Chi_Minh",
    "EST": "-05:00", "MST": "-07:00", "HST": "-10:00",
}  # fmt: skip
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{1,2}))?(?::?(\d{2}))?", re.ASCII)
_DATE = re.compile(r"([+-]?)(\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.ASCII | re.DOTALL)
_TIME = re.compile(r"(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?)?", re.ASCII)
_TIMESTAMP = re.compile(
    r"([+-]?)(\d{4,6})(?:-(\d{1,2})(?:-(\d{1,2})"
    r"(?:[ T](\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?(\D.*)?)?)?)?)?)?",
    re.ASCII | re.DOTALL,
)


@lru_cache(maxsize=64)
def time_zone(name: str) -> dt.tzinfo:
    """The time zone of a name as Spark writes them: `UTC`, `Europe/Paris`, `+02:00`, `GMT-3`, `PST`.

    Called by listing and partition discovery, on any thread.

    Raises:
        ConfigurationError: There is no such time zone on this machine.
    """
    name = _SHORT_IDS.get(name, name)
    if name in ("Z", "UTC", "GMT", "UT"):
        return dt.UTC
    match = _OFFSET.fullmatch(name)
    if match:
        sign, hours, minutes, seconds = match.groups()
        offset = dt.timedelta(hours=int(hours), minutes=int(minutes or 0), seconds=int(seconds or 0))
        if offset <= dt.timedelta(hours=18):
            return dt.timezone(-offset if sign == "-" else offset)
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigurationError(
            f"unknown time zone {name!r}",
            option="timeZone",
            advice="write an area and a city (Europe/Paris) or an offset (+02:00); on a machine without time zone "
            "files: pip install tzdata",
        ) from None


def parse_date(text: str) -> int | None:
    """Days since 1970-01-01 of a date as Spark casts it (`2024-1-5`, `2024-01-05T…`), or None if it is none."""
    match = _DATE.fullmatch(text.strip(_JAVA_WHITE))
    if not match:
        return None
    sign, year, month, day = match.groups()
    return days_of(int(sign + year), int(month or 1), int(day or 1))


def parse_timestamp(text: str, zone: dt.tzinfo | None) -> int | None:
    """Microseconds since 1970 of a timestamp as Spark casts it, or None if it is none.

    A text that is only a time of day is refused: its meaning would change every day.

    Args:
        text: For example `2024-06-01T12:00:00`, `2024-6-1 12:00:00.5`, `2024-06-01 12:00:00 +02:00`.
        zone: The zone of a text that names none; None for a timestamp without time zone: a zone in
            the text is then left out of account, as Spark does.
    """
    match = _TIMESTAMP.fullmatch(text.strip(_JAVA_WHITE))
    if not match:
        return None
    sign, year, month, day, hour, minute, second, fraction, named = match.groups()
    if hour is not None and minute is None:
        # Spark takes "2024-01-01 12" as midday.
        minute = second = "0"
    days = days_of(int(sign + year), int(month or 1), int(day or 1))
    micros = _micros_of_day(hour or "0", minute or "0", second or "0", fraction or "")
    if days is None or micros is None:
        return None
    if named is not None:
        try:
            written = time_zone(named.strip())
        except ConfigurationError:
            return None
        zone = zone and written
    return to_utc(days, micros, zone)


def parse_time(text: str) -> int | None:
    """Microseconds since midnight of a time of day written `HH:mm:ss` with an optional fraction, or None."""
    match = _TIME.fullmatch(text.strip(_JAVA_WHITE))
    if not match:
        return None
    hour, minute, second, fraction = match.groups()
    return _micros_of_day(hour, minute, second or "0", fraction or "")


def days_of(year: int, month: int, day: int) -> int | None:
    """Days since 1970-01-01 of a proleptic Gregorian date of any year, or None if there is no such day."""
    cycles, within = divmod(year - 1, 400)
    try:
        ordinal = dt.date(within + 1, month, day).toordinal()
    except ValueError:
        return None
    return ordinal - _EPOCH_ORDINAL + cycles * _DAYS_PER_400_YEARS


def to_utc(days: int, micros: int, zone: dt.tzinfo | None) -> int:
    """Microseconds since 1970 UTC of a wall clock reading in `zone` (None: as it stands).

    In the hour that a change of clocks skips, the reading is moved forward; in the hour it repeats, the earlier
    instant is taken: the rule of `java.time`, and what `fold=0` gives.
    """
    wall = days * MICROS_PER_DAY + micros
    if zone is None or zone is dt.UTC:
        return wall
    cycles = 0
    ordinal = days + _EPOCH_ORDINAL
    if not 2 <= ordinal <= 3_652_000:  # outside years 1 to 9998 the calendar is the same 400 years on or back
        cycles = (ordinal - _DAYS_PER_400_YEARS * 4) // _DAYS_PER_400_YEARS
        ordinal -= cycles * _DAYS_PER_400_YEARS
    moment = dt.datetime.combine(dt.date.fromordinal(ordinal), dt.time()) + dt.timedelta(microseconds=micros)
    offset = moment.replace(tzinfo=zone).utcoffset() or dt.timedelta()
    return wall - (offset.days * MICROS_PER_DAY + offset.seconds * MICROS_PER_SECOND + offset.microseconds)


_JAVA_WHITE = "".join(map(chr, range(0x21))) + "\x7f"  # what Spark trims before a cast


def _micros_of_day(hour: str, minute: str, second: str, fraction: str) -> int | None:
    h, m, s = int(hour), int(minute), int(second)
    if h > 23 or m > 59 or s > 59:
        return None
    return ((h * 60 + m) * 60 + s) * MICROS_PER_SECOND + int((fraction + "000000")[:6])
