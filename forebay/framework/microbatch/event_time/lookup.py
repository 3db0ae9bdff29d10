# SPDX-License-Identifier: Apache-2.0
"""Finds the event time of a split's next record, and the position of an event time in a split, for the planner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forebay.errors import ContractError
from forebay.framework.arrow.schemas import resolved_schema
from forebay.framework.discovery import DiscoveryEnumerator
from forebay.framework.microbatch.event_time.first_records import FirstRecords
from forebay.framework.runtime.connector_calls import ConnectorCalls
from forebay.framework.runtime.event_time_options import event_time_column
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import Runtime
from forebay.framework.source import Source
from forebay.framework.split import Position, Split, normalise
from forebay.watermarks.event_time import MAX_WATERMARK, MIN_WATERMARK, ColumnTimestamps


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
