# SPDX-License-Identifier: Apache-2.0
"""Hybrids in seeded interleavings, with kills and restarts: each row once, in the order of the sources."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from forebay_simulator.runtime import Schedule, SimulatedRuntime
from manual_clock import ManualClock

from forebay import Discovered, DiscoveryEnumerator, Fetched, HostOptions, HybridSource, Source, Split, option
from forebay.framework.inprocess.checkpoints import Checkpoint, CheckpointStore
from forebay.framework.inprocess.engine import CheckpointPlan, Engine
from forebay.framework.runtime.runtime import Next, WaitFor
from forebay.testkit.scripted import COUNTING_SCHEMA, Counting, counting_batch

OPTIONS = HostOptions(discovery_interval="0.2s", poll_interval="1s", close_timeout="30s", max_rows_per_batch=2)
MAX_SECONDS = 3000.0


class Growing(Source):
    """An unbounded source whose splits have so many records now."""

    sizes: dict[str, int] = option(default_factory=dict)
    name: ClassVar[str] = "growing"
    bounded = False

    def schema(self):
        return COUNTING_SCHEMA

    def create_enumerator(self, context):
        return GrowingEnumerator(self.sizes)

    def create_split_reader(self, context):
        return GrowingReader(self.sizes)


class GrowingEnumerator(DiscoveryEnumerator):
    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes

    def discover(self, known: Mapping[str, Split], first: bool) -> Discovered:
        return Discovered([known.get(one) or Split(id=one, position=0) for one in self.sizes])

    def latest(self, splits: Sequence[Split]) -> dict[str, int]:
        return {split.id: self.sizes[split.id] for split in splits}


class GrowingReader:
    """Gives one record of each split at a time, and then that it has caught up."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes
        self.at: dict[str, int] = {}

    def add_splits(self, splits: Sequence[Split]) -> None:
        self.at |= {split.id: split.position for split in splits}

    def fetch(self) -> list[Fetched]:
        found = []
        for one, start in self.at.items():
            stop = self.at[one] = min(start + 1, self.sizes[one])
            batch = counting_batch(one, start, stop) if stop > start else None
            found.append(Fetched(one, batch, stop, caught_up=stop == self.sizes[one]))
        return found

    def wake_up(self) -> None:
        pass

    def pause_or_resume_splits(self, pause, resume) -> bool:
        return False

    def close(self) -> None:
        pass


class Memory(CheckpointStore):
    """Keeps the last checkpoint, and the rows that it covers."""

    def __init__(self, source: Source, sink: Sink) -> None:
        super().__init__(Path("memory"), source)
        self.source, self.sink = source, sink
        self.text = ""

    def open(self) -> Checkpoint | None:
        if not self.text:
            return None
        data = json.loads(self.text)
        splits = [self.source.split_class.from_json(split) for split in data["splits"]]
        return Checkpoint(data["number"], data["enumerator"], splits)

    def write(self, checkpoint: Checkpoint) -> Path:
        splits = [split.to_json() for split in checkpoint.splits]
        self.text = json.dumps({"number": checkpoint.number, "enumerator": checkpoint.enumerator, "splits": splits})
        self.sink.stored = list(self.sink.acknowledged)
        return Path("memory")


class Sink:
    """The rows that were acknowledged, and those of them that a checkpoint covers: what is left after a kill."""

    def __init__(self) -> None:
        self.acknowledged: list[tuple[str, int]] = []
        self.stored: list[tuple[str, int]] = []
        self.in_hand: list[tuple[str, int]] = []


class Consumer:
    """Takes record batches; the engine's checkpoints cover those before the one in hand."""

    def __init__(self, engine: Engine, sink: Sink, wanted: int) -> None:
        self.signal = engine.signal
        self.engine, self.sink, self.wanted = engine, sink, wanted
        self.asked = self.done = False

    def step(self) -> Next | WaitFor:
        sink = self.sink
        if not self.asked:
            sink.acknowledged += sink.in_hand
            sink.in_hand, self.asked = [], True
            self.engine.ask()
            self.done = len(sink.acknowledged) >= self.wanted
        outcome = self.engine.step()
        if (batch := self.engine.take()) is not None:
            sink.in_hand = [(row["split"], row["n"]) for row in batch.to_pylist()]
            self.asked = False
            return Next.AGAIN
        return outcome


def simulate(seed: int) -> tuple[list[tuple[str, int]], list[tuple[str, int]], int]:
    """Run a hybrid to its end through kills; return the rows, the expected ones, and the number of processes."""
    chance = random.Random(seed)
    legs = [{f"{leg}{n}": chance.randint(0, 5) for n in range(chance.randint(0, 3))} for leg in "ab"]
    last = {f"x{n}": chance.randint(0, 5) for n in range(chance.randint(1, 3))}
    first = [Counting(sizes=sizes, batch_rows=chance.randint(1, 3)) for sizes in legs]
    source = HybridSource(first, Growing(sizes=last))
    expected = [(one, n) for sizes in (*legs, last) for one, count in sizes.items() for n in range(count)]
    sink, clock, processes = Sink(), ManualClock(), 0
    store = Memory(source, sink)
    while True:
        processes += 1
        schedule = Schedule(interrupt=chance.choice((0.0, 0.1, 0.4)), jump=chance.choice((0.0, 0.1)))
        runtime = SimulatedRuntime(chance, clock, schedule=schedule, job_delay=lambda: chance.choice((0.0, 0.0, 3.0)))
        plan = CheckpointPlan(store, chance.choice((0.5, 5.0)))
        engine = Engine(source, COUNTING_SCHEMA, runtime, OPTIONS, parallelism=chance.randint(1, 3), checkpoints=plan)
        consumer = Consumer(engine, sink, len(expected))
        runtime.start("consumer", consumer)
        dies_in = chance.randint(5, 120) if processes < 8 else 10**9
        began = clock.monotonic()
        while not consumer.done and dies_in > 0:
            assert runtime.step(), f"nobody steps, with {len(sink.acknowledged)} of {len(expected)} rows (seed {seed})"
            assert clock.monotonic() - began < MAX_SECONDS, f"no end, with {sink.acknowledged} (seed {seed})"
            dies_in -= 1
        runtime.forget()
        if consumer.done:
            return sink.acknowledged, expected, processes
        sink.acknowledged, sink.in_hand = list(sink.stored), []


def check(seeds: range) -> int:
    processes = 0
    for seed in seeds:
        found, expected, count = simulate(seed)
        processes += count
        assert sorted(found) == sorted(expected), f"seed {seed}"
        assert [split[0] for split, _ in found] == sorted(split[0] for split, _ in found), f"seed {seed}"
    return processes


def test_each_row_comes_once_in_the_order_of_the_sources(record_property):
    """HYB-2, in 100 seeds."""
    record_property("report", f"hybrids: 100 schedules, {check(range(100))} processes, 0 problems")


@pytest.mark.soak
def test_each_row_comes_once_in_many_seeds(record_property):
    record_property("report", f"hybrids: 2,000 schedules, {check(range(2000))} processes, 0 problems")
