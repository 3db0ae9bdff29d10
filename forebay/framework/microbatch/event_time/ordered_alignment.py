# SPDX-License-Identifier: Apache-2.0
"""Alignment of splits that are read in order, such as files: a micro-batch takes a prefix that is narrow in event time.

```
first     first event time of the oldest unread split
prefix    the splits in order, up to the first one that begins after first + alignmentMaxDrift
```
A split is taken whole, and the first one always. So a micro-batch reaches at most `alignmentMaxDrift` and the span of
one split beyond `first`. Only the begin of a prefix is looked up, however many splits there are. The prefix decides
only ends in the offset, so a replay does not need it.
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
"""Splits whose event times are asked for at first; each further question is for twice as many."""


class OrderedAlignment:
    """Holds back the later splits of a backlog. Lives in the planner; called on its thread.

    Args:
        source: The source.
        options: `alignment_max_drift`, which is set, `watermark_delay`, `event_time_column`, `max_files_per_trigger`.
        enumerator: Its `event_times` must answer; its `discover` should return the splits by event time.
        calls: Runs `event_times`.
        runtime: The time.
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
        """How many splits came with event times that the stream had already passed by more than `watermarkDelay`."""

    @classmethod
    def of(
        cls,
        source: Source,
        options: HostOptions,
        split_provider: SplitProvider,
        calls: ConnectorCalls,
        runtime: Runtime,
    ) -> OrderedAlignment | None:
        """Return the alignment of a query; None if the options do not ask for it."""
        if options.alignment_max_drift is None:
            return None
        return cls(source, options, split_provider.enumerator, calls, runtime)

    @property
    def limit(self) -> int | None:
        """The latest event time, in microseconds, at which a split may begin; None before the first. Never falls."""
        return None if self._floor is None else self._floor + self._drift

    def close(self) -> None:
        """Nothing is open."""

    def hold_back(
        self, available: Sequence[Planned], splits: Mapping[str, Split], *, ending: bool
    ) -> Sequence[Planned]:
        """Return the first splits, up to one that begins later than the first one by more than the drift.

        A split without an event time is taken with the others, and does not bound them.

        Args:
            available: The unread splits, those that were begun first; not more than necessary are planned.
            splits: Not needed: a split that is read to its end holds nobody back.
            ending: Not needed: the same holds for a run that ends.

        Raises:
            ConfigurationError: The source does not know the event times of its splits.
            ForebayError: The source could not be asked.
        """
        if not self._answers:  # also asked while there are no splits yet: the answer is an error at once, or never
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
        """Yield splits with their first event times, asked for in growing groups."""
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
                "alignment of splits that are read in order needs their event times, which the source does not know",
                source=self._source.name,
                option="alignmentMaxDrift",
                advice="leave alignmentMaxDrift out; or, in the connector, implement event_times() and let discover() "
                "return the splits in the order of their event times",
            )
        checked = checked_event_times(self._source, answer)
        return {split_id: us for split_id, us in checked.items() if us is not None}

    def _future(self) -> int:
        return round(self._clock.now() * 1_000_000) + FUTURE

    def _warn_of_future(self, split: Split, time: int) -> None:
        """Warn of the first of a row of splits that begin in the future: they come last, so nothing else is left."""
        before, self._ahead = self._ahead, time > self._future()
        if self._ahead and not before:
            _log.warning(
                "%s: the oldest unread split, %r, begins at the event time %d us, more than a day in the future; it is "
                "read, and raises Spark's watermark unless the query drops such rows before withWatermark",
                self._source.name,
                split.id,
                time,
            )

    def _note_late(self, late: Mapping[str, int]) -> None:
        """Count splits that are older than what the stream has passed, each once. Warn of the first of a row."""
        before, self._behind = self._behind, set(late)
        self.late += len(self._behind - before)
        if not late or before or self._floor is None:
            return
        oldest = min(late, key=late.__getitem__)
        _log.warning(
            "%s: splits came after later ones were read, and are read next; %r is %.3f s behind in event time: Spark "
            "may drop its rows; a longer delay in withWatermark keeps them",
            self._source.name,
            oldest,
            (self._floor - late[oldest]) / 1e6,
        )
