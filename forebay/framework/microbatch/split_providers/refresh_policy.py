# SPDX-License-Identifier: Apache-2.0
"""How long an answer of the outside is trusted, and what is remembered of a question that failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from forebay.errors import ForebayError
from forebay.framework.runtime.retry import RetryPolicy
from forebay.framework.runtime.runtime import Runtime

LONGEST = 10.0
"""Seconds after which an answer is too old, however long it took."""
QUIET_FLOOR = 0.1
"""Seconds for which an answer is trusted at least while there is no news, which costs less and is hardly noticed.

No more than the planner waits for a look before it says "nothing new".
"""
_QUIET_AFTER = 5.0
"""Seconds without news after which it is quiet."""

_ASK_AGAIN = RetryPolicy(first_pause=0.1, factor=2, max_pause=10.0)
"""Pauses between failed questions of a stream, which goes on with what it knows."""


class Failure(NamedTuple):
    """A question to the outside that failed."""

    at: float
    """The wall time, in seconds since 1970."""
    text: str
    """What was said, without secrets."""
    split: str | None
    """The split it was about, if it was about one."""
    over: bool
    """Whether a later question was answered."""


def last_of(*failures: Failure | None) -> Failure | None:
    """Return the last of these; one that is not over comes before all that are."""
    return max((one for one in failures if one is not None), key=lambda one: (not one.over, one.at), default=None)


class FailureTracker:
    """Counts the questions of one kind that failed, and says when to ask again.

    Args:
        runtime: Clock and chance.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._clock = runtime.clock
        self._random = runtime.random
        self._in_a_row = 0
        self._last: Failure | None = None
        self.failed = 0
        """How many failed, in all."""

    @property
    def on(self) -> bool:
        """Whether the last one failed."""
        return self._in_a_row > 0

    @property
    def failure(self) -> Failure | None:
        """The last one that failed."""
        return self._last and self._last._replace(over=not self.on)

    def note(self, error: ForebayError) -> float:
        """Note that one failed; return the seconds until the next one, which grow."""
        self._in_a_row += 1
        self.failed += 1
        self._last = Failure(self._clock.now(), str(error), error.split, over=False)
        return _ASK_AGAIN.pause(self._in_a_row, self._random, error)

    def end(self) -> None:
        """Note that one was answered."""
        self._in_a_row = 0


class RefreshPolicy:
    """When an answer of the outside is too old (S7).

    Args:
        runtime: The clock.
        interval: Seconds, if the user says it; else by what asking costs.
        floor: Seconds an answer is good for at least, then; `QUIET_FLOOR`, if that is more, while there is no news.
        share: Of the time that asking may take, then.
    """

    def __init__(self, runtime: Runtime, interval: float | None, floor: float, share: float) -> None:
        self._clock = runtime.clock
        self._interval = interval
        self._floor = floor
        self._share = share
        self._due = 0.0
        self._trust = 0.0
        self._news = float("-inf")
        self._asked: float | None = None
        self._before = 0.0
        self.took = 0.0
        """Seconds the last try took; 0 before the first one."""
        self.trouble = FailureTracker(runtime)
        """The tries that failed."""

    @property
    def due(self) -> float:
        """The monotonic time from which on the answer is too old."""
        return self._due

    def is_due(self) -> bool:
        """Whether the answer is too old, or there is none."""
        return self._asked is None or self._clock.monotonic() >= self._due

    def due_soon(self, since: float, within: float) -> float | None:
        """Return in how many seconds an answer from before `since` is too old; None = it is newer, or asking is dear.

        Args:
            since: A monotonic time.
            within: Asking is dear where an answer is trusted for more seconds than these.
        """
        if self._asked is None or self._asked >= since or self._trust > within:
            return None
        return max(0.0, self._due - self._clock.monotonic())

    def measure(self, ask: Callable[[], None]) -> None:
        """Ask, and trust the answer from now on.

        What asking costs is what it took twice in a row: the first time connects, and any may be held up.
        """
        began = self._clock.monotonic()
        ask()
        now = self._clock.monotonic()
        self.trouble.end()
        self._before, self.took = self.took, now - began
        pause = self._interval
        if pause is None:
            floor = self._floor if now < self._news + _QUIET_AFTER else max(self._floor, QUIET_FLOOR)
            pause = min(LONGEST, max(floor, min(self._before, self.took) / self._share))
        self._asked, self._due, self._trust = began, now + pause, pause

    def news(self) -> None:
        """The answer, which is being measured, is another one than before."""
        self._news = self._clock.monotonic()

    def put_off(self, error: ForebayError) -> float:
        """Ask again only after a pause, which is returned, in seconds, and grows: the last try failed, with `error`."""
        pause = self.trouble.note(error)
        self._asked = self._clock.monotonic()
        self._due, self._trust = self._asked + pause, pause
        return pause
