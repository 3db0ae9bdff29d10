# SPDX-License-Identifier: Apache-2.0
"""Checks of the optional methods, which have neutral defaults (rules DIS-2 to DIS-6, SRC-8)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from forebay.framework.discovery import DiscoveryEnumerator
from forebay.framework.split import Position, Split
from forebay.testkit.checks.base import Checks, check_into
from forebay.testkit.harness.calls import calling
from forebay.testkit.harness.reads import first_rows, read
from forebay.testkit.harness.subject import Mark, Subject, Trace
from forebay.testkit.outcomes import Broken, NotApplicable
from forebay.watermarks.event_time import ColumnTimestamps

OPTIONAL_METHODS: Checks = []

_MANY_ROWS = 1_000
_SMALL_SLICES = 1_000
"""Number of slices of a split that is too large to be read, so that its last slice is small."""


@check_into(OPTIONAL_METHODS)
def slices_are_the_split(subject: Subject) -> None:
    """DIS-2: the slices of a split together return its rows, each once, in order."""
    with _overriding(subject, "slices", "splits cannot be cut") as enumerator:
        for trace in subject.traces:
            split = trace.full or trace.split
            if not subject.whole and not trace.whole:
                _check_last_slice(subject, split, enumerator)
                continue
            rows = subject.everything[split.id]
            for count in (2, 3, 7) if len(rows) <= _MANY_ROWS else (7,):
                _check_slices(subject, split, rows, _cut(split, count, enumerator))
            if not subject.source.bounded:  # a stream cuts the part that each micro-batch reads
                half = trace.last // 2
                remainder = split.at(trace.marks[half][1])
                _check_slices(subject, remainder, rows[trace.marks[half][0] :], _cut(remainder, 3, enumerator))
                if half:
                    for start in {0, half // 2}:
                        part = split.slice(trace.marks[start][1], trace.marks[half][1])
                        expected = rows[trace.marks[start][0] : trace.marks[half][0]]
                        _check_slices(subject, part, expected, _cut(part, 2, enumerator))
            subject.need_time()


def _cut(split: Split, count: int, enumerator: DiscoveryEnumerator) -> list[Split]:
    with calling("DIS-2", "slices()"):
        slices = list(enumerator.slices(split, count))
    if (ids := {part.id for part in slices}) != {split.id}:
        raise Broken(f"slices of split {split.id!r} have the ids {sorted(ids)}", "keep the split's id")
    return slices


def _check_slices(subject: Subject, split: Split, rows: Sequence[str], slices: Sequence[Split]) -> None:
    got = [row for part in slices for row in read(subject, [part], rows=_MANY_ROWS).rows[part.id]]
    open_ended = split.end is None
    subject.compare(split.id, got, rows, f"cut into {len(slices)}", _SLICES, open_ended=open_ended)


def _check_last_slice(subject: Subject, split: Split, enumerator: DiscoveryEnumerator) -> None:
    """Check the end of a split that is too large to read: its last slice must have the rows up to the split's end."""
    last = _cut(split, _SMALL_SLICES, enumerator)[-1]
    got, wanted = (first_rows(subject, part, _MANY_ROWS + 1) for part in (last, last.slice(last.position, split.end)))
    if max(len(got), len(wanted)) <= _MANY_ROWS:
        subject.compare(split.id, got, wanted, f"cut into about {_SMALL_SLICES}, its last slice", _SLICES)


@check_into(OPTIONAL_METHODS)
def advance_is_exact(subject: Subject) -> None:
    """DIS-3: advance() returns the position after exactly as many rows as its budget."""
    chance = subject.random("advance")
    with _overriding(subject, "advance", "the source has no exact limits of rows") as enumerator:
        for trace in subject.filled:
            rows = chance.randrange(1, len(trace.rows) + 1)
            reached = _advanced(subject, enumerator, trace, (0, trace.split.position), rows)
            if reached is None:
                continue
            rest = read(subject, [trace.split.slice(reached, trace.marks[-1][1])]).rows[trace.split.id]
            how = f"read on from advance(rows={rows}), {reached!r}"
            subject.compare(trace.split.id, rest, trace.rows[rows:], how, _READ_ON)
            middle = len(trace.rows) // 2
            begin = next(mark for mark in trace.marks if mark[0] >= middle)
            _advanced(subject, enumerator, trace, begin, max(1, (len(trace.rows) - begin[0]) // 2))
            if not subject.source.bounded and begin[1] is not None:  # the end of a micro-batch, before the newest row
                _advanced(subject, enumerator, trace, (0, trace.split.position), begin[0] + 1, begin)
                start = trace.marks[trace.marks.index(begin) // 2]
                _advanced(subject, enumerator, trace, start, begin[0] - start[0] + 1, begin)


def _advanced(
    subject: Subject, enumerator: DiscoveryEnumerator, trace: Trace, start: Mark, rows: int, stop: Mark | None = None
) -> Position | None:
    """Call `advance` for a part of the split, and compare the rows up to its answer, which is returned."""
    split = trace.split.at(start[1]) if stop is None else trace.split.slice(start[1], stop[1])
    with calling("DIS-3", "advance()"):
        reached, by_bytes = enumerator.advance(split, rows=rows), enumerator.advance(split, byte_budget=1)
    for answer in (reached, by_bytes):
        if answer is not None:
            check_position(answer, split, "advance()")
            _check_within(subject, answer, split)
    if reached is not None:
        expected = trace.rows[start[0] : min(start[0] + rows, len(trace.rows) if stop is None else stop[0])]
        got = read(subject, [split.slice(split.position, reached)]).rows[split.id]
        how = f"read from {split.position!r} up to advance(rows={rows}), {reached!r}"
        subject.compare(split.id, got, expected, how, _ADVANCE)
    return reached


@check_into(OPTIONAL_METHODS)
def positions_at_lose_nothing(subject: Subject) -> None:
    """DIS-4: positions_at(t) skips no row with an event time of t or later, and does not go back."""
    column = subject.source.event_time
    with _overriding(subject, "positions_at", "positions are not found by event time") as enumerator:
        if column is None:
            raise NotApplicable("the source has no event_time")
        for trace in subject.filled:
            times = sorted(_event_times(subject, column, trace.split))
            for mark, moment in ((0, times[len(times) // 2]), (trace.last // 2, times[0])):
                split = trace.rest(mark)
                with calling("DIS-4", "positions_at()"):
                    answer = (enumerator.positions_at(moment, [split]) or {}).get(split.id)
                if answer is None or answer == split.position:
                    continue
                if not _is_after(subject, answer, split):
                    raise Broken(
                        f"split {split.id!r} is at {split.position!r}, but positions_at() went back to {answer!r}",
                        "search from the position of the split",
                    )
                if any(time >= moment for time in _event_times(subject, column, split.slice(split.position, answer))):
                    raise Broken(
                        f"split {split.id!r}: positions_at({moment} µs) returned {answer!r}, but a row before it has "
                        "this event time or a later one",
                        "return the first position whose event time is t or later",
                    )


@check_into(OPTIONAL_METHODS)
def event_times_are_those_of_the_rows(subject: Subject) -> None:
    """DIS-6: event_times() returns the event time of the row at a position; at the end, of the last row."""
    column = subject.source.event_time
    with _overriding(subject, "event_times", "the planner of a stream reads the first unread records") as enumerator:
        if column is None:
            raise NotApplicable("the source has no event_time")
        for trace in subject.filled:
            last = _row_times(subject, column, trace.split)[-1]
            for mark in sorted({0, trace.last // 2, trace.last}):
                split = trace.rest(mark)
                with calling("DIS-6", "event_times()"):
                    answer: object = (enumerator.event_times([split], column) or {}).get(split.id)
                expected = next(iter(_row_times(subject, column, split)), last)
                if answer is not None and answer != expected:
                    raise Broken(
                        f"split {split.id!r} at {split.position!r}: event_times() returned {answer!r}, but the row "
                        f"there, or at the end the last row, has the event time {expected!r}",
                        "return the event time (µs since 1970) of the first row at or after the position; without "
                        "one, of the last row before it",
                    )


@check_into(OPTIONAL_METHODS)
def size_is_a_number(subject: Subject) -> None:
    """DIS-5: size() is a number of bytes or None."""
    with _overriding(subject, "size", "sizes are unknown") as enumerator:
        for split in subject.splits:
            with calling("DIS-5", "size()"):
                size: object = enumerator.size(split)
            if size is not None and not (isinstance(size, int) and size >= 0):
                raise Broken(f"split {split.id!r}: size() returned {size!r}", "return an int of bytes, or None")


@check_into(OPTIONAL_METHODS)
def columns_are_pruned(subject: Subject) -> None:
    """SRC-8: with_columns() returns a source of the same rows with the given columns only."""
    names = subject.schema.names
    for columns in (names[-1:], names[::-1]):
        with calling("SRC-8", "with_columns()"):
            source = subject.source.with_columns(tuple(columns))
        if source is None and len(columns) == 1:
            raise NotApplicable("with_columns() is the default: the host selects")
        if source is None:
            raise Broken(
                f"with_columns({columns}) returned None, but with_columns({names[-1:]}) returned a source",
                "return a source for every choice of columns, or always None",
            )
        other = subject.on(source)
        if other.schema.names != columns:
            raise Broken(
                f"with_columns({columns}) returned a source with the columns {other.schema.names}",
                "keep the given names and order",
            )
        for split in subject.splits:
            whole, some = _table(subject, split), _table(other, split)
            got, all_rows = (list(map(repr, table.to_pylist())) for table in (some, whole.select(columns)))
            subject.compare(split.id, got, all_rows, f"reading the columns {columns}", "drop columns, never rows")


_SLICES = "let each slice begin at the end of the previous one; the outer borders are the split's"
_ADVANCE = (
    "return the position after exactly `rows` rows from split.position on, and split.end where there are fewer; None "
    "if it is unknown"
)
_READ_ON = "begin exactly at split.position, with the first record at or after it: the next micro-batch begins there"


@contextmanager
def _overriding(subject: Subject, method: str, meaning: str) -> Iterator[DiscoveryEnumerator]:
    """Yield the discovery enumerator if the author overrides a method; else skip the check."""
    with subject.discovery() as enumerator:
        if not subject.overrides(enumerator, method):
            raise NotApplicable(f"{method}() is not overridden: {meaning}")
        yield enumerator


def check_position(position: object, split: Split, name: str) -> None:
    """Raise `Broken` if the value that the method `name` returned is not a position."""
    try:
        split.at(position)  # type: ignore[arg-type]  # an author may return anything
    except Exception as error:
        why = f"split {split.id!r}: {name} returned {position!r}, which is not a position"
        raise Broken(why, "return an int, a str or a tuple of these") from error


def _check_within(subject: Subject, position: Position, split: Split) -> None:
    at: Any = subject.source.order_key(position)
    beyond = split.end is not None and at > subject.source.order_key(split.end)
    if beyond or (split.position is not None and at < subject.source.order_key(split.position)):
        raise Broken(f"advance() returned {position!r}, outside of {split!r}", "stay between its position and its end")


def _event_times(subject: Subject, column: str, split: Split) -> list[int]:
    times = _table(subject, split).column(column).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    return [time for time in times.to_pylist() if time is not None]


def _row_times(subject: Subject, column: str, split: Split) -> list[int | None]:
    """Return the event time of each row in µs since 1970, as hosts read it; None for a row without one."""
    assign, batches = ColumnTimestamps(column), read(subject, [split]).output.record_batches
    times = (assign(batch.slice(n, 1), None) for batch in batches for n in range(batch.num_rows))
    return [None if time is None else time.earliest for time in times]


def _is_after(subject: Subject, position: Position, split: Split) -> bool:
    key = subject.source.order_key
    return split.position is None or bool(key(position) > key(split.position))


def _table(subject: Subject, split: Split) -> pa.Table:
    return pa.Table.from_batches(read(subject, [split]).output.record_batches, subject.schema)
