# SPDX-License-Identifier: Apache-2.0
"""What alignment promises, told from outside the planner: which splits are active, and what Spark drops.

On time and active mean what the docstring of `forebay/framework/microbatch/alignment.py` says; here they are
computed from what the source answered. `UNDATED` records are what four looks in vain have read.

**The rule**: with `withWatermark(column, drift + delay)`, Spark drops no record on time of a split, unless its
watermark was allowed to be there while the split was not active.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forebay.framework.microbatch.stream_planner import StreamPlanner
from forebay.framework.runtime.host_options import HostOptions
from forebay_simulator.aligned_log import FUTURE, MS, SECOND, AlignedLog, Watcher
from forebay_simulator.outside import Broken

UNDATED = 15
"""Records without event times after which a split is read without alignment."""


def drift_of(options: HostOptions) -> int:
    """Return the drift in microseconds: at least Spark's millisecond."""
    assert options.alignment_max_drift is not None
    return max(MS, round(options.alignment_max_drift.total_seconds() * SECOND))


def delay_of(options: HostOptions) -> int:
    """Return the delay in microseconds."""
    return round(options.watermark_delay.total_seconds() * SECOND)


class AlignmentRules(Watcher):
    """Follows one query, over all its processes.

    Args:
        log: The partitions.
        delay: The longest watermark delay of any process of this query.
        drift: The longest drift.
    """

    def __init__(self, log: AlignedLog, delay: int, drift: int) -> None:
        self.log, self.delay, self.late_by = log, delay, delay + drift
        self.open: dict[str, int] = {}
        self.latest: int | None = None
        """The latest event time that Spark has seen in the micro-batches before."""
        self.allowed: dict[str, int] = {}
        """Up to where Spark could go without regard to a split, by id."""
        self.dropped_late = 0
        """Records on time that Spark dropped, of splits that were not active when its watermark passed them."""
        self.finished: set[str] = set()
        """The closed partitions that were read to their end."""

    # ---- a process

    def begin(
        self, planner: StreamPlanner, options: HostOptions, positions: Mapping[str, int], *, ending: bool
    ) -> None:
        """A process begins at these positions."""
        self._planner, self._options, self._ending = planner, options, ending
        self.open = dict(positions)
        self.began_at = dict(positions)
        self.limit: int | None = None
        self._looks: dict[str, tuple[float, float, int]] = {}
        self._dated: set[str] = set()
        self._inactive: set[str] = set()
        self.target: Mapping[str, int] | None = None
        self._latest_before = self.latest

    def begin_call(self) -> None:
        """`latest` is called."""
        self._inactive.clear()
        self._note()

    def end_call(self) -> None:
        """`latest` has answered: check the limit."""
        self._note()
        before, self.limit = self.limit, self._present_limit()
        if before is not None and (self.limit is None or self.limit < before):
            raise Broken(f"the limit fell from {before} to {self.limit}")
        if self.limit is not None and not -(2**62) < self.limit < 2**62:
            raise Broken(f"the limit is {self.limit}")
        if not self.log.whole and self.limit is not None and self.limit != before:
            bounds = [self._highest(split_id) for split_id in self.open.keys() - self._inactive]
            found = [bound for bound in bounds if bound is not None]
            highest = min(found, default=self.limit) - delay_of(self._options) - 1 + drift_of(self._options)
            if found and self.limit > highest:
                raise Broken(
                    f"the limit is {self.limit}, {self.limit - highest} us above the lowest split and the drift"
                )
        self._excuse()

    def check_held(self, planned: Mapping[str, int]) -> int:
        """Check that whoever holds others back has a reason: the limit is no lower than the lowest split and the drift.

        Args:
            planned: The ends of the micro-batch, by id.

        Returns:
            How many splits are held.
        """
        held = [one for one in self.open if planned.get(one, self.open[one]) < self.end(one)]
        active = [one for one in self.open if not self._holds_nobody(one)]
        if not held or self.log.clock.monotonic() < self.log.failed_at + 15.0 or self.log.whole:
            return 0
        dated = [self.log.partitions[one].dated(self.open[one] - (self.open[one] >= self.end(one))) for one in active]
        if not active or None in dated:
            return len(held)
        lowest = min(time for time in dated if time is not None)
        lowest += drift_of(self._options) - delay_of(self._options) - 1
        if self.limit is None or self.limit < lowest:
            raise Broken(f"{held} are held at {self.limit}, although all splits allow {lowest}")
        latest = self.limit + delay_of(self._options)
        for one in held:
            partition, position = self.log.partitions[one], planned.get(one, self.open[one])
            time = partition.dated(position)
            if time is not None and time <= latest and partition.dated(self.open[one]) is not None:
                raise Broken(f"{one} is held at {time}, although {latest} is allowed")
        return len(held)

    def deliver(self, parts: Mapping[str, tuple[int, int]], open_after: Mapping[str, int]) -> None:
        """A micro-batch is delivered: check that Spark drops none of its records that are on time."""
        if not self.log.whole:
            watermark = self.watermark()
            for split_id, part in parts.items():
                self._check(split_id, range(*part), watermark)
        times = [self.log.partitions[one].dated(at) for one, part in parts.items() for at in range(*part)]
        seen = [time for time in (*times, self.latest) if time is not None]
        self.latest = max(seen, default=None)
        self._excuse()
        self.open = dict(open_after)
        self.finished.update(one for one in parts if one not in self.open)

    def watermark(self) -> int:
        """Return Spark's watermark in microseconds: whole milliseconds, from 1970 on."""
        return 0 if self.latest is None else max(0, self.latest // MS - self.late_by // MS) * MS

    def end(self, split_id: str) -> int:
        """Return the end that the planner knows of a split; its position if it knows none."""
        position = self.open[split_id]
        if self._ending:
            return position if self.target is None else self.target.get(split_id, position)
        return self._looks[split_id][2] if split_id in self._looks else position

    # ---- Watcher

    def discovered(self, ids: Sequence[str]) -> None:
        """New splits are active from now on; what was allowed before stays."""
        for split_id in ids:
            if split_id not in self.open and split_id not in self.finished:
                self.open[split_id] = self.began_at[split_id] = 0
                self._allow(split_id)

    def dropped(self, ids: Sequence[str]) -> None:
        """Vanished splits hold nobody back."""
        for split_id in ids:
            self.open.pop(split_id, None)

    def looked(self, ends: Mapping[str, int]) -> None:
        """Note since when each end is where it is."""
        now = self.log.clock.monotonic()
        for split_id, end in ends.items():
            first, _, known = self._looks.get(split_id, (now, now, end))
            self._looks[split_id] = (first if known == end else now, now, end)
        if self._ending and self.target is None:
            self.target = ends
        self._note()

    def timed(self, times: Mapping[str, int]) -> None:
        """Note which splits showed an event time."""
        self._dated.update(one for one, time in times.items() if time < FUTURE)

    # ---- parts

    def _present_limit(self) -> int | None:
        alignment = self._planner._alignment
        assert alignment is not None
        return alignment.limit

    def _holds_nobody(self, split_id: str) -> bool:
        """Return whether the planner takes a split for idle, which it must be; or whether it is done in this run."""
        if self._ending:
            return self.open[split_id] >= self.end(split_id)
        time = self._planner._alignment.times.get(split_id)  # type: ignore[union-attr]
        if time is not None and time.idle and split_id not in self._inactive:
            raise Broken(f"{split_id} is not idle")
        return time is None or time.idle

    def _note(self) -> None:
        self._inactive.update(split_id for split_id in self.open if not self._active(split_id))

    def _active(self, split_id: str) -> bool:
        position, end, timeout = self.open[split_id], self.end(split_id), self._options.idle_timeout
        if self._ending and self.target is not None and position >= end:
            return False
        first, last, seen = self._looks.get(split_id, (0.0, 0.0, -1))
        if timeout is not None and not self._ending and seen == position and last - first > timeout.total_seconds():
            return False
        if split_id in self._dated or seen < 0:
            return True
        if position < seen:
            return position - self.began_at.get(split_id, 0) < UNDATED
        return self.log.partitions[split_id].dated(position - 1) is not None

    def _highest(self, split_id: str) -> int | None:
        """Return the latest event time of a split up to its next record."""
        upto = self.open[split_id] + (self.open[split_id] < self.end(split_id))
        times = map(self.log.partitions[split_id].dated, range(upto))
        return max((time for time in times if time is not None), default=None)

    def _excuse(self) -> None:
        for split_id in self._inactive:
            self._allow(split_id)

    def _allow(self, split_id: str) -> None:
        limit = self._present_limit()
        bounds = [self.allowed.get(split_id), self.latest, None if limit is None else limit + delay_of(self._options)]
        self.allowed[split_id] = max((bound for bound in bounds if bound is not None), default=-(2**62))

    def _check(self, split_id: str, part: range, watermark: int) -> None:
        partition = self.log.partitions[split_id]
        for index in part:
            time = partition.dated(index)
            if time is None or time <= 0 or time > watermark:
                continue
            earlier = [seen for at in range(index) if (seen := partition.dated(at)) is not None]
            if time < max(earlier, default=time) - self.delay:
                continue
            text = f"Spark drops record {index} of {split_id}, {(watermark - time) / SECOND:.3f} s too late"
            if watermark > self.allowed.get(split_id, -(2**62)) - self.late_by:
                raise Broken(text)
            alignment = self._planner._alignment
            assert alignment is not None
            before = self._latest_before if self._latest_before is not None else -(2**62)
            if watermark > before - self.late_by and partition.dated(part.start) is not None and not alignment.late:
                raise Broken(f"{text}, and it is not counted")
            self.dropped_late += 1
