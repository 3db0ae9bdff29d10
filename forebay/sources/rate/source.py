# SPDX-License-Identifier: Apache-2.0
"""The rate source and its splits."""

from __future__ import annotations

from typing import ClassVar

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.framework.discovery import DiscoveryEnumerator
from forebay.framework.enumerator import SplitEnumeratorContext
from forebay.framework.reader import SourceReaderContext
from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.framework.split_reader import SplitReader
from forebay.options import Duration, option
from forebay.sources.rate.rows import RATE_SCHEMA, RateRows


class RateSplit(Split):
    """One generator; its position is a row number, and its start is fixed when it is discovered.

    Args:
        index: The number of the split, from 0.
        started_at: The event time of row 0, in µs since 1970; also when rows begin to come due.
    """

    index: int
    started_at: int


class RateSource(Source):
    """Rows at a chosen rate: `timestamp` (event time), `value` (unique), `split`. Same options, same rows.

    Bounded with `rows`: then all rows are there at once. Unbounded without: row n comes due n / rate seconds after
    the start.
    """

    rows_per_second: float = option(default=1000.0, doc="rows a second of each split")
    num_splits: int = option(default=1, doc="number of splits, each at that rate")
    rows: int | None = option(default=None, doc="rows of each split in all; not set: for ever")
    start_time: int | None = option(
        default=None, doc="event time of the first row, µs since 1970; not set: the time of discovery, or 0 with `rows`"
    )
    skew: float = option(default=1.0, doc="how much faster event time runs in the last split than in the first")
    disorder: Duration = option(default=Duration(0), doc="how far event times may lag behind their turn")
    seed: int = option(default=0, doc="another seed, another disorder")

    name: ClassVar[str] = "forebay_rate"
    split_class: ClassVar[type[Split]] = RateSplit

    @property
    def bounded(self) -> bool:
        """Whether `rows` is set."""
        return self.rows is not None

    @property
    def event_time(self) -> str:
        """The column `timestamp`."""
        return "timestamp"

    def check(self) -> None:
        """Refuse rates, counts and skews that make no rows.

        Raises:
            ConfigurationError: Naming the option.
        """
        for name, good in (
            ("rowsPerSecond", self.rows_per_second > 0),
            ("numSplits", self.num_splits >= 1),
            ("rows", self.rows is None or self.rows >= 0),
            ("skew", self.skew > 0),
        ):
            if not good:
                raise ConfigurationError(
                    f"{name} is too small", source=self.name, option=name, advice="give a number that makes rows"
                )

    def schema(self) -> pa.Schema:
        """Return timestamp, value, split."""
        return RATE_SCHEMA

    def create_enumerator(self, context: SplitEnumeratorContext) -> DiscoveryEnumerator:
        """Make the enumerator of the generators."""
        from forebay.sources.rate.enumerator import RateEnumerator

        return RateEnumerator(self, context.clock)

    def create_split_reader(self, context: SourceReaderContext) -> SplitReader:
        """Make the reader that generates."""
        from forebay.sources.rate.split_reader import RateSplitReader

        return RateSplitReader(self, context)

    def rows_of(self, split: RateSplit) -> RateRows:
        """Return the maker of a split's rows."""
        share = split.index / (self.num_splits - 1) if self.num_splits > 1 else 0.0
        return RateRows(
            index=split.index,
            splits=self.num_splits,
            started_at=split.started_at,
            step=1e6 / self.rows_per_second * (1 + (self.skew - 1) * share),
            disorder=round(self.disorder.total_seconds() * 1e6),
            seed=self.seed,
        )

    def due(self, split: RateSplit, now: float) -> int:
        """Return how many rows of a split have come due at `now` (s since 1970)."""
        if self.rows is not None:
            return self.rows
        return max(0, int((now - split.started_at / 1e6) * self.rows_per_second))
