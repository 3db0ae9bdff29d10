# SPDX-License-Identifier: Apache-2.0
"""Reads one file or slice in record batches within the limits of the host."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from contextlib import closing

import pyarrow as pa

from forebay.framework.arrow.batch_slices import slices_within
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.split import Position
from forebay.framework.split_reader import Fetched
from forebay.sources.files.filtering import RowFilter
from forebay.sources.files.split import FileSplit, offset_and_rows
from forebay.stores.stored_file import StoredFile

Batches = Generator[tuple[pa.RecordBatch, int], None, None]
ReadRange = Callable[[int, int | None], Batches]
"""A function that reads the records starting at or after a position and before an end (None = the file's end).

It yields record batches, each with the position after it."""
RowPosition = tuple[int, int]
"""The file format's position, and the number of rows read after it."""
Parts = Generator[tuple[pa.RecordBatch, RowPosition, RowPosition], None, None]


class FileRead:
    """A file or slice being read.

    The record batches of the file format are cut to the host's limits. The position after a cut is a pair: the position
    before the record batch, and the number of its rows before the cut. For a format whose positions are row indexes,
    such as Parquet, the position after a cut is a row index too.
    """

    def __init__(
        self,
        split: FileSplit,
        stored: StoredFile,
        batches: ReadRange,
        options: HostOptions,
        row_filter: RowFilter | None,
        *,
        counts_rows: bool,
    ) -> None:
        self.split = split
        self.stored = stored
        self.position: Position = 0 if split.position is None else split.position
        self._batches = batches
        self._options = options
        self._filter = row_filter
        self._counts_rows = counts_rows
        self._end = None if split.end is None else offset_and_rows(split.end)
        self._parts: Parts | None = None
        self._slices: deque[pa.RecordBatch] = deque()
        self._here = self._after = offset_and_rows(self.position)

    def next(self) -> Fetched:
        """Return the next record batch; at the end, check that the file has not changed, and finish the split."""
        if not self._slices and not self._fill():
            self.stored.verify_read()
            end: Position = self.position if self.split.end is None else self.split.end
            return Fetched(self.split.id, position=end, finished=True)
        batch = self._slices.popleft()
        offset, rows = self._here
        offset, rows = self._here = (offset, rows + batch.num_rows) if self._slices else self._after
        if self._counts_rows:
            self.position = offset + rows
        else:
            self.position = (offset, rows) if rows else offset
        # Apply the row filter last, because positions count all rows of the file.
        return Fetched(self.split.id, batch if self._filter is None else self._filter.of(batch), self.position)

    def rewind(self) -> None:
        """Close the file. `next` opens it again, and continues after the last record batch that it returned."""
        self._slices.clear()
        if self._parts is not None:
            self._parts.close()
            self._parts = None

    def _fill(self) -> bool:
        """Read the format's next record batch, and cut it to the limits; return False at the end of the split."""
        if self._parts is None:
            self._parts = self._read(*offset_and_rows(self.position))
        options = self._options
        for batch, here, after in self._parts:
            self._here, self._after = here, after
            self._slices.extend(
                slices_within(batch, max_rows=options.max_rows_per_batch, max_bytes=options.max_bytes_per_batch)
            )
            if self._slices:
                return True
        return False

    def _read(self, offset: int, rows: int) -> Parts:
        """Yield the record batches to the end of the split, each with the positions before and after it.

        The first record batch begins `rows` rows after `offset`.
        """
        stop, last_rows = (None, 0) if self._end is None else self._end
        if stop is None or offset < stop:
            yield from self._blocks(offset, rows, stop)
            rows = 0
        if stop is not None and last_rows > rows:
            yield from self._rows_of_block(stop, rows, last_rows)

    def _blocks(self, offset: int, skip: int, stop: int | None) -> Parts:
        """Yield the rows of the records that start in `[offset, stop)`, except for the first `skip` rows."""
        with closing(self._batches(offset, stop)) as batches:
            for batch, position in batches:
                # The last record of a slice may end in the next slice, which begins with the record after it.
                after = position if stop is None else min(position, stop)
                if skip < batch.num_rows:
                    yield batch.slice(skip), (offset, skip), (after, 0)
                offset, skip = after, max(0, skip - batch.num_rows)

    def _rows_of_block(self, offset: int, start: int, stop: int) -> Parts:
        """Yield the rows `[start, stop)`, counted from the row at `offset`.

        Each position is a pair of `offset` and a number of rows, as the split's end is, so none is after that end.
        """
        before = 0
        with closing(self._batches(offset, None)) as batches:
            for batch, _ in batches:
                first, last = max(before, start), min(before + batch.num_rows, stop)
                if first < last:
                    yield batch.slice(first - before, last - first), (offset, first), (offset, last)
                before += batch.num_rows
                if before >= stop:
                    return
