# SPDX-License-Identifier: Apache-2.0
"""Alignment of splits that are read in order, such as files: a micro-batch takes the next splits within a time span.

```
first     first event time of the next unread split
taken     the unread splits in order, up to the first one that begins after first + alignmentMaxDrift
```
Splits are taken whole, and the next unread one is always taken. So the event times of a micro-batch exceed `first` by
at most `alignmentMaxDrift` plus the span of one split. Event times are looked up only until a split is too
late, however many splits there are. The offset stores which splits are read, so a replay does not need alignment.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from forebay.errors import ConfigurationError
from forebay.framework.discovery import DiscoveryEnumerator
from forebay.framework.microbatch.event_time.lookup import checked_event_times
from forebay.framework.microbatch.offsets.offset import Planned
from forebay.framework.microbatch.split_providers.split_provider import SplitProvider
from forebay.framework.runtime.connector_calls import ConnectorCalls
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import Runtime
from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.watermarks.event_time import FUTURE, micros

_log = logging.getLogger(__name__)

_FIRST_LOOK: Final = 64
"""Number of splits in the first call of `event_times` for a micro-batch; each further call has twice as many."""


class OrderedAlignment:
    """Holds back the splits that begin too late for the next micro-batch. Called on the planning thread.

    Args:
        source: The source.
        options: The host's options; `alignment_max_drift`, which must be set, `watermark_delay`, `event_time_column`
            and `max_files_per_trigger` are used.
        enumerator: Must implement `event_times`; its `discover` should return the splits in order of event time.
        calls: Runs `event_times`.
        runtime: Gives the time.
    """

    def __init__(
        self,
        source: Source,
        options: HostOptions,
        enumerator: DiscoveryEnumerator | None,
        calls: ConnectorCalls,
        runtime: Runtime,
    ) -> None:
        assert options.alignment_max_drift is not None  # noqa: S101 - see `of`
        self._source = source
        self._enumerator = enumerator
        self._calls = calls
        self._clock = runtime.clock
        self._column = options.event_time_column or source.event_time or ""
        self._drift = micros(options.alignment_max_drift.total_seconds(), "alignmentMaxDrift")
        self._delay = micros(options.watermark_delay.total_seconds(), "watermarkDelay")
        self._most = options.max_files_per_trigger
        self._floor: int | None = None
        self._behind: set[str] = set()
        self._ahead = False
        self._answers = False
        self.late = 0
        """Number of splits that began more than `watermarkDelay` earlier in event time than splits read before them."""

    @classmethod
    def of(
        cls,
        source: Source,
        options: HostOptions,
        split_provider: SplitProvider,
        calls: ConnectorCalls,
        runtime: Runtime,
    ) -> OrderedAlignment | None:
        """Return the alignment of a query; None if `alignmentMaxDrift` is not set."""
        if options.alignment_max_drift is None:
            return None
        return cls(source, options, split_provider.enumerator, calls, runtime)

    @property
    def limit(self) -> int | None:
        """The latest event time, in µs since 1970, at which a split may begin; None if no event time is known yet.

        It never falls.
        """
        return None if self._floor is None else self._floor + self._drift

    def close(self) -> None:
        """Do nothing: an `OrderedAlignment` holds no resources."""

    def hold_back(
        self, available: Sequence[Planned], splits: Mapping[str, Split], *, ending: bool
    ) -> Sequence[Planned]:
        """Return the leading splits: those before one that begins more than `alignmentMaxDrift` after the first.

        A split without an event time is taken with the others, and does not end the micro-batch.

        Args:
            available: The unread splits in order; those that were begun come first.
            splits: Not used; only `StreamAlignment` needs it.
            ending: Not used; only `StreamAlignment` needs it.

        Raises:
            ConfigurationError: The source does not know the event times of its splits.
            ForebayError: `event_times()` failed.
        """
        if not self._answers:  # asked even without splits: a source that knows no event times must fail at once
            self._ask(())
            self._answers = True
        taken: list[Planned] = []
        late: dict[str, int] = {}
        first: int | None = None
        for planned, time in self._timed(available):
            if time is not None:
                if first is None:
                    first = time
                    self._warn_of_future(planned.split, time)
                if time > first + self._drift:
                    break
                if self._floor is not None and time < self._floor - self._delay:
                    late[planned.split.id] = time
            taken.append(planned)
        self._note_late(late)
        if first is not None and first <= self._future():
            self._floor = first if self._floor is None else max(self._floor, first)
        return taken

    def _timed(self, available: Sequence[Planned]) -> Iterator[tuple[Planned, int | None]]:
        """Yield each split with its first event time, None if unknown. Calls `event_times` with ever larger groups."""
        end = len(available) if self._most is None else min(self._most, len(available))
        at, count = 0, _FIRST_LOOK
        while at < end:
            group = available[at : min(at + count, end)]
            times = self._ask([planned.slice() for planned in group])
            yield from ((planned, times.get(planned.split.id)) for planned in group)
            at, count = at + count, count * 2

    def _ask(self, splits: Sequence[Split]) -> Mapping[str, int]:
        enumerator, answer = self._enumerator, None
        if enumerator is not None:
            answer = self._calls.call("event_times()", lambda: enumerator.event_times(splits, self._column))
        if answer is None:
            raise ConfigurationError(
                "alignmentMaxDrift needs the event times of splits, which this source does not know",
                source=self._source.name,
                option="alignmentMaxDrift",
                advice="remove alignmentMaxDrift; or, in the connector, implement event_times() and let discover() "
                "return the splits in the order of their event times",
            )
        checked = checked_event_times(self._source, answer)
        return {split_id: us for split_id, us in checked.items() if us is not None}

    def _future(self) -> int:
        return round(self._clock.now() * 1_000_000) + FUTURE

    def _warn_of_future(self, split: Split, time: int) -> None:
        """Log a warning if the next unread split begins in the future, and that of the previous call did not.

        Splits are in the order of event time, so all unread splits begin in the future.
        """
        before, self._ahead = self._ahead, time > self._future()
        if self._ahead and not before:
            _log.warning(
                "%s: the oldest unread split, %r, begins at the event time %d us since 1970, more than a day in the "
                "future; it is read, and its rows raise Spark's watermark unless the query drops them before "
                "withWatermark",
                self._source.name,
                split.id,
                time,
            )

    def _note_late(self, late: Mapping[str, int]) -> None:
        """Count each split once that is older than splits read before; log a warning if the last call had none.

        `late` has the first event times of these splits, by split id.
        """
        before, self._behind = self._behind, set(late)
        self.late += len(self._behind - before)
        if not late or before or self._floor is None:
            return
        oldest = min(late, key=late.__getitem__)
        _log.warning(
            "%s: new splits are older than splits that were read before; the split %r begins %.3f s earlier in event "
            "time, so Spark may drop its rows; a longer delay in withWatermark keeps them",
            self._source.name,
            oldest,
            (self._floor - late[oldest]) / 1e6,
        )
