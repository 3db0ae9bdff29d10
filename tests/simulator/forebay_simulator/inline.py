# SPDX-License-Identifier: Apache-2.0
"""A runtime without threads: what is submitted has run when `submit` returns, and waiting moves a clock by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from forebay.clock import ManualClock
from forebay.framework.runtime.runtime import Signal, ThreadRuntime

T = TypeVar("T")


class InlineRuntime(ThreadRuntime):
    """For whatever submits work and waits for it, such as a planner: deterministic, and fast.

    Args:
        clock: Moved by whoever waits in vain, and by the test.
        seed: For the jitter of back-off.
    """

    def __init__(self, clock: ManualClock | None = None, seed: int = 0) -> None:
        self.hands = clock or ManualClock()
        super().__init__(self.hands, seed)

    def signal(self) -> Signal:
        """Return a new signal, down."""
        return InlineSignal(self.hands)

    def submit(self, name: str, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Run `work`, then `done`, here and now."""
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - handed to `done`, whatever it is
            done(None, error)
        else:
            done(result, None)


class InlineSignal:
    """A flag that nobody else can raise while one waits: the time-out passes at once.

    Args:
        hands: The clock that moves.
    """

    def __init__(self, hands: ManualClock) -> None:
        self._hands = hands
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
            RuntimeError: It would be waited for ever.
        """
        if not self._up:
            if timeout is None:
                raise RuntimeError("nobody can raise this flag: one thread waits for itself")
            self._hands.advance(timeout)
        return self._up
