# SPDX-License-Identifier: Apache-2.0
"""The objects of a simulated runtime: handles of workers, jobs, locks and signals."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol

from forebay.framework.runtime.runtime import Next, Signal, WaitFor, Worker


class Scheduler(Protocol):
    """The part of the simulated runtime that these objects use."""

    locks_held: int

    def maybe_interrupt(self) -> None:
        """Let another worker step here, if the seed decides so."""

    def misused(self, what: str) -> None:
        """Note a misuse of the runtime's objects."""

    def defer(self, signal: SimulatedSignal, timeout: float | None) -> None:
        """Note the signal that the stepping worker waits for."""

    def join(self, task: Task, timeout: float) -> bool:
        """Step other workers until a task has ended or the time-out has passed."""


class Task:
    """A worker and its scheduling state; the handle of its owner.

    Args:
        runtime: The simulated runtime.
        name: The name of its thread in a real runtime.
        worker: The worker.
        wake_at: The time of its first step.
        job: Whether it is a submitted job.
        weight: Its relative frequency of steps.
    """

    __slots__ = (
        "done",
        "job",
        "name",
        "runtime",
        "signal",
        "stalled_until",
        "stepping",
        "waited",
        "waiting_for",
        "wake_at",
        "weight",
        "worker",
    )

    def __init__(
        self, runtime: Scheduler, name: str, worker: Worker, wake_at: float, *, job: bool, weight: float
    ) -> None:
        self.runtime = runtime
        self.name = name
        self.worker = worker
        self.signal = worker.signal
        self.wake_at = wake_at
        self.job = job
        self.weight = weight
        self.stalled_until = 0.0
        self.stepping = False
        self.done = False
        self.waited: list[tuple[Signal, float]] = []
        self.waiting_for: list[Signal] = []

    def alive(self) -> bool:
        """Whether the worker may still step."""
        return not self.done

    def join(self, timeout: float) -> bool:
        """Step other workers until it has ended or the time-out has passed; return whether it has ended."""
        return self.runtime.join(self, timeout)

    def is_ready(self, now: float) -> bool:
        """Whether it may step now."""
        if self.stepping or self.stalled_until > now:
            return False
        return self.wake_at <= now or self._signalled()

    def due(self) -> float:
        """Return the time of its next step; infinity if it waits for a signal."""
        at = 0.0 if self._signalled() else self.wake_at
        return at if at == math.inf else max(at, self.stalled_until)

    def _signalled(self) -> bool:
        return self.signal.is_set() or any(signal.is_set() for signal in self.waiting_for)


def after_step(task: Task, outcome: Next | WaitFor, now: float) -> None:
    """Note when a worker may step again."""
    task.waiting_for = []
    if isinstance(outcome, WaitFor):
        task.wake_at = now + outcome.seconds
    elif outcome is Next.AGAIN and task.waited:
        task.waiting_for = [signal for signal, _ in task.waited]
        task.wake_at = min(until for _, until in task.waited)
    elif outcome is Next.AGAIN:
        task.wake_at = now
    else:
        task.wake_at = math.inf
        task.done = outcome is Next.DONE


class JobWorker:
    """A submitted job: the first step runs the work, the second reports the result.

    Args:
        signal: The worker's signal.
        work: The work.
        done: Takes the result or the error.
        delay: Draws the seconds between the two.
    """

    def __init__(
        self,
        signal: Signal,
        work: Callable[[], Any],
        done: Callable[[Any, BaseException | None], None],
        delay: Callable[[], float],
    ) -> None:
        self.signal = signal
        self._work = work
        self._done = done
        self._delay = delay
        self._result: tuple[Any, BaseException | None] | None = None

    def step(self) -> Next | WaitFor:
        """Run the work, or report its result."""
        if self._result is not None:
            self._done(*self._result)
            return Next.DONE
        try:
            self._result = (self._work(), None)
        except BaseException as error:  # noqa: BLE001 - handed to `done`, whatever it is
            self._result = (None, error)
        return WaitFor(self._delay())


class SimulatedLock(AbstractContextManager[bool]):
    """A lock that never blocks: in one thread, a taken lock is a mistake.

    Args:
        runtime: The simulated runtime.
    """

    __slots__ = ("_held", "_runtime")

    def __init__(self, runtime: Scheduler) -> None:
        self._runtime = runtime
        self._held = False

    def __enter__(self) -> bool:
        """Take the lock; others may step just before."""
        self._runtime.maybe_interrupt()
        if self._held:
            self._runtime.misused("a lock is taken again by its holder")
        self._held = True
        self._runtime.locks_held += 1
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lock; others may step just after."""
        self._held = False
        self._runtime.locks_held -= 1
        self._runtime.maybe_interrupt()


class SimulatedSignal:
    """A flag; the wait for it happens after the step.

    Args:
        runtime: The simulated runtime.
    """

    __slots__ = ("_runtime", "_up")

    def __init__(self, runtime: Scheduler) -> None:
        self._runtime = runtime
        self._up = False

    def set(self) -> None:
        """Raise the flag."""
        self._up = True

    def is_set(self) -> bool:
        """Whether the flag is up."""
        return self._up

    def clear(self) -> None:
        """Lower the flag."""
        self._up = False

    def wait(self, timeout: float | None = None) -> bool:
        """Return at once whether the flag is set; the worker steps again once it is, or after `timeout` seconds."""
        self._runtime.maybe_interrupt()
        if not self._up:
            self._runtime.defer(self, timeout)
        return self._up
