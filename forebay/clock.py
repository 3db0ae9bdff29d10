# SPDX-License-Identifier: Apache-2.0
"""Time as an argument: code that waits or measures takes a `Clock`, so tests and the simulator decide the time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where time comes from. Both methods may be called from any thread."""

    def now(self) -> float:
        """Return the wall time in seconds since 1970-01-01 UTC."""

    def monotonic(self) -> float:
        """Return seconds that never go back; only differences mean anything."""


class SystemClock:
    """The machine's own time."""

    def now(self) -> float:
        """Return the wall time in seconds since 1970-01-01 UTC."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()


class ManualClock:
    """A clock that stands still until it is moved: for tests and the simulator.

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
        """Return the seconds this clock was moved since it was made."""
        return self._elapsed

    def advance(self, seconds: float) -> None:
        """Move the time forward by `seconds` (0 or more)."""
        if seconds < 0:
            raise ValueError(f"a clock cannot go back ({seconds} s)")
        self._elapsed += seconds
