# SPDX-License-Identifier: Apache-2.0
"""Generates the rows that have come due."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from forebay.framework.reader import SourceReaderContext
from forebay.framework.split import Split
from forebay.framework.split_reader import Fetched, SplitReader
from forebay.sources.rate.source import RateSource, RateSplit

_LONGEST_WAIT = 0.1


class RateSplitReader(SplitReader):
    """Takes turns over its splits; waits, wakeable, for the next row to come due.

    Args:
        source: The options.
        context: Clock, signal and the size of record batches.
    """

    def __init__(self, source: RateSource, context: SourceReaderContext) -> None:
        self._source = source
        self._clock = context.runtime.clock
        self._woken = context.runtime.signal()
        self._rows = context.options.max_rows_per_batch
        self._splits: dict[str, RateSplit] = {}
        self._paused: set[str] = set()

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Take more splits."""
        self._splits.update((split.id, split) for split in splits if isinstance(split, RateSplit))

    def fetch(self) -> Sequence[Fetched]:
        """Return the due rows of every split, at most one record batch each; wait for one if there are none."""
        fetched = [
            part for split_id in list(self._splits) if split_id not in self._paused for part in self._next(split_id)
        ]
        if not any(part.batch is not None or part.finished for part in fetched):
            self._woken.wait(min(_LONGEST_WAIT, 1 / self._source.rows_per_second))
            self._woken.clear()
        return fetched

    def wake_up(self) -> None:
        """End a wait."""
        self._woken.set()

    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> bool:
        """Leave paused splits out of the turns."""
        self._paused = (self._paused - set(resume)) | set(pause)
        return True

    def _next(self, split_id: str) -> list[Fetched]:
        split = self._splits[split_id]
        start = split.position if isinstance(split.position, int) else 0
        end = split.end if isinstance(split.end, int) else None
        # An end was set by a planner or by `rows`: every row before it has come due already.
        due = self._source.due(split, self._clock.now()) if end is None else end
        stop = min(start + self._rows, due)
        if end is not None and start >= end:
            del self._splits[split_id]
            return [Fetched(split_id, position=start, finished=True)]
        if stop <= start:
            return [Fetched(split_id, position=start, caught_up=True)] if end is None else []
        self._splits[split_id] = split.at(stop)
        finished = stop == end
        if finished:
            del self._splits[split_id]
        return [Fetched(split_id, self._source.rows_of(split).make(start, stop), stop, finished=finished)]
