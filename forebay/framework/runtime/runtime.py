# SPDX-License-Identifier: Apache-2.0
"""Threads, locks, time and random numbers behind one object: `ThreadRuntime` in production, a simulated one in tests.

All parallel work is done by `Worker` objects. A `step` does little work and never waits for another worker, so that a
simulator can run all workers in one thread.
"""

from __future__ import annotations

import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar

from forebay.clock import Clock, SystemClock
from forebay.retry import PROCESS_PAUSES, ServicePauses

T = TypeVar("T")


class Next(Enum):
    """The result of `Worker.step`: when the runtime calls it again."""

    AGAIN = "step again now"
    WAIT = "step again once signalled"
    DONE = "never step again"


@dataclass(frozen=True, slots=True)
class WaitFor:
    """A result of `Worker.step`: step again when signalled, or after the given seconds."""

    seconds: float


class Signal(Protocol):
    """An event flag, as `threading.Event`: set and remembered until it is cleared. Thread-safe."""

    def set(self) -> None:
        """Set the flag and wake the waiter."""

    def is_set(self) -> bool:
        """Whether the flag is set."""

    def clear(self) -> None:
        """Clear the flag."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the flag is set, at most `timeout` seconds; return whether it is set."""


class Worker(Protocol):
    """An activity that a runtime runs in steps, on a thread of its own.

    Whoever makes a change that the worker waits for sets `signal`. The runtime clears the signal *before* each step, so
    a change during the step is never missed.
    """

    @property
    def signal(self) -> Signal:
        """The signal that wakes this worker between two steps."""

    def step(self) -> Next | WaitFor:
        """Do a small piece of work, and return when to step again. May block only in external I/O; must not raise."""


class WorkerHandle(Protocol):
    """A running worker."""

    def alive(self) -> bool:
        """Whether the worker may still step."""

    def join(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for the worker's end; return whether it has ended."""


class Runtime(ABC):
    """Provides threads, locks, time and random numbers."""

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self.clock = clock
        self.random = rng
        self.service_pauses = ServicePauses(clock)

    def thread_id(self) -> int:
        """Return the id of the calling thread. In a simulator, all workers have the same thread."""
        return threading.get_ident()

    @abstractmethod
    def lock(self) -> AbstractContextManager[bool]:
        """Return a new lock for `with` blocks. It is not re-entrant."""

    @abstractmethod
    def signal(self) -> Signal:
        """Return a new signal. It is not set."""

    @abstractmethod
    def start(self, name: str, worker: Worker) -> WorkerHandle:
        """Run a worker on a new thread with this name, until a step returns `Next.DONE`."""

    @abstractmethod
    def submit(self, name: str, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Run `work` once on another thread, then `done(result, error)` on that same thread."""


def run_job(work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
    """Run `work`, then pass its result or its exception to `done(result, error)`."""
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - any error goes to `done`
        done(None, error)
    else:
        done(result, None)


class ThreadRuntime(Runtime):
    """Runs workers on daemon threads, so a connector that blocks for ever cannot hang the process.

    With the system clock, all readers of the process share the pauses that services ask for.
    """

    def __init__(self, clock: Clock | None = None, seed: int | None = None) -> None:
        super().__init__(clock or SystemClock(), random.Random(seed))
        if isinstance(self.clock, SystemClock):
            self.service_pauses = PROCESS_PAUSES

    def lock(self) -> AbstractContextManager[bool]:
        """Return a `threading.Lock`."""
        return threading.Lock()

    def signal(self) -> Signal:
        """Return a `threading.Event`."""
        return threading.Event()

    def start(self, name: str, worker: Worker) -> WorkerHandle:
        """Run a worker on a new daemon thread."""
        return _ThreadHandle(name, lambda: _drive(worker))

    def submit(self, name: str, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Run `work` once on a new daemon thread, then `done(result, error)` on the same thread."""
        _ThreadHandle(name, lambda: run_job(work, done))


class _ThreadHandle:
    def __init__(self, name: str, run: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=run, name=name, daemon=True)
        self._thread.start()

    def alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout: float) -> bool:
        self._thread.join(timeout)
        return not self._thread.is_alive()


def _drive(worker: Worker) -> None:
    signal = worker.signal
    while True:
        signal.clear()
        match worker.step():
            case Next.WAIT:
                signal.wait()
            case WaitFor(seconds):
                signal.wait(seconds)
            case Next.DONE:
                return
