# SPDX-License-Identifier: Apache-2.0
"""The planner of a stream: from the offset of one micro-batch to that of the next, and from an offset to tasks.

```
latest(start)   start is proven done → restore, if cold → look for splits → their ends → limits → the next offset
tasks(end)      a pure function of `end`: slices, packed
commit(end)     a second chance for what may be done only after a micro-batch; never raises
```
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence

from forebay.framework.host_options import HostOptions
from forebay.framework.microbatch.admission.admission import Admission, Limits
from forebay.framework.microbatch.admission.assign_tasks import spread
from forebay.framework.microbatch.admission.available_range import Known, Reach
from forebay.framework.microbatch.admission.backlog import Backlog
from forebay.framework.microbatch.committed_state import CommittedState, agreed_of, place_of
from forebay.framework.microbatch.end_negotiation.negotiated_splits import NegotiatedSplits
from forebay.framework.microbatch.offset_migration import unfinished_replay
from forebay.framework.microbatch.offsets.codec import OffsetCodec
from forebay.framework.microbatch.offsets.offset import BEFORE_FIRST, Agreed, Offset, Planned, To, dump_offset
from forebay.framework.microbatch.range_probe import RangeProbe
from forebay.framework.microbatch.read_task import ReadTask
from forebay.framework.microbatch.reports import Report
from forebay.framework.microbatch.restart_guard import RestartGuard
from forebay.framework.microbatch.split_providers.refresh_policy import QUIET_FLOOR
from forebay.framework.microbatch.split_providers.split_provider import SplitProvider
from forebay.framework.runtime.connector_calls import ConnectorCalls
from forebay.framework.runtime.runtime import Runtime
from forebay.framework.source import Source
from forebay.framework.split import Json, Position

_log = logging.getLogger(__name__)

_SOON = QUIET_FLOOR
"""Seconds for which an answer is trusted that is worth waiting for a new one, before "nothing new" is said."""
_PACE = 0.01
"""Seconds between two looks while one waits: as often as Spark asks."""
_LOOKS = 12
"""More than there can be at that pace."""


class StreamPlanner:
    """Plans the micro-batches of one query. Lives in the process that plans; called there, one call at a time.

    Every micro-batch is planned from the offset before it and from the outside, and is nowhere but in its own offset:
    a new planner goes on from any offset as this one would (S1, S2).

    Args:
        source: What is read, its schema settled.
        options: Limits, intervals, time-outs.
        supply: Where splits come from.
        book: How offsets are written.
        calls: Bounds the connector's calls.
        runtime: The clock.
        pinned: What may not change between two runs.
        parallelism: How many tasks run at once.
    """

    def __init__(
        self,
        source: Source,
        options: HostOptions,
        *,
        supply: SplitProvider,
        book: OffsetCodec,
        calls: ConnectorCalls,
        runtime: Runtime,
        pinned: RestartGuard,
        parallelism: int,
    ) -> None:
        self._source = source
        self._options = options
        self._supply = supply
        self._book = book
        self._calls = calls
        self._runtime = runtime
        self._clock = runtime.clock
        self._pinned = pinned
        self._parallelism = parallelism
        self._agreed = NegotiatedSplits.of(source, options, calls, runtime)
        self._reach = Reach(source, agreeing=self._agreed is not None, in_order=supply.in_order)
        self._probe = RangeProbe(source, options, supply, runtime)
        self._limits = Limits.of(options)
        self._admission = Admission(source.name, supply.enumerator, self._limits)
        self._proven = CommittedState(source, supply=supply, book=book, pinned=pinned, agreed=self._agreed)
        self._available_now = False
        self._target: Mapping[str, To] | None = None
        self._nothing_until = float("-inf")
        self._planned_at = float("-inf")  # the first micro-batch of a run waits for no other rows, as Spark's Kafka
        self._report = Report(source.name, supply, self._agreed)

    # ---- what a host calls

    def initial(self) -> dict[str, Json]:
        """Return the offset before the first micro-batch: always the same, whatever there is to read."""
        return dump_offset(Offset(self._source.name))

    def prepare_available_now(self) -> None:
        """Read what there is when the next `latest` begins, and no more. May be called before any other call (S17)."""
        self._available_now, self._target = True, None

    def latest(self, start: Mapping[str, Json], *, limited: bool = True) -> Mapping[str, Json]:
        """Return the offset of the next micro-batch, or `start` itself where there is nothing new (S4).

        Where looking costs little, "nothing new" is never said from memory, but after a short wait for the next look:
        Spark's `processAllAvailable` takes it for the truth of this moment, and asks again at once anyway.

        Args:
            start: The offset of the last micro-batch; that it is asked from proves it done.
            limited: Keep the limits; without, all that is there is taken.

        Raises:
            ForebayError: The source failed, or the offset cannot be gone on from.
        """
        if self._proven.go_on_from(start):
            self._nothing_until = float("-inf")
        # A run that ends must not take an outage for "nothing new": AvailableNow at its begin, Once at its only look.
        fresh = self._target is None and (self._available_now or not limited)
        asked = self._clock.monotonic()
        waits = limited and not fresh and self._target is None
        offset = None
        if fresh or not limited or asked >= self._nothing_until:
            offset = self._next(fresh=fresh, limited=limited)
        for _ in range(_LOOKS):
            if offset is not None or not waits or not self._await_look(asked):
                break
            offset = self._next(fresh=fresh, limited=limited)
        if offset is None and waits:
            offset = self._linger(self._book.patience())
        return start if offset is None else offset

    def tasks(self, start: Mapping[str, Json], end: Mapping[str, Json]) -> list[ReadTask]:
        """Return the tasks of a micro-batch: a function of `end` alone, without side effects (S2, S5).

        Args:
            start: Looked at only to see whether there is a micro-batch at all.
            end: Its offset.
        """
        offset = self._book.read(end)
        if place_of(start) == (offset.query, offset.n):
            return []
        if offset.n == BEFORE_FIRST:
            raise unfinished_replay(self._source.name)
        # Here too: a replay comes before anything else, and must read what was planned.
        self._pinned.check(offset)
        self._proven.replaying(offset.n)
        slices = [planned.slice() for planned in offset.splits if not planned.empty]
        agreed = {planned.split.id for planned in agreed_of(offset)}
        enumerator, options = self._supply.enumerator, self._options
        parts = self._calls.call(
            "tasks(), size() or slices()",
            lambda: spread(enumerator, slices, options, self._parallelism, uncut=agreed),
        )
        claiming = self._proven.agreeing(offset).claiming(offset) if agreed else None
        return [
            ReadTask(self._source, part, options, index, len(parts), claiming=claiming)
            for index, part in enumerate(parts)
        ]

    def commit(self, end: Mapping[str, Json]) -> None:
        """A micro-batch is done and will not be read again: tell the source which splits ended. Never raises."""
        self._proven.commit(end)

    def report(self) -> dict[str, Json]:
        """Return where the query stands, from memory (S12)."""
        return self._report.payload()

    def close(self) -> None:
        """Free what the source holds."""
        if self._agreed is not None:
            self._agreed.close()
        self._supply.close()

    def _await_look(self, asked: float) -> bool:
        """Wait for the next look, if something was not looked at since `asked` and will be soon; return whether."""
        due = [one.due_soon(asked, _SOON) for one in (self._supply, self._probe)]
        soon = min((seconds for seconds in due if seconds is not None), default=None)
        if soon is None:
            return False
        if pause := min(soon, max(_PACE, self._nothing_until - self._clock.monotonic())):
            self._runtime.signal().wait(pause)
        return True

    def _linger(self, left: float) -> Mapping[str, Json] | None:
        """Look on for so many seconds, as often as is due; return the offset of the next micro-batch, if there is one.

        Waiting costs no latency: what comes meanwhile is found as soon as it would be found by the next call.
        """
        while left > 0:
            pause = min(left, max(_PACE, self._nothing_until - self._clock.monotonic()))
            self._runtime.signal().wait(pause)
            left -= pause
            if self._clock.monotonic() >= self._nothing_until:
                offset = self._next(fresh=False, limited=True)
                if offset is not None:
                    return offset
        return None

    def _next(self, *, fresh: bool, limited: bool) -> Mapping[str, Json] | None:
        """Return the offset of the next micro-batch; None where there is nothing new."""
        self._look(fresh=fresh)
        there = self._there(fresh=fresh)
        first = self._proven.at.n == BEFORE_FIRST
        if limited and not self._available_now and not first:
            if self._wait_for_more(there):
                return None
            if self._probe.finds_nothing(there):
                there = Backlog(())
        taken = self._take(there, limited=limited)
        self._nothing_until = self._due() if not taken else float("-inf")
        self._describe(there, taken)
        if not taken and not first:
            return None
        self._planned_at = self._clock.monotonic()
        return self._plan(taken, limited=limited)

    # ---- what is there

    def _look(self, *, fresh: bool) -> None:
        ending = self._target is not None
        if ending and not (self._supply.always_looks or self._supply.in_order):
            return
        proven = self._proven
        known = Known(proven.open, proven.done)
        room = 0 if ending else self._limits.files or self._book.room() or (1 << 30)
        look = self._supply.look(known, proven.open, fresh=fresh, room=room)
        for split_id in look.gone:
            proven.open.pop(split_id, None)
        if look.new is None:
            return
        if self._supply.in_order:
            proven.waiting = {split.id: split for split in look.new}
        else:
            proven.open.update((split.id, split) for split in look.new)
        if look.horizon is not None and proven.done and (look.new or self._supply.always_looks):
            proven.done.forget(look.horizon)

    def _there(self, *, fresh: bool) -> Backlog:
        """Return every split with something to read, as far as it goes now."""
        splits = [*self._proven.open.values(), *self._proven.waiting.values()]
        target = self._target
        ends: Mapping[str, Position] = {}
        if target is None:
            asked = [split for split in splits if split.end is None or not self._source.bounded]
            ends = self._supply.latest(asked, fresh=fresh)
            if unasked := self._supply.unasked:
                splits = [split for split in splits if split.id not in unasked]
        there = self._reach.backlog(splits, ends, target)
        if self._agreed is not None and not self._reach.whole:
            there = Backlog(self._agreed.with_more(there, fresh=fresh, ending=target is not None))
        if self._available_now and target is None:
            self._target = there.ends()
        return there

    def _due(self) -> float:
        """Return the monotonic time of the next look at the outside."""
        return self._supply.due() if self._agreed is None else min(self._supply.due(), self._agreed.due())

    # ---- how much of it

    def _wait_for_more(self, there: Sequence[Planned]) -> bool:
        least = self._options.min_rows_per_trigger
        if least is None or not there:
            return False
        until = self._planned_at + self._options.max_trigger_delay.total_seconds()
        if self._clock.monotonic() >= until:
            return False
        if self._calls.call("advance()", lambda: self._admission.rows(there)) >= least:
            return False
        self._nothing_until = min(until, self._due())
        return True

    def _take(self, there: Sequence[Planned], *, limited: bool) -> Sequence[Planned]:
        taken = there
        if limited and self._limits and there:
            admit = self._admission.admit_in_order if self._supply.in_order else self._admission.admit
            mine, others = ([], there) if self._agreed is None or self._reach.whole else self._agreed.admit(there)
            taken = [*mine, *(self._calls.call("advance() or size()", lambda: admit(others)) if others else ())]
            self._reach.check_within(taken, there)
        # What goes on is in every offset anyway; only what is remembered once it ended needs room.
        room = self._book.room(taken) if self._supply.in_order else None
        if room is not None and room < len(taken) and not limited:
            _log.warning(
                "%s: this one micro-batch takes %d of %d files or splits: no more can be remembered in an offset; "
                "give stateLocation to read all of them at once",
                self._source.name,
                room,
                len(taken),
            )
        return taken[:room]

    # ---- the next offset

    def _plan(self, taken: Sequence[Planned], *, limited: bool) -> dict[str, Json]:
        proven = self._proven
        query, n = proven.at.query or uuid.uuid4().hex[:12], proven.at.n + 1
        chosen = {planned.split.id: planned for planned in taken}
        splits = [chosen[one.id] if one.id in chosen else Planned(one, one.position) for one in proven.open.values()]
        splits.extend(planned for planned in taken if planned.split.id not in proven.open)
        for planned in splits:
            self._reach.check_forward(planned)
        if self._agreed is not None:
            self._agreed.begin(query, n, taken)
        offset = Offset(
            self._source.name,
            n,
            query,
            splits,
            self._supply.snapshot(n),
            self._pinned.options,
            self._pinned.schema,
            unlimited=not limited and any(planned.to is Agreed.AGREED for planned in taken),
        )
        proven.planned(offset)
        return self._book.write(offset, proven.done)

    def _describe(self, there: Sequence[Planned], taken: Sequence[Planned]) -> None:
        proven = self._proven
        planning = bool(taken) or proven.at.n == BEFORE_FIRST
        n = proven.at.n + 1 if planning else proven.at.n
        self._report.update(n, there, taken, splits=len(proven.open), done=proven.done.count)
