# SPDX-License-Identifier: Apache-2.0
"""Idleness: decides when a silent split stops holding back the watermark.

A wall-clock timeout alone would mark a starved split as idle, and the watermark would pass records that are already
queued. So the host must prove that a split is silent for the whole timeout. The timeout counts only the time in which
reading is possible (WM-4).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from forebay.errors import ConfigurationError


class ActivityClock:
    """A clock that counts the seconds in which input can be read: it stops while reading is blocked.

    Clocks are layered: under backpressure, the clock of a reader stops, and with it the clocks of its splits. The clock
    of a split also stops while the split is paused. Pauses nest: each needs its own `resume`.
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
        """Stop counting until `resume` has been called as often as `pause`."""
        if self._pauses == 0:
            self._stopped_at = self._base()
        self._pauses += 1

    def resume(self) -> None:
        """End one `pause`; the clock runs again when all have ended.

        Raises:
            ValueError: The clock is not paused.
        """
        if self._pauses == 0:
            raise ValueError("the clock is not paused")
        self._pauses -= 1
        if self._pauses == 0:
            self._hidden += self._base() - self._stopped_at


class IdlenessTimer:
    """Decides at each probe whether one output is idle: silent for more than `timeout` seconds (WM-4).

    Raises:
        ConfigurationError: The timeout is 0, negative or not finite.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = check_timeout(timeout)
        self._active = False
        self._silent_since: float | None = None
        self.idle = False
        """Whether the output was idle at the last probe; False from the moment of any activity."""

    def activity(self) -> None:
        """Record activity, such as emitted rows: the output is active, and the timeout restarts."""
        self._active = True
        self.idle = False

    def probe(self, now: float, *, silent: bool, blocked: bool = False) -> bool:
        """Return whether the output is idle. The first silent probe starts the timeout.

        Args:
            now: The time in seconds, such as that of the output's `ActivityClock`.
            silent: Whether the host has proof that the output is silent; without proof, the output is active.
            blocked: Whether backpressure or a pause blocks reading; if so, the last decision is kept (AL-6).
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
    """Check and return an idle timeout, in seconds.

    Raises:
        ConfigurationError: The timeout is 0, negative, infinite or not a number.
    """
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout < math.inf:
        raise ConfigurationError(
            f"the idle timeout {timeout!r} s is invalid: it must be finite and more than 0",
            option="idleTimeout",
            advice="give seconds, more than 0; omit the timeout to never mark a split as idle",
        )
    return float(timeout)
