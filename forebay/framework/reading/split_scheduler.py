# SPDX-License-Identifier: Apache-2.0
"""Where the splits of a `SimpleSource` are while no pump reads them."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from forebay.framework.split import Split


@dataclass(slots=True, eq=False)
class _Parked:
    """A split between two runs."""

    split: Split


class SplitScheduler:
    """The splits without a pump: those that may run, those that rest, those that are paused.

    What one start costs does not depend on how many splits there are. Used on the fetcher thread only.
    """

    def __init__(self) -> None:
        self._here: dict[str, _Parked] = {}  # what comes out below counts only if it is the entry here
        self._waiting: deque[_Parked] = deque()
        self._timers: list[tuple[float, int, _Parked]] = []
        self._held: dict[str, _Parked] = {}
        self._count = 0
        self.paused: set[str] = set()
        """The splits that may not run now, with or without a pump."""

    def park(self, split: Split, *, until: float | None = None) -> None:
        """Take a split in; one of the same id that is here is replaced.

        Args:
            split: With its position.
            until: The second of the clock before which it rests; None for no rest.
        """
        one = self._here[split.id] = _Parked(split)
        if until is None:
            self._waiting.append(one)
        else:
            self._count += 1
            heapq.heappush(self._timers, (until, self._count, one))

    def has_next(self, now: float) -> bool:
        """Whether a split may run."""
        while self._timers and self._timers[0][0] <= now:
            self._waiting.append(heapq.heappop(self._timers)[2])
        while self._waiting:
            one = self._waiting[0]
            if self._here.get(one.split.id) is one:
                if one.split.id not in self.paused:
                    return True
                self._held[one.split.id] = one
            self._waiting.popleft()
        return False

    def take(self, now: float) -> Split | None:
        """Give out the split that has waited longest, if one may run."""
        if not self.has_next(now):
            return None
        one = self._waiting.popleft()
        del self._here[one.split.id]
        return one.split

    def next_due(self) -> float | None:
        """Return when the next resting split may run."""
        return self._timers[0][0] if self._timers else None

    def pause(self, splits: Collection[str], resume: Collection[str]) -> None:
        """Keep splits back, and let others go."""
        self.paused = (self.paused - set(resume)) | set(splits)
        self._waiting.extend(self._held.pop(one) for one in resume if one in self._held)
