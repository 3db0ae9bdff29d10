# SPDX-License-Identifier: Apache-2.0
"""From the rows an author yields to record batches of a good size, each with its position."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from forebay.clock import Clock
from forebay.errors import ContractError, ForebayError
from forebay.framework.arrow.casting import Casting
from forebay.framework.arrow.row_arrays import Row, RowConverter
from forebay.framework.host_options import HostOptions
from forebay.framework.split import Position, Split

Rows = Row | pa.RecordBatch | pa.Table


@dataclass(frozen=True, slots=True)
class Batch:
    """Some rows, and the position to resume at after them.

    Args:
        rows: Dicts, tuples in schema order, a record batch or a table; may be empty, to move the position alone.
        position: The next record not in `rows`.
    """

    rows: Sequence[Row] | pa.RecordBatch | pa.Table
    position: Position


@dataclass(frozen=True, slots=True)
class Packed:
    """A record batch, and the split's position after it."""

    batch: pa.RecordBatch
    position: Position


class RowPacker:
    """Packs what a generator yields into record batches, by count, by bytes and by time. One per read of a split.

    Not thread-safe: the pump guards it.

    Args:
        schema: The schema every row must fit.
        split: The split being read: its position is where counting starts, its end is where packing stops.
        clock: For the delay.
        options: The host's: rows and bytes of a full record batch, and the delay after which `take_due` gives one that
            is not full.
        source: The name of the source, for errors.
        order_key: What positions are ordered by.
        extra_keys: Leave out keys of dicts that are not in the schema; otherwise they are refused.
    """

    def __init__(
        self,
        schema: pa.Schema,
        split: Split,
        clock: Clock,
        options: HostOptions,
        *,
        source: str,
        order_key: Callable[[Position], Any] = lambda position: position,
        extra_keys: bool = False,
    ) -> None:
        self._order_key = order_key
        self._schema = schema
        self._split = split
        self._clock = clock
        self._max_rows = options.max_rows_per_batch
        self._max_bytes = options.max_bytes_per_batch
        self._max_delay = options.max_batch_delay.total_seconds()
        self._source = source
        self._rows: list[tuple[object, ...]] = []
        self._pieces: list[pa.RecordBatch] = []
        self._taken = 0
        self._count = 0
        self._bytes = 0
        self._chunk = _FIRST_CHUNK
        self._since = 0.0
        self._position: Position | None = split.position
        self._sure: Position | None = split.position
        self._counting: bool | None = None
        self._converter = RowConverter(schema, self._located, extra_keys=extra_keys)
        self._fitting = Casting(schema, self._located)

    @property
    def at_end(self) -> bool:
        """Whether the split's end has been reached exactly, so that nothing more may be taken."""
        return self._split.end is not None and self._position == self._split.end

    @property
    def position(self) -> Position | None:
        """The position after everything added so far."""
        return self._position

    def add(self, item: object) -> Packed | None:
        """Take what the generator yielded; return a record batch once one is full.

        Raises:
            ContractError: The item is not rows, or the positions break the contract.
            DataError: A value does not fit the schema.
        """
        if isinstance(item, Batch):
            self._add_batch(item)
        elif isinstance(item, (Mapping, tuple)):
            values = self._converter.take(item, self._taken + self._count)
            position, before_end = self._counted(1)
            if before_end:
                self._rows.append(values)
                self._added(1, position)
        elif isinstance(item, (pa.RecordBatch, pa.Table)):
            self._add_arrow(item)
        else:
            raise self._broken(
                f"read() yielded a {type(item).__name__}", "yield dicts, tuples, record batches or Batch"
            )
        if len(self._rows) >= self._chunk:
            self._convert()
        full = self._count >= self._max_rows or self._bytes >= self._max_bytes or self.at_end
        return self.take() if full else None

    def check_complete(self, *, counted: bool) -> None:
        """Refuse rows that stop short of the end the read was given: the next read would begin behind the gap.

        Called once the generator has returned, where somebody goes on from that end. Positions of an author's own may
        leave gaps, and are not looked at.

        Args:
            counted: The source says that positions are numbers of rows; plain rows say so themselves.

        Raises:
            ContractError: Rows are missing.
        """
        end, position = self._split.end, 0 if self._position is None else self._position
        if not (counted or self._counting) or not (isinstance(end, int) and isinstance(position, int)):
            return
        if position < end:
            raise ContractError(
                f"read() returned at row {position}, and was to give every row before {end}: the next micro-batch "
                "begins there, and those between would be lost",
                source=self._source,
                split=self._split.id,
                position=position,
                rule="DIS-1",
                advice="in the connector, let latest() return the number of rows that read() gives now, and not more, "
                "and let read() return only at split.end; once it gives them, start the query again: nothing is lost",
            )

    def never_given(self) -> list[str]:
        """Return the columns, and fields inside them, that no row named so far; nothing where there was no row."""
        return self._converter.never_given(self._taken + self._count)

    def due_in(self) -> float | None:
        """Return the seconds until `take_due` gives something; None while empty."""
        return None if not self._count else max(0.0, self._since + self._max_delay - self._clock.monotonic())

    def take_due(self) -> Packed | None:
        """Return the unfilled record batch if its rows have waited long enough."""
        due = self.due_in()
        return self.take() if due is not None and due <= 0 else None

    def take(self) -> Packed | None:
        """Return what there is, as one record batch; None if there is nothing."""
        self._convert()
        if not self._pieces or self._position is None:
            return None
        packed = Packed(self._combined(), self._position)
        self._pieces = []
        self._taken += self._count
        self._count = self._bytes = 0
        return packed

    def _combined(self) -> pa.RecordBatch:
        if len(self._pieces) == 1:
            return self._pieces[0]
        batches = pa.Table.from_batches(self._pieces, self._schema).combine_chunks().to_batches()
        if len(batches) != 1:  # one of them alone must not go out with the position after all
            raise self._broken(
                f"a column of {self._count} rows has more than 2 GiB of text or bytes, which no record batch can hold",
                "yield smaller record batches, tables or Batches",
            )
        return batches[0]

    def _add_batch(self, item: Batch) -> None:
        if self._counting:
            raise self._broken("read() yielded a Batch after plain rows", "yield Batch always, or never")
        self._counting = False
        rows = item.rows
        count = rows.num_rows if isinstance(rows, (pa.RecordBatch, pa.Table)) else len(rows)
        position = Split(self._split.id, item.position).position
        if count and position == self._position:
            raise self._broken(
                f"{count} rows came with the position {position!r} that was reached before them",
                "give the position after the rows; reading again from it must not give them again",
            )
        self._check_range(position)
        if isinstance(rows, (pa.RecordBatch, pa.Table)):
            self._convert()  # what came as dicts before goes before
            self._pieces.extend(self._fitted(rows))
            self._bytes += rows.nbytes
        else:
            first = self._taken + self._count
            self._rows.extend([self._converter.take(row, first + index) for index, row in enumerate(rows)])
        self._added(count, position)

    def _check_range(self, position: Position) -> None:
        """Refuse a position beyond the end, or behind the one before; without an end they are not ordered."""
        end = self._split.end
        if end is None:
            return
        if self._order_key(position) > self._order_key(end):
            raise self._misordered(position, end) or self._broken(
                f"rows up to {position!r} came, but the read ends at {end!r}: the next read would repeat them",
                "stop exactly at split.end",
            )
        if self._position is not None and self._order_key(position) < self._order_key(self._position):
            raise self._misordered(self._position, position) or self._broken(
                f"the position went backwards, from {self._position!r} to {position!r}", "move positions forward only"
            )

    def _misordered(self, before: Position, after: Position) -> ContractError | None:
        """Return the error of two positions that order as text, and as numbers the other way round; None if not so."""
        one, two = self._order_key(before), self._order_key(after)
        if not (isinstance(one, str) and isinstance(two, str) and one.isdecimal() and two.isdecimal()):
            return None
        if int(one) > int(two):
            return None
        return ContractError(
            f"the positions {before!r} and {after!r} are numbers in text: as text, {after!r} orders before {before!r}",
            source=self._source,
            split=self._split.id,
            rule="SPL-3",
            advice="override order_key(position) to return int(position)",
        )

    def _add_arrow(self, item: pa.RecordBatch | pa.Table) -> None:
        position, rows = self._counted(item.num_rows)
        self._convert()  # what came as dicts before goes before
        pieces = self._fitted(item if rows == item.num_rows else item.slice(0, rows))
        self._pieces.extend(pieces)
        self._bytes += sum(piece.nbytes for piece in pieces)
        self._added(rows, position)

    def _counted(self, rows: int) -> tuple[int, int]:
        """Return the row-count position after so many more rows, and how many of them lie before the split's end."""
        if self._counting is False:
            raise self._broken("read() yielded plain rows after a Batch", "yield Batch always, or never")
        self._counting = True
        position = 0 if self._position is None else self._position
        if not isinstance(position, int):
            raise self._broken(
                f"plain rows are counted, but the split's position is {position!r}",
                "yield Batch(rows, position) with positions of your own",
            )
        if isinstance(self._split.end, int):
            rows = max(0, min(rows, self._split.end - position))
        return position + rows, rows

    def _added(self, rows: int, position: Position) -> None:
        """Move on: the rows are in `_rows` or in `_pieces` now."""
        if not self._count:
            self._since = self._clock.monotonic()
        self._count += rows
        self._position = position
        if not self._rows:
            self._sure = position

    def _convert(self) -> None:
        """Turn the pending rows into a record batch, and learn from its size how many to wait for."""
        if not self._rows:
            return
        rows, self._rows = self._rows, []
        first = self._taken + self._count - len(rows)
        try:
            piece = self._converter.record_batch(rows, first)
        except ForebayError:
            # The rows are gone: what was packed before them goes out with its own position, not with theirs.
            self._count -= len(rows)
            self._position = self._sure
            raise
        self._sure = self._position
        self._pieces.append(piece)
        self._bytes += piece.nbytes
        per_row = max(1, piece.nbytes // len(rows))
        self._chunk = max(1, min(self._chunk * 4, self._max_rows, self._max_bytes // per_row))

    def _fitted(self, rows: pa.RecordBatch | pa.Table) -> list[pa.RecordBatch]:
        batches = [rows] if isinstance(rows, pa.RecordBatch) else rows.to_batches()
        first, fitted = self._taken + self._count, []
        for batch in batches:
            fitted.append(self._fitting.fit(batch, first))
            first += batch.num_rows
        return [batch for batch in fitted if batch.num_rows]

    def _located(self, row: int) -> dict[str, str]:
        where = f"row {row} after {self._split.position!r}" if self._split.position is not None else f"row {row}"
        return {"source": self._source, "split": self._split.id, "position": where}

    def _broken(self, message: str, advice: str) -> ContractError:
        return ContractError(message, source=self._source, split=self._split.id, rule="SR-2", advice=advice)


_FIRST_CHUNK = 16
"""Rows converted before anything is known about their size; grows fourfold from there."""
