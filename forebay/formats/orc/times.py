# SPDX-License-Identifier: Apache-2.0
"""Converts dates and timestamps of ORC files to the values that Spark reads.

A timestamp is stored as seconds since 2015-01-01T00:00:00 in the time zone of the writer, and nanoseconds. As in ORC's
Java reader, a TIMESTAMP keeps its wall-clock time in the zone of the reader. Spark treats the result as a time of the
old calendar (Julian before 1582-10-15, fixed offsets before 1900), and converts it to the new one (Gregorian).
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import DataError
from forebay.formats.values.calendars import FIRST_COMMON_DAY, FIRST_DAY, day_shift
from forebay.formats.values.zones import UTC, Zone, zone

_BASE = 1_420_070_400
"""2015-01-01T00:00:00 in seconds since 1970."""
_SECOND_US = 1_000_000
_DAY = 86_400
_1900 = -2_208_988_800
_FAR = 2_114_380_800
"""2037-01-01 in seconds: the tables of time zones end in this year."""
_LAST = 253_402_214_399
_400_YEARS = 146_097 * _DAY
_MILLI_NS = 999_999
"""If a time before 1970 has more nanoseconds than this, the writer rounded its second towards zero."""
_UTC_NAMES = frozenset({"UTC", "Etc/UTC", "Z", "GMT", "Etc/GMT", "UCT", "Etc/UCT", "Zulu", "Universal"})
_RECENT = 1_768_521_600
"""An instant in January 2026, in seconds. At this time or half a year later, a zone has its standard time."""
_HALF_YEAR = 182 * _DAY


@dataclass(frozen=True, slots=True)
class Times:
    """Converts the dates and timestamps of one stripe.

    Args:
        path: The path of the file, for errors.
        proleptic: Whether the file's dates are in the new calendar.
        writer: The time zone of the writer; None if the file does not name it.
        reader: The time zone of the session.
    """

    path: str
    proleptic: bool
    writer: Zone | None
    reader: Zone

    def dates(self, array: pa.Array, column: str) -> pa.Array:
        """Convert dates to the new calendar; raise DataError for dates before the year 1."""
        oldest = pc.min(array).cast(pa.int32()).as_py() if len(array) else None
        if self.proleptic or oldest is None or oldest >= FIRST_COMMON_DAY:
            return array
        if oldest < FIRST_DAY:
            raise self._too_old(column)
        days = array.view(pa.int32())
        return pc.add(days, day_shift(days)).view(pa.date32())

    def timestamps(self, array: pa.Array, column: str, *, local: bool) -> pa.Array:
        """Convert timestamps to instants in microseconds; raise DataError for times before the year 1.

        Args:
            array: Structs of two fields: the stored seconds, and a timestamp that is 2015-01-01 plus the nanoseconds.
            column: The name of the column, for errors.
            local: Whether the times are wall-clock times (TIMESTAMP), not instants.
        """
        parts = cast("pa.StructArray", array)
        writer = (self.writer or self.reader) if local else UTC
        base = _BASE - writer.offset(_BASE)
        seconds = pc.add_checked(parts.field(0), base)
        nanos = pc.subtract(parts.field(1).cast(pa.int64()), _BASE * 1_000_000_000)
        # As in ORC for Java: the writer rounded the second towards zero, except if there were no milliseconds.
        if (pc.min(seconds).as_py() or 0) < 0:
            late = pc.and_(pc.less(seconds, 0), pc.greater(nanos, _MILLI_NS))
            seconds = pc.subtract(seconds, late.cast(pa.int64()))
        if local and not same_rules(writer, self.reader):
            seconds = _moved(seconds, writer, self.reader)
        micros = pc.add(pc.multiply_checked(seconds, _SECOND_US), pc.divide(nanos, 1000))
        if (pc.min(seconds).as_py() or 0) < _1900 + _DAY:
            micros = self._rebased(micros, column)
        if array.null_count:
            micros = pc.if_else(pc.is_valid(array), micros, pa.scalar(None, pa.int64()))
        return micros.cast(pa.timestamp("us", "UTC"))

    def _rebased(self, micros: pa.Array, column: str) -> pa.Array:
        """Convert times before 1900 from the old calendar: the wall-clock times stay the same."""
        values = micros.to_pylist()
        raw = raw_offset(self.reader)
        for place, value in enumerate(values):
            if value is None or value >= _1900 * _SECOND_US:
                continue
            wall, rest = divmod(value + raw * _SECOND_US, _SECOND_US)
            days, second = divmod(wall, _DAY)
            if days < FIRST_DAY:
                raise self._too_old(column)
            if days < FIRST_COMMON_DAY:
                days += day_shift(pa.array([days], pa.int32()))[0].as_py()
            wall = days * _DAY + second
            values[place] = (wall - self.reader.offset(wall)) * _SECOND_US + rest
        return pa.array(values, pa.int64())

    def _too_old(self, column: str) -> DataError:
        return DataError(
            f"column {column!r} of {self.path} holds times before the year 1 of the Julian calendar",
            option="schema",
            advice="remove the column from the schema, or read the file with Spark's own ORC reader",
        )


def writer_zone(name: str) -> Zone | None:
    """Return the time zone that a stripe footer names; None without a name (old files); raise ValueError if unknown."""
    if not name:
        return None
    return UTC if name in _UTC_NAMES else zone(name)


@lru_cache(maxsize=64)
def raw_offset(where: Zone) -> int:
    """Return a zone's present standard offset in seconds. java.util.TimeZone uses it for times before 1900."""
    return min(_offset_at(where, _RECENT), _offset_at(where, _RECENT + _HALF_YEAR))


def same_rules(left: Zone, right: Zone) -> bool:
    """Return whether two zones have the same name or the same fixed offset, or both are UTC."""
    if left.fixed is not None or right.fixed is not None:
        return left.fixed == right.fixed or {left.name, right.name} <= _UTC_NAMES
    return left.name == right.name


def _offset_at(where: Zone, instant: int) -> int:
    """Return the offset of a zone at an instant, in seconds."""
    if where.region is None:
        return where.fixed or 0
    if instant > _LAST:
        instant -= -(-(instant - _LAST) // _400_YEARS) * _400_YEARS
    offset = dt.datetime.fromtimestamp(max(instant, _1900), where.region).utcoffset()
    return 0 if offset is None else int(offset.total_seconds())


def _offsets(instants: pa.Array, where: Zone) -> pa.Array:
    """Return the offsets of a zone at instants, in seconds, by java.util.TimeZone's rules."""
    if where.region is None:
        return pc.add(pc.multiply(instants, 0), where.fixed or 0)
    near = pc.and_(pc.greater_equal(instants, _1900), pc.less(instants, _FAR))
    moments = pc.if_else(near, instants, 0).cast(pa.timestamp("s", where.region.key))
    offsets = pc.subtract(pc.local_timestamp(moments).cast(pa.int64()), moments.cast(pa.int64()))
    if pc.all(near).as_py() is not False:
        return offsets
    # Arrow does not know the rules of zones for times after its tables.
    known = {
        instant: raw_offset(where) if instant < _1900 else _offset_at(where, instant)
        for instant in pc.unique(pc.filter(instants, pc.invert(near))).to_pylist()
        if instant is not None
    }
    others = [known.get(instant) for instant in instants.to_pylist()]
    return pc.if_else(near, offsets, pa.array(others, pa.int64()))


def _moved(seconds: pa.Array, writer: Zone, reader: Zone) -> pa.Array:
    """Return the instants at which the reader's clock shows the time that the writer's clock showed.

    As ORC's SerializationUtils does.
    """
    written = _offsets(seconds, writer)
    guess = pc.subtract(pc.add(seconds, written), _offsets(seconds, reader))
    return pc.subtract(pc.add(seconds, written), _offsets(guess, reader))
