# SPDX-License-Identifier: Apache-2.0
"""A source over a small world that tests change, and a runtime that steps everything in one thread."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from manual_clock import ManualClock

from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.inprocess.engine import CheckpointPlan, Engine
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import Next, Runtime, WaitFor, run_job
from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.framework.split_reader import Fetched, SplitReader
from forebay.options import Duration

SCHEMA = pa.schema(
    [pa.field("split", pa.string()), pa.field("n", pa.int64()), pa.field("at", pa.timestamp("us", "UTC"))]
)


class OneThread(Runtime):
    """Waiting for a signal runs all other workers; if none can run, time advances; without a deadline, it fails."""

    def __init__(self, seed=0):
        self._clock = ManualClock()
        super().__init__(self._clock, random.Random(seed))
        self._workers: list[Any] = []
        self._submitted: list[Callable[[], None]] = []

    def thread_id(self):
        return 1

    def lock(self):
        return contextlib.nullcontext(True)

    def signal(self):
        return _Signal(self)

    def start(self, name, worker):
        handle = _Handle(self, name, worker)
        self._workers.append(handle)
        return handle

    def submit(self, name, work, done):
        self._submitted.append(lambda: run_job(work, done))

    def turn(self):
        """Step every worker that can work; return whether one could."""
        submitted, self._submitted = self._submitted, []
        for run in submitted:
            run()
        worked = bool(submitted)
        for worker in list(self._workers):
            worked |= worker.turn()
        self._workers = [worker for worker in self._workers if worker.alive()]
        return worked

    def wait_until(self, happened, timeout):
        now = self._clock.monotonic
        deadline = None if timeout is None else now() + timeout
        while not happened():
            if deadline is not None and now() >= deadline:
                return False
            if self.turn():
                continue
            dues = [worker.wake_at for worker in self._workers if worker.wake_at is not None and not worker.stepping]
            if deadline is not None:
                dues.append(deadline)
            assert dues, "everybody waits for ever"
            if (rest := min(dues) - now()) > 0:
                self._clock.advance(rest)
        return True


class _Signal:
    def __init__(self, runtime):
        self._runtime = runtime
        self._up = False

    def set(self):
        self._up = True

    def is_set(self):
        return self._up

    def clear(self):
        self._up = False

    def wait(self, timeout=None):
        return self._runtime.wait_until(self.is_set, timeout)


class _Handle:
    def __init__(self, runtime, name, worker):
        self.name = name
        self.wake_at: float | None = runtime.clock.monotonic()
        self.stepping = False
        self._runtime = runtime
        self._worker = worker
        self._done = False

    def alive(self):
        return not self._done

    def join(self, timeout):
        return self._runtime.wait_until(lambda: self._done, timeout)

    def turn(self):
        due = self.wake_at is not None and self.wake_at <= self._runtime.clock.monotonic()
        if self._done or self.stepping or not (due or self._worker.signal.is_set()):
            return False
        self._worker.signal.clear()
        self.stepping = True
        try:
            outcome = self._worker.step()
        finally:
            self.stepping = False
        self._done = outcome is Next.DONE
        now = self._runtime.clock.monotonic()
        self.wake_at = now if outcome is Next.AGAIN else None
        if isinstance(outcome, WaitFor):
            self.wake_at = now + outcome.seconds
        return True


class World:
    """The data and behaviour of the source; tests may change it while it is read."""

    def __init__(self, **sizes):
        self.sizes: dict[str, int] = sizes
        self.bounded = True
        self.fetchers: int | None = 1
        self.rows = 3
        self.before_fetch: Callable[[str, int], None] = lambda _split_id, _position: None
        self.times: Callable[[str, int], int] = lambda _split_id, position: position * 1_000_000
        self.journal: list[Any] = []
        self.make_reader: Callable[..., Any] | None = None
        self.make_enumerator: Callable[..., Any] | None = None
        self.state: Any = None

    def batch(self, split_id, start, stop):
        numbers = range(start, stop)
        return pa.RecordBatch.from_arrays(
            [
                pa.array([split_id] * len(numbers), pa.string()),
                pa.array(numbers, pa.int64()),
                pa.array([self.times(split_id, n) for n in numbers], SCHEMA.field("at").type),
            ],
            schema=SCHEMA,
        )

    def everything(self):
        return [(split_id, n) for split_id, size in sorted(self.sizes.items()) for n in range(size)]


class WorldEnumerator(DiscoveryEnumerator):
    def __init__(self, world):
        self.world = world

    def discover(self, known, first):
        return Discovered([Split(split_id, 0) for split_id in self.world.sizes], state=self.world.state)

    def finished(self, splits):
        self.world.journal.append(("finished", [split.id for split in splits]))

    def committed(self, positions):
        self.world.journal.append(("committed", dict(positions)))

    def close(self):
        self.world.journal.append("enumerator closed")


class WorldReader(SplitReader):
    def __init__(self, world, runtime):
        self.world = world
        self.splits: dict[str, Any] = {}
        self.paused: set[str] = set()
        self.said: set[str] = set()
        self.woken = runtime.signal()

    def add_splits(self, splits):
        self.splits.update((split.id, split) for split in splits)

    def fetch(self):
        for split_id in sorted(self.splits, key=lambda one: self.splits[one].position):
            if split_id not in self.paused and (fetched := self._next(self.splits[split_id])):
                return [fetched]
        self.woken.wait(0.05)
        self.woken.clear()
        return []

    def _next(self, split):
        self.world.before_fetch(split.id, split.position)
        size = self.world.sizes[split.id]
        stop = min(split.position + self.world.rows, size)
        finished = stop == (size if self.world.bounded else split.end)
        if finished:
            del self.splits[split.id]
        else:
            self.splits[split.id] = split.at(stop)
        batch = self.world.batch(split.id, split.position, stop) if stop > split.position else None
        if batch is None and not finished:
            if split.id in self.said:
                return None
            self.said.add(split.id)
        else:
            self.said.discard(split.id)
        return Fetched(split.id, batch, stop, finished=finished, caught_up=stop == size)

    def wake_up(self):
        self.woken.set()

    def pause_or_resume_splits(self, pause, resume):
        self.paused = (self.paused - set(resume)) | set(pause)
        return True

    def close(self):
        self.world.journal.append("reader closed")


def source_over(the_world):
    """Make a source that reads a world."""

    class Worldly(Source):
        event_time = "at"
        bounded = property(lambda _self: the_world.bounded)
        fetchers = property(lambda _self: the_world.fetchers)

        def schema(self):
            return SCHEMA

        def create_enumerator(self, context):
            if the_world.make_enumerator is not None:
                return the_world.make_enumerator(context)
            return WorldEnumerator(the_world)

        def create_split_reader(self, context):
            return WorldReader(the_world, context.runtime)

        def create_reader(self, context):
            return None if the_world.make_reader is None else the_world.make_reader(context)

    return Worldly()


def rows_of(batches):
    return [(row["split"], row["n"]) for batch in batches for row in batch.to_pylist()]


@pytest.fixture
def world():
    return World(a=8, b=0, c=5)


@pytest.fixture
def one_thread():
    return OneThread()


@pytest.fixture
def source(world):
    return source_over(world)


@pytest.fixture
def kit():
    """The parts for custom setups."""
    return SimpleNamespace(
        World=World,
        OneThread=OneThread,
        Enumerator=WorldEnumerator,
        SplitReader=WorldReader,
        SCHEMA=SCHEMA,
        source_over=source_over,
        rows_of=rows_of,
    )


@pytest.fixture
def engine_of():
    """Makes an engine over a world, on one thread."""
    engines = []

    def make(the_world, runtime, *, parallelism=1, store=None, interval=10.0, strategy=None, **options):
        engine = Engine(
            source_over(the_world),
            SCHEMA,
            runtime,
            HostOptions(**{"discovery_interval": Duration(10), **options}),
            parallelism=parallelism,
            checkpoints=CheckpointPlan(store, interval),
            strategy=strategy,
        )
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.close(orderly=False)
