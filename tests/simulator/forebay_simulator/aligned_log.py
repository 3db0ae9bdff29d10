# SPDX-License-Identifier: Apache-2.0
"""Partitions with event times, as a seed draws them: disorder, absurd times, pauses, failures.

Event times are microseconds, writing times are seconds of the manual clock. The draws of a feature and of a partition
do not depend on one another, so that a failing seed can be shrunk by leaving them out.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa
from manual_clock import ManualClock

from forebay.errors import RetriableError
from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay_simulator.outside import Crash

MS = 1_000
SECOND = 1_000_000
BASE = 1_700_000_000 * SECOND
FUTURE = BASE + 10**11 * SECOND
"""An absurd event time: after the year 5000."""

FEATURES = (
    "delay",
    "disorder",
    "late",
    "bad",
    "pauses",
    "idle",
    "failures",
    "crashes",
    "limits",
    "available-now",
    "options",
    "new",
    "vanishing",
    "finished",
    "whole",
    "two-queries",
)
"""What a seed may do beyond reading ordered partitions, and can be left out."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A seed, and the features and partitions to leave out of it."""

    seed: int
    without: frozenset[str] = frozenset()

    def chance(self, name: str) -> random.Random:
        """Return the random numbers of one feature or partition."""
        return random.Random(f"{self.seed}/{name}")

    def draws(self, feature: str, likely: float) -> bool:
        """Return whether this seed has a feature."""
        return feature not in self.without and self.chance(f"has {feature}").random() < likely


@dataclass(slots=True)
class Partition:
    """The records of one partition.

    Args:
        times: Their event times; None = without one.
        written: When they are written; ascending.
        appears: When it is discovered.
        vanishes: When it is no longer discovered.
        closed: Whether it has an end of its own.
        whole: Whether its records cannot be found by time.
    """

    id: str
    times: list[int | None] = field(default_factory=list)
    written: list[float] = field(default_factory=list)
    appears: float = 0.0
    vanishes: float = float("inf")
    closed: bool = False
    whole: bool = False

    def end(self, now: float) -> int:
        """Return the number of records that are written."""
        return bisect_right(self.written, now)

    def dated(self, index: int) -> int | None:
        """Return the event time of a record, if it is one that can be believed."""
        time = self.times[index] if 0 <= index < len(self.times) else None
        return None if time is None or time >= FUTURE else time


def partitions(recipe: Recipe, delay: int) -> dict[str, Partition]:
    """Draw the partitions; their disorder is within `delay`, but for late records."""
    count = recipe.chance("count").choice((1, 2, 2, 3, 3, 5))
    ids = (f"p{number}" for number in range(count))
    return {one: _partition(recipe, one, delay) for one in ids if one not in recipe.without}


def _partition(recipe: Recipe, split_id: str, delay: int) -> Partition:
    chance = recipe.chance(split_id)
    made = Partition(split_id)
    made.appears = chance.choice((0.0, 0.0, chance.uniform(0, 60))) * recipe.draws("new", 0.4)
    gone = chance.random() < 0.3 and recipe.draws("vanishing", 0.2)
    made.vanishes = chance.uniform(30, 120) if gone else float("inf")
    made.closed = chance.random() < 0.4 and recipe.draws("finished", 0.2)
    made.whole = recipe.draws("whole", 0.1)
    _write(made, chance, count := chance.choice((0, 1, 3, 12, 30)), pauses=recipe.draws("pauses", 0.5))
    grain, step = chance.choice((1, MS, MS, SECOND)), chance.choice((1, MS, SECOND, 7 * SECOND, 60 * SECOND))
    at = BASE + chance.choice((0, 0, 5, 300)) * SECOND
    features = {name: recipe.draws(name, 0.4) for name in ("disorder", "late", "bad")}
    latest, was_bad = None, False
    for _ in range(count):
        at += chance.randint(0, 2 * step) // grain * grain
        late, early = chance.randint(1, 200 * SECOND), chance.choice((0, delay, chance.randint(0, delay)))
        draw, kind = chance.random(), chance.choice((None, FUTURE, -BASE))
        time: int | None = at
        if draw < 0.1 and features["bad"] and not was_bad:
            time = kind
        elif draw < 0.2 and features["late"]:
            time = at - delay - late
        elif draw < 0.6 and features["disorder"]:
            time = latest - delay if early == delay and latest is not None else at - early
        was_bad = time is None or time >= FUTURE
        latest = latest if was_bad else max(time or 0, latest or 0)
        made.times.append(time)
    return made


def _write(made: Partition, chance: random.Random, count: int, *, pauses: bool) -> None:
    """Draw when records are written: a backlog, then one after the other, with a pause."""
    backlog, gap = chance.choice((0, 1, count // 2, count)), chance.choice((0.05, 1.0, 5.0))
    pause, at = chance.choice((5.0, 40.0, 300.0)), chance.randrange(count + 1)
    now = made.appears
    for index in range(count):
        now += gap if index >= backlog else 0.0
        now += pause if pauses and index == at else 0.0
        made.written.append(now)


class AlignedLog:
    """All partitions, and the failures of calls. `watchers` are told of what a planner sees."""

    def __init__(self, recipe: Recipe, delay: int) -> None:
        self.recipe = recipe
        self.clock = ManualClock(BASE / SECOND + 1e6)
        self.partitions = partitions(recipe, delay)
        self.whole = any(one.whole for one in self.partitions.values())
        self.chance = recipe.chance("calls")
        self.failure_rate = self.chance.choice((0.05, 0.3)) * recipe.draws("failures", 0.4)
        self.crash_rate = self.chance.choice((0.01, 0.1)) * recipe.draws("crashes", 0.4)
        self.refresh_floor = self.chance.choice((0.0, 1.0))
        self.calm = False
        self.failed_at = float("-inf")

    def called(self, what: str) -> None:
        """Fail, or kill the process, now and then."""
        crash, fail = self.chance.random(), self.chance.random()
        if not self.calm and crash < self.crash_rate:
            raise Crash
        if not self.calm and fail < self.failure_rate:
            self.failed_at = self.clock.monotonic()
            raise RetriableError(f"{what} is not there")

    def present(self) -> list[Partition]:
        """Return the partitions that are there now."""
        now = self.clock.monotonic()
        return [one for one in self.partitions.values() if one.appears <= now < one.vanishes]

    def event_time(self, split: Split) -> int | None:
        """Return the event time of the next record of a split, or of the last one before its position."""
        one = self.partitions[split.id]
        return one.times[split.position] if split.position < split.end else (one.times[: split.position] or [None])[-1]


class Watcher:
    """Is told what a planner saw."""

    def discovered(self, ids: Sequence[str]) -> None:
        """These partitions are there."""

    def dropped(self, ids: Sequence[str]) -> None:
        """These are no longer read."""

    def looked(self, ends: Mapping[str, int]) -> None:
        """`latest` answers with these ends."""

    def timed(self, times: Mapping[str, int]) -> None:
        """`event_times` answers."""


class AlignedEnumerator(DiscoveryEnumerator):
    """Positions are row numbers; all times are exact."""

    exact_ends = True

    def __init__(self, log: AlignedLog, watcher: Watcher) -> None:
        self.log, self.watcher = log, watcher
        self.refresh_floor = log.refresh_floor

    def discover(self, known: Mapping[str, Split], first: bool) -> Discovered:
        self.log.called("discover")
        present = self.log.present()
        self.watcher.discovered([one.id for one in present])
        return Discovered([Split(id=one.id, position=0, end=len(one.times) if one.closed else None) for one in present])

    def vanished(self, splits: Sequence[Split]) -> bool:
        self.watcher.dropped([split.id for split in splits])
        return True

    def latest(self, splits: Sequence[Split]) -> Mapping[str, int]:
        self.log.called("latest")
        now = self.log.clock.monotonic()
        ends = {split.id: self.log.partitions[split.id].end(now) for split in splits}
        self.watcher.looked(ends)
        return ends

    def advance(self, split: Split, *, rows: int | None = None, byte_budget: int | None = None) -> int:
        end: int = split.end
        return min(int(split.position) + (rows or 0), end)

    def positions_at(self, event_time: int, splits: Sequence[Split]) -> Mapping[str, int]:
        self.log.called("positions_at")
        return {split.id: self._first_at(event_time, split) for split in splits if not self._of(split).whole}

    def event_times(self, splits: Sequence[Split], column: str) -> Mapping[str, int]:
        self.log.called("event_times")
        times = {split.id: self.log.event_time(split) for split in splits}
        known = {split_id: time for split_id, time in times.items() if time is not None}
        self.watcher.timed(known)
        return known

    def _of(self, split: Split) -> Partition:
        return self.log.partitions[split.id]

    def _first_at(self, event_time: int, split: Split) -> int:
        times = self._of(split).times
        found = (
            at for at in range(split.position, split.end) if (time := times[at]) is not None and time >= event_time
        )
        end: int = split.end
        return next(found, end)


class AlignedSource(Source):
    """Unbounded, with the event time in `at`."""

    name = "aligned"
    bounded = False
    event_time = "at"
    create: ClassVar[Callable[[], AlignedEnumerator]]

    def schema(self) -> pa.Schema:
        return pa.schema({"at": pa.timestamp("us", "UTC")})

    def create_enumerator(self, context: Any) -> AlignedEnumerator:
        return type(self).create()

    def create_split_reader(self, context: Any) -> Any:
        raise NotImplementedError
