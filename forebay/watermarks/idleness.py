# SPDX-License-Identifier: Apache-2.0
"""Idleness: when a silent split may stop holding the watermark.

A wall-clock timeout alone calls a split idle that is only starved, and the watermark then passes records that are
already waiting. So silence must be proven: the split is caught up, a fetch of it completed empty, and nothing of it
is queued, all that for the timeout, counted only while reading was possible at all (WM-4).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from forebay.errors import ConfigurationError


@dataclass(frozen=True)
class Evidence:
    """What a reader knows about the silence of a split, at the moment it is asked.

    Args:
        caught_up: Everything the source has for this split up to now has been fetched.
        empty_fetch: The latest completed fetch of this split brought nothing. False until one has completed.
        queued: How many fetched batches of it wait between the fetcher and the output.
    """

    caught_up: bool
    empty_fetch: bool
    queued: int

    @property
    def quiet(self) -> bool:
        """Whether all three say that nothing is to come."""
        return self.caught_up and self.empty_fetch and self.queued == 0


SILENT = Evidence(caught_up=True, empty_fetch=True, queued=0)
"""The evidence where no split stands behind an output (the main output): only the time counts."""


class ActivityClock:
    """Counts the seconds in which input could have been read: it stands still while reading is blocked.

    Clocks are layered: a reader's clock stops under backpressure, a split's clock, which reads the reader's, also
    while the split is paused. Pauses nest: the clock runs again when every `pause` has had its `resume`.

    Args:
        base: The clock beneath, in seconds that never go back; or another such clock, whose pauses count here too.
    """

    def __init__(self, base: Callable[[], float] | ActivityClock) -> None:
        self._parent = base if isinstance(base, ActivityClock) else None
        self._base = base.read if isinstance(base, ActivityClock) else base
        self._hidden = 0.0
        self._stopped_at = 0.0
        self._pauses = 0

    @property
    def running(self) -> bool:
        """Whether neither this clock nor one beneath it is paused."""
        return self._pauses == 0 and (self._parent is None or self._parent.running)

    def read(self) -> float:
        """Return the seconds of the clock beneath without those spent paused."""
        return (self._stopped_at if self._pauses else self._base()) - self._hidden

    def pause(self) -> None:
        """Stop."""
        if self._pauses == 0:
            self._stopped_at = self._base()
        self._pauses += 1

    def resume(self) -> None:
        """Take one `pause` back.

        Raises:
            ValueError: The clock is not paused.
        """
        if self._pauses == 0:
            raise ValueError("the clock is not paused")
        self._pauses -= 1
        if self._pauses == 0:
            self._hidden += self._base() - self._stopped_at


class IdlenessTimer:
    """Judges the idleness of one output, at each periodic tick (WM-4).

    Args:
        timeout: How long the silence must last, in seconds, more than 0.

    Raises:
        ConfigurationError: The timeout is 0, negative or not finite.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = check_timeout(timeout)
        self._active = False
        self._quiet_since: float | None = None
        self._idle = False

    @property
    def idle(self) -> bool:
        """The latest judgement; false from the moment of any activity."""
        return self._idle

    def activity(self) -> None:
        """A batch with at least one row was emitted: not idle, and the count of silence starts anew."""
        self._active = True
        self._idle = False

    def probe(self, now: float, evidence: Evidence, *, blocked: bool = False) -> bool:
        """Judge: a first quiet probe only starts the count, a later one finds idle after more than the timeout.

        Args:
            now: The output's `ActivityClock`, in seconds.
            evidence: What is known about the silence; anything but quiet makes the output active.
            blocked: Reading is blocked now (backpressure, or the split is paused): no new judgement (AL-6).

        Returns:
            Whether the output is idle.
        """
        if self._active or not evidence.quiet:
            self._active = self._idle = False
            self._quiet_since = None
        elif not self._idle and not blocked:
            if self._quiet_since is None:
                self._quiet_since = now
            self._idle = now - self._quiet_since > self._timeout
        return self._idle


def check_timeout(timeout: float) -> float:
    """Return an idle timeout, in seconds, if it is one.

    Raises:
        ConfigurationError: It is 0, negative, infinite or not a number.
    """
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout < math.inf:
        raise ConfigurationError(
            f"an idle timeout of {timeout!r} s is none: it must be finite and more than 0",
            option="idleTimeout",
            advice="give seconds, more than 0; leave the timeout away to never call a split idle",
        )
    return float(timeout)
