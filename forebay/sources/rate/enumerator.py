# SPDX-License-Identifier: Apache-2.0
"""Lists the generators and knows how far each has come."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from forebay.clock import Clock
from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.split import Position, Split
from forebay.sources.rate.rows import RATE_SCHEMA
from forebay.sources.rate.source import RateSource, RateSplit

_ROW_BYTES = sum(field.type.bit_width // 8 for field in RATE_SCHEMA)


class RateEnumerator(DiscoveryEnumerator):
    """All positions are row numbers, so ends, slices and budgets are exact.

    Args:
        source: The options.
        clock: When rows come due.
    """

    def __init__(self, source: RateSource, clock: Clock) -> None:
        self._source = source
        self._clock = clock

    def discover(self, known: Mapping[str, Split], first: bool) -> Discovered:
        """Return one split per generator; the start time is resolved here, once, and travels with the split."""
        started_at = self._source.start_time
        if started_at is None:
            started_at = 0 if self._source.bounded else int(self._clock.now() * 1e6)
        return Discovered(
            [
                RateSplit(f"rate-{index}", 0, self._source.rows, index=index, started_at=started_at)
                for index in range(self._source.num_splits)
                if f"rate-{index}" not in known
            ]
        )

    def latest(self, splits: Sequence[Split]) -> Mapping[str, Position]:
        """Return how many rows have come due."""
        now = self._clock.now()
        return {split.id: self._source.due(_own(split), now) for split in splits}

    def size(self, split: Split) -> int | None:
        """Return the bytes of the rows left."""
        start, end = _range(split)
        return None if end is None else max(0, end - start) * _ROW_BYTES

    def slices(self, split: Split, count: int) -> Sequence[Split]:
        """Cut the rows left into equal parts."""
        start, end = _range(split)
        if end is None or end - start < count:
            return [split]
        cuts = [start + (end - start) * number // count for number in range(count + 1)]
        return [split.slice(low, high) for low, high in itertools.pairwise(cuts)]

    def advance(self, split: Split, *, rows: int | None = None, byte_budget: int | None = None) -> Position | None:
        """Return how far a budget reaches; one position is one row."""
        start, end = _range(split)
        reach = [start + rows] if rows is not None else []
        reach += [start + max(1, byte_budget // _ROW_BYTES)] if byte_budget is not None else []
        reach += [end] if end is not None else []
        return min(reach, default=None)


def _own(split: Split) -> RateSplit:
    if not isinstance(split, RateSplit):
        raise TypeError(f"{type(split).__name__} is no RateSplit")
    return split


def _range(split: Split) -> tuple[int, int | None]:
    start = split.position if isinstance(split.position, int) else 0
    return start, split.end if isinstance(split.end, int) else None
