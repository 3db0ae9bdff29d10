# SPDX-License-Identifier: Apache-2.0
"""The planner's questions about event time: when the next record of a split is, and where a time begins in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final

from forebay.errors import ContractError, RetriableError
from forebay.framework.arrow.schemas import resolved_schema
from forebay.framework.discovery import DiscoveryEnumerator
from forebay.framework.microbatch.end_negotiation.probe import RecordProbe
from forebay.framework.runtime.connector_calls import ConnectorCalls
from forebay.framework.runtime.event_time_options import event_time_column
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import Runtime
from forebay.framework.source import Source
from forebay.framework.split import Position, Split, normalise
from forebay.options import Duration
from forebay.watermarks.event_time import ColumnTimestamps

_PATIENCE: Final = 10.0
"""Maximum seconds that planning waits for the first records of splits."""

_CLOSE_TIMEOUT: Final = 1.0
"""Maximum seconds that planning waits for the reader of unanswered splits to end."""


class EventTimeLookup:
    """Asks the enumerator, or reads first records in the planner where the enumerator cannot tell.

    Called on the planning thread. May block, for `planningTimeout` at most.
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
        self._runtime = runtime
        self._options = dataclasses.replace(options, close_timeout=min(options.close_timeout, Duration(_CLOSE_TIMEOUT)))
        self.column = event_time_column(source.name, source.event_time, options)
        self._assign = ColumnTimestamps(self.column, "eventTimeColumn")
        self._assign.check(resolved_schema(source))
        # `positions_at` goes by the event time of the source, which another column need not follow.
        self._has_positions = enumerator is not None and self.column == source.event_time

    def next_times(self, splits: Sequence[Split]) -> Mapping[str, int]:
        """Return by id the event time of the next record of each split, or of its last one; without the unknown ones.

        Raises:
            ForebayError: The source failed, or gave something else.
        """
        if not splits:
            return {}
        enumerator = self._enumerator
        if enumerator is not None:
            answer: object = self._calls.call("event_times()", lambda: enumerator.event_times(splits, self.column))
            if answer is not None:
                return checked_event_times(self._source, answer)
        return self._first_records([split for split in splits if split.position != split.end])

    def positions_at(self, event_time: int, splits: Sequence[Split]) -> Mapping[str, Position]:
        """Return by id the first position with an event time ≥ `event_time`, or the split's end; if that is known."""
        enumerator = self._enumerator
        if enumerator is None or not self._has_positions or not splits:
            return {}
        answer = self._calls.call("positions_at()", lambda: enumerator.positions_at(event_time, splits))
        if answer is None:
            self._has_positions = False
            return {}
        return {split_id: normalise(position, split_id) for split_id, position in answer.items()}

    def _first_records(self, splits: Sequence[Split]) -> Mapping[str, int]:
        """Read the first record of each split."""
        if not splits:
            return {}
        probe = RecordProbe(self._source, splits, self._options, self._runtime)
        probe.poll(_PATIENCE)
        if probe.silent:
            probe.close()
            text = f"reading gave no first record within {_PATIENCE:g} s"
            raise RetriableError(text, source=self._source.name, split=min(probe.silent))
        times = {split_id: self._assign(batch.slice(0, 1), None) for split_id, batch in probe.first.items()}
        return {split_id: found.earliest for split_id, found in times.items() if found is not None}


def checked_event_times(source: Source, answer: object) -> Mapping[str, int]:
    """Return the answer of an author's `event_times`.

    Raises:
        ContractError: It is no mapping of ids to microseconds.
    """
    wrong = answer if not isinstance(answer, Mapping) else next((v for v in answer.values() if not _is_us(v)), None)
    if not isinstance(answer, Mapping) or wrong is not None:
        raise ContractError(
            f"event_times() gave {wrong!r:.200}",
            source=source.name,
            rule="DIS-6",
            advice="return a mapping of split ids to microseconds since 1970-01-01 UTC, as int",
        )
    return answer


def _is_us(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
