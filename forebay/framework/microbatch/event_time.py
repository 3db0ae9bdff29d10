# SPDX-License-Identifier: Apache-2.0
"""Event time in the planner of a stream: limits how far splits are read, so that none runs far ahead of the slowest."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import pyarrow as pa

from forebay.errors import ContractError, ForebayError, RetriableError
from forebay.framework.arrow.casting import resolved_schema
from forebay.framework.discovery import DiscoveryEnumerator
from forebay.framework.microbatch.end_negotiation import RecordProbe
from forebay.framework.runtime.clients import ConnectorCalls
from forebay.framework.runtime.event_time_options import event_time_column
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import Runtime
from forebay.framework.source import Source
from forebay.framework.split import Position, Split, normalise
from forebay.options import Duration
from forebay.watermarks.event_time import MAX_WATERMARK, MIN_WATERMARK, ColumnTimestamps, EventTimes, watermark_before
from forebay.watermarks.strategy import IdlenessTimer

# -- The event time of one split, as far as the planner knows it.


@dataclass(slots=True)
class SplitTime:
    """The event time of one split, as far as the planner has looked it up. Times are in microseconds since 1970.

    A lookup asks for the event time of the split's next record, or of its last record if it has caught up.

    Attributes:
        timer: Decides whether the split is idle; None = it is never idle.
        watermark: All unread records that are on time have a later event time; None = not known yet. It only rises.
        next_time: The event time that the last lookup found; None = unknown.
        position: The position of the split at the last lookup.
        unknown_lookups: How many lookups in a row found no event time of a next record.
        looked_up: Whether the last lookup is valid: there was one, and the split has not got its next record since.
        at_end: Whether the split had caught up at the last lookup.
        empty: Whether the last lookup found no record, although the end of the split is beyond its position.
        caught_up: Whether the split has no data to read now.
        held: Whether alignment keeps the split from being read to its present end.
        returned: Whether the split was idle, has records again, and was not looked up since.
        behind: Whether the split has records older than the lowest watermark that the other splits waited for.
        warned: Whether a warning about an event time in the future was logged.
    """

    timer: IdlenessTimer | None
    watermark: int | None = None
    next_time: int | None = None
    position: Position | None = None
    unknown_lookups: int = 0
    looked_up: bool = False
    at_end: bool = False
    empty: bool = False
    caught_up: bool = False
    held: bool = False
    returned: bool = False
    behind: bool = False
    warned: bool = False

    @property
    def idle(self) -> bool:
        """Whether the split had no new record for longer than `idleTimeout`, so it does not hold back other splits."""
        return self.timer is not None and self.timer.idle

    @property
    def must_be_looked_at(self) -> bool:
        """Whether the split must be looked up before it is read, because it is new or was idle."""
        return self.returned or (self.watermark is None and not self.looked_up)

    def knows(self, position: Position | None) -> bool:
        """Return whether the last lookup was at this position and is still valid."""
        return self.looked_up and self.position == position

    def later_than(self, latest: int, position: Position | None) -> bool:
        """Return whether the record at `position` is known to be later than `latest`, in microseconds."""
        return self.knows(position) and self.next_time is not None and self.next_time > latest

    def note(self, position: Position | None, event_time: int | None, delay: int, *, at_end: bool) -> None:
        """Record the result of a lookup, and raise the watermark to `event_time` less `delay` (microseconds).

        `event_time` is None if it is unknown. `at_end` says whether the split had caught up.
        """
        self.looked_up, self.at_end, self.position, self.next_time = True, at_end, position, event_time
        self.returned = False
        self.unknown_lookups = self.unknown_lookups + 1 if event_time is None and not at_end else 0
        if event_time is not None:
            watermark = watermark_before(event_time, delay)
            self.watermark = watermark if self.watermark is None else max(self.watermark, watermark)

    def follow(self, position: Position | None, *, with_data: bool) -> None:
        """Record the position of the split, and whether it has data to read. Called before the lookups of a poll."""
        self.held, self.caught_up = False, not with_data
        self.returned = with_data and (self.returned or self.idle)
        self.empty = self.empty and self.knows(position)
        if with_data and self.at_end:  # the lookup was of the last record, and now there is a next one
            self.looked_up = False

    def judge(self, looked_at: float, *, silent: bool) -> None:
        """Update the idle timer (WM-4): at the monotonic time `looked_at`, the source was asked for the split's end.

        `silent` says whether the split had no new record.
        """
        if self.timer is not None:
            self.timer.probe(looked_at, silent=silent)


def slowest_of(times: Mapping[str, SplitTime]) -> str | None:
    """Return the id of the split with the lowest watermark; None if no split has a watermark yet."""
    known = ((time.watermark, split_id) for split_id, time in times.items() if time.watermark is not None)
    slowest = min(known, default=None)
    return None if slowest is None else slowest[1]


# -- Logs warnings about splits with event times in the future, and about splits with records that Spark may drop.


_log = logging.getLogger(__name__)

_MOST_WARNINGS: Final = 20
"""Maximum warnings of one process about splits with event times in the future."""


class TimeWarnings:
    """Logs warnings about the event times of single splits, and counts late splits. Called on the planning thread.

    Args:
        source: The format name.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._future = 0
        self.late = 0
        """How often an idle or new split had records older than the lowest watermark that the others had waited for."""

    def future(self, split: Split, time: SplitTime, event_time: int) -> None:
        """Log a warning, once per split, that its next or last record has an event time (µs) in the future."""
        if time.warned or self._future >= _MOST_WARNINGS:
            return
        time.warned = True
        self._future += 1
        _log.warning(
            "%s: the split %r has a record at %s whose event time, %d us since 1970, is more than a day in the future; "
            "it is read without alignment, and raises Spark's watermark unless the query drops it before withWatermark",
            self._source,
            split.id,
            split.position,
            event_time,
        )

    def check_behind(self, split: Split, time: SplitTime, watermark: int, floor: int) -> None:
        """Count a split and log a warning if its next record is older than the lowest watermark the others waited for.

        This can happen if the split did not hold back the others: it was new, idle, or at its end of a run.

        Args:
            split: The split at its present position.
            time: The known event times of the split before the lookup of its next record.
            watermark: The watermark just before the next record, in microseconds.
            floor: The lowest watermark that the others waited for, in microseconds: the limit less the drift.
        """
        waited_for = time.watermark is not None and time.watermark >= floor
        if waited_for or watermark >= floor:
            time.behind = False
        elif not time.behind:
            time.behind = True
            self.late += 1
            _log.warning(
                "%s: the split %r was new, idle or at the end of a run, so the other splits did not wait for it; its "
                "next record is %.3f s too old for their watermark, so Spark may drop it. To keep such records, set a "
                "longer idleTimeout, or a longer delay in withWatermark",
                self._source,
                split.id,
                (floor - watermark) / 1e6,
            )


# -- Finds the event time of a split's next record, and the position of an event time in a split, for the planner.


class EventTimeLookup:
    """Finds event times of records, and positions of event times, in splits.

    It asks the enumerator. If the enumerator does not know an event time, it reads a record in the planner. Called on
    the planning thread; may block for `planningTimeout`.
    """

    def __init__(
        self,
        source: Source,
        enumerator: DiscoveryEnumerator | None,
        options: HostOptions,
        calls: ConnectorCalls,
        runtime: Runtime,
    ) -> None:
        self._source = source
        self._enumerator = enumerator
        self._calls = calls
        self.column = event_time_column(source.name, source.event_time, options)
        assign = ColumnTimestamps(self.column, "eventTimeColumn")
        assign.check(resolved_schema(source))
        self._first_records = FirstRecords(source, options, runtime, assign)
        # `positions_at` searches by the source's own event time; the values of another column may have another order.
        self._has_positions = enumerator is not None and self.column == source.event_time

    def next_times(self, splits: Sequence[Split], *, needed: bool = False) -> Mapping[str, int]:
        """Return by split id the event time of its next record, or of its last record if it has caught up.

        Event times are in microseconds since 1970. Splits whose event time is unknown are left out.

        Args:
            splits: The splits, each with its position and present end.
            needed: Planning cannot go on without an answer: wait up to `planningTimeout`, not up to ten seconds.

        Raises:
            ForebayError: The source failed.
            ContractError: `event_times()` did not return event times.
        """
        if not splits:
            return {}
        unknown, known = splits, {}
        enumerator = self._enumerator
        if enumerator is not None:
            answer: object = self._calls.call(
                "event_times()", lambda: enumerator.event_times(splits, self.column), brief=not needed
            )
            if answer is not None:
                checked = checked_event_times(self._source, answer)
                unknown = [split for split in splits if checked.get(split.id, 0) is None]
                known = {split_id: us for split_id, us in checked.items() if us is not None}
        caught_up = [split for split in unknown if split.position is not None and split.position == split.end]
        known |= self._first_records.times([split for split in unknown if split.position != split.end], needed=needed)
        return known | self._first_records.last_times(caught_up)

    def close(self) -> None:
        """Stop the reads of first records."""
        self._first_records.close()

    def positions_at(self, event_time: int, splits: Sequence[Split]) -> Mapping[str, Position]:
        """Return by split id the position of the first record with an event time ≥ `event_time` (µs since 1970).

        If there is no such record, it is the split's end. Splits for which the source knows no position are left out.
        """
        enumerator = self._enumerator
        if enumerator is None or not self._has_positions or not splits:
            return {}
        answer = self._calls.call("positions_at()", lambda: enumerator.positions_at(event_time, splits))
        if answer is None:
            self._has_positions = False
            return {}
        return {split_id: normalise(position, split_id) for split_id, position in answer.items()}

    def after_rows(self, split: Split, rows: int) -> Position | None:
        """Return the position after the first `rows` rows of a split; None if the source does not know it."""
        enumerator = self._enumerator
        if enumerator is None:
            return None
        to = self._calls.call("advance()", lambda: enumerator.advance(split, rows=rows))
        return None if to is None else normalise(to, split.id)


def checked_event_times(source: Source, answer: object) -> Mapping[str, int | None]:
    """Check and return `answer`, the result of the author's `event_times()`.

    Raises:
        ContractError: `answer` is not a mapping of split ids to microseconds or None.
    """
    wrong = answer if not isinstance(answer, Mapping) else next((us for us in answer.values() if not _is_us(us)), None)
    if not isinstance(answer, Mapping) or wrong is not None:
        raise ContractError(
            f"event_times() returned {wrong!r:.200}, which is no event time",
            source=source.name,
            rule="DIS-6",
            advice="in the connector, let event_times() return a mapping of split ids to microseconds since 1970-01-01 "
            "UTC, as int, or to None if the event time is unknown",
        )
    return answer


def _is_us(value: object) -> bool:
    known = isinstance(value, int) and not isinstance(value, bool) and MIN_WATERMARK < value < MAX_WATERMARK
    return known or value is None


# -- Reads single records in the planner to find their event times, for sources that do not implement `event_times`.


_PATIENCE: Final = 10.0
"""Maximum seconds that one lookup waits for first records, if planning can go on without them."""

_CLOSE_TIMEOUT: Final = 1.0
"""Maximum seconds that planning waits for the reader of splits without an answer to end."""

_REMEMBERED: Final = 20_000
"""Maximum number of remembered event times; the oldest ones are forgotten, and read again if needed."""

_BEFORE: Final = (1, 16)
"""How many positions before its end a caught-up split is read to find its last record: positions may have gaps."""

_Place: TypeAlias = "tuple[str, Position | None]"


class FirstRecords:
    """Reads the first record from the position of each split, and remembers its event time.

    Called on the planning thread. If a split gives no record in time, its read goes on, and a call for the same splits
    continues to wait for it.

    Args:
        source: The source.
        options: The host's options.
        runtime: Threads and time.
        assign: The timestamp assigner: returns the event times of a record batch.
    """

    def __init__(
        self,
        source: Source,
        options: HostOptions,
        runtime: Runtime,
        assign: Callable[[pa.RecordBatch, EventTimes | None], EventTimes | None],
    ) -> None:
        self._source = source
        self._runtime = runtime
        self._assign = assign
        self._options = dataclasses.replace(options, close_timeout=min(options.close_timeout, Duration(_CLOSE_TIMEOUT)))
        self._known: dict[_Place, int | None] = {}
        self._without: set[_Place] = set()
        self._asked: set[_Place] = set()
        self._probe: RecordProbe | None = None

    def times(self, splits: Sequence[Split], *, needed: bool = False) -> dict[str, int]:
        """Return by split id the event time of the first record from the split's position, in microseconds since 1970.

        Splits without a record or an event time are left out.

        Args:
            splits: The splits, each with its position and end.
            needed: Planning cannot go on without an answer: wait up to `planningTimeout`, not up to ten seconds.

        Raises:
            RetriableError: A split gave no record in time. Its read goes on, and a retry continues to wait for it.
            ForebayError: The source failed.
        """
        missing = {
            _place(split): split
            for split in splits
            if _place(split) not in self._known and _place(split) not in self._without
        }
        if missing:
            patience = self._options.planning_timeout.total_seconds() if needed else _PATIENCE
            self._read(missing, patience)
        self._without.clear()
        times = {split.id: self._known.get(_place(split)) for split in splits}
        while len(self._known) > _REMEMBERED:
            del self._known[next(iter(self._known))]
        return {split_id: us for split_id, us in times.items() if us is not None}

    def last_times(self, splits: Sequence[Split]) -> dict[str, int]:
        """Return by split id the event time of a record just before the position of the split.

        All `splits` have caught up. Splits whose position is not an int, and splits without a record there, are left
        out. Errors of reading are only logged: such a record may have been deleted.
        """
        times: dict[str, int] = {}
        for distance in _BEFORE:
            parts = [
                split.slice(max(0, split.position - distance), split.position)
                for split in splits
                if isinstance(split.position, int) and split.position > 0 and split.id not in times
            ]
            try:
                times |= self.times(parts)
            except ForebayError as error:
                _log.debug("%s: the last records of %d splits are unknown: %s", self._source.name, len(parts), error)
        return times

    def close(self) -> None:
        """Stop reading."""
        probe, self._probe = self._probe, None
        if probe is not None:
            probe.close()

    def _read(self, splits: Mapping[_Place, Split], patience: float) -> None:
        if self._asked != splits.keys():
            self.close()
        probe, self._probe = self._probe, None
        if probe is None:
            probe = RecordProbe(self._source, list(splits.values()), self._options, self._runtime)
        probe.poll(patience)
        positions = {split.id: place for place, split in splits.items()}
        with_record, without = probe.answers()
        for split_id in with_record:
            times = self._assign(probe.first[split_id].slice(0, 1), None)
            self._known[positions[split_id]] = None if times is None else times.earliest
        self._without |= {positions[split_id] for split_id in without}
        if probe.silent:
            self._probe, self._asked = probe, {positions[split_id] for split_id in probe.silent}
            raise RetriableError(
                f"read() gave no record of this split within {patience:g} s, so its next event time is unknown",
                source=self._source.name,
                split=min(probe.silent),
                advice="in the connector, let read() give the first record faster, or implement "
                "SimpleSource.event_time_at() or event_times()",
            )


def _place(split: Split) -> _Place:
    return split.id, split.position
