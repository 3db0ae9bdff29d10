# SPDX-License-Identifier: Apache-2.0
"""A runtime without threads: one scheduler steps all workers; a seed decides the order and the time."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeVar

from manual_clock import ManualClock

from forebay.framework.runtime.runtime import Runtime, Signal, Worker, WorkerHandle
from forebay_simulator.tasks import JobWorker, SimulatedLock, SimulatedSignal, Task, after_step

T = TypeVar("T")

_DEEPEST = 4
"""Steps inside one another by interruption; joins may go deeper."""

_PASSING = 0.02
"""Probability that time passes during a join although others could step: steps take time."""


class Livelock(BaseException):
    """A simulation stepped too often. Not an `Exception`, so that no handler hides it."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The probabilities of a scheduler's choices.

    Args:
        interrupt: Probability that another worker steps at each place where it can.
        jump: Probability that time passes although a worker could step.
        lopsided: Whether some workers are much slower than others.
    """

    interrupt: float = 0.0
    jump: float = 0.0
    lopsided: bool = False


class SimulatedRuntime(Runtime):
    """Workers are stepped objects, time is virtual, and every choice comes from one seeded generator.

    Other workers may step wherever a real thread could be interrupted and it matters: before a lock is taken, after
    it is given back, and inside a blocking call that says so with `interleave`. A worker that is interrupted stays so
    until the one that interrupts it ends its step. A lock taken twice, or held when a step ends, is a `problem`.

    `Signal.wait` never blocks. If the flag is down it returns at once, and the worker, if it wants to step again, does
    so only when the flag is up, its own signal is, or the time-out has passed: the wait happens behind the step.

    Args:
        chance: Decides everything. Other users must draw in a fixed order.
        clock: The time; only this runtime moves it.
        schedule: The probabilities of choices.
        job_delay: Draws the seconds until a submitted job runs, and again until its result arrives.
        before_step: Called before every step.
        trace: Takes a line for each step.
        max_steps: More steps than this are a livelock.
    """

    def __init__(
        self,
        chance: random.Random,
        clock: ManualClock | None = None,
        *,
        schedule: Schedule | None = None,
        job_delay: Callable[[], float] = lambda: 0.0,
        before_step: Callable[[], None] = lambda: None,
        trace: Callable[[str], None] | None = None,
        max_steps: int = 100_000,
    ) -> None:
        self.steps = 0
        self.problem: str | None = None
        self.locks_held = 0
        self.stuck_joins = 0
        self._chance = chance
        self._clock = clock or ManualClock()
        super().__init__(self._clock, chance)
        schedule = schedule or Schedule()
        self._interrupt = schedule.interrupt
        self._jump = schedule.jump
        self._lopsided = schedule.lopsided
        self._job_delay = job_delay
        self._before_step = before_step
        self._trace = trace
        self._max_steps = max_steps
        self._tasks: list[Task] = []
        self._stack: list[Task] = []

    # ---- the runtime of the framework

    def thread_id(self) -> int:
        """Return 1: there is one thread."""
        return 1

    def lock(self) -> AbstractContextManager[bool]:
        """Return a lock that never blocks."""
        return SimulatedLock(self)

    def signal(self) -> Signal:
        """Return a signal that never blocks."""
        return SimulatedSignal(self)

    def start(self, name: str, worker: Worker) -> WorkerHandle:
        """Let a worker step from now on."""
        return self._add(name, worker, self._clock.monotonic(), job=False)

    def submit(self, name: str, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Run `work` in one step, then `done` in another, when the scheduler chooses."""
        job = JobWorker(self.signal(), work, done, self._job_delay)
        self._add(name, job, self._clock.monotonic() + self._job_delay(), job=True)

    # ---- called by the simulation

    def step(self) -> bool:
        """Let one worker step, or time pass; return False if no worker will ever step again.

        Raises:
            Livelock: There were too many steps.
        """
        ready = self._ready()
        if ready and not (self._jump and self._chance.random() < self._jump):
            self._run(self._choose(ready))
            return True
        return self._pass_time(len(ready) > 0)

    def alive(self, *, jobs: bool = False) -> list[str]:
        """Return the names of running workers, and with `jobs` of running jobs."""
        return [task.name for task in self._tasks if jobs or not task.job]

    def forget(self) -> None:
        """End the process: no worker steps again."""
        self._tasks.clear()

    def wake(self) -> str | None:
        """Wake a worker without reason; return its name."""
        if not self._tasks:
            return None
        task = self._tasks[int(self._chance.random() * len(self._tasks))]
        task.signal.set()
        return task.name

    def stall(self, seconds: float, but: str) -> str | None:
        """Stall a worker, other than the one named `but`; return its name."""
        tasks = [task for task in self._tasks if task.name != but]
        if not tasks:
            return None
        task = tasks[int(self._chance.random() * len(tasks))]
        task.stalled_until = self._clock.monotonic() + seconds
        return task.name

    def interleave(self) -> None:
        """Let other workers step. Called by a blocking call while it runs."""
        if self._interrupt:
            while self._chance.random() < 0.5 and self._interrupted():
                pass

    # ---- called by locks, signals and handles

    def maybe_interrupt(self) -> None:
        """Let another worker step, if the seed decides so."""
        if self._interrupt and self._stack and not self.locks_held and self._chance.random() < self._interrupt:
            self._interrupted()

    def misused(self, what: str) -> None:
        """Note a misuse of a lock; keep the first one in `problem`."""
        self.problem = self.problem or f"{what}, in a step of {self._stack[-1].name if self._stack else 'nobody'}"

    def defer(self, signal: SimulatedSignal, timeout: float | None) -> None:
        """Note that a worker waited in its step for a flag that is not set."""
        if self._stack:
            until = math.inf if timeout is None else self._clock.monotonic() + timeout
            self._stack[-1].waited.append((signal, until))

    def join(self, task: Task, timeout: float) -> bool:
        """Step other workers until a worker has ended or `timeout` seconds have passed."""
        now = self._clock.monotonic
        deadline = now() + timeout
        if self.locks_held:
            self.misused("a join under a lock")
        if task.stepping and not task.done:
            self.stuck_joins += 1  # it is interrupted, here, so it cannot end: it seems blocked
        while not task.done:
            ready = self._ready()
            if ready and self._chance.random() >= _PASSING:
                self._run(self._choose(ready))
                continue
            due = now() + self._chance.random() if ready else min(self._next_due(), deadline)
            self._clock.advance(max(0.0, min(due, deadline) - now()))
            if now() >= deadline:
                return task.done
        return True

    # ---- scheduling

    def _add(self, name: str, worker: Worker, wake_at: float, *, job: bool) -> Task:
        weight = 8.0 if self._lopsided and self._chance.random() < 0.5 else 1.0
        task = Task(self, name, worker, wake_at, job=job, weight=weight)
        self._tasks.append(task)
        return task

    def _ready(self) -> list[Task]:
        now = self._clock.monotonic()
        return [task for task in self._tasks if task.is_ready(now)]

    def _choose(self, ready: list[Task]) -> Task:
        if len(ready) == 1:
            return ready[0]
        if not self._lopsided:
            return ready[int(self._chance.random() * len(ready))]
        point = self._chance.random() * sum(task.weight for task in ready)
        for task in ready:
            point -= task.weight
            if point < 0:
                return task
        return ready[-1]

    def _interrupted(self) -> bool:
        if len(self._stack) >= _DEEPEST or self.locks_held:
            return False
        ready = self._ready()
        if ready:
            self._run(self._choose(ready))
        return bool(ready)

    def _run(self, task: Task) -> None:
        self.steps += 1
        if self.steps > self._max_steps:
            raise Livelock(f"no end after {self._max_steps} steps")
        self._before_step()
        if self._trace is not None:
            self._trace(f"{self._clock.monotonic():9.3f} {'  ' * len(self._stack)}{task.name}")
        task.signal.clear()
        task.stepping = True
        task.waited.clear()
        self._stack.append(task)
        try:
            outcome = task.worker.step()
        finally:
            task.stepping = False
            if self.locks_held:
                self.misused("a lock is held at the end of a step")
            self._stack.pop()
        after_step(task, outcome, self._clock.monotonic())
        if task.done and task in self._tasks:
            self._tasks.remove(task)

    def _next_due(self) -> float:
        return min((task.due() for task in self._tasks if not task.stepping), default=math.inf)

    def _pass_time(self, somebody_could_step: bool) -> bool:
        if somebody_could_step:
            self._clock.advance(self._chance.random())
            return True
        due = self._next_due()
        if due == math.inf:
            return False
        # At least 1 µs: rounding could leave the clock just before the due time.
        self._clock.advance(max(1e-6, due - self._clock.monotonic()))
        return True
