# SPDX-License-Identifier: Apache-2.0
"""Threads, locks, time and chance, behind one object: `ThreadRuntime` for life, a simulated one for tests.

All machinery of the framework is made of `Worker` objects with a `step` that does a little and never waits for
another worker. The runtime decides who steps when, so a simulator can run everything in one thread.
"""

from __future__ import annotations

import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Protocol, TypeVar

from forebay.clock import Clock, SystemClock
from forebay.framework.runtime.retry import ServicePauses, of_process

T = TypeVar("T")


class Next(Enum):
    """What a worker's step says about its next one."""

    AGAIN = "step again now"
    WAIT = "step again once signalled"
    DONE = "never step again"


@dataclass(frozen=True, slots=True)
class WaitFor:
    """Step again once signalled, or after so many seconds."""

    seconds: float


class Signal(Protocol):
    """A flag that wakes whoever waits; set and remembered until it is cleared. Thread-safe."""

    def set(self) -> None:
        """Raise the flag and wake the waiter."""

    def is_set(self) -> bool:
        """Whether the flag is up."""

    def clear(self) -> None:
        """Lower the flag."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the flag is up, at most `timeout` seconds; return whether it is."""


class Worker(Protocol):
    """Something that runs by steps on a thread of its own.

    `signal` must be set by whoever changes anything the worker waits for. The runtime clears it *before* each step,
    so a change during the step is never missed.
    """

    @property
    def signal(self) -> Signal:
        """The flag that ends a wait between steps."""

    def step(self) -> Next | WaitFor:
        """Do a little. May block in outside I/O only, and must not raise."""


class WorkerHandle(Protocol):
    """A running worker, as its owner sees it."""

    def alive(self) -> bool:
        """Whether the worker may still step."""

    def join(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for its end; return whether it has ended."""


class Runtime(ABC):
    """Threads, locks, time and chance."""

    @property
    @abstractmethod
    def clock(self) -> Clock:
        """Where time comes from."""

    @property
    @abstractmethod
    def random(self) -> random.Random:
        """Where chance (back-off jitter) comes from."""

    @cached_property
    def service_pauses(self) -> ServicePauses:
        """How long services that asked for a pause are left alone."""
        return ServicePauses(self.clock)

    def thread_id(self) -> int:
        """Return which thread is calling. A simulator that steps everything in one thread has only one."""
        return threading.get_ident()

    @abstractmethod
    def lock(self) -> AbstractContextManager[bool]:
        """Return a new lock, for use in a `with` block; not re-entrant."""

    @abstractmethod
    def signal(self) -> Signal:
        """Return a new signal, down."""

    @abstractmethod
    def start(self, name: str, worker: Worker) -> WorkerHandle:
        """Run a worker on a new thread of that name until it is done."""

    @abstractmethod
    def submit(self, name: str, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Run `work` once on another thread, then `done(result, error)` on that same thread."""


class ThreadRuntime(Runtime):
    """Real threads, all daemons: a process never hangs on a connector that blocks for ever.

    Args:
        clock: Where time comes from; the machine's own by default.
        seed: For reproducible jitter; random by default.
    """

    def __init__(self, clock: Clock | None = None, seed: int | None = None) -> None:
        self._clock = clock or SystemClock()
        self._random = random.Random(seed)

    @property
    def clock(self) -> Clock:
        """Where time comes from."""
        return self._clock

    @property
    def random(self) -> random.Random:
        """Where chance comes from."""
        return self._random

    @cached_property
    def service_pauses(self) -> ServicePauses:
        """How long services that asked for a pause are left alone: one answer for all readers of the process."""
        return of_process if isinstance(self._clock, SystemClock) else ServicePauses(self._clock)

    def lock(self) -> AbstractContextManager[bool]:
        """Return a new lock."""
        return threading.Lock()

    def signal(self) -> Signal:
        """Return a new signal, down."""
        return threading.Event()

    def start(self, name: str, worker: Worker) -> WorkerHandle:
        """Run a worker on a new daemon thread."""
        return _ThreadHandle(name, lambda: _drive(worker))

    def submit(self, name: str, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Run `work` once on a new daemon thread."""

        def run() -> None:
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - handed to `done`, whatever it is
                done(None, error)
            else:
                done(result, None)

        _ThreadHandle(name, run)


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
            case Next.AGAIN:
                continue
            case Next.WAIT:
                signal.wait()
            case WaitFor(seconds):
                signal.wait(seconds)
            case Next.DONE:
                return
