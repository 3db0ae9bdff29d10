# SPDX-License-Identifier: Apache-2.0
"""Clocks, which the framework takes as arguments so that tests and the simulator can control the time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A clock for wall time and for durations. Both methods are thread-safe."""

    def now(self) -> float:
        """Return the wall time in seconds since 1970-01-01 UTC."""

    def monotonic(self) -> float:
        """Return the seconds of a monotonic clock. Only the difference between two calls is meaningful."""


class SystemClock:
    """The clock of the operating system."""

    def now(self) -> float:
        """Return the wall time in seconds since 1970-01-01 UTC."""
        return time.time()

    def monotonic(self) -> float:
        """Return the seconds of the system's monotonic clock."""
        return time.monotonic()
