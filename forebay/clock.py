# SPDX-License-Identifier: Apache-2.0
"""Time as an argument, so that tests and the simulator control it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time. Both methods are thread-safe."""

    def now(self) -> float:
        """Return the wall time in seconds since 1970-01-01 UTC."""

    def monotonic(self) -> float:
        """Return monotonic seconds; only differences are meaningful."""


class SystemClock:
    """The time of the machine."""

    def now(self) -> float:
        """Return the wall time in seconds since 1970-01-01 UTC."""
        return time.time()

    def monotonic(self) -> float:
        """Return monotonic seconds."""
        return time.monotonic()


class ManualClock:
    """A clock that only `advance` moves, for tests and the simulator.

    Args:
        start: The first wall time, in seconds since 1970-01-01 UTC.
    """

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._start = start
        self._elapsed = 0.0

    def now(self) -> float:
        """Return the wall time in seconds since 1970-01-01 UTC."""
        return self._start + self._elapsed

    def monotonic(self) -> float:
        """Return the seconds by which this clock was advanced."""
        return self._elapsed

    def advance(self, seconds: float) -> None:
        """Move the time forward by `seconds` (0 or more)."""
        if seconds < 0:
            raise ValueError(f"a clock cannot go back ({seconds} s)")
        self._elapsed += seconds
