# SPDX-License-Identifier: Apache-2.0
"""Alignment in a stream: no split is planned further than `alignmentMaxDrift` ahead of the slowest active one.

```
watermark of a split   event time of its next record, or of its last one, less watermarkDelay    (AL-1, WM-2)
limit                  lowest watermark of an active split + alignmentMaxDrift                   (AL-2)
micro-batch            of each split the records up to limit + watermarkDelay                    (AL-6)
```
Alignment decides only the ends of splits, and the offset stores these. So a replay does not need it. A lookup is a call
of the planner that asks for the event time of a split's next record.

Let D be the delay in the query's `withWatermark(column, D)`. If D ≥ drift (at least 1 ms) + watermarkDelay, Spark drops
no record that is on time in an active split:

```
on time   at most watermarkDelay older than every earlier record of the split; records without a time, more than a day
          in the future, or from before 1970, where Spark's watermark begins, do not count
active    each split from its discovery on, except while it is
  idle      each lookup of this process, for longer than idleTimeout, found that the split had caught up
  done      the split has reached its end of an AvailableNow run
  undated   this process saw no event time of it: it has caught up, or more than four lookups in a row found none
```
Proof. Let n be the latest event time of a next or a last record that was seen in an active split.
1. An unread record on time is n - delay or later, so it is above the split's watermark w = n - delay - 1 µs.
2. The limit is at most w + drift: it only rises to the minimum of all w + drift, and w never falls.
3. So a micro-batch reads nothing later than limit + delay ≤ n + drift - 1 µs.
4. Spark's watermark after it, rounded down to milliseconds, is at most n + drift - 1 µs - D ≤ n - delay - 1 µs = w.
5. Spark drops what is at or below its watermark, and the unread record on time is above w.
6. A restart sees n again before it plans. It makes idle splits active, but takes back nothing that was allowed before.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from forebay.errors import ConfigurationError, ContractError, RetriableError
from forebay.framework.discovery import DiscoveryEnumerator
from forebay.framework.microbatch.admission import AvailableSplits
from forebay.framework.microbatch.event_time import (
    EventTimeLookup,
    SplitTime,
    TimeWarnings,
    checked_event_times,
    slowest_of,
)
from forebay.framework.microbatch.offset import Planned, To, UnknownEnd
from forebay.framework.microbatch.split_provider import FailureTracker, SplitProvider
from forebay.framework.runtime.clients import ConnectorCalls
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import Runtime
from forebay.framework.source import Source
from forebay.framework.split import Position, Split, before
from forebay.watermarks.event_time import FUTURE, MAX_WATERMARK, last_event_time, max_allowed, micros, watermark_before
from forebay.watermarks.strategy import IdlenessTimer

# -- Alignment of splits that are read in order, such as files: a micro-batch takes the next splits within a time span.
#
# ```
# first     first event time of the next unread split
# taken     the unread splits in order, up to the first one that begins after first + alignmentMaxDrift
# ```
# Splits are taken whole, and the next unread one is always taken. So the event times of a micro-batch exceed `first`
# by at most `alignmentMaxDrift` plus the span of one split. Event times are looked up only until a split is too late,
# however many splits there are. The offset stores which splits are read, so a replay does not need alignment.


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


# -- Alignment in a stream: no split is planned further than `alignmentMaxDrift` ahead of the slowest active one.


# -- Logs a warning if a stream stands still because all splits with records wait for a split that has caught up.


_PATIENCE: Final = 60.0
"""Seconds without a planned record after which the warning is logged."""


class LongHold:
    """Measures for how long one caught-up split holds back all others. Called on the planning thread."""

    def __init__(self, source: str, runtime: Runtime) -> None:
        self._source = source
        self._clock = runtime.clock
        self._split: str | None = None
        self._since = 0.0
        self._warned = False

    def follow(self, split: str | None) -> None:
        """Record which split holds back all others now; log one warning if it does so for a minute.

        Args:
            split: The id of the caught-up split that all splits with records wait for; None if a record may be read,
                or there is no record. It never becomes idle, because `idleTimeout` is not set.
        """
        now = self._clock.monotonic()
        if split is None or split != self._split:
            self._split, self._since, self._warned = split, now, False
        elif not self._warned and now - self._since >= _PATIENCE:
            self._warned = True
            _log.warning(
                "%s: for %.0f s no record could be read, because all splits with records wait for the split %r, which "
                "has caught up; its next record ends the wait. If it may get no more records, set idleTimeout: a split "
                "without records for that time does not hold back the others",
                self._source,
                now - self._since,
                split,
            )


_LEAST_DRIFT: Final = 0.001
"""Minimum drift in seconds: Spark's watermarks and Kafka's timestamps have milliseconds, so a smaller drift could stop
all reading."""

_UNDATED_LOOKUPS: Final = 4
"""If more lookups in a row find no event time, a split that never had one no longer holds back the others."""


class StreamAlignment:
    """Holds back the splits that are ahead in event time. Called on the planning thread.

    Args:
        source: The source.
        options: The host's options; `alignment_max_drift`, which must be set, `watermark_delay` and `idle_timeout` are
            used.
        split_provider: Knows when the source was last asked for the ends of splits.
        lookup: Asks the source for event times.
        runtime: Gives the time.
    """

    def __init__(
        self,
        source: Source,
        options: HostOptions,
        split_provider: SplitProvider,
        lookup: EventTimeLookup,
        runtime: Runtime,
    ) -> None:
        assert options.alignment_max_drift is not None  # noqa: S101 - see `of`
        self._source = source
        self._split_provider = split_provider
        self._lookup = lookup
        self._clock = runtime.clock
        self._drift = max(_LEAST_DRIFT, options.alignment_max_drift.total_seconds())
        self._drift_us = micros(self._drift, "alignmentMaxDrift")
        self._delay = micros(options.watermark_delay.total_seconds(), "watermarkDelay")
        self._idle_timeout = None if options.idle_timeout is None else options.idle_timeout.total_seconds()
        self._times: dict[str, SplitTime] = {}
        self._cuts = Cuts(source, lookup)
        self._exact_ends = split_provider.enumerator is not None and split_provider.enumerator.exact_ends
        self._limit: int | None = None
        self._failures = FailureTracker(runtime)
        self._looks_again = self._cuts_again = float("-inf")
        self._warnings = TimeWarnings(source.name)
        self._long_hold = LongHold(source.name, runtime)
        self._ending = False

    @classmethod
    def of(
        cls,
        source: Source,
        options: HostOptions,
        split_provider: SplitProvider,
        calls: ConnectorCalls,
        runtime: Runtime,
    ) -> StreamAlignment | None:
        """Return the alignment of a query; None if `alignmentMaxDrift` is not set.

        Raises:
            ConfigurationError: The event time column is not known, or is not a timestamp.
        """
        if options.alignment_max_drift is None:
            return None
        lookup = EventTimeLookup(source, split_provider.enumerator, options, calls, runtime)
        return cls(source, options, split_provider, lookup, runtime)

    @property
    def times(self) -> Mapping[str, SplitTime]:
        """The known event time of each open split, by split id."""
        return self._times

    @property
    def active(self) -> Mapping[str, SplitTime]:
        """The entries of `times` for the active splits: those that can hold back others."""
        if self._ending:
            return {split_id: time for split_id, time in self._times.items() if not time.caught_up}
        return {split_id: time for split_id, time in self._times.items() if not time.idle}

    @property
    def limit(self) -> int | None:
        """The highest watermark that a split may reach, in microseconds since 1970; None if no event time is known yet.

        It never falls.
        """
        return self._limit

    @property
    def late(self) -> int:
        """How often an idle or new split had records older than the lowest watermark that the others had waited for."""
        return self._warnings.late

    def hold_back(
        self, available: Sequence[Planned], splits: Mapping[str, Split], *, ending: bool
    ) -> Sequence[Planned]:
        """Return the part of the available splits that may be read now.

        Args:
            available: The splits with data, each up to its present end.
            splits: All open splits, by id. A split that is not in `available` has caught up, or its end is not known
                yet.
            ending: The run has fixed ends (AvailableNow). A split that has reached its end does not hold back the
                others, because this run reads no more of it.

        Raises:
            ConfigurationError: The present end of an available split is unknown.
            ForebayError: The source did not answer, and the splits cannot be aligned without an answer.
        """
        self._ending = ending
        self._follow(available, splits)
        if not available:
            self._long_hold.follow(None)
            return available
        available = list(available)  # a Backlog makes its entries at each iteration
        self._check_ends(available)
        if self._clock.monotonic() < self._cuts_again and not ending:
            return AvailableSplits(())
        self._look_up(available, self._outdated(available, splits, unknown=True))
        aligned = self._aligned(available)
        # Old answers are lower bounds: good enough as long as they hold back no split.
        if any(time.held for time in self._times.values()):
            outdated = self._outdated(available, splits)
            if outdated and self._look_up(available, outdated):
                aligned = self._aligned(available)
        self._long_hold.follow(None if aligned else self._caught_up_holder())
        return AvailableSplits(aligned)

    def close(self) -> None:
        """Stop the reads of records whose event times were asked for."""
        self._lookup.close()

    def _follow(self, available: Sequence[Planned], splits: Mapping[str, Split]) -> None:
        """Update `times` with new splits, gone splits and new positions; update the idleness of each split."""
        current = {**splits, **{planned.split.id: planned.split for planned in available}}
        self._times = {split_id: self._times.get(split_id) or self._new() for split_id in current}
        with_data = {planned.split.id for planned in available}
        unanswered = self._split_provider.unanswered
        looked_at = self._split_provider.looked_at
        for split_id, time in self._times.items():
            time.follow(current[split_id].position, with_data=split_id in with_data)
            silent = split_id not in with_data or time.empty
            if split_id not in unanswered:
                time.judge(looked_at, silent=silent)

    def _check_ends(self, available: Sequence[Planned]) -> None:
        for planned in available:
            if planned.to is UnknownEnd.NEGOTIATED:
                raise ConfigurationError(
                    "alignmentMaxDrift needs the current end of each split, but this split has no known end",
                    source=self._source.name,
                    split=planned.split.id,
                    option="alignmentMaxDrift",
                    advice="remove alignmentMaxDrift; or, in the connector, return the end from latest()",
                )

    def _new(self) -> SplitTime:
        return SplitTime(None if self._idle_timeout is None else IdlenessTimer(self._idle_timeout))

    def _caught_up_holder(self) -> str | None:
        """Return the id of the slowest split, if it has caught up and can never become idle; else None."""
        if self._idle_timeout is not None:
            return None
        slowest = slowest_of(self.active)
        return slowest if slowest is not None and self._times[slowest].caught_up else None

    def _aligned(self, available: Sequence[Planned]) -> list[Planned]:
        """Raise the limit as far as the active splits allow; return the part of each available split below it."""
        active = self.active
        limit = max_allowed((time.watermark for time in active.values()), self._drift)
        if limit != MAX_WATERMARK and not self._waits_for_first_times(active, available):
            self._limit = limit if self._limit is None else max(self._limit, limit)
        if self._limit is None:  # no event time is known: look up more
            return self._cuts.undated(available, self._times)
        try:
            return self._cuts.at(last_event_time(self._limit, self._delay), available, self._times)
        except RetriableError as error:
            if self._ending:
                raise
            self._cuts_again = self._back_off(error, f"finding an event time in {len(available)} splits failed")
            return []

    def _waits_for_first_times(self, active: Mapping[str, SplitTime], available: Sequence[Planned]) -> bool:
        """Return whether an active split's first event time may be found soon; the limit must not rise before that."""
        with_data = {planned.split.id for planned in available}
        unanswered = self._split_provider.unanswered
        return any(
            not time.looked_up
            or split_id in unanswered
            or (split_id in with_data and time.unknown_lookups <= _UNDATED_LOOKUPS)
            for split_id, time in active.items()
            if time.watermark is None
        )

    def _outdated(
        self, available: Sequence[Planned], splits: Mapping[str, Split], *, unknown: bool = False
    ) -> list[Split]:
        """Return the active splits that have moved since their next event time was looked up, up to their present ends.

        With `unknown`, return only those without a watermark and those that were idle: for the others, the previous
        answer is a lower bound.
        """
        active = self.active

        def outdated(split: Split) -> bool:
            time = active.get(split.id)
            if time is None or time.knows(split.position):
                return False
            return time.watermark is None or time.returned or not unknown

        moved = [planned.slice() for planned in available if outdated(planned.split)]
        with_data = {planned.split.id for planned in available}
        without_data = (split for split in splits.values() if split.id not in with_data and outdated(split))
        return moved + [split.slice(split.position, split.position) for split in without_data]

    def _look_up(self, available: Sequence[Planned], splits: Sequence[Split]) -> bool:
        """Look up the event time of the next record of each split; return whether the source answered."""
        if not splits or (self._clock.monotonic() < self._looks_again and not self._ending):
            return False
        needed = self._ending or self._limit is None
        try:
            times = self._lookup.next_times(splits, needed=needed)
        except RetriableError as error:
            if needed:
                raise
            self._looks_again = self._back_off(error, f"asking for the event times of {len(splits)} splits failed")
            return False
        self._failures.succeed()
        with_data = {planned.split.id for planned in available}
        for split in splits:
            self._note(split, times.get(split.id), with_data)
        return True

    def _back_off(self, error: RetriableError, what: str) -> float:
        """Log a failed call, which `what` describes; return the monotonic time of the next attempt."""
        pause = self._failures.fail(error)
        _log.warning("%s: %s and is retried in %.1f s: %s", self._source.name, what, pause, error)
        return self._clock.monotonic() + pause

    def _note(self, split: Split, event_time: int | None, with_data: Collection[str]) -> None:
        time = self._times[split.id]
        time.empty = event_time is None and split.id in with_data and not self._exact_ends
        if event_time is not None and event_time > round(self._clock.now() * 1_000_000) + FUTURE:
            self._warnings.future(split, time, event_time)
            event_time = None
        if event_time is not None and split.id in with_data and self._limit is not None:
            floor = self._limit - self._drift_us
            self._warnings.check_behind(split, time, watermark_before(event_time, self._delay), floor)
        time.note(split.position, event_time, self._delay, at_end=split.id not in with_data)


# -- Cuts the available splits at an event time.
#
# If the source can find the position of an event time, a split is cut there; else it is taken whole or not at all.


_MOST_STEPS: Final = 20
"""A micro-batch reads at most 2 to the power of this many records without event times of one split."""


class _Answer(NamedTuple):
    """A cached answer: `to` is the position of the first record in [`position`, `end`) that is later than `latest`.

    If no such record exists, `to` is `end`.
    """

    latest: int
    position: Position | None
    end: To | None
    to: Position


class Cuts:
    """Finds how far each split may be read so that it stays below an event time. Called on the planning thread.

    Args:
        source: The source; its `order_key` orders positions.
        lookup: Finds positions by event time.
    """

    def __init__(self, source: Source, lookup: EventTimeLookup) -> None:
        self._source = source
        self._lookup = lookup
        self._answers: dict[str, _Answer] = {}

    def at(self, latest: int, available: Sequence[Planned], times: Mapping[str, SplitTime]) -> list[Planned]:
        """Return the part of each split up to its first record later than `latest`, in microseconds since 1970.

        Splits without such a part are left out. Sets `held` in `times` for each split that is not returned whole.
        """
        self._ask(
            latest,
            [
                planned
                for planned in available
                if not times[planned.split.id].later_than(latest, planned.split.position)
            ],
        )
        self._answers = {split_id: known for split_id, known in self._answers.items() if split_id in times}
        aligned = []
        for planned in available:
            time = times[planned.split.id]
            part = self._part(planned, latest, time)
            time.held = part is not planned
            if not part.empty:
                aligned.append(part)
        return aligned

    def undated(self, available: Sequence[Planned], times: Mapping[str, SplitTime]) -> list[Planned]:
        """Return a part of a few records of each split whose next record has no event time; leave out other splits.

        Sets `held` in `times` for all splits.
        """
        aligned = []
        for planned in available:
            time = times[planned.split.id]
            time.held = True
            if time.knows(planned.split.position) and time.next_time is None:
                aligned.append(self._steps(planned, time))
        return aligned

    def _ask(self, latest: int, candidates: Sequence[Planned]) -> None:
        """Ask for the position of the first record later than `latest` in each split without a valid cached answer."""
        candidates = [planned for planned in candidates if self._answer(planned, latest) is None]
        positions = self._lookup.positions_at(latest + 1, [planned.slice() for planned in candidates])
        for planned in candidates:
            split, to = planned.split, positions.get(planned.split.id)
            if to is None:
                self._answers.pop(split.id, None)
                continue
            self._check(split, to)
            if not isinstance(planned.to, UnknownEnd) and planned.to is not None:
                to = planned.to if self._before(planned.to, to, split) else to
            self._answers[split.id] = _Answer(latest, split.position, planned.to, to)

    def _answer(self, planned: Planned, latest: int) -> _Answer | None:
        """Return the cached answer for a split if it is still valid, else None.

        An answer stays valid when records are appended, unless it is that there is no later record.
        """
        known = self._answers.get(planned.split.id)
        if known is None or known.latest != latest or known.position != planned.split.position:
            return None
        return known if known.to != known.end or known.end == planned.to else None

    def _part(self, planned: Planned, latest: int, time: SplitTime) -> Planned:
        """Return the part of a split up to the event time `latest`; if that is all of it, return `planned` itself."""
        split = planned.split
        nothing = Planned(split, split.position)
        if time.must_be_looked_at or time.later_than(latest, split.position):
            return nothing
        unknown = time.knows(split.position) and time.next_time is None
        answer = self._answer(planned, latest)
        if answer is None:  # the source cannot find a time
            if not time.knows(split.position):
                return nothing  # first, the event time of the next record must be looked up
            return self._steps(planned, time) if unknown else planned
        to = answer.to
        if to == planned.to:
            return planned
        if split.position is None:
            return nothing if to == 0 else Planned(split, to)
        if self._before(split.position, to, split):
            return Planned(split, to)
        return self._steps(planned, time) if unknown else nothing

    def _steps(self, planned: Planned, time: SplitTime) -> Planned:
        """Return a part of a few records of a split whose next record has no event time: 1, then 2, 4 and so on."""
        if isinstance(planned.to, UnknownEnd):
            return planned
        part = planned.slice()
        to = self._lookup.after_rows(part, 1 << min(time.unknown_lookups - 1, _MOST_STEPS))
        if to is None or to == part.position or not self._before(to, part.end, part):
            return planned
        return Planned(planned.split, to)

    def _check(self, split: Split, to: Position) -> None:
        if split.position is not None and self._before(to, split.position, split):
            raise ContractError(
                f"positions_at() returned {to!r:.200}, before the split's position {split.position!r}",
                source=self._source.name,
                split=split.id,
                position=split.position,
                rule="DIS-4",
                advice="in the connector, let positions_at() return the split's position or a later one, or leave out "
                "the split if the answer is unknown",
            )

    def _before(self, first: Position, second: Position, split: Split) -> bool:
        return before(self._source, first, second, split.id)
