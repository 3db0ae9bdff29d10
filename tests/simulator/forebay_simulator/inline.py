# SPDX-License-Identifier: Apache-2.0
"""A runtime without threads: `submit` runs the work at once, and waiting moves a manual clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from manual_clock import ManualClock

from forebay.framework.runtime.runtime import Signal, ThreadRuntime, run_job

T = TypeVar("T")


class InlineRuntime(ThreadRuntime):
    """A deterministic runtime for code that submits work and waits for it, such as a planner.

    Args:
        clock: Moved by waits that time out, and by the test.
        seed: For the jitter of back-off.
    """

    def __init__(self, clock: ManualClock | None = None, seed: int = 0) -> None:
        self.manual_clock = clock or ManualClock()
        super().__init__(self.manual_clock, seed)

    def signal(self) -> Signal:
        """Return a new signal, down."""
        return InlineSignal(self.manual_clock)

    def submit(self, name: str, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Run `work`, then `done`, at once."""
        run_job(work, done)


class InlineSignal:
    """A flag that no other thread can set during a wait: the time-out passes at once.

    Args:
        clock: The clock that moves.
    """

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
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
        """Let the time-out pass, unless the flag is up; return whether it is.

        Raises:
            RuntimeError: The wait would never end.
        """
        if not self._up:
            if timeout is None:
                raise RuntimeError("nobody can raise this flag: one thread waits for itself")
            self._clock.advance(timeout)
        return self._up
