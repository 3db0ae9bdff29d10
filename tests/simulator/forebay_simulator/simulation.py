# SPDX-License-Identifier: Apache-2.0
"""Simulates one seed: draws the scenario, runs its processes one after the other, and reports the first problem."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache

from forebay.framework.inprocess.engine import CheckpointPlan, Engine
from forebay.framework.runtime.host_options import HostOptions
from forebay.options import ByteSize, Duration
from forebay_simulator.consumer import Consumer
from forebay_simulator.runtime import Livelock, SimulatedRuntime
from forebay_simulator.scenario import Fault, Scenario, draw_scenario
from forebay_simulator.source import SCHEMA, ScriptedSplitReader, source_over
from forebay_simulator.store import MemoryStore
from forebay_simulator.world import RETRIES, World

MAX_STEPS = 20_000
"""Steps of one process; more are a livelock. The longest of 25,000 schedules took 7,568 in all its processes."""

MAX_SECONDS = 3_000.0
"""Maximum virtual seconds of one process. A longer one has lost a wake-up."""

_COMMAND = "python -m forebay_simulator"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one seed.

    Args:
        seed: The seed.
        problem: The first broken rule, or None.
        steps: Steps of all workers in all processes.
        seconds: Virtual seconds.
        processes: Number of processes: one more than kills and stops.
        records: Records of the input.
        replayed: Records that came again in a later process, from the checkpoint on.
        faults: Number of each fault.
        endings: Why each process ended.
    """

    seed: int
    problem: str | None
    steps: int
    seconds: float
    processes: int
    records: int
    replayed: int
    faults: Counter[Fault] = field(compare=False)
    endings: tuple[str, ...] = ()

    @property
    def replay(self) -> str:
        """The command that shows this simulation again, step by step."""
        return f"{_COMMAND} --seed {self.seed} --trace"


def simulate(seed: int, trace: Callable[[str], None] | None = None) -> Outcome:
    """Run the simulation of a seed; the same seed does the same in every process of every machine.

    Args:
        seed: Decides everything.
        trace: Takes the scenario, then a line for each step and event.
    """
    scenario = draw_scenario(seed)
    if trace is not None:
        for line in scenario.lines():
            trace(line)
    world = World(scenario, trace)
    store = MemoryStore(source_over(world), world)
    endings: list[str] = []
    steps, complete = 0, False
    with _quiet():
        while world.problem is None and not complete:
            runtime = _runtime(scenario, world, trace)
            world.begin(runtime)
            complete = _run_process(scenario, world, runtime, store, endings)
            steps += runtime.steps
    return Outcome(
        seed=seed,
        problem=world.problem,
        steps=steps,
        seconds=world.clock.monotonic(),
        processes=world.process,
        records=sum(map(len, world.rows.values())),
        replayed=world.replayed,
        faults=world.counts,
        endings=tuple(endings),
    )


def _runtime(scenario: Scenario, world: World, trace: Callable[[str], None] | None) -> SimulatedRuntime:
    return SimulatedRuntime(
        world.chance,
        world.clock,
        schedule=scenario.schedule,
        job_delay=world.job_delay,
        before_step=world.disturb,
        trace=trace,
        max_steps=MAX_STEPS,
    )


def _run_process(
    scenario: Scenario, world: World, runtime: SimulatedRuntime, store: MemoryStore, endings: list[str]
) -> bool:
    """Run one process to its end; return whether the input is complete."""
    parallelism = scenario.parallelism[min(world.process, len(scenario.parallelism)) - 1]
    world.note(f"process {world.process} begins with {parallelism} reader(s), from {world.stored}")
    engine = Engine(
        source_over(world),
        SCHEMA,
        runtime,
        _options(scenario.queue_batches, scenario.queue_bytes, scenario.batch_rows),
        parallelism=parallelism,
        checkpoints=CheckpointPlan(store, scenario.checkpoint_interval),
    )
    consumer = Consumer(engine, world)
    runtime.start("consumer", consumer)
    started = world.clock.monotonic()
    try:
        while consumer.over is None and _goes_on(world, runtime):
            if not runtime.step():
                world.broken(f"nobody will ever step again, and {world.delivered} are delivered (a lost wake-up)")
            if world.clock.monotonic() - started > MAX_SECONDS:
                world.broken(f"{world.delivered} are delivered after {MAX_SECONDS:g} virtual seconds (a lost wake-up)")
        if consumer.over is not None and not consumer.over.startswith("killed"):
            _check_nothing_is_left(world, runtime)
    except Livelock as livelock:
        world.broken(f"{livelock}: {world.delivered} are delivered")
    endings.append(consumer.over or "cut off")
    runtime.forget()
    return consumer.complete


def _goes_on(world: World, runtime: SimulatedRuntime) -> bool:
    if runtime.problem is not None:
        world.broken(runtime.problem)
    return world.problem is None


def _check_nothing_is_left(world: World, runtime: SimulatedRuntime) -> None:
    """Check that an orderly end leaves no worker, except ones that seemed blocked, and closes every split reader."""
    alive = runtime.alive()
    if alive and not world.seemed_blocked:
        world.broken(f"workers are left after close: {alive} (RDR-9)")
    while runtime.alive(jobs=True) and _goes_on(world, runtime):
        if not runtime.step():
            world.broken(f"workers never end after close: {runtime.alive()} (RDR-9)")
    for reader in world.split_readers:
        if isinstance(reader, ScriptedSplitReader) and reader.closed != 1:
            world.broken(f"a split reader was closed {reader.closed} times (SR-6)")


@lru_cache(maxsize=64)
def _options(queue_batches: int, queue_bytes: int, batch_rows: int) -> HostOptions:
    return HostOptions(
        queue_batches=queue_batches,
        queue_bytes=ByteSize(queue_bytes),
        max_rows_per_batch=batch_rows,
        retries=RETRIES,
        discovery_interval=Duration(10.0),
        poll_interval=Duration(1.0),
        close_timeout=Duration(30.0),
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the framework's warnings about injected faults."""
    logger = logging.getLogger("forebay")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)
