# SPDX-License-Identifier: Apache-2.0
"""Format `forebay_rate`: generates rows with event times at a chosen rate, for demos, tests and benchmarks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, cast

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
_MAX_WAIT = 0.1  # maximum seconds for which one fetch waits for a row
_SEARCHED = 4096  # number of rows whose event times `row_at` compares at once

# Knuth's MMIX generator; any odd multiplier that mixes the high bits is suitable.
_MULTIPLIER = 6_364_136_223_846_793_005
_INCREMENT = 1_442_695_040_888_963_407
_WORD = (1 << 64) - 1


class RateSplit(Split):
    """One generator of rows. The split's position is the number of the next row, counted from 0.

    Args:
        index: The number of the split, from 0.
        started_at: The time in µs since 1970 from which the event times and the due times of the rows count. Discovery
            sets it once.
    """

    index: int
    started_at: int


class RateSource(Source):
    """Generates rows at a chosen rate, with the columns `timestamp` (event time), `value` (unique) and `split`.

    The same options with the same start time generate the same rows. With `rows`, the source is bounded, and all rows
    are due at once. Without `rows`, row n (from 0) is due (n + 1) / rate seconds after the start time.
    """

    rows_per_second: float = option(default=1000.0, doc="rows per second of each split")
    num_splits: int = option(default=1, doc="number of splits; each generates `rowsPerSecond` rows per second")
    rows: int | None = option(default=None, doc="number of rows of each split; unlimited if not set")
    start_time: int | None = option(
        default=None,
        doc="event time of the first row, µs since 1970; by default the time of discovery, or 0 with `rows`",
    )
    skew: float = option(default=1.0, doc="factor by which event time runs faster in the last split than in the first")
    disorder: Duration = option(
        default=Duration(0), doc="event times are up to this much earlier than in order, pseudo-randomly"
    )
    seed: int = option(default=0, doc="seed of the pseudo-random `disorder`")

    name: ClassVar[str] = "forebay_rate"
    split_class: ClassVar[type[Split]] = RateSplit

    @property
    def bounded(self) -> bool:
        """Whether the option `rows` is set, so that the number of rows is finite."""
        return self.rows is not None

    @property
    def event_time(self) -> str:
        """The name of the event time column: always `timestamp`."""
        return "timestamp"

    def check(self) -> None:
        """Check the options.

        Raises:
            ConfigurationError: An option is out of its range, such as a rate of 0. The error names the option.
        """
        for name, value, good, rule in (
            ("rowsPerSecond", self.rows_per_second, self.rows_per_second > 0, "above 0"),
            ("numSplits", self.num_splits, self.num_splits >= 1, "1 or more"),
            ("rows", self.rows, self.rows is None or self.rows >= 0, "0 or more"),
            ("skew", self.skew, self.skew > 0, "above 0"),
        ):
            if not good:
                raise ConfigurationError(
                    f"the option {name} is {value}, but must be {rule}",
                    source=self.name,
                    option=name,
                    advice=f"set {name} to a number that is {rule}",
                )

    def schema(self) -> pa.Schema:
        """Return the schema: `timestamp`, `value`, `split`."""
        return RATE_SCHEMA

    def create_enumerator(self, context: SplitEnumeratorContext) -> DiscoveryEnumerator:
        """Create the enumerator, which returns one split for each generator."""
        return RateEnumerator(self, context.clock)

    def create_split_reader(self, context: SourceReaderContext) -> SplitReader:
        """Create a split reader, which generates the rows."""
        return RateSplitReader(self, context)

    def make(self, split: RateSplit, start: int, stop: int) -> pa.RecordBatch:
        """Return the rows `[start, stop)` of a split. Row n of split i has the value n · `num_splits` + i."""
        numbers = pa.array(range(start, stop), pa.int64())
        columns = [
            self._times(split, numbers).cast(RATE_SCHEMA.field("timestamp").type),
            pc.add(pc.multiply(numbers, self.num_splits), split.index),
            pa.array([split.index] * len(numbers), pa.int32()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=RATE_SCHEMA)

    def event_time_of(self, split: RateSplit, row: int) -> int:
        """Return the event time of one row, in µs since 1970."""
        return cast("int", self._times(split, pa.array([row], pa.int64()))[0].as_py())

    def row_at(self, split: RateSplit, event_time: int, start: int, stop: int) -> int:
        """Return the number of the first row in `[start, stop)` with an event time ≥ `event_time` (µs); else `stop`."""
        # `disorder` only lowers event times, so no row before this one has a late enough time; one less for rounding.
        at = max(start, math.floor((event_time - split.started_at) / self._step(split)) - 1)
        while at < stop:
            rows = pa.array(range(at, min(at + _SEARCHED, stop)), pa.int64())
            index = pc.index(pc.greater_equal(self._times(split, rows), event_time), True).as_py()
            if index >= 0:
                return at + cast("int", index)
            at += len(rows)
        return stop

    def _step(self, split: RateSplit) -> float:
        """Return the microseconds of event time between two consecutive rows of a split."""
        share = split.index / (self.num_splits - 1) if self.num_splits > 1 else 0.0
        return 1e6 / self.rows_per_second * (1 + (self.skew - 1) * share)

    def _times(self, split: RateSplit, numbers: pa.Array) -> pa.Array:
        """Return the event times of the rows with these numbers, in µs since 1970."""
        turn = pc.cast(pc.floor(pc.multiply(pc.cast(numbers, pa.float64()), self._step(split))), pa.int64())
        times = pc.add(turn, split.started_at)
        disorder = round(self.disorder.total_seconds() * 1e6)
        return pc.subtract(times, self._lag(numbers, split.index, disorder)) if disorder else times

    def _lag(self, numbers: pa.Array, index: int, disorder: int) -> pa.Array:
        """Return for each row of split `index` pseudo-random µs in [0, disorder] to subtract from its event time."""
        salt = (self.seed * _MULTIPLIER + index * _INCREMENT) & _WORD
        mixed = pc.add(numbers.cast(pa.uint64()), pa.scalar(salt, pa.uint64()))
        for _ in range(2):
            mixed = pc.add(pc.multiply(mixed, pa.scalar(_MULTIPLIER, pa.uint64())), pa.scalar(_INCREMENT, pa.uint64()))
            mixed = pc.bit_wise_xor(mixed, pc.shift_right(mixed, pa.scalar(29, pa.uint64())))
        high = pc.shift_right(mixed, pa.scalar(32, pa.uint64()))
        bound = pa.scalar(disorder + 1, pa.uint64())
        return pc.subtract(high, pc.multiply(pc.divide(high, bound), bound)).cast(pa.int64())

    def due(self, split: RateSplit, now: float) -> int:
        """Return how many rows of a split, counted from row 0, are due at `now` (seconds since 1970)."""
        if self.rows is not None:
            return self.rows
        return max(0, int((now - split.started_at / 1e6) * self.rows_per_second))


class RateEnumerator(DiscoveryEnumerator):
    """Returns one split for each generator. Positions are row numbers, so ends, slices and limits are exact."""

    exact_ends = True

    def __init__(self, source: RateSource, clock: Clock) -> None:
        self._source = source
        self._clock = clock

    def discover(self, known: Mapping[str, Split], first: bool) -> Discovered:
        """Return the splits that are not in `known`, one for each generator, with their start time."""
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
        """Return the end of each split now: the number of its rows that are due."""
        now = self._clock.now()
        return {split.id: self._source.due(cast("RateSplit", split), now) for split in splits}

    def event_times(self, splits: Sequence[Split], column: str) -> Mapping[str, int] | None:
        """Return the event time (µs since 1970) of each split's next row, or of its last row if no row follows."""
        if column != self._source.event_time:
            return None
        times: dict[str, int] = {}
        for split in cast("Sequence[RateSplit]", splits):
            start, end = _range(split)
            row = start if end is None or start < end else start - 1
            if row >= 0:
                times[split.id] = self._source.event_time_of(split, row)
        return times

    def positions_at(self, event_time: int, splits: Sequence[Split]) -> Mapping[str, Position] | None:
        """Return for each split the first unread row with an event time ≥ `event_time` (µs since 1970), or its end."""
        positions: dict[str, Position] = {}
        for split in cast("Sequence[RateSplit]", splits):
            start, end = _range(split)
            stop = self._source.due(split, self._clock.now()) if end is None else end
            positions[split.id] = self._source.row_at(split, event_time, start, max(start, stop))
        return positions

    def size(self, split: Split) -> int | None:
        """Return the size of a split's unread rows in bytes; None if the split has no end."""
        start, end = _range(split)
        return None if end is None else max(0, end - start) * _ROW_BYTES

    def slices(self, split: Split, count: int) -> Sequence[Split]:
        """Cut the unread rows into `count` equal slices. A split without an end, or with fewer rows, is not cut."""
        start, end = _range(split)
        if end is None or end - start < count:
            return [split]
        cuts = [start + (end - start) * number // count for number in range(count + 1)]
        return [split.slice(low, high) for low, high in itertools.pairwise(cuts)]

    def advance(self, split: Split, *, rows: int | None = None, byte_budget: int | None = None) -> Position | None:
        """Return the position after `rows` rows or `byte_budget` bytes (at least one row), but never after the end."""
        start, end = _range(split)
        ends = [
            None if rows is None else start + rows,
            None if byte_budget is None else start + max(1, byte_budget // _ROW_BYTES),
            end,
        ]
        return min((each for each in ends if each is not None), default=None)


def _range(split: Split) -> tuple[int, int | None]:
    start = split.position if isinstance(split.position, int) else 0
    return start, split.end if isinstance(split.end, int) else None


class RateSplitReader(SplitReader):
    """Generates those rows of its splits that are due."""

    def __init__(self, source: RateSource, context: SourceReaderContext) -> None:
        self._source = source
        self._clock = context.runtime.clock
        self._woken = context.runtime.signal()
        self._rows = context.options.max_rows_per_batch
        self._splits: dict[str, RateSplit] = {}
        self._paused: set[str] = set()

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Start to generate the rows of these splits, from their positions."""
        self._splits.update((split.id, split) for split in splits if isinstance(split, RateSplit))

    def fetch(self) -> Sequence[Fetched]:
        """Return at most one record batch of due rows for each split.

        If no row is due, wait at most 0.1 s or until `wake_up` is called, and return no rows.
        """
        fetched = [
            part for split_id in list(self._splits) if split_id not in self._paused for part in self._next(split_id)
        ]
        if not any(part.batch is not None or part.finished for part in fetched):
            self._woken.wait(min(_MAX_WAIT, 1 / self._source.rows_per_second))
            self._woken.clear()
        return fetched

    def wake_up(self) -> None:
        """Make a waiting `fetch` return at once."""
        self._woken.set()

    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> bool:
        """Stop generating rows of the splits in `pause`, and continue with those in `resume`."""
        self._paused = (self._paused - set(resume)) | set(pause)
        return True

    def _next(self, split_id: str) -> list[Fetched]:
        split = self._splits[split_id]
        start, end = _range(split)
        # A planner or the option `rows` has set the end. All rows before it are due.
        due = self._source.due(split, self._clock.now()) if end is None else end
        stop = min(start + self._rows, due)
        if end is not None and stop >= end:
            del self._splits[split_id]
        if stop <= start:
            finished = end is not None and start >= end
            return [Fetched(split_id, position=start, caught_up=not finished, finished=finished)]
        if stop != end:
            self._splits[split_id] = split.at(stop)
        return [Fetched(split_id, self._source.make(split, start, stop), stop, finished=stop == end)]
