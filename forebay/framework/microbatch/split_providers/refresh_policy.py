# SPDX-License-Identifier: Apache-2.0
"""When a planner asks the source again: how long an answer is cached, and the pauses after failures (S7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from forebay.errors import ForebayError
from forebay.framework.runtime.retry import RetryPolicy
from forebay.framework.runtime.runtime import Runtime
from forebay.options import Duration

LONGEST: Final = 10.0
"""Maximum seconds for which an answer is cached, however long it took."""

QUIET_FLOOR: Final = 0.1
"""Minimum seconds for which an answer is cached without new data; at most the planner's wait for a fresh one."""

_QUIET_AFTER: Final = 5.0
"""Seconds without new data after which `QUIET_FLOOR` applies."""

_ASK_AGAIN: Final = RetryPolicy(first_pause=0.1, factor=2, max_pause=10.0)
"""Pauses between failures in a stream, which continues with the last answer."""


class Failure(NamedTuple):
    """A failed call to a source: seconds since 1970, text without secrets, split, and whether it is over."""

    at: float
    text: str
    split: str | None
    over: bool


def last_of(*failures: Failure | None) -> Failure | None:
    """Return the last failure, or the last one that is not over."""
    return max((one for one in failures if one is not None), key=lambda one: (not one.over, one.at), default=None)


class FailureTracker:
    """Counts failed calls of one kind, and returns the pauses between them."""

    def __init__(self, runtime: Runtime) -> None:
        self._clock = runtime.clock
        self._random = runtime.random
        self._in_a_row = 0
        self._last: Failure | None = None
        self.failed = 0
        """The total number of failures."""

    @property
    def failing(self) -> bool:
        """Whether the last call failed."""
        return self._in_a_row > 0

    @property
    def failure(self) -> Failure | None:
        """The last failure."""
        return self._last and self._last._replace(over=not self.failing)

    def fail(self, error: ForebayError) -> float:
        """Count a failure; return the seconds until the next call, which grow."""
        self._in_a_row += 1
        self.failed += 1
        self._last = Failure(self._clock.now(), str(error), error.split, over=False)
        return _ASK_AGAIN.pause(self._in_a_row, self._random, error)

    def succeed(self) -> None:
        """Note a successful call."""
        self._in_a_row = 0


class RefreshPolicy:
    """Decides when an answer of a source is outdated (S7).

    Args:
        interval: Seconds for which an answer is cached; None = as long as its cost justifies.
        floor: Without interval, the minimum seconds; while there is no new data, at least `QUIET_FLOOR`.
        share: Without interval, the maximum share of the time that calls may take.
    """

    def __init__(self, runtime: Runtime, interval: Duration | None, floor: float, share: float) -> None:
        self._clock = runtime.clock
        self._interval = None if interval is None else interval.total_seconds()
        self._floor = floor
        self._share = share
        self._trust = 0.0
        self._news = float("-inf")
        self._asked: float | None = None
        self._before = 0.0
        self.due = 0.0
        """The monotonic time when the answer is outdated."""
        self.took = 0.0
        """Seconds that the last answer took; 0 before the first one."""
        self.failures = FailureTracker(runtime)

    def is_due(self) -> bool:
        """Return whether the answer is outdated, or there is none."""
        return self._asked is None or self._clock.monotonic() >= self.due

    def due_soon(self, since: float, within: float) -> float | None:
        """Return the seconds until an answer from before `since` is outdated; None if that is not worth waiting for.

        Args:
            since: A monotonic time.
            within: Maximum seconds that are worth waiting for.
        """
        if self._asked is None or self._asked >= since or self._trust > within:
            return None
        return max(0.0, self.due - self._clock.monotonic())

    def measure(self, ask: Callable[[], None]) -> None:
        """Measure a call, and cache its answer from now on.

        The cost is the shorter of the last two durations: the first call connects, and any call may be delayed once.
        """
        began = self._clock.monotonic()
        ask()
        now = self._clock.monotonic()
        self.failures.succeed()
        self._before, self.took = self.took, now - began
        pause = self._interval
        if pause is None:
            floor = self._floor if now < self._news + _QUIET_AFTER else max(self._floor, QUIET_FLOOR)
            pause = min(LONGEST, max(floor, min(self._before, self.took) / self._share))
        self._asked, self.due, self._trust = began, now + pause, pause

    def news(self) -> None:
        """Note that the answer that is being measured differs from the last one."""
        self._news = self._clock.monotonic()

    def put_off(self, error: ForebayError) -> float:
        """Count a failure, and return the growing pause in seconds until the next call."""
        self._asked = self._clock.monotonic()
        self._trust = self.failures.fail(error)
        self.due = self._asked + self._trust
        return self._trust
