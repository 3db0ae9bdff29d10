# SPDX-License-Identifier: Apache-2.0
"""Finds time zones by Spark's names, and the offset from UTC of a wall-clock time by java.time's rules."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC as _UTC
from datetime import datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from forebay.errors import ConfigurationError

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
    rest = formatted[len(prefix) :]
    if (rest == "Z" and not prefix) or (prefix and not rest):
        return Zone(name, fixed=0)
    if rest[:1] in ("+", "-"):
        return Zone(name, fixed=_fixed(rest))
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
    except ValueError:
        raise ConfigurationError(
            f"the option timeZone is {name!r}, which is not a known time zone",
            option="timeZone",
            advice="write an area and a city (Europe/Paris) or an offset (+02:00); on a machine without time zone "
            "files: pip install tzdata",
        ) from None


def _fixed(text: str) -> int:
    found = _OFFSET.fullmatch(text)
    if found is not None:
        sign, hours, colon, minutes, second_colon, seconds = found.groups()
        size = int(hours) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)
        wrong_shape = (len(hours) == 1 and minutes) or (seconds and colon != second_colon)
        if not wrong_shape and int(minutes or 0) <= 59 and int(seconds or 0) <= 59 and size <= _LARGEST:
            return -size if sign == "-" else size
    raise ValueError(f"{text!r} is not a valid offset from UTC")
