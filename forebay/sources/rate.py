# SPDX-License-Identifier: Apache-2.0
"""Format `forebay_rate`: generated rows at a chosen rate, with event times, for demos, tests and benchmarks."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from forebay.clock import Clock
from forebay.errors import ConfigurationError
from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.enumerator import SplitEnumeratorContext
from forebay.framework.reader import SourceReaderContext
from forebay.framework.source import Source
from forebay.framework.split import Position, Split
from forebay.framework.split_reader import Fetched, SplitReader
from forebay.options import Duration, option

RATE_SCHEMA = pa.schema(
    [pa.field("timestamp", pa.timestamp("us", "UTC")), pa.field("value", pa.int64()), pa.field("split", pa.int32())]
)

_ROW_BYTES = sum(field.type.bit_width // 8 for field in RATE_SCHEMA)
"""Bytes of one row."""

_LONGEST_WAIT = 0.1
"""Longest wait of one fetch for the next row, in seconds."""

# Knuth's MMIX generator; any odd multiplier that mixes the high bits will do.
_MULTIPLIER = 6_364_136_223_846_793_005
_INCREMENT = 1_442_695_040_888_963_407
_WORD = (1 << 64) - 1


class RateSplit(Split):
    """One generator; its position is a row number, and its start is fixed when it is discovered.

    Args:
        index: The number of the split, from 0.
        started_at: The event time of row 0, in µs since 1970; also when rows begin to come due.
    """

    index: int
    started_at: int


@dataclass(frozen=True, slots=True)
class RateRows:
    """Makes the rows of one split.

    Args:
        index: The split's number, from 0.
        splits: How many splits there are.
        started_at: The event time of row 0, in µs since 1970.
        step: Event time between two rows of this split, in µs.
        disorder: How far an event time may lag behind its row's turn, in µs.
        seed: Another seed, another disorder.
    """

    index: int
    splits: int
    started_at: int
    step: float
    disorder: int
    seed: int

    def make(self, start: int, stop: int) -> pa.RecordBatch:
        """Return the rows `start` up to `stop`: row n of split i has value n · splits + i."""
        numbers = pa.array(range(start, stop), pa.int64())
        turn = pc.cast(pc.floor(pc.multiply(pc.cast(numbers, pa.float64()), self.step)), pa.int64())
        times = pc.add(turn, self.started_at)
        if self.disorder:
            times = pc.subtract(times, self._lag(numbers))
        values = pc.add(pc.multiply(numbers, self.splits), self.index)
        columns = [
            times.cast(RATE_SCHEMA.field("timestamp").type),
            values,
            pa.array([self.index] * len(numbers), pa.int32()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=RATE_SCHEMA)

    def _lag(self, numbers: pa.Array) -> pa.Array:
        """Return a number in [0, disorder] for each row: its number and the seed, mixed twice, high bits only."""
        salt = (self.seed * _MULTIPLIER + self.index * _INCREMENT) & _WORD
        mixed = pc.add(numbers.cast(pa.uint64()), pa.scalar(salt, pa.uint64()))
        for _ in range(2):
            mixed = pc.add(pc.multiply(mixed, pa.scalar(_MULTIPLIER, pa.uint64())), pa.scalar(_INCREMENT, pa.uint64()))
            mixed = pc.bit_wise_xor(mixed, pc.shift_right(mixed, pa.scalar(29, pa.uint64())))
        high = pc.shift_right(mixed, pa.scalar(32, pa.uint64()))
        bound = pa.scalar(self.disorder + 1, pa.uint64())
        return pc.subtract(high, pc.multiply(pc.divide(high, bound), bound)).cast(pa.int64())


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
        return RateEnumerator(self, context.clock)

    def create_split_reader(self, context: SourceReaderContext) -> SplitReader:
        """Make the reader that generates."""
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


class RateEnumerator(DiscoveryEnumerator):
    """All positions are row numbers, so ends, slices and budgets are exact.

    Args:
        source: The options.
        clock: When rows come due.
    """

    exact_ends = True

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
