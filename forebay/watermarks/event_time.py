# SPDX-License-Identifier: Apache-2.0
"""The units of event time, the event times of a record batch, and how far one split may run ahead of another.

Timestamps are assigned in two steps (OUT-1): the source may give the earliest and latest event time of a batch, then an
assigner may replace them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import ConfigurationError

MIN_WATERMARK: Final = -(2**63)
"""The initial watermark; it asserts nothing (WM-1)."""

MAX_WATERMARK: Final = 2**63 - 1
"""The watermark at the end of a bounded input: no record follows (WM-1). No record has this event time."""

FUTURE: Final = 86_400_000_000
"""Microseconds. An event time further than this after the present is taken for that of a broken clock."""

_MICROS_PER_UNIT: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}


class EventTimes(NamedTuple):
    """The event times of one record batch, in microseconds since 1970-01-01 UTC.

    Attributes:
        earliest: The smallest event time in the batch.
        latest: The largest event time in the batch.
    """

    earliest: int
    latest: int


TimestampAssigner: TypeAlias = Callable[[pa.RecordBatch, EventTimes | None], EventTimes | None]
"""A function that returns the final event times of a batch with rows (step 2 of OUT-1).

Its second argument is the source's event times, or None. If it returns None, the batch has no event time and is not
passed to a generator. It is called on the task thread for every batch, so it must be vectorised. As a part of a
strategy that is pickled, it must be picklable.
"""


def keep_source_times(_batch: pa.RecordBatch, times: EventTimes | None) -> EventTimes | None:
    """Return the event times of the source unchanged: the default assigner (OUT-1)."""
    return times


@dataclass(frozen=True)
class ColumnTimestamps:
    """An assigner that reads the event times from a column and ignores those of the source.

    The column is a timestamp of any unit and zone (without a zone: UTC; nanoseconds are rounded down), or int64
    microseconds since 1970-01-01 UTC. Nulls are ignored; an all-null batch has no event time.

    Args:
        column: The name of a top-level column; if no column has this name, the dotted path of a field inside structs,
            such as `value.ts`. A null struct on the path counts as a null.
        option: The option that named the column, for errors.
    """

    column: str
    option: str = field(default="event_time", compare=False)

    def __call__(self, batch: pa.RecordBatch, times: EventTimes | None) -> EventTimes | None:
        """Return the smallest and the largest value of the column, in microseconds; None if all values are null."""
        event_field = self._find(batch.schema)
        values = batch.column(event_field.indices[0])
        if len(event_field.indices) > 1:
            values = pc.struct_field(values, event_field.indices[1:])
        # Compare timestamps as integers; the view copies nothing.
        extremes = pc.min_max(values.view(pa.int64()))
        earliest, latest = extremes["min"].as_py(), extremes["max"].as_py()
        if earliest is None or latest is None:
            return None
        unit = event_field.kind.unit if isinstance(event_field.kind, pa.TimestampType) else "us"
        return EventTimes(_in_micros(earliest, unit), _in_micros(latest, unit))

    def check(self, schema: pa.Schema) -> str:
        """Return the top-level column that contains the event time. Hosts call this before reading.

        Raises:
            ConfigurationError: The column is missing, not unique, or of an unsupported type.
        """
        return schema.names[self._find(schema).indices[0]]

    def _find(self, schema: pa.Schema) -> _Field:
        matches = _fields_at(self.column, list(schema))
        if len(matches) != 1:
            what = "does not exist" if not matches else f"exists {len(matches)} times"
            raise ConfigurationError(
                f"the event time column {self.column!r} {what}; the columns are {', '.join(map(repr, schema.names))}",
                option=self.option,
                advice="name one existing column of a timestamp type or of int64 microseconds; write a field of a "
                "struct as 'column.field'",
            )
        kind = matches[0].kind
        if not (pa.types.is_timestamp(kind) or pa.types.is_int64(kind)):
            raise ConfigurationError(
                f"the event time column {self.column!r} is {kind}, which is neither a timestamp nor int64 microseconds",
                option=self.option,
                advice="name another column, or let the source convert this one to timestamp('us', tz='UTC')",
            )
        return matches[0]


class _Field(NamedTuple):
    """A column, or a field inside structs: its index at each level, and its type."""

    indices: list[int]
    kind: pa.DataType


def _fields_at(name: str, fields: Sequence[pa.Field]) -> list[_Field]:
    """Return the fields with this name; if there are none, the fields with this dotted path. Names may contain dots."""
    matches = [_Field([index], own_field.type) for index, own_field in enumerate(fields) if own_field.name == name]
    if matches:
        return matches
    for index, outer in enumerate(fields):
        if name.startswith(f"{outer.name}.") and pa.types.is_struct(outer.type):
            inner = _fields_at(name[len(outer.name) + 1 :], list(outer.type))
            matches += [_Field([index, *child.indices], child.kind) for child in inner]
    return matches


def micros(seconds: float, option: str) -> int:
    """Return a duration as whole microseconds, rounded to the nearest.

    Args:
        seconds: A finite duration, 0 or more.
        option: The name of the option, for the error.

    Raises:
        ConfigurationError: The duration is negative, infinite or not a number.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not math.isfinite(seconds) or seconds < 0:
        raise ConfigurationError(
            f"{seconds!r} is not a valid {option}: it must be a finite number of seconds, 0 or more",
            option=option,
            advice="give a number of seconds of 0 or more",
        )
    return round(seconds * 1_000_000)


def _in_micros(value: int, unit: str) -> int:
    """Return a column value in microseconds, clamped to int64 and below `MAX_WATERMARK`, which means "finished"."""
    scaled = value // 1_000 if unit == "ns" else value * _MICROS_PER_UNIT[unit]
    return min(max(scaled, MIN_WATERMARK), MAX_WATERMARK - 1)


# -- Watermark alignment: how far a split or reader may run ahead of the slowest one in event time (AL-1…9).


def max_allowed(watermarks: Iterable[int | None], max_drift: float) -> int:
    """Return the limit for the watermark of each member: the lowest watermark of an active one plus the drift (AL-2).

    The limit is computed on demand, so no announcement interval caps the speed of catching up (AL-8). It may fall when
    an idle member becomes active again.

    Args:
        watermarks: The watermark of each member, a reader or a split, in microseconds. `MAX_WATERMARK` stands for an
            idle or finished member, None or `MIN_WATERMARK` for one without a watermark; these limit no other (AL-1).
        max_drift: Seconds of event time; infinite disables alignment (AL-9).

    Returns:
        Microseconds; `MAX_WATERMARK` if no member is active.

    Raises:
        ConfigurationError: The drift is negative or not a number.
    """
    drift = check_drift(max_drift)
    active = (us for us in watermarks if us is not None and us not in (MIN_WATERMARK, MAX_WATERMARK))
    slowest = min(active, default=None)
    return MAX_WATERMARK if slowest is None or drift is None else min(MAX_WATERMARK, slowest + drift)


def splits_ahead(watermarks: Mapping[str, int], limit: int) -> set[str]:
    """Return the ids of the splits to pause: those whose watermark is above the limit, not equal to it (AL-5…7)."""
    return {split_id for split_id, watermark in watermarks.items() if watermark > limit}


def watermark_before(event_time: int, delay: int) -> int:
    """Return the watermark of a split with a record at `event_time`, if later records are at most `delay` older (WM-2).

    All values are in microseconds. In process, the record is the latest one read (`BoundedDisorder`); on Spark, it is
    the next unread one. The result is above `MIN_WATERMARK`, which means that there was no record.
    """
    return max(MIN_WATERMARK + 1, event_time - delay - 1)


def last_event_time(limit: int, delay: int) -> int:
    """Return the latest event time, in microseconds, that a split may read: its watermark then stays below the limit.

    An engine whose own watermark is the latest event time less D drops no record on time, if D is at least the drift
    plus the delay: docs/event-time.md has the proof.

    Args:
        limit: The result of `max_allowed`, in microseconds.
        delay: The delay of the watermarks, in microseconds.
    """
    return min(MAX_WATERMARK - 1, limit + delay)


def check_drift(max_drift: float) -> int | None:
    """Return a drift in seconds as microseconds; None if it is infinite, which disables alignment (AL-9).

    Raises:
        ConfigurationError: The drift is negative or not a number.
    """
    if isinstance(max_drift, float) and math.isinf(max_drift) and max_drift > 0:
        return None
    try:
        return micros(max_drift, "alignmentMaxDrift")
    except ConfigurationError as error:
        raise ConfigurationError(
            f"the alignment drift {max_drift!r} s is invalid: it must be 0 or more",
            option="alignmentMaxDrift",
            advice="give seconds of event time, 0 or more; omit the drift to disable alignment",
        ) from error
