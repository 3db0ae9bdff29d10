# SPDX-License-Identifier: Apache-2.0
"""A clock for tests and the simulator."""

from __future__ import annotations


class ManualClock:
    """A clock for tests and the simulator, which moves only when `advance` is called.

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
            raise ValueError(f"advance() got {seconds} s, but a clock cannot go back: pass 0 or more")
        self._elapsed += seconds
