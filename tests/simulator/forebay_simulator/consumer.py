# SPDX-License-Identifier: Apache-2.0
"""The consumer of a simulation: a worker that takes record batches, checks them, and injects faults."""

from __future__ import annotations

import math
from typing import cast

import pyarrow as pa

from forebay.errors import ForebayError
from forebay.framework.inprocess.engine import Engine
from forebay.framework.runtime.runtime import Next, Signal, WaitFor
from forebay_simulator.reader import SimulatedReader
from forebay_simulator.runtime import Livelock
from forebay_simulator.scenario import Fault
from forebay_simulator.world import Killed, World, is_injected


class Consumer:
    """Takes record batches until all are delivered, the engine fails, or the process ends.

    Args:
        engine: Runs the source.
        world: Faults and checks.
    """

    def __init__(self, engine: Engine, world: World) -> None:
        self.signal: Signal = engine.signal
        self.over: str | None = None
        self.complete = False
        self._engine = engine
        self._world = world
        self._asked = False
        self._rests_until = 0.0
        self._paused: list[tuple[float, SimulatedReader, list[str]]] = []

    def step(self) -> Next | WaitFor:
        """Take one batch or inject a fault; `over` is the reason of the end."""
        try:
            return self._step()
        except Killed as death:
            return self._end(f"killed {death}")
        except Livelock:
            raise
        except BaseException as error:  # noqa: BLE001 - judged here
            return self._failed(error)

    def _step(self) -> Next | WaitFor:
        world, now = self._world, self._world.clock.monotonic()
        self._resume(now)
        if now < self._rests_until:
            return WaitFor(self._rests_until - now)
        world.kill("between two steps")
        if world.process < len(world.scenario.parallelism) and world.happens(Fault.STOP):
            return self._close("stopped")
        self._inject_faults()
        if not self._asked:
            self._asked = True
            world.cover()
            self._engine.ask()
        outcome = self._engine.step()
        batch = self._engine.take()
        if batch is not None:
            return self._use(batch)
        if outcome is Next.DONE:
            if not world.all_delivered():
                world.broken(f"the end came with {world.delivered} delivered")
            self.complete = True
            return self._close("done")
        if outcome is not Next.AGAIN and self._nothing_will_come():
            return self._finish()
        return self._or_resume(outcome)

    def _nothing_will_come(self) -> bool:
        """Whether all records of an unbounded world are delivered."""
        return not self._world.scenario.bounded and self._world.all_delivered()

    def _finish(self) -> Next:
        self._world.cover()
        self._engine.ask()
        self.complete = True
        return self._close("caught up")

    def _use(self, batch: pa.RecordBatch) -> Next | WaitFor:
        world = self._world
        self._asked = False
        world.deliver(cast("list[int]", batch.column(0).to_pylist()), self._engine.deliveries.delivered)
        if self._nothing_will_come():
            return self._finish()
        if world.happens(Fault.SLOW_CONSUMER):
            self._rests_until = world.clock.monotonic() + world.chance.choice((0.001, 1.0, 20.0))
        return Next.AGAIN

    # ---- faults

    def _inject_faults(self) -> None:
        world = self._world
        if world.happens(Fault.CHECKPOINT):
            try:
                self._engine.checkpoint()
            except ForebayError as error:
                if not is_injected(error):
                    raise
        if world.readers and world.happens(Fault.PAUSE):
            reader = cast("SimulatedReader", world.chance.choice(world.readers))
            held = reader.held()
            chosen = world.chance.sample(held, world.chance.randint(0, len(held)))
            world.note(f"  reader {reader.subtask} pauses {chosen}")
            reader.pause_or_resume_splits(chosen, [])
            until = world.clock.monotonic() + world.chance.choice((0.0, 0.5, 20.0))
            self._paused.append((until, reader, chosen))

    def _resume(self, now: float) -> None:
        due = [each for each in self._paused if each[0] <= now]
        self._paused = [each for each in self._paused if each[0] > now]
        for _, reader, split_ids in due:
            if reader in self._world.readers:
                self._world.note(f"  reader {reader.subtask} resumes {split_ids}")
                reader.pause_or_resume_splits([], split_ids)

    def _or_resume(self, outcome: Next | WaitFor) -> Next | WaitFor:
        """Wait no longer than until the next resumption."""
        if outcome is Next.AGAIN or not self._paused:
            return outcome
        seconds = min(at for at, _, _ in self._paused) - self._world.clock.monotonic()
        return WaitFor(max(0.0, min(seconds, outcome.seconds if isinstance(outcome, WaitFor) else math.inf)))

    # ---- ends

    def _close(self, why: str) -> Next:
        for error in self._engine.close():
            self._judge(error)
        world = self._world
        may_fail = world.counts[Fault.STORE_FAILURE] or world.counts[Fault.SNAPSHOT_FAILURE]
        if not may_fail and world.stored != world.covered:
            world.broken(f"after an orderly end {world.stored} are stored, and {world.covered} were covered")
        return self._end(why)

    def _failed(self, error: BaseException) -> Next:
        """The run ended with an error. A restart must help, if it was injected; nothing else may fail."""
        self._judge(error)
        for late in self._engine.close():
            self._judge(late)
        return self._end(f"failed with {type(error).__name__}: {error}")

    def _judge(self, error: BaseException) -> None:
        # A thread that seems blocked is left behind with a typed error, as it must be.
        blocked = isinstance(error, ForebayError) and error.rule == "RDR-9" and self._world.seemed_blocked
        if not blocked and not is_injected(error):
            self._world.broken(f"{type(error).__name__}: {error}")

    def _end(self, why: str) -> Next:
        self._world.note(f"  the process ends: {why}")
        self.over = why
        return Next.DONE
