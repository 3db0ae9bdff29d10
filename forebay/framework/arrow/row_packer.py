# SPDX-License-Identifier: Apache-2.0
"""Packs the rows that a connector's `read()` yields into record batches, each with its position."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from forebay.clock import Clock
from forebay.errors import ContractError, ForebayError
from forebay.framework.arrow.casting import Casting
from forebay.framework.arrow.row_arrays import Row, RowConverter
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.split import Position, Split

Rows = Row | pa.RecordBatch | pa.Table

_FIRST_CHUNK: Final = 16
"""Rows that are converted first, before their size is known; each later chunk has at most four times as many."""
_EITHER: Final = "in read(), yield either only Batch objects or only plain rows"


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of a split, and the position of the next record after them.

    Args:
        rows: Dicts, tuples in schema order, a record batch or a table; empty to only move the position.
        position: A read from this position begins with the first record after `rows`.
    """

    rows: Sequence[Row] | pa.RecordBatch | pa.Table
    position: Position


@dataclass(frozen=True, slots=True)
class Packed:
    """A record batch, and the split's position after it."""

    batch: pa.RecordBatch
    position: Position


class RowPacker:
    """Packs the rows of one read of a split into record batches.

    A record batch is full at `maxRowsPerBatch` or `maxBytesPerBatch`, and due when its first row has waited for
    `maxBatchDelay`. Not thread-safe: the generator worker calls it under a lock.
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
        self._batches: list[pa.RecordBatch] = []
        self._taken = 0
        self._count = 0
        self._bytes = 0
        self._chunk = _FIRST_CHUNK
        self._since = 0.0
        self.position: Position | None = split.position
        """The position after all rows that were added."""
        self._converted: Position | None = split.position
        self._counting: bool | None = None
        self._converter = RowConverter(schema, self._labels, extra_keys=extra_keys)
        self._casting = Casting(schema, self._labels)

    @property
    def at_end(self) -> bool:
        """Whether the rows reach the split's end, so that no more rows may be added."""
        return self._split.end is not None and self.position == self._split.end

    def add(self, item: object) -> Packed | None:
        """Add an item that `read()` yielded; return the record batch if it is now full, else None.

        Raises:
            ContractError: The item's type, its position, or a value in it breaks the contract or the schema.
            DataError: A value is null in a field that is not nullable.
        """
        if isinstance(item, Batch):
            self._add_batch(item)
        elif isinstance(item, (Mapping, tuple)):
            values = self._converter.take(item, self._taken + self._count)
            position, before_end = self._count_on(1)
            if before_end:
                self._rows.append(values)
                self._advance(1, position)
        elif isinstance(item, (pa.RecordBatch, pa.Table)):
            position, rows = self._count_on(item.num_rows)
            self._add_arrow(item if rows == item.num_rows else item.slice(0, rows))
            self._advance(rows, position)
        else:
            raise self._broken(
                f"read() yielded a {type(item).__name__}", "yield dicts, tuples, record batches or Batch objects"
            )
        if len(self._rows) >= self._chunk:
            self._convert()
        full = self._count >= self._max_rows or self._bytes >= self._max_bytes or self.at_end
        return self.take() if full else None

    def check_complete(self, *, counted: bool) -> None:
        """Check that `read()` returned at the planned end of the split.

        The next read begins at that end, so it would skip unread rows. Called when the generator has returned, if the
        end was planned. Only row numbers are checked, because other positions may have gaps. Positions are row numbers
        if `read()` yields plain rows, or if `counted` is True.

        Raises:
            ContractError: `read()` returned too early.
        """
        end, position = self._split.end, 0 if self.position is None else self.position
        if not (counted or self._counting) or not (isinstance(end, int) and isinstance(position, int)):
            return
        if position < end:
            raise ContractError(
                f"read() returned at row {position}, before the planned end {end}: the next micro-batch begins at "
                f"{end}, and the rows in between would be lost",
                source=self._source,
                split=self._split.id,
                position=position,
                rule="DIS-1",
                advice="in the connector, let latest() return no more than the number of rows that read() gives now, "
                "and let read() return only at split.end; then start the query again: nothing is lost",
            )

    def never_given(self) -> list[str]:
        """Return the columns, and the struct fields inside them, that were missing from every row added so far."""
        return self._converter.never_given(self._taken + self._count)

    def due_in(self) -> float | None:
        """Return the seconds until the first waiting row has waited for `maxBatchDelay`; None if no rows wait."""
        return None if not self._count else max(0.0, self._since + self._max_delay - self._clock.monotonic())

    def take_due(self) -> Packed | None:
        """Return the waiting rows as a record batch if the first has waited for `maxBatchDelay`, else None."""
        due = self.due_in()
        return self.take() if due is not None and due <= 0 else None

    def take(self) -> Packed | None:
        """Return all waiting rows as one record batch; None if no rows wait."""
        self._convert()
        if not self._batches or self.position is None:
            return None
        batches = self._batches
        if len(batches) > 1:
            batches = pa.Table.from_batches(batches, self._schema).combine_chunks().to_batches()
        if len(batches) != 1:  # returned alone, the first batch would have the position after all of them
            raise self._broken(
                f"a column of {self._count} rows has more than 2 GiB of text or bytes, which no record batch can hold",
                "yield record batches, tables or Batch objects with fewer rows",
            )
        self._batches = []
        self._taken += self._count
        self._count = self._bytes = 0
        return Packed(batches[0], self.position)

    def _add_batch(self, item: Batch) -> None:
        if self._counting:
            raise self._broken("read() yielded a Batch after plain rows", _EITHER)
        self._counting = False
        rows = item.rows
        count = rows.num_rows if isinstance(rows, (pa.RecordBatch, pa.Table)) else len(rows)
        position = Split(self._split.id, item.position).position
        if count and position == self.position:
            raise self._broken(
                f"read() yielded {count} rows with the position {position!r}, where the split was before these rows",
                "give Batch the position after its rows: a read from there must not repeat them",
            )
        self._check_range(position)
        if isinstance(rows, (pa.RecordBatch, pa.Table)):
            self._add_arrow(rows)
        else:
            first = self._taken + self._count
            self._rows.extend([self._converter.take(row, first + index) for index, row in enumerate(rows)])
        self._advance(count, position)

    def _check_range(self, position: Position) -> None:
        """Raise a ContractError for a position beyond the split's end or before the previous position.

        Positions of a split without an end are not compared: they need no order.
        """
        end, key = self._split.end, self._order_key
        if end is None:
            return
        if key(position) > key(end):
            raise self._text_order_error(position, end) or self._broken(
                f"read() yielded rows up to {position!r}, beyond the end {end!r}: the next read would repeat them",
                "let read() stop exactly at split.end",
            )
        if self.position is not None and key(position) < key(self.position):
            raise self._text_order_error(self.position, position) or self._broken(
                f"the position went backwards, from {self.position!r} to {position!r}",
                "let read() yield each position after the previous one",
            )

    def _text_order_error(self, before: Position, after: Position) -> ContractError | None:
        """Return the error for positions that are numbers in text, such as "9" and "10"; None for all others.

        As text, `after` sorts before `before`.
        """
        earlier, later = self._order_key(before), self._order_key(after)
        if not (isinstance(earlier, str) and isinstance(later, str) and earlier.isdecimal() and later.isdecimal()):
            return None
        if int(earlier) > int(later):
            return None
        return ContractError(
            f"the positions {before!r} and {after!r} are numbers in text: as text, {after!r} sorts before {before!r}",
            source=self._source,
            split=self._split.id,
            rule="SPL-3",
            advice="override order_key(position) in the connector, and return int(position)",
        )

    def _add_arrow(self, rows: pa.RecordBatch | pa.Table) -> None:
        self._convert()  # earlier dicts come first
        first, cast = self._taken + self._count, []
        for batch in [rows] if isinstance(rows, pa.RecordBatch) else rows.to_batches():
            cast.append(self._casting.cast(batch, first))
            first += batch.num_rows
        # Only now: an error must leave no batch of these rows behind.
        self._batches += [batch for batch in cast if batch.num_rows]
        self._bytes += sum(batch.nbytes for batch in cast)

    def _count_on(self, rows: int) -> tuple[int, int]:
        """Return the row number after `rows` more plain rows, and how many of these rows are before the split's end."""
        if self._counting is False:
            raise self._broken("read() yielded plain rows after a Batch", _EITHER)
        self._counting = True
        position = 0 if self.position is None else self.position
        if not isinstance(position, int):
            raise self._broken(
                f"read() yielded plain rows, whose positions are row numbers, but the split is at {position!r}",
                "yield Batch(rows, position) with positions of your own",
            )
        if isinstance(self._split.end, int):
            rows = max(0, min(rows, self._split.end - position))
        return position + rows, rows

    def _advance(self, rows: int, position: Position) -> None:
        """Count `rows` rows that were added, and move to the position after them."""
        if not self._count:
            self._since = self._clock.monotonic()
        self._count += rows
        self.position = position
        if not self._rows:
            self._converted = position

    def _convert(self) -> None:
        """Convert the waiting Python rows to a record batch; from its bytes, choose the size of the next chunk."""
        if not self._rows:
            return
        rows, self._rows = self._rows, []
        first = self._taken + self._count - len(rows)
        try:
            batch = self._converter.record_batch(rows, first)
        except ForebayError:
            # These rows are lost: earlier batches go out with their own position.
            self._count -= len(rows)
            self.position = self._converted
            raise
        self._converted = self.position
        self._batches.append(batch)
        self._bytes += batch.nbytes
        per_row = max(1, batch.nbytes // len(rows))
        self._chunk = max(1, min(self._chunk * 4, self._max_rows, self._max_bytes // per_row))

    def _labels(self, row: int) -> dict[str, str]:
        position = f"row {row} after {self._split.position!r}" if self._split.position is not None else f"row {row}"
        return {"source": self._source, "split": self._split.id, "position": position}

    def _broken(self, message: str, advice: str) -> ContractError:
        return ContractError(message, source=self._source, split=self._split.id, rule="SR-2", advice=advice)
