# SPDX-License-Identifier: Apache-2.0
"""Idleness: when a silent split stops holding back the watermark.

A wall-clock timeout alone would mark a starved split as idle, and the watermark would pass records that are already
queued. So the host must prove that a split is silent for the whole timeout, which counts only while reading is possible
(WM-4).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from forebay.errors import ConfigurationError


class ActivityClock:
    """Counts the seconds in which input can be read: stops while reading is blocked.

    Clocks are layered: the clock of a reader stops under backpressure, and with it the clocks of its splits. Each of
    those also stops while its split is paused. Pauses nest: each needs its own `resume`.
    """

    def __init__(self, base: Callable[[], float] | ActivityClock) -> None:
        self._parent = base if isinstance(base, ActivityClock) else None
        self._base = base.read if isinstance(base, ActivityClock) else base
        self._hidden = 0.0
        self._stopped_at = 0.0
        self._pauses = 0

    @property
    def running(self) -> bool:
        """Whether neither this clock nor its parent is paused."""
        return self._pauses == 0 and (self._parent is None or self._parent.running)

    def read(self) -> float:
        """Return the seconds of the base clock, excluding paused time."""
        return (self._stopped_at if self._pauses else self._base()) - self._hidden

    def pause(self) -> None:
        """Stop counting until `resume` is called once for each call of this."""
        if self._pauses == 0:
            self._stopped_at = self._base()
        self._pauses += 1

    def resume(self) -> None:
        """Revoke one `pause`.

        Raises:
            ValueError: The clock is not paused.
        """
        if self._pauses == 0:
            raise ValueError("the clock is not paused")
        self._pauses -= 1
        if self._pauses == 0:
            self._hidden += self._base() - self._stopped_at


class IdlenessTimer:
    """Decides at each periodic tick whether one output is idle (WM-4).

    Raises:
        ConfigurationError: The timeout is 0, negative or not finite.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = check_timeout(timeout)
        self._active = False
        self._silent_since: float | None = None
        self.idle = False
        """The latest decision; false from the moment of any activity."""

    def activity(self) -> None:
        """Record that rows were emitted: the output is active, and the timeout restarts."""
        self._active = True
        self.idle = False

    def probe(self, now: float, *, silent: bool, blocked: bool = False) -> bool:
        """Return whether the output is idle. The first silent probe starts the timeout.

        Args:
            now: The output's `ActivityClock`, in seconds.
            silent: Whether the host has proof of silence; if not, the output is active.
            blocked: Reading is blocked by backpressure or a pause: keep the last decision (AL-6).
        """
        if self._active or not silent:
            self._active = self.idle = False
            self._silent_since = None
        elif not self.idle and not blocked:
            if self._silent_since is None:
                self._silent_since = now
            self.idle = now - self._silent_since > self._timeout
        return self.idle


def check_timeout(timeout: float) -> float:
    """Return a valid idle timeout, in seconds.

    Raises:
        ConfigurationError: It is 0, negative, infinite or not a number.
    """
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout < math.inf:
        raise ConfigurationError(
            f"the idle timeout {timeout!r} s is invalid: it must be finite and more than 0",
            option="idleTimeout",
            advice="give seconds, more than 0; omit the timeout to never mark a split as idle",
        )
    return float(timeout)
