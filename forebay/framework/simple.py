# SPDX-License-Identifier: Apache-2.0
"""The contract most connectors use: a schema, a generator of records, and optional methods around them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from forebay.errors import ContractError
from forebay.framework.arrow.row_packer import Batch, Rows
from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.enumerator import SplitEnumeratorContext
from forebay.framework.reader import SourceReaderContext
from forebay.framework.source import Source
from forebay.framework.split import Position, Split, normalise
from forebay.framework.split_reader import SplitReader

__all__ = ["Batch", "SimpleSource"]

_ONE_SPLIT = "all"
"""The id of the only split, unless `splits` is overridden."""


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class SimpleSource(Source):
    """A source made of `schema()` and a generator, `read()`. Each further ability is one more method to override.

    The planner calls `splits` and `latest`. Readers call `read`, and `latest` if no end was planned, on several daemon
    threads and perhaps in several processes. So keep no state on `self`, which is frozen; hold clients with
    `forebay.cached`. The three flags below are set as plain class attributes.
    """

    @property
    def positions_are_rows(self) -> bool:
        """Whether a position is the number of the next row, as it is if `read` yields plain rows.

        If True, a stream supports `maxRowsPerTrigger` and `minRowsPerTrigger`.
        """
        return False

    @property
    def partial_rows(self) -> bool:
        """Whether a column may be missing from every dict of a read.

        If False, such a column is logged once per process: usually its name is misspelt in the schema.
        """
        return False

    @property
    def extra_keys(self) -> bool:
        """Whether dicts, also inside columns, may have keys that are not in the schema; they are dropped.

        If False, such a key is an error: usually it is misspelt in `read`.
        """
        return False

    @abstractmethod
    def read(self, split: Split) -> Iterable[Rows | Batch]:
        """Yield the records of one split, from `split.position` up to, but not including, `split.end`.

        Yield dicts, tuples or record batches: the position is then the number of rows of the split so far, and a read
        with `split.position == n` must begin at row n. Or yield `Batch(rows, position)` with positions of your own.
        Returning finishes a split of a bounded source. In an unbounded source the split has caught up; it is read
        again, from its position, after `pollInterval`.

        Dicts and lists of rows may be reused after the yield. Lists, dicts and arrays inside a column, and the buffers
        of record batches, must not be changed any more.

        Runs on a daemon thread; may block. The rows between two positions must be the same in every replay.

        Raises:
            RetriableError: A failure that may pass; the framework reads again from the last position, with back-off.
        """

    def splits(self) -> Iterable[Split | str]:
        """Return the parts that can be read independently: ids or Split objects. Called again while unbounded."""
        return [_ONE_SPLIT]

    def latest(self, split: Split) -> Position | None:
        """Return the present end of a split (exclusive), or None if unknown: the `split.end` of the next read.

        Prefer the position after the newest complete record: it moves only if there are new records. If the end is a
        time (now less a margin for late records), a stream reads a first record before it plans each end.
        """
        return None

    def slices(self, split: Split, count: int) -> Iterable[Split]:
        """Cut a split into about `count` slices for parallel tasks; by default it is not cut.

        Cut with `split.slice(position, end)`. The first slice begins at `split.position`, each other one at the end of
        the slice before it, and the last one ends at `split.end`. If `split.position` or `split.end` is None, the
        outer slices may keep None or name the actual first and last row. `read` gets each slice as a split. Called by
        the planner on Spark. May block.
        """
        return [split]

    def size(self, split: Split) -> int | None:
        """Estimate the bytes between `split.position` and `split.end`; None (the default) = unknown.

        The estimate decides the number of tasks and slices. The planner calls it often, so calculate it without I/O.
        """
        return None

    def advance(self, split: Split, rows: int) -> Position | None:
        """Return the position after `rows` rows, or `split.end` if there are fewer; None = unknown.

        Override it if positions do not count rows, such as `(updated_at, id)`, so that a stream supports
        `maxRowsPerTrigger`. Called by the planner, for a split with an end from `latest`. May block.
        """
        return None

    def event_time_at(self, split: Split) -> datetime | int | None:
        """Return the event time of the first record at or after `split.position`; None (the default) = unknown.

        If there is none before `split.end`, return that of the last record before the position. The event time is the
        value in the column `event_time`: a datetime with a zone, or µs since 1970. Called by the planner of a stream
        with `alignmentMaxDrift`, which otherwise reads the first record. May block.
        """
        return None

    def position_at(self, split: Split, event_time: int) -> Position | None:
        """Return the first position, not before the split's, whose event time is `event_time` (µs since 1970) or later.

        Return `split.end` if there is none, and None (the default) if it is unknown: a stream with
        `alignmentMaxDrift` then reads the split to its end or not at all. May block.
        """
        return None

    def create_enumerator(self, context: SplitEnumeratorContext) -> DiscoveryEnumerator:
        """Make the enumerator that calls `splits` and `latest`."""
        return SimpleEnumerator(self)

    def create_split_reader(self, context: SourceReaderContext) -> SplitReader:
        """Make the split reader that runs `read` on generator workers."""
        from forebay.framework.reading.generator_reader import GeneratorSplitReader

        return GeneratorSplitReader(self, context)


class SimpleEnumerator(DiscoveryEnumerator):
    """Adapts a `SimpleSource` to `DiscoveryEnumerator` and checks what its methods return.

    Args:
        source: The source.
    """

    def __init__(self, source: SimpleSource) -> None:
        self._source = source
        self.exact_ends = source.positions_are_rows

    def discover(self, known: Mapping[str, Split], first: bool) -> Discovered:
        """Return all splits of the source."""
        given: object = self._source.splits()
        if isinstance(given, (str, bytes)):
            problem = f"splits() returned the text {given!r}, which Python iterates by character"
            raise self._wrong(problem, "SPL-1", "return a list of ids")
        if not isinstance(given, Iterable):
            advice = "return a list of ids (str) or Split objects, empty if there is nothing"
            raise self._wrong(f"splits() returned {given!r:.100}, which is not a list", "SPL-1", advice)
        splits: list[Split] = []
        for item in given:
            if not isinstance(item, (str, Split)):
                raise self._wrong(
                    f"splits() returned {item!r}, which is neither an id nor a Split",
                    "SPL-1",
                    "return ids (str) or Split objects",
                )
            splits.append(self._source.split_class(item) if isinstance(item, str) else item)
        return Discovered(splits)

    def latest(self, splits: Sequence[Split]) -> Mapping[str, Position]:
        """Return the known ends."""
        ends = ((split.id, self._source.latest(split)) for split in splits)
        return {split_id: end for split_id, end in ends if end is not None}

    def size(self, split: Split) -> int | None:
        """Return the source's estimate."""
        size: object = self._source.size(split)
        if size is not None and (isinstance(size, bool) or not isinstance(size, int)):
            advice = "return a whole number of bytes, or None"
            raise self._wrong(f"size() returned {size!r:.200}", "DIS-5", advice, split)
        return size

    def slices(self, split: Split, count: int) -> Sequence[Split]:
        """Return the source's slices; a gap between two of them would lose rows."""
        given: object = self._source.slices(split, count)
        items = list(given) if isinstance(given, Iterable) else [given]
        slices = [one for one in items if isinstance(one, Split)]
        if not items or len(slices) < len(items):
            advice = "return slices made with split.slice(position, end)"
            raise self._wrong(f"slices() returned {items!r:.200}", "DIS-2", advice, split)
        starts, ends = [one.position for one in slices], [one.end for one in slices]
        whole = split.position in (None, starts[0]) and split.end in (None, ends[-1])
        if not whole or starts[1:] != ends[:-1] or None in starts[1:]:
            raise self._wrong(
                f"slices() returned {list(zip(starts, ends, strict=True))!r:.200}",
                "DIS-2",
                f"begin the first slice at {split.position!r}, each other one at the end of the previous one, and "
                f"end the last one at {split.end!r}",
                split,
            )
        return slices

    def advance(self, split: Split, *, rows: int | None = None, byte_budget: int | None = None) -> Position | None:
        """Return the position after `rows` rows: from the source, or calculated if positions are rows."""
        if rows is None:
            return None
        position = self._source.advance(split, rows)
        start = 0 if split.position is None else split.position
        if position is not None or not self._source.positions_are_rows or not isinstance(start, int):
            return position
        return min(start + rows, split.end) if isinstance(split.end, int) else start + rows

    def event_times(self, splits: Sequence[Split], column: str) -> Mapping[str, int | None] | None:
        """Return the source's event times; None for another column than the source's."""
        if column != self._source.event_time:
            return None
        return {split.id: self._event_time(split) for split in splits}

    def positions_at(self, event_time: int, splits: Sequence[Split]) -> Mapping[str, Position] | None:
        """Return the source's positions, which must lie between the position and the end of their split."""
        if type(self._source).position_at is SimpleSource.position_at:
            return None
        found = ((split, self._source.position_at(split, event_time)) for split in splits)
        return {split.id: self._within(split, position) for split, position in found if position is not None}

    def _event_time(self, split: Split) -> int | None:
        given: object = self._source.event_time_at(split)
        if isinstance(given, datetime) and given.tzinfo is not None:
            return (given - _EPOCH) // timedelta(microseconds=1)
        if given is not None and (isinstance(given, bool) or not isinstance(given, int)):
            advice = "return a datetime with a zone, or an int of µs since 1970-01-01 UTC, or None"
            raise self._wrong(f"event_time_at() returned {given!r:.200}", "DIS-6", advice, split)
        return given

    def _within(self, split: Split, position: Position) -> Position:
        key = self._source.order_key
        position = normalise(position, split.id)
        low, high = split.position, split.end
        if (low is not None and key(position) < key(low)) or (high is not None and key(position) > key(high)):
            advice = f"return a position from {low!r} to {high!r}"
            raise self._wrong(f"position_at() returned {position!r:.200}", "DIS-4", advice, split)
        return position

    def _wrong(self, message: str, rule: str, advice: str, split: Split | None = None) -> ContractError:
        split_id = None if split is None else split.id
        return ContractError(message, source=self._source.name, split=split_id, rule=rule, advice=advice)
