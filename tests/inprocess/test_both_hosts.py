# SPDX-License-Identifier: Apache-2.0
"""The in-process host and the planner of a stream give the event time options one meaning.

Both hold a split by the same limit. They differ at the limit alone: the planner looks at the next record and reads none
beyond the limit; a run in process looks at what was read, so it reads on at the limit (AL-5), and one record batch
beyond it.
"""

from __future__ import annotations

import json
import random

import pytest
from forebay_simulator.inline import InlineRuntime
from manual_clock import ManualClock

from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.inprocess.running import event_time_strategy
from forebay.framework.microbatch.stream_planner import open_stream
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.split import Split

SECOND = 1_000_000
BASE = 1_700_000_000


class Enumerator(DiscoveryEnumerator):
    """Knows the event time of each record of a world."""

    exact_ends = True

    def __init__(self, world):
        self.world = world

    def discover(self, known, first):
        return Discovered([Split(split_id, 0) for split_id in self.world.sizes])

    def latest(self, splits):
        return {split.id: self.world.sizes[split.id] for split in splits}

    def positions_at(self, event_time, splits):
        found = {}
        for split in splits:
            later = (n for n in range(split.end) if self.world.times(split.id, n) >= event_time)
            found[split.id] = next(later, split.end)
        return found

    def event_times(self, splits, column):
        return {one.id: self.world.times(one.id, min(one.position, one.end - 1)) for one in splits if one.end}


class Planned:
    """What the planner of a stream lets be read."""

    def __init__(self, source, options):
        self.clock = ManualClock(BASE + 10_000_000)
        self.planner = open_stream(source, options, parallelism=2, runtime=InlineRuntime(self.clock))
        self.at = self.through(self.planner.initial())
        self.read = {}

    def go_on(self):
        """Plan until there is nothing more; return how many records of each split were read."""
        self.clock.advance(60)
        while (found := self.through(self.planner.latest(self.at))) != self.at:
            for task in self.planner.tasks(self.at, found):
                self.read |= {one.id: one.end for one in task.slices}
            self.at = found
        return dict(self.read)

    def through(self, data):
        return json.loads(json.dumps(data))


class InProcess:
    """What a run in process reads; it ends each step once it has read nothing for three seconds."""

    def __init__(self, engine, runtime):
        self.engine, self.runtime = engine, runtime
        self.read = {}

    def go_on(self):
        """Run until it is silent; return how many records of each split were read."""
        clock = self.runtime.clock
        quiet_at = clock.monotonic() + 3
        while clock.monotonic() < quiet_at:
            self.engine.ask()
            self.engine.step()
            batch = self.engine.take()
            if batch is not None:
                for row in batch.to_pylist():
                    assert row["n"] == self.read.get(row["split"], 0)
                    self.read[row["split"]] = row["n"] + 1
                quiet_at = clock.monotonic() + 3
            elif not self.runtime.turn():
                clock.advance(0.05)
        return dict(self.read)


@pytest.fixture
def both(kit, engine_of):
    """Return a function that reads a world in both hosts, with the same options."""

    def start(world, *, parallelism=1, **options):
        world.bounded, world.rows = False, 1
        world.make_enumerator = lambda _context: Enumerator(world)
        source, given = kit.source_over(world), HostOptions(**options)
        runtime = kit.OneThread()
        strategy, _ = event_time_strategy(None, source, given)
        engine = engine_of(world, runtime, parallelism=parallelism, strategy=strategy)
        return Planned(source, given), InProcess(engine, runtime)

    return start


def first_above(times, bound):
    """Return how many records there are up to the first one above a bound, with it."""
    return next((n + 1 for n, at in enumerate(times) if at > bound), len(times))


@pytest.mark.parametrize("parallelism", [1, 2])
def test_regular_splits_are_read_equally_far_but_for_the_equal_record_and_one_batch(kit, both, parallelism):
    world = kit.World(slow=1, fast=1)
    world.times = lambda _split_id, n: (BASE + n) * SECOND
    planned, in_process = both(world, parallelism=parallelism, alignment_max_drift="10s", watermark_delay="3s")
    planned.go_on()
    in_process.go_on()
    world.sizes["fast"] = 1000
    for n in range(1, 40):
        # The last record of `slow` is at n - 1 s. Beyond the drift, at n + 9 s, begins what must wait.
        assert planned.go_on() == {"slow": n, "fast": n + 9}
        assert in_process.go_on() == {"slow": n, "fast": n + 11}
        world.sizes["slow"] += 1


@pytest.mark.soak(but=["1-0", "1-1", "1-2", "1-3", "2-0", "2-1", "2-2", "2-3"])
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("parallelism", [1, 2])
def test_at_each_step_both_hosts_hold_any_splits_by_one_limit(kit, both, seed, parallelism):
    chance = random.Random(seed)
    drift, delay = chance.choice([0.001, 1, 7, 30]), chance.choice([0, 2, 11])
    names = ["anchor", *(f"s{number}" for number in range(chance.randrange(1, 5)))]
    log = {name: [BASE * SECOND] for name in names}
    for name in names:
        for _ in range(200):
            log[name].append(log[name][-1] + chance.choice([0, SECOND, round(drift * SECOND), 20 * SECOND]))
    world = kit.World(**dict.fromkeys(names, 1))
    world.times = lambda split_id, n: log[split_id][n]
    options = {"alignment_max_drift": drift, "watermark_delay": delay}
    planned, in_process = both(world, parallelism=parallelism, **options)
    planned.go_on()
    in_process.go_on()
    held = 0
    for _ in range(12):
        for name in names:
            world.sizes[name] = min(201, world.sizes[name] + chance.randrange(0, 6 if name == "anchor" else 30))
        on_spark, in_this = planned.go_on(), in_process.go_on()
        present = {name: log[name][: world.sizes[name]] for name in names}
        # Whoever is caught up holds the others by its last record, in both hosts.
        limit = min(times[-1] for times in present.values()) + round(drift * SECOND)
        assert on_spark == {name: sum(at < limit for at in times) for name, times in present.items()}
        assert in_this == {name: first_above(times, limit) for name, times in present.items()}
        held += on_spark != world.sizes
    assert held


def test_a_split_without_a_record_yet_holds_nobody_in_either_host(kit, both):
    world = kit.World(empty=0, full=50)
    world.times = lambda _split_id, n: (BASE + n) * SECOND
    planned, in_process = both(world, alignment_max_drift="10s")
    assert planned.go_on() == in_process.go_on() == {"full": 50}
