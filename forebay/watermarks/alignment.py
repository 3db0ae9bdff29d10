# SPDX-License-Identifier: Apache-2.0
"""Alignment: no member runs further ahead in event time than a drift beyond the slowest active one (AL-1…7).

Arithmetic only. A host that runs several readers asks `Alignment` for the limit whenever it wants one, so no
announcement lags behind and nothing caps the speed of catching up at one drift per interval (AL-8); a planner caps
positions with `max_allowed`; a reader pauses its splits by `SplitAlignment`.

One thread calls each object; it takes no lock.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple

from forebay.watermarks.event_time import MAX_WATERMARK, MIN_WATERMARK
from forebay.watermarks.strategy import check_drift


def max_allowed(watermarks: Iterable[int], max_drift: float) -> int:
    """Return how far any member may be: the lowest watermark of an active one, and the drift (AL-2).

    Args:
        watermarks: Of every member that has one, in microseconds; an idle one says `MAX_WATERMARK` and a finished one
            is left out (a `MAX_WATERMARK` of it would do as little). `MIN_WATERMARK`, no watermark yet, does not count.
        max_drift: Seconds of event time; infinite switches alignment off (AL-9).

    Returns:
        A limit in microseconds; equality is allowed (AL-5). `MAX_WATERMARK` where no member is active.

    Raises:
        ConfigurationError: The drift is negative or not a number.
    """
    return _limit(_slowest(watermarks), check_drift(max_drift))


def may_read(watermark: int, limit: int) -> bool:
    """Return whether a member at `watermark` goes on: up to and including the limit (AL-5)."""
    return watermark <= limit


class Alignment:
    """The latest watermark of each member, and the limit that follows from them.

    A member is a reader or a split, by its id. Two objects know nothing of each other (AL-4). A member that has
    never had a watermark holds nobody back: it might never get one (AL-1).

    Args:
        max_drift: How far ahead of the slowest active member one may be, in seconds of event time; infinite = off.

    Raises:
        ConfigurationError: The drift is negative or not a number.
    """

    def __init__(self, max_drift: float) -> None:
        self._drift = check_drift(max_drift)
        self._reported: dict[Hashable, int] = {}

    def report(self, member: Hashable, watermark: int | None) -> None:
        """Take a member's latest watermark (AL-1).

        The limit can fall: an idle member may come back with a low watermark (AL-2).

        Args:
            member: The id of the member.
            watermark: Microseconds; `MAX_WATERMARK` = idle; None or `MIN_WATERMARK` = none yet, which changes nothing.
        """
        if watermark is not None and watermark != MIN_WATERMARK:
            self._reported[member] = watermark

    def finish(self, member: Hashable) -> None:
        """Drop a member that has finished, or failed: it is not in the minimum, which `MAX_WATERMARK` is not either.

        A member that is not there has no effect. One that reports again is back.
        """
        self._reported.pop(member, None)

    def slowest(self) -> int | None:
        """Return the lowest watermark of an active member; None if none is active."""
        return _slowest(self._reported.values())

    def max_allowed(self) -> int:
        """Return the limit, computed now (AL-2); `MAX_WATERMARK` if no member is active or alignment is off."""
        return _limit(self.slowest(), self._drift)

    def drift_of(self, member: Hashable) -> int | None:
        """Return how many microseconds a member is ahead of the slowest: a metric. None if it is idle or unknown."""
        watermark, slowest = self._reported.get(member), self.slowest()
        return None if watermark in (None, MAX_WATERMARK) or slowest is None else watermark - slowest


class PauseChange(NamedTuple):
    """Which splits to pause and which to let go on: what changed, not what is.

    Attributes:
        pause: Ids of splits that were running and are too far ahead.
        resume: Ids of splits that were paused and are within the limit.
    """

    pause: tuple[str, ...] = ()
    resume: tuple[str, ...] = ()


class SplitAlignment:
    """Decides which splits of a reader are paused (AL-6): also where there is only one (AL-7).

    Before the first limit nothing is paused.
    """

    def __init__(self) -> None:
        self._limit = MAX_WATERMARK
        self._watermarks: dict[str, int] = {}
        self._paused: set[str] = set()

    @property
    def paused(self) -> frozenset[str]:
        """The ids of the splits that are held back now."""
        return frozenset(self._paused)

    def add(self, split_id: str) -> None:
        """Start to keep books on a split; it has no watermark, so it runs. Adding it again has no effect."""
        self._watermarks.setdefault(split_id, MIN_WATERMARK)

    def finish(self, split_id: str) -> None:
        """Forget a finished split: it is never paused again, nor resumed (AL-6)."""
        self._watermarks.pop(split_id, None)
        self._paused.discard(split_id)

    def advance(self, split_id: str, watermark: int) -> PauseChange:
        """Take a split's own new watermark; that of a split which is not there has no effect.

        Args:
            split_id: The split.
            watermark: Its own watermark, in microseconds.

        Returns:
            At most this split.
        """
        if split_id not in self._watermarks:
            return PauseChange()
        self._watermarks[split_id] = watermark
        return self._judge((split_id,))

    def limit(self, us: int) -> PauseChange:
        """Take a new limit, which may also be lower than the last.

        Args:
            us: What `max_allowed` gave, in microseconds.
        """
        self._limit = us
        return self._judge(self._watermarks)

    def _judge(self, split_ids: Iterable[str]) -> PauseChange:
        ahead = {each: not may_read(self._watermarks[each], self._limit) for each in split_ids}
        pause = tuple(each for each, far in ahead.items() if far and each not in self._paused)
        resume = tuple(each for each, far in ahead.items() if not far and each in self._paused)
        self._paused.update(pause)
        self._paused.difference_update(resume)
        return PauseChange(pause, resume)


def _slowest(watermarks: Iterable[int]) -> int | None:
    return min((us for us in watermarks if us not in (MIN_WATERMARK, MAX_WATERMARK)), default=None)


def _limit(slowest: int | None, drift: int | None) -> int:
    return MAX_WATERMARK if slowest is None or drift is None else min(MAX_WATERMARK, slowest + drift)
