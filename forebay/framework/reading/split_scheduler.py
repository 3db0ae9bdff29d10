# SPDX-License-Identifier: Apache-2.0
"""Decides which split of a `SimpleSource` the next free generator worker reads."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from forebay.framework.split import Split


@dataclass(slots=True, eq=False)
class _Entry:
    split: Split


class SplitScheduler:
    """The splits that no generator worker reads now: ready, delayed or paused. Used on the fetcher thread only.

    The cost of one `take` does not depend on the number of splits.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}  # an entry of the collections below is valid only if it is in here
        self._ready: deque[_Entry] = deque()
        self._timers: list[tuple[float, int, _Entry]] = []
        self._held: dict[str, _Entry] = {}
        self._count = 0
        self.paused: set[str] = set()
        """The ids of the paused splits, with or without a worker."""

    def add(self, split: Split, *, until: float | None = None) -> None:
        """Add a split, or replace the one with the same id. It is not ready before the monotonic time `until`."""
        entry = self._entries[split.id] = _Entry(split)
        if until is None:
            self._ready.append(entry)
        else:
            self._count += 1
            heapq.heappush(self._timers, (until, self._count, entry))

    def has_next(self, now: float) -> bool:
        """Whether a split is ready at the monotonic time `now`, and not paused."""
        while self._timers and self._timers[0][0] <= now:
            self._ready.append(heapq.heappop(self._timers)[2])
        while self._ready:
            entry = self._ready[0]
            if self._entries.get(entry.split.id) is entry:
                if entry.split.id not in self.paused:
                    return True
                self._held[entry.split.id] = entry
            self._ready.popleft()
        return False

    def take(self, now: float) -> Split | None:
        """Remove and return the ready split that has waited longest; None if no split is ready."""
        if not self.has_next(now):
            return None
        entry = self._ready.popleft()
        del self._entries[entry.split.id]
        return entry.split

    def next_due(self) -> float | None:
        """Return the monotonic time at which the first delayed split is ready; None if no split is delayed."""
        return self._timers[0][0] if self._timers else None

    def pause(self, pause: Collection[str], resume: Collection[str]) -> None:
        """Pause some splits and resume others, given by id."""
        self.paused = (self.paused - set(resume)) | set(pause)
        self._ready.extend(self._held.pop(one) for one in resume if one in self._held)
