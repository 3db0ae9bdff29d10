# SPDX-License-Identifier: Apache-2.0
"""A runtime without threads: one scheduler steps every worker, a seed decides who is next and when time passes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeVar

from forebay.clock import Clock, ManualClock
from forebay.framework.runtime.runtime import Runtime, Signal, Worker, WorkerHandle
from forebay_simulator.tasks import JobWorker, SimulatedLock, SimulatedSignal, Task, after_step

T = TypeVar("T")

_DEEPEST = 4
"""Steps inside one another by interruption; joins may go deeper."""

_PASSING = 0.02
"""While somebody joins, time passes now and then although others could step: their steps take time."""


class Livelock(BaseException):
    """Raised out of a simulation that stepped too often: not an `Exception`, so that nothing handles it."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How a scheduler chooses.

    Args:
        interrupt: How likely another worker steps at each place where it can.
        jump: How likely time passes although somebody could step.
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
        chance: Decides everything. Used by nobody else, or by others in a fixed order.
        clock: The time; moved by this runtime alone.
        manner: How it chooses.
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
        manner: Manner | None = None,
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
        manner = manner or Manner()
        self._interrupt = manner.interrupt
        self._jump = manner.jump
        self._lopsided = manner.lopsided
        self._job_delay = job_delay
        self._before_step = before_step
        self._trace = trace
        self._max_steps = max_steps
        self._tasks: list[Task] = []
        self._stack: list[Task] = []

    # ---- the runtime of the framework

    @property
    def clock(self) -> Clock:
        """The virtual time."""
        return self._clock

    @property
    def random(self) -> random.Random:
        """The one generator."""
        return self._chance

    def thread_id(self) -> int:
        """Return 1: there is one thread."""
        return 1

    def lock(self) -> AbstractContextManager[bool]:
        """Return a lock that is never waited for."""
        return SimulatedLock(self)

    def signal(self) -> Signal:
        """Return a signal that is never waited for."""
        return SimulatedSignal(self)

    def start(self, name: str, worker: Worker) -> WorkerHandle:
        """Let a worker step from now on."""
        return self._add(name, worker, self._clock.monotonic(), job=False)

    def submit(self, name: str, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Run `work` at a moment of the scheduler's choice, then, at another, `done`."""
        job = JobWorker(self.signal(), work, done, self._job_delay)
        self._add(name, job, self._clock.monotonic() + self._job_delay(), job=True)

    # ---- whoever runs the simulation

    def step(self) -> bool:
        """Let one worker step, or let time pass; return False if nobody will ever step again by itself.

        Raises:
            Livelock: There were too many steps.
        """
        ready = self._ready()
        if ready and not (self._jump and self._chance.random() < self._jump):
            self._run(self._choose(ready))
            return True
        return self._pass_time(len(ready) > 0)

    def alive(self, *, jobs: bool = False) -> list[str]:
        """Return the names of the workers that have not ended, and, if wanted, of the jobs."""
        return [task.name for task in self._tasks if jobs or not task.job]

    def forget(self) -> None:
        """End the process: nobody steps again."""
        self._tasks.clear()

    def wake(self) -> str | None:
        """Wake a worker for no reason; return its name."""
        if not self._tasks:
            return None
        task = self._tasks[int(self._chance.random() * len(self._tasks))]
        task.signal.set()
        return task.name

    def stall(self, seconds: float, but: str) -> str | None:
        """Keep a worker, but not the one of that name, from stepping for a while; return its name."""
        tasks = [task for task in self._tasks if task.name != but]
        if not tasks:
            return None
        task = tasks[int(self._chance.random() * len(tasks))]
        task.stalled_until = self._clock.monotonic() + seconds
        return task.name

    def interleave(self) -> None:
        """Let others step, perhaps several: what a blocking call calls while it is under way."""
        if self._interrupt:
            while self._chance.random() < 0.5 and self._interrupted():
                pass

    # ---- called by locks, signals and handles

    def maybe_interrupt(self) -> None:
        """Let another worker step in between, if the seed says so."""
        if self._interrupt and self._stack and not self.locks_held and self._chance.random() < self._interrupt:
            self._interrupted()

    def misused(self, what: str) -> None:
        """Note a misuse of a lock; the first one is the `problem`."""
        self.problem = self.problem or f"{what}, in a step of {self._stack[-1].name if self._stack else 'nobody'}"

    def defer(self, signal: SimulatedSignal, timeout: float | None) -> None:
        """A worker waited in its step for a flag that is down."""
        if self._stack:
            until = math.inf if timeout is None else self._clock.monotonic() + timeout
            self._stack[-1].waited.append((signal, until))

    def join(self, task: Task, timeout: float) -> bool:
        """Step the others until a worker has ended or `timeout` seconds have passed."""
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
        # A little more than needed: a clock that is moved by a difference need not arrive.
        self._clock.advance(max(1e-6, due - self._clock.monotonic()))
        return True
