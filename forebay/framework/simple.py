# SPDX-License-Identifier: Apache-2.0
"""The contract that most connectors use: a schema, a generator of records, and optional methods."""

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
    """A source made of `schema()` and a generator, `read()`. The other methods are optional.

    The planner calls `splits` and `latest`. Readers call `read`, and `latest` if no end was planned, on several daemon
    threads and perhaps in several processes. So keep no state on `self`, which is frozen; hold clients with
    `forebay.cached`. Set `positions_are_rows`, `partial_rows` and `extra_keys` as plain class attributes.
    """

    @property
    def positions_are_rows(self) -> bool:
        """Whether each position is the number of the next row, as it is if `read` yields plain rows.

        If True, a stream supports `maxRowsPerTrigger` and `minRowsPerTrigger`.
        """
        return False

    @property
    def partial_rows(self) -> bool:
        """Whether every dict of a read may lack the same column.

        If False, such a column causes a warning, once per process: usually its name is misspelt in the schema.
        """
        return False

    @property
    def extra_keys(self) -> bool:
        """Whether dicts, also inside columns, may have keys that are not in the schema: True drops these keys.

        If False, such a key is an error: usually it is misspelt in `read`. A dict with only such keys always is.
        """
        return False

    @abstractmethod
    def read(self, split: Split) -> Iterable[Rows | Batch]:
        """Yield the records of one split, from `split.position` up to, but not including, `split.end`.

        Yield dicts, tuples or record batches: the position is then the number of rows of the split so far, and a read
        with `split.position == n` must begin at row n. Or yield `Batch(rows, position)` with positions of your own.
        When `read` returns, the split of a bounded source is finished. A split of an unbounded source has caught up:
        `read` is called again, with the split at its new position, after `pollInterval`.

        Dicts and lists of rows may be reused after the yield. Lists, dicts and arrays inside a column, and the buffers
        of record batches, must not be changed after it.

        Runs on a daemon thread; may block. The rows between two positions must be the same in every replay.

        Raises:
            RetriableError: A transient failure; the framework reads again from the last position, with back-off.
        """

    def splits(self) -> Iterable[Split | str]:
        """Return the parts that can be read independently: ids or Split objects. Called repeatedly if unbounded."""
        return [_ONE_SPLIT]

    def latest(self, split: Split) -> Position | None:
        """Return the present end of a split (exclusive), which becomes `split.end` of the next read; None = unknown.

        Prefer the position after the newest complete record: it moves only if there are new records. If the end is a
        time (now less a margin for late records), the planner of a stream reads one record before each micro-batch.
        """
        return None

    def slices(self, split: Split, count: int) -> Iterable[Split]:
        """Cut a split into about `count` slices for parallel tasks; by default it is not cut.

        Cut with `split.slice(position, end)`. The first slice begins at `split.position`, each other one at the end of
        the slice before it, and the last one ends at `split.end`. If `split.position` is None, the first slice may
        begin at None or at the actual first row; likewise the last slice if `split.end` is None. `read` gets each slice
        as a split. Called by the planner on Spark. May block.
        """
        return [split]

    def size(self, split: Split) -> int | None:
        """Estimate the bytes between `split.position` and `split.end`; None (the default) = unknown.

        The estimate decides the number of tasks and slices. The planner calls `size` often, so it must not do I/O.
        """
        return None

    def advance(self, split: Split, rows: int) -> Position | None:
        """Return the position after `rows` rows, or `split.end` if there are fewer; None = unknown.

        If positions do not count rows, such as `(updated_at, id)`, a stream supports `maxRowsPerTrigger` only with this
        method. Called by the planner, for a split with an end from `latest`. May block.
        """
        return None

    def event_time_at(self, split: Split) -> datetime | int | None:
        """Return the event time of the first record at or after `split.position`; None (the default) = unknown.

        If there is no such record before `split.end`, return the event time of the last record before
        `split.position`. The event time is the value of the column that `event_time` names: a datetime with a zone, or
        µs since 1970. Called by the planner of a stream with `alignmentMaxDrift`; if the result is None, the planner
        reads the first record. May block.
        """
        return None

    def position_at(self, split: Split, event_time: int) -> Position | None:
        """Return the position of the first unread record whose event time is ≥ `event_time` (µs since 1970).

        Return `split.end` if there is no such record. None (the default) = unknown: a stream with `alignmentMaxDrift`
        then reads the split to its end or not at all. May block.
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
    """The enumerator of every `SimpleSource`: calls the source's methods and checks their results.

    Args:
        source: The source.
    """

    def __init__(self, source: SimpleSource) -> None:
        self._source = source
        self.exact_ends = source.positions_are_rows

    def discover(self, known: Mapping[str, Split], first: bool) -> Discovered:
        """Return the splits of the source; an id becomes a split at its start."""
        returned: object = self._source.splits()
        if isinstance(returned, (str, bytes)):
            problem = f"splits() returned the text {returned!r}, not a list; Python iterates by character over a text"
            raise self._wrong(problem, "SPL-1", "return a list of ids (str) or Split objects")
        if not isinstance(returned, Iterable):
            advice = "return a list of ids (str) or Split objects, empty if there is nothing"
            raise self._wrong(f"splits() returned {returned!r:.100}, which is not a list", "SPL-1", advice)
        splits: list[Split] = []
        for item in returned:
            if not isinstance(item, (str, Split)):
                raise self._wrong(
                    f"splits() returned {item!r}, which is neither an id nor a Split",
                    "SPL-1",
                    "return ids (str) or Split objects",
                )
            splits.append(self._source.split_class(item) if isinstance(item, str) else item)
        return Discovered(splits)

    def latest(self, splits: Sequence[Split]) -> Mapping[str, Position]:
        """Return, by split id, the present ends that the source knows."""
        ends = ((split.id, self._source.latest(split)) for split in splits)
        return {split_id: end for split_id, end in ends if end is not None}

    def size(self, split: Split) -> int | None:
        """Return the source's estimate of the bytes of a split; None = unknown."""
        size: object = self._source.size(split)
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 0):
            advice = "return a whole number of bytes that is not negative, or None"
            raise self._wrong(f"size() returned {size!r:.200}, not a number of bytes", "DIS-5", advice, split)
        return size

    def slices(self, split: Split, count: int) -> Sequence[Split]:
        """Return the source's slices of a split; raise a ContractError if they do not cover the split without gaps."""
        returned: object = self._source.slices(split, count)
        items = list(returned) if isinstance(returned, Iterable) else [returned]
        slices = [part for part in items if isinstance(part, Split)]
        if not items or len(slices) < len(items):
            advice = "return slices made with split.slice(position, end)"
            raise self._wrong(f"slices() returned {items!r:.200}, not Split objects", "DIS-2", advice, split)
        starts, ends = [part.position for part in slices], [part.end for part in slices]
        whole = split.position in (None, starts[0]) and split.end in (None, ends[-1])
        if not whole or starts[1:] != ends[:-1] or None in starts[1:]:
            raise self._wrong(
                f"slices() returned ranges that do not cover the split: {list(zip(starts, ends, strict=True))!r:.200}",
                "DIS-2",
                f"begin the first slice at {split.position!r}, each other one at the end of the previous one, and "
                f"end the last one at {split.end!r}",
                split,
            )
        return slices

    def advance(self, split: Split, *, rows: int | None = None, byte_budget: int | None = None) -> Position | None:
        """Return the position after `rows` rows: the source's answer, else a row number if positions are rows."""
        if rows is None:
            return None
        position = self._source.advance(split, rows)
        start = 0 if split.position is None else split.position
        if position is not None or not self._source.positions_are_rows or not isinstance(start, int):
            return position
        return min(start + rows, split.end) if isinstance(split.end, int) else start + rows

    def event_times(self, splits: Sequence[Split], column: str) -> Mapping[str, int | None] | None:
        """Return the source's event times by split id; None if `column` is not the source's event time column."""
        if column != self._source.event_time:
            return None
        return {split.id: self._event_time(split) for split in splits}

    def positions_at(self, event_time: int, splits: Sequence[Split]) -> Mapping[str, Position] | None:
        """Return the source's positions by split id; raise a ContractError for one outside of its split."""
        if type(self._source).position_at is SimpleSource.position_at:
            return None
        positions = ((split, self._source.position_at(split, event_time)) for split in splits)
        return {split.id: self._within(split, position) for split, position in positions if position is not None}

    def _event_time(self, split: Split) -> int | None:
        returned: object = self._source.event_time_at(split)
        if isinstance(returned, datetime) and returned.tzinfo is not None:
            return (returned - _EPOCH) // timedelta(microseconds=1)
        if returned is not None and (isinstance(returned, bool) or not isinstance(returned, int)):
            advice = "return a datetime with a zone, or an int of µs since 1970-01-01 UTC, or None"
            raise self._wrong(f"event_time_at() returned {returned!r:.200}, not an event time", "DIS-6", advice, split)
        return returned

    def _within(self, split: Split, position: Position) -> Position:
        key = self._source.order_key
        position = normalise(position, split.id)
        low, high = split.position, split.end
        if (low is not None and key(position) < key(low)) or (high is not None and key(position) > key(high)):
            advice = f"return a position from {low!r} to {high!r}"
            raise self._wrong(f"position_at() returned {position!r:.200}, outside of the split", "DIS-4", advice, split)
        return position

    def _wrong(self, message: str, rule: str, advice: str, split: Split | None = None) -> ContractError:
        split_id = None if split is None else split.id
        return ContractError(message, source=self._source.name, split=split_id, rule=rule, advice=advice)
