# SPDX-License-Identifier: Apache-2.0
"""Decides when a planner asks the source again: how long it caches an answer, and pauses after a failure (S7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from forebay.errors import ForebayError
from forebay.framework.runtime.runtime import Runtime
from forebay.options import Duration
from forebay.retry import RetryPolicy

LONGEST: Final = 10.0
"""Maximum seconds for which an answer is cached, however long it took."""

QUIET_FLOOR: Final = 0.1
"""Minimum seconds for which an answer is cached if there is no new data. The planner must be ready to wait so long for
a fresh one."""

_QUIET_AFTER: Final = 5.0
"""Seconds without new data after which `QUIET_FLOOR` applies."""

_ASK_AGAIN: Final = RetryPolicy(first_pause=0.1, factor=2, max_pause=10.0)
"""Pauses between failures in a stream, which continues with the last answer."""


class Failure(NamedTuple):
    """A failed call of a source: when (seconds since 1970), its text, split, and whether a later call succeeded.

    The text contains no secrets.
    """

    at: float
    text: str
    split: str | None
    over: bool


def last_of(*failures: Failure | None) -> Failure | None:
    """Return the latest failure that is not over; if all are over, the latest one; None if there is none."""
    return max((one for one in failures if one is not None), key=lambda one: (not one.over, one.at), default=None)


class FailureTracker:
    """Counts failed calls of one kind, and decides how long to wait before the next call."""

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
        """The last failure; None if no call has failed."""
        return self._last and self._last._replace(over=not self.failing)

    def fail(self, error: ForebayError) -> float:
        """Count a failed call; return the seconds until the next call. They grow with each failure in a row."""
        self._in_a_row += 1
        self.failed += 1
        self._last = Failure(self._clock.now(), str(error), error.split, over=False)
        return _ASK_AGAIN.pause(self._in_a_row, self._random, error)

    def succeed(self) -> None:
        """Record a successful call."""
        self._in_a_row = 0


class RefreshPolicy:
    """Decides how long a source's answer, such as its splits, is cached before the source is asked again (S7).

    Args:
        runtime: Gives the time.
        interval: The time for which an answer is cached; None = the slower the answer, the longer, up to `LONGEST`.
        floor: Without an interval, the minimum seconds for which an answer is cached. After five seconds without new
            data, the minimum is at least `QUIET_FLOOR`.
        share: Without an interval, the share of the time that asking should take at most. It takes more if `LONGEST`
            ends the caching earlier.
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
        """The monotonic time when the cached answer expires."""
        self.took = 0.0
        """Seconds that the last call took; 0 before the first call."""
        self.failures = FailureTracker(runtime)

    def is_due(self) -> bool:
        """Return whether the cached answer has expired, or there is none."""
        return self._asked is None or self._clock.monotonic() >= self.due

    def due_soon(self, since: float, within: float) -> float | None:
        """Return the seconds until the cached answer expires; None if the caller should not wait for a fresh answer.

        The caller should wait if the source was asked before `since`, and its answer is cached for at most `within`.

        Args:
            since: A monotonic time.
            within: Seconds.
        """
        if self._asked is None or self._asked >= since or self._trust > within:
            return None
        return max(0.0, self.due - self._clock.monotonic())

    def measure(self, ask: Callable[[], None]) -> None:
        """Call `ask`, measure its duration, and decide until when its answer is cached.

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
        """Record that the source has new data. Called by the `ask` of `measure` if its answer differs from the last."""
        self._news = self._clock.monotonic()

    def put_off(self, error: ForebayError) -> float:
        """Count a failed call, and cache the last answer until the next call; return the seconds until then.

        They grow with each failure in a row.
        """
        self._asked = self._clock.monotonic()
        self._trust = self.failures.fail(error)
        self.due = self._asked + self._trust
        return self._trust
