# SPDX-License-Identifier: Apache-2.0
"""The layer most connectors are written on: list the splits, read one, and that is all."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence

from forebay.errors import ContractError
from forebay.framework.arrow.row_packer import Batch, Rows
from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.enumerator import SplitEnumeratorContext
from forebay.framework.reader import SourceReaderContext
from forebay.framework.source import Source
from forebay.framework.split import Position, Split
from forebay.framework.split_reader import SplitReader

__all__ = ["Batch", "SimpleSource"]

ONE_SPLIT = "all"
"""The id of the only split of a source that does not override `splits`."""


class SimpleSource(Source):
    """A source of a schema and a generator; splits, resuming and ends come by overriding one method each.

    The planning side calls `splits` and `latest`; the reading side calls `read`, and `latest` where no end was planned,
    on daemon threads, several at once and perhaps in other processes: keep no state on `self` (it is frozen), hold
    clients with `forebay.cached`.
    """

    @property
    def positions_are_rows(self) -> bool:
        """Whether a position is the number of the next row, as it is where `read` yields plain rows.

        Say so, as a plain class attribute, and a stream can keep `maxRowsPerTrigger` and `minRowsPerTrigger`.
        """
        return False

    @property
    def partial_rows(self) -> bool:
        """Whether dicts may leave a column out in every row of a read.

        Otherwise that is warned of, once in a process: most often the key is misspelt in the schema. Say so as a plain
        class attribute.
        """
        return False

    @property
    def extra_keys(self) -> bool:
        """Whether dicts may have keys that the schema does not have, also inside columns; they are left out.

        Otherwise such a key is an error: most often it is misspelt in `read`. Say so as a plain class attribute, where
        rows are passed on as a service gives them.
        """
        return False

    @abstractmethod
    def read(self, split: Split) -> Iterable[Rows | Batch]:
        """Yield the records of one split, from `split.position` up to, and not including, `split.end`.

        Yield dicts, tuples or record batches: then a position is the number of rows of the split so far, and a read
        with `split.position == n` must begin at row n. Or yield `Batch(rows, position)`: these rows, and the
        position to resume at afterwards, in terms of your own. Returning means "finished" for a bounded source and
        "caught up for now" for another, which is read again, from its position, after `pollInterval`.

        A row is taken when it is yielded: its dict, or a list of rows, may be filled again for the next. Lists, dicts
        and arrays inside a column, and the buffers of record batches, are read later: make new ones each time.

        Runs on a daemon thread; may block. The rows between two positions must be the same at every replay.

        Raises:
            RetriableError: Try again, with back-off, from the last position.
        """

    def splits(self) -> Iterable[Split | str]:
        """Return the ids of the parts that can be read independently, or Split objects; asked again while unbounded."""
        return [ONE_SPLIT]

    def latest(self, split: Split) -> Position | None:
        """Return the present end of a split (exclusive), if it is known; becomes `split.end` of the next read.

        Best is the position after the newest settled record: it moves on only when there is something to read. Where
        nothing but a time can be told (now less a settling time), a stream looks for a first record before each end.
        """
        return None

    def slices(self, split: Split, count: int) -> Iterable[Split]:
        """Cut a split into about `count` slices, which several tasks read side by side; by default it is one.

        Cut with `split.slice(position, end)`: the first slice begins at `split.position`, each other one where the one
        before it ends, and the last one ends at `split.end`. Where `split.position` is None (the start) or `split.end`
        is None (as far as it goes), the outer slices may keep None, or say where the rows begin and end now. `read`
        gets each slice as a split of its own. Called by the planner of a read on Spark. May block.
        """
        return [split]

    def size(self, split: Split) -> int | None:
        """Estimate the bytes between `split.position` and `split.end`; None = unknown, as by default.

        It decides how many tasks and slices a read is worth. Called by the planner, often: calculate it, such as
        from a number of rows, and ask nobody.
        """
        return None

    def advance(self, split: Split, rows: int) -> Position | None:
        """Return the position after so many rows, and `split.end` where there are fewer; None = cannot tell.

        Override it where positions do not count rows, such as `(updated_at, id)`, and a stream can keep
        `maxRowsPerTrigger`. Called by the planner, of a split with an end that `latest` gave. May block.
        """
        return None

    def create_enumerator(self, context: SplitEnumeratorContext) -> DiscoveryEnumerator:
        """Make the enumerator that asks `splits` and `latest`."""
        return SimpleEnumerator(self)

    def create_split_reader(self, context: SourceReaderContext) -> SplitReader:
        """Make the split reader that runs `read` on pump threads."""
        from forebay.framework.reading.generator_reader import GeneratorSplitReader

        return GeneratorSplitReader(self, context)


class SimpleEnumerator(DiscoveryEnumerator):
    """Asks a `SimpleSource` for its splits and their ends.

    Args:
        source: The source to ask.
    """

    def __init__(self, source: SimpleSource) -> None:
        self._source = source
        self.exact_ends = source.positions_are_rows

    def discover(self, known: Mapping[str, Split], first: bool) -> Discovered:
        """Return all splits of the source; the framework drops those it knows."""
        found: object = self._source.splits()
        if isinstance(found, (str, bytes)):
            raise ContractError(
                f"splits() gave the text {found!r}, which would be read one character at a time",
                source=self._source.name,
                rule="SPL-1",
                advice="return a list of ids",
            )
        if not isinstance(found, Iterable):
            raise ContractError(
                f"splits() gave {found!r:.100}, which is no list",
                source=self._source.name,
                rule="SPL-1",
                advice="return a list of ids (str) or Split objects, empty if there is nothing",
            )
        return Discovered([self._as_split(item) for item in found])

    def latest(self, splits: Sequence[Split]) -> Mapping[str, Position]:
        """Return the ends the source knows."""
        found = ((split.id, self._source.latest(split)) for split in splits)
        return {split_id: end for split_id, end in found if end is not None}

    def size(self, split: Split) -> int | None:
        """Return the size that the source estimates."""
        found: object = self._source.size(split)
        if found is not None and (isinstance(found, bool) or not isinstance(found, int)):
            raise self._wrong("size()", found, split, "DIS-5", "return a whole number of bytes, or None")
        return found

    def slices(self, split: Split, count: int) -> Sequence[Split]:
        """Return the slices that the source cuts; one that is missing would be rows that are missing."""
        found: object = self._source.slices(split, count)
        given = list(found) if isinstance(found, Iterable) else [found]
        slices = [one for one in given if isinstance(one, Split)]
        if not given or len(slices) < len(given):
            raise self._wrong("slices()", given, split, "DIS-2", "return slices made with split.slice(position, end)")
        starts, ends = [one.position for one in slices], [one.end for one in slices]
        whole = split.position in (None, starts[0]) and split.end in (None, ends[-1])
        if not whole or starts[1:] != ends[:-1] or None in starts[1:]:
            raise self._wrong(
                "slices()",
                list(zip(starts, ends, strict=True)),
                split,
                "DIS-2",
                f"let the first slice begin at {split.position!r}, each other one where the one before it ends, and "
                f"the last one end at {split.end!r}",
            )
        return slices

    def advance(self, split: Split, *, rows: int | None = None, byte_budget: int | None = None) -> Position | None:
        """Return how far a number of rows reaches: as the source says, or where positions are rows."""
        if rows is None:
            return None
        found = self._source.advance(split, rows)
        start = 0 if split.position is None else split.position
        if found is not None or not self._source.positions_are_rows or not isinstance(start, int):
            return found
        return min(start + rows, split.end) if isinstance(split.end, int) else start + rows

    def _wrong(self, method: str, found: object, split: Split, rule: str, advice: str) -> ContractError:
        return ContractError(
            f"{method} gave {found!r:.200}",
            source=self._source.name,
            split=split.id,
            rule=rule,
            advice=advice,
        )

    def _as_split(self, item: object) -> Split:
        if isinstance(item, Split):
            return item
        if isinstance(item, str):
            return self._source.split_class(item)
        raise ContractError(
            f"splits() gave {item!r}",
            source=self._source.name,
            rule="SPL-1",
            advice="return ids (str) or Split objects",
        )
