# SPDX-License-Identifier: Apache-2.0
"""Plans a stream: from the offset of one micro-batch to that of the next, and from an offset to tasks.

```
latest(start)   takes `start` as committed, restores the state in a new process, asks for new splits and present ends,
                applies limits, and returns the next offset
tasks(end)      cuts the splits in `end` into slices, and assigns them to tasks; depends on `end` alone
commit(end)     reports finished splits; never raises
```
"""

from __future__ import annotations

import dataclasses
import logging
import os
import uuid
from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from forebay.errors import ForebayError, RetriableError
from forebay.framework.coordination.coordinator import Coordinator
from forebay.framework.discovery import DiscoveryEnumerator, KnownSplits
from forebay.framework.microbatch.admission import (
    Admission,
    AvailableNow,
    AvailableRange,
    AvailableSplits,
    BatchLimits,
    Once,
    Trigger,
)
from forebay.framework.microbatch.alignment import OrderedAlignment, StreamAlignment
from forebay.framework.microbatch.assigned_splits import AssignedSplitProvider
from forebay.framework.microbatch.committed_state import (
    CommittedState,
    OffsetMigration,
    RestartGuard,
    identity_of,
    negotiated_of,
    unfinished_replay,
)
from forebay.framework.microbatch.end_negotiation import NegotiatedSplits, RecordProbe
from forebay.framework.microbatch.negotiated_reads import Negotiation
from forebay.framework.microbatch.offset import BEFORE_FIRST, Offset, Planned, UnknownEnd, dump_offset, own_ends
from forebay.framework.microbatch.offset_codec import InlineOffsetCodec, OffsetCodec
from forebay.framework.microbatch.reports import QueryReport, event_time_report
from forebay.framework.microbatch.spilling_codec import SpillingOffsetCodec
from forebay.framework.microbatch.split_provider import (
    QUIET_FLOOR,
    DiscoverySplitProvider,
    RefreshPolicy,
    SplitProvider,
)
from forebay.framework.runtime.clients import ConnectorCalls
from forebay.framework.runtime.host_options import HostOptions, state_store
from forebay.framework.runtime.runtime import Runtime, ThreadRuntime
from forebay.framework.source import Source
from forebay.framework.split import Json, Position
from forebay.framework.tasks.assign_tasks import create_enumerator, spread
from forebay.framework.tasks.read_task import ReadTask
from forebay.options import Duration
from forebay.retry import RetryPolicy

# -- Avoids empty micro-batches of sources whose `latest` may move forward although there is no new record.


_PATIENCE: Final = 10.0
"""Maximum seconds that planning waits for a first record; after that the micro-batch is planned without an answer."""

_CLOSE_TIMEOUT: Final = 1.0
"""Maximum seconds that planning waits for the reader of an unanswered probe to end."""

_SHARE: Final = 0.2
"""Maximum share of the time that probes take. An empty micro-batch reads the same and takes longer."""

_LONGEST_HOLD: Final = 600.0
"""Seconds after which an empty range is planned anyway, so that positions stay within the source's retention."""


class RangeProbe:
    """Finds out, by reading in the planner, whether there is a record before the ends that `latest` returned.

    An end such as "now less a delay" moves forward without records, and tasks cannot report empty reads to the planner.
    If the probe fails or finds no answer in time, the micro-batch is planned. Called on the planning thread.
    """

    def __init__(self, source: Source, options: HostOptions, split_provider: SplitProvider, runtime: Runtime) -> None:
        enumerator = split_provider.enumerator
        self._source = source
        close_timeout = min(options.close_timeout, Duration(_CLOSE_TIMEOUT))
        self._options = dataclasses.replace(options, close_timeout=close_timeout)
        self._runtime = runtime
        self._clock = runtime.clock
        exact = enumerator is None or enumerator.exact_ends
        self._needed = not (exact or source.bounded or split_provider.in_order)
        floor = 0.0 if enumerator is None else enumerator.refresh_floor
        self._refresh = RefreshPolicy(runtime, options.refresh_interval, floor, _SHARE)
        self._has_record = True
        self._trusted_until = float("-inf")
        self._planned_at = runtime.clock.monotonic()
        self._holding = False

    def finds_nothing(self, available: Sequence[Planned]) -> bool:
        """Return whether a probe has found that the available splits have no record. May block while it reads."""
        self._holding = self._needed and bool(available) and not self._worth_planning(available)
        if not self._holding:
            self._planned_at = self._clock.monotonic()
        return self._holding

    def due_soon(self, since: float, within: float) -> float | None:
        """Return the seconds until the next probe, None if the caller should not wait for it.

        The caller should wait if `finds_nothing` returned True, under the conditions of `RefreshPolicy.due_soon`.
        """
        return self._refresh.due_soon(since, within) if self._holding else None

    def _worth_planning(self, available: Sequence[Planned]) -> bool:
        if any(planned.ends or isinstance(planned.to, UnknownEnd) for planned in available):
            return True
        now = self._clock.monotonic()
        if now < self._trusted_until or now >= self._planned_at + _LONGEST_HOLD:
            return True
        if self._refresh.is_due():
            try:
                self._refresh.measure(lambda: self._probe(available))
            except ForebayError as error:
                # Executors may reach a server that the driver does not: the tasks show whether the source can be read.
                self._has_record = True
                pause = self._refresh.put_off(error)
                _log.warning(
                    "%s: reading a first record in the planner failed and is retried in %.1f s; until then, "
                    "micro-batches are planned without this check for new records: %s",
                    self._source.name,
                    pause,
                    error,
                )
            else:
                # While records flow, only the share of the time bounds the cost of probes.
                self._trusted_until = now + self._refresh.took / _SHARE if self._has_record else float("-inf")
        return self._has_record

    def _probe(self, available: Sequence[Planned]) -> None:
        probe = RecordProbe(self._source, [planned.slice() for planned in available], self._options, self._runtime)
        probe.poll(_PATIENCE)
        with_record, _ = probe.answers()
        if probe.silent:
            probe.close()
            if not with_record:
                text = f"read() returned no record within {_PATIENCE:g} s"
                raise RetriableError(
                    text,
                    source=self._source.name,
                    split=min(probe.silent),
                    advice="in the connector, end read() where there are no more records, and give its requests a time "
                    "limit",
                )
        self._has_record = bool(with_record)


_log = logging.getLogger(__name__)

_SOON = QUIET_FLOOR
"""If the cached answer expires within these seconds, wait for a fresh one before reporting no data."""
_PACE = 0.01
"""Seconds between two polls while waiting: Spark's own pace."""
_POLLS = 12
"""Maximum polls per `latest` call while waiting for fresh answers."""


class StreamPlanner:
    """Plans the micro-batches of one query. Used in the planning process, by one call at a time.

    A micro-batch is planned from the previous offset and from the source. Its own offset stores all of the plan, so a
    new planner continues from any offset exactly as this one does (S1, S2).
    """

    def __init__(
        self,
        source: Source,
        options: HostOptions,
        *,
        split_provider: SplitProvider,
        offset_codec: OffsetCodec,
        calls: ConnectorCalls,
        runtime: Runtime,
        restart_guard: RestartGuard,
        parallelism: int,
    ) -> None:
        self._source = source
        self._options = options
        self._split_provider = split_provider
        self._codec = offset_codec
        self._calls = calls
        self._runtime = runtime
        self._clock = runtime.clock
        self._restart_guard = restart_guard
        self._parallelism = parallelism
        self._negotiated = negotiated = NegotiatedSplits.of(source, options, calls, runtime)
        self._range = AvailableRange(source, negotiable=negotiated is not None, in_order=split_provider.in_order)
        self._probe = RangeProbe(source, options, split_provider, runtime)
        self._limits = BatchLimits.of(options)
        alignment = OrderedAlignment if split_provider.in_order else StreamAlignment
        self._alignment = alignment.of(source, options, split_provider, calls, runtime)
        self._admission = Admission(source.name, split_provider.enumerator, self._limits)
        self._committed = CommittedState(
            source,
            split_provider=split_provider,
            offset_codec=offset_codec,
            migration=OffsetMigration(source, split_provider, calls),
            restart_guard=restart_guard,
            negotiated=negotiated,
        )
        self._trigger = Trigger()
        self._nothing_until = float("-inf")
        self._planned_at = float("-inf")  # the first micro-batch of a run waits for no other rows, as Spark's Kafka
        event_time = None if self._alignment is None else self._event_time
        self._report = QueryReport(source.name, split_provider, negotiated, event_time)

    # ---- called by the host

    def initial(self) -> dict[str, Json]:
        """Return the offset before the first micro-batch, which is always the same."""
        return dump_offset(Offset(self._source.name))

    def prepare_available_now(self) -> None:
        """Let all following micro-batches read only the data that is available at the next call of `latest` (S17).

        May be called before any other method.
        """
        self._trigger = AvailableNow()

    def latest(self, start: Mapping[str, Json], *, limited: bool = True) -> Mapping[str, Json]:
        """Return the offset of the next micro-batch, or `start` itself if there is no new data (S4).

        If asking the source costs little, a call waits for a fresh answer before it reports no data: Spark's
        `processAllAvailable` relies on this.

        Args:
            start: The offset of the last micro-batch, which is committed by this call.
            limited: Whether limits apply; False = one micro-batch of all available data.

        Raises:
            ForebayError: The source failed, or the stream cannot continue from this offset.
        """
        trigger = self._trigger if limited else Once()
        if self._committed.go_on_from(start):
            self._nothing_until = float("-inf")
        asked = self._clock.monotonic()
        offset = self._next(trigger) if trigger.fresh or asked >= self._nothing_until else None
        if trigger.waits:
            for _ in range(_POLLS):
                if offset is not None or not self._wait_for_poll(asked):
                    break
                offset = self._next(trigger)
            if offset is None:
                offset = self._linger(trigger, self._codec.patience())
        return start if offset is None else offset

    def tasks(self, start: Mapping[str, Json], end: Mapping[str, Json]) -> list[ReadTask]:
        """Return the tasks of a micro-batch. They depend on `end` alone; the call changes no splits (S2, S5).

        Args:
            start: The offset of the last micro-batch. If it is equal to `end`, there are no tasks.
            end: The offset of the micro-batch.
        """
        offset = self._committed.read(end)
        if identity_of(start) == (offset.query, offset.n):
            return []
        if offset.n == BEFORE_FIRST:
            raise unfinished_replay(self._source.name)
        self._restart_guard.check(offset)  # a replay is the first call, and must read what was planned
        self._committed.replaying(offset.n)
        slices = [planned.slice() for planned in offset.splits if not planned.empty]
        negotiated = {planned.split.id for planned in negotiated_of(offset)}
        enumerator, options = self._split_provider.enumerator, self._options
        parts = self._calls.call(
            "tasks(), size() or slices()",
            lambda: spread(enumerator, slices, options, self._parallelism, uncut=negotiated),
        )
        unplanned = None
        if negotiated:
            unplanned = Negotiation(offset.query, offset.n, self._committed.negotiation(offset).shares(offset))
        own = {} if self._source.bounded else own_ends(offset.splits)
        return [
            ReadTask(
                self._source,
                part,
                options,
                index,
                len(parts),
                unplanned=unplanned,
                own_ends={split.id: own[split.id] for split in part if split.id in own},
            )
            for index, part in enumerate(parts)
        ]

    def commit(self, end: Mapping[str, Json]) -> None:
        """Report to the source the splits that the micro-batch with the offset `end` finished. Never raises."""
        self._committed.commit(end)

    def report(self) -> dict[str, Json]:
        """Return the progress of the query, as of the last poll of the source; the source is not asked (S12)."""
        return self._report.payload()

    def close(self) -> None:
        """Close the enumerator, and stop all reads of the planner."""
        if self._negotiated is not None:
            self._negotiated.close()
        if self._alignment is not None:
            self._alignment.close()
        self._split_provider.close()

    def _wait_for_poll(self, since: float) -> bool:
        """Wait until a cached answer from before `since` (monotonic time) expires; return False if that is not soon."""
        due = [poller.due_soon(since, _SOON) for poller in (self._split_provider, self._probe)]
        soon = min((seconds for seconds in due if seconds is not None), default=None)
        if soon is None:
            return False
        if pause := min(soon, self._pause()):
            self._runtime.signal().wait(pause)
        return True

    def _linger(self, trigger: Trigger, left: float) -> Mapping[str, Json] | None:
        """Poll for `left` seconds; return the offset of the next micro-batch when there is new data, else None."""
        while left > 0:
            pause = min(left, self._pause())
            self._runtime.signal().wait(pause)
            left -= pause
            if self._clock.monotonic() >= self._nothing_until:
                offset = self._next(trigger)
                if offset is not None:
                    return offset
        return None

    def _pause(self) -> float:
        return max(_PACE, self._nothing_until - self._clock.monotonic())

    def _next(self, trigger: Trigger) -> Mapping[str, Json] | None:
        """Return the offset of the next micro-batch; None if there is no new data."""
        self._poll(trigger)
        available = self._available(trigger)
        committed = self._committed
        first = committed.at.n == BEFORE_FIRST
        if trigger.waits and not first:
            if self._wait_for_more(available):
                return None
            if self._probe.finds_nothing(available):
                available = AvailableSplits(())
        taken = self._take(self._aligned(available, trigger), trigger)
        self._nothing_until = self._due() if not taken else float("-inf")
        planning = bool(taken) or first
        n = committed.at.n + 1 if planning else committed.at.n
        self._report.update(n, available, taken, splits=len(committed.open), done=committed.done.count)
        if not planning:
            return None
        self._planned_at = self._clock.monotonic()
        return self._plan(taken, trigger)

    def _poll(self, trigger: Trigger) -> None:
        """Ask for new splits and add them; drop splits that are gone, or no longer have to be remembered."""
        provider, committed = self._split_provider, self._committed
        ending = trigger.target is not None
        if ending and not (provider.always_polls or provider.in_order):
            return
        known = KnownSplits(committed.open, committed.done)
        room = 0 if ending else self._limits.files or self._codec.room() or (1 << 30)
        result = provider.poll(known, committed.open, fresh=trigger.fresh, room=room)
        for split_id in result.gone:
            committed.open.pop(split_id, None)
        if result.new is None:
            return
        if provider.in_order:
            committed.waiting = {split.id: split for split in result.new}
        else:
            committed.open.update((split.id, split) for split in result.new)
        if result.horizon is not None and committed.done and (result.new or provider.always_polls):
            committed.done.forget(result.horizon)

    def _available(self, trigger: Trigger) -> AvailableSplits:
        """Return every split with new data, up to its present end."""
        splits = [*self._committed.open.values(), *self._committed.waiting.values()]
        ends: Mapping[str, Position] = {}
        if trigger.target is None:
            asked = [split for split in splits if split.end is None or not self._source.bounded]
            ends = self._split_provider.latest(asked, fresh=trigger.fresh)
            if unanswered := self._split_provider.unanswered:
                splits = [split for split in splits if split.id not in unanswered]
        available = self._range.backlog(splits, ends, trigger.target)
        if self._negotiated is not None and not self._range.whole:
            ending = trigger.target is not None
            available = AvailableSplits(self._negotiated.with_data(available, fresh=trigger.fresh, ending=ending))
        trigger.begin(available)
        return available

    def _due(self) -> float:
        """Return the monotonic time when the source must be polled again."""
        due = self._split_provider.due()
        return due if self._negotiated is None else min(due, self._negotiated.due())

    def _wait_for_more(self, available: Sequence[Planned]) -> bool:
        """Return whether to wait for more rows: `minRowsPerTrigger` is not reached, and `maxTriggerDelay` not over."""
        least = self._options.min_rows_per_trigger
        if least is None or not available:
            return False
        until = self._planned_at + self._options.max_trigger_delay.total_seconds()
        if self._clock.monotonic() >= until:
            return False
        if self._calls.call("advance()", lambda: self._admission.rows(available)) >= least:
            return False
        self._nothing_until = min(until, self._due())
        return True

    def _aligned(self, available: Sequence[Planned], trigger: Trigger) -> Sequence[Planned]:
        """Return the part of the available splits that alignment in event time does not hold back."""
        if self._alignment is None or not trigger.limited:
            return available
        return self._alignment.hold_back(available, self._committed.open, ending=trigger.target is not None)

    def _event_time(self) -> Json:
        """Return the report of alignment, for progress reports and offsets; None if `alignmentMaxDrift` is not set."""
        return None if self._alignment is None else event_time_report(self._alignment, self._options)

    def _take(self, available: Sequence[Planned], trigger: Trigger) -> Sequence[Planned]:
        """Return the part of the available splits that the micro-batch reads, by limits and by room in the offset."""
        taken, in_order = available, self._split_provider.in_order
        if trigger.limited and self._limits and available:
            admit = self._admission.admit_in_order if in_order else self._admission.admit
            negotiated = None if self._range.whole else self._negotiated
            bounded, others = ([], available) if negotiated is None else negotiated.admit(available)
            taken = [*bounded, *(self._calls.call("advance() or size()", lambda: admit(others)) if others else ())]
            self._range.check_within(taken, available)
        # Open splits are in every offset anyway; only splits in order, which are remembered when finished, need room.
        room = self._codec.room(taken) if in_order else None
        if room is not None and room < len(taken) and not trigger.limited:
            _log.warning(
                "%s: this micro-batch reads %d of %d splits, because no more fit into an offset; set stateLocation to "
                "read all of them in one micro-batch",
                self._source.name,
                room,
                len(taken),
            )
        return taken[:room]

    def _plan(self, taken: Sequence[Planned], trigger: Trigger) -> dict[str, Json]:
        """Return the offset of the micro-batch that reads `taken`."""
        committed = self._committed
        query, n = committed.at.query or uuid.uuid4().hex[:12], committed.at.n + 1
        chosen = {planned.split.id: planned for planned in taken}
        splits = [chosen.get(split.id) or Planned(split, split.position) for split in committed.open.values()]
        splits.extend(planned for planned in taken if planned.split.id not in committed.open)
        for planned in splits:
            self._range.check_forward(planned)
        if self._negotiated is not None:
            self._negotiated.begin(query, n, taken)
        offset = Offset(
            self._source.name,
            n,
            query,
            splits,
            self._split_provider.snapshot(n),
            self._restart_guard.options,
            self._restart_guard.schema,
            unlimited=not trigger.limited and any(planned.to is UnknownEnd.NEGOTIATED for planned in taken),
            event_time=self._event_time(),
        )
        committed.planned(offset)
        return self._codec.write(offset, committed.done)


# -- Creates the planner of a stream from a source and its options.


def open_stream(
    source: Source,
    options: HostOptions,
    *,
    parallelism: int | None = None,
    inferred: pa.Schema | None = None,
    runtime: Runtime | None = None,
) -> StreamPlanner:
    """Return the planner of a new or a restarted query; the first `StreamPlanner.latest` asks the source for splits.

    Args:
        source: The source, with its resolved schema.
        options: The host's options.
        parallelism: The number of cores that run tasks; by default that of this machine.
        inferred: The schema, if it was inferred from the input and may differ at the next start; else None.
        runtime: Threads and time.

    Raises:
        ForebayError: The source cannot create its enumerator, or `stateLocation` cannot keep state.
    """
    runtime = runtime or ThreadRuntime()
    timeout = options.planning_timeout.total_seconds()
    calls = ConnectorCalls(source.name, runtime, retry=RetryPolicy.of(options), timeout=timeout)

    def new_coordinator() -> Coordinator:
        return Coordinator(source.name, runtime, streaming=True)

    coordinator = new_coordinator()
    enumerator = create_enumerator(source, coordinator, calls)
    split_provider: SplitProvider
    if isinstance(enumerator, DiscoveryEnumerator):
        split_provider = DiscoverySplitProvider(source, enumerator, options, calls, runtime)
        digests = enumerator.digests
    else:
        digests = None
        split_provider = AssignedSplitProvider(source, enumerator, coordinator, calls, new_coordinator, timeout=timeout)
    store = state_store(options)
    spilling = None if store is None else SpillingOffsetCodec(source, store, calls, digests)
    return StreamPlanner(
        source,
        options,
        split_provider=split_provider,
        offset_codec=spilling or InlineOffsetCodec(source, digests),
        calls=calls,
        runtime=runtime,
        restart_guard=RestartGuard.of(source, options, inferred),
        parallelism=parallelism or os.cpu_count() or 1,
    )
