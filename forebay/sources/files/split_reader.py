# SPDX-License-Identifier: Apache-2.0
"""The split reader of the file source: reads files and slices of files, one after another."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property

import pyarrow as pa

from forebay.errors import ConfigurationError, DataError, RetriableError
from forebay.formats.base import FileFormat
from forebay.formats.filters import leaves
from forebay.framework.arrow.casting import slices_within
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.split import Position, Split
from forebay.framework.split_reader import Fetched, SplitReader
from forebay.sources.files.scan import FileScan, RowFilter, is_ignored, with_file
from forebay.sources.files.schema import (
    METADATA,
    adds_metadata,
    assemble,
    check_new_columns,
    data_schema,
    metadata_value,
    partition_scalars,
)
from forebay.sources.files.small_files import JoinedFiles, SmallFiles
from forebay.sources.files.split import FileSplit, offset_and_rows
from forebay.stores.stored_file import StoredFile

_log = logging.getLogger(__name__)


class FileSplitReader(SplitReader):
    """Reads files one after another; each fetch returns one record batch, or the rows of several small files.

    At the end of each file, the reader checks that the file has not changed.

    Args:
        source: The file source, with its schema resolved.
        options: Row and byte limits of a record batch; None for the defaults.
    """

    def __init__(self, source: FileScan, options: HostOptions | None = None) -> None:
        self._source = source
        self._options = options or HostOptions()
        self._waiting: deque[FileSplit] = deque()
        self._small_files = SmallFiles(source.stored)
        self._joined_files = JoinedFiles(self._small_files, self._options)
        self._reading: FileRead | None = None

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Add files and slices to the queue."""
        self._waiting.extend(split for split in splits if isinstance(split, FileSplit))

    def fetch(self) -> Sequence[Fetched]:
        """Return the next record batch, the end of the current file, or the rows of several small files.

        Raises:
            ConfigurationError: The file contradicts the schema or an option.
            DataError: The file is missing, damaged or changed, or has a record that `mode` forbids.
            RetriableError: The store did not answer. The next call continues after the last record batch.
        """
        if self._reading is None:
            if not self._waiting:
                return []
            if together := self._read_together():
                return together
            self._reading = self._begin(self._waiting[0])  # a store that does not answer leaves it waiting
            self._waiting.popleft()
            self._small_files.request(self._waiting)
        reading = self._reading
        try:
            part = reading.next()
        except RetriableError:
            reading.rewind()
            raise
        except ConfigurationError as error:
            raise error.with_context(source=self._source.name, split=reading.split.id)  # noqa: B904 - the same error
        except DataError as error:
            part = self._end_if_ignored(reading, error)
        if part.finished:
            self._reading = None
        return [part]

    def wake_up(self) -> None:
        """Do nothing: a fetch never waits for new data, and returns after the next record batch."""

    def close(self) -> None:
        """Close the current file, and cancel the requests of files that were requested in advance."""
        self._small_files.close()
        if self._reading is not None:
            self._reading.rewind()
            self._reading = None

    @cached_property
    def _format(self) -> FileFormat:
        # Not in the constructor, which must not block: this may list files.
        return self._source.format()

    @cached_property
    def _schemas(self) -> tuple[pa.Schema, pa.Schema, RowFilter | None]:
        """The schema of all columns, the schema of the columns to read, and the row filter.

        The schema is inferred here if the host has not resolved it.
        """
        full = self._source.full_schema()
        source = self._source.with_schema(full)
        selected = pa.schema([field.remove_metadata() for field in source.schema()])
        expression = source.bound_row_filter(full)
        if expression is None:
            return full, selected, None
        filtered = dict.fromkeys(leaf.column for leaf in leaves(expression))
        more = [full.field(name).remove_metadata() for name in filtered if name not in selected.names]
        return full, pa.schema([*selected, *more]), RowFilter(expression, selected.names)

    def _columns_in_file(self, split: FileSplit) -> tuple[pa.Schema, pa.Schema]:
        """Return the schema of all columns in the file of a split, and the schema of the columns to read, in order."""
        full, schema, _ = self._schemas
        data = data_schema(full, (name for name, _ in split.partitions))
        outside = {*([METADATA] if adds_metadata(full) else []), *(name.lower() for name, _ in split.partitions)}
        names = [field.name for field in schema if field.name.lower() not in outside]
        # If no column of the file is selected, one column is read to count the rows.
        return data, pa.schema([data.field(name) for name in names or data.names[:1]])

    def _constants(self, split: FileSplit) -> dict[str, pa.Scalar]:
        """Return the values of a split's partition columns and of `_metadata`, by column name."""
        full, schema, _ = self._schemas
        constants = partition_scalars(dict(split.partitions), schema, self._source.time_zone)
        if METADATA in schema.names and adds_metadata(full):
            start, length = split.block or (0, split.size)
            constants[METADATA] = metadata_value(split.status, start, length, schema.field(METADATA).type)
        return constants

    def _read_together(self) -> list[Fetched]:
        """Return the rows of the next small files; an empty list if the next file must be read alone."""
        if len(self._waiting) < 2 or self._source.adds_columns:
            return []
        self._source.learn_format(self._waiting[0].path)
        _, schema, row_filter = self._schemas
        fetched = []
        for split, rows in self._joined_files.read(self._waiting, self._format, self._columns_in_file):
            batch = None if rows is None else assemble(rows, self._constants(split), schema, split.size)
            if batch is not None and row_filter is not None:
                batch = row_filter.of(batch)
            end: Position = split.size if split.end is None else split.end
            fetched.append(Fetched(split.id, batch, end, finished=True))
        return fetched

    def _begin(self, split: FileSplit) -> FileRead:
        self._source.learn_format(split.path)
        _, schema, row_filter = self._schemas
        constants = self._constants(split)
        data, projected = self._columns_in_file(split)
        columns = projected.names
        stored = self._joined_files.take(split)

        def batches(position: int, end: int | None) -> Batches:
            # If the format counts rows, positions are not bytes of the file. A compressed file has no inner ends.
            sliced = stored if end is None or self._format.counts_rows else replace(stored, read_to=end)
            parsed = self._format.read(sliced, data, columns=columns, position=position, end=end)
            try:
                for batch, after in parsed:
                    yield assemble(batch, constants, schema, after), after
            finally:
                if isinstance(parsed, Generator):
                    parsed.close()

        def matching(position: int, end: int | None) -> Batches:
            """Read the parts that may match the row filter. An empty batch moves the position past a skipped part."""
            assert row_filter is not None  # noqa: S101 - chosen below
            nothing = pa.RecordBatch.from_pylist([], schema=schema)
            for start, stop in self._format.matching_ranges(stored, data, row_filter.expression, position, end):
                if start > position:
                    yield nothing, start
                yield from batches(start, stop)
                position = start if stop is None else stop
            if end is not None and position < end:
                yield nothing, end

        skips = row_filter is not None and self._format.counts_rows
        read = self._checked(matching if skips else batches, stored)
        return FileRead(split, stored, read, self._options, row_filter, counts_rows=self._format.counts_rows)

    def _checked(self, read: ReadRange, stored: StoredFile) -> ReadRange:
        """Return `read`, preceded at the start of a file by a check for new columns if `schemaEvolution` adds them."""
        full, schema, _ = self._schemas
        source = self._source
        # If the option `columns` selects from the known columns, new columns are not read, so they need no check.
        if not (source.adds_columns and source.schema_inferred and schema.names == full.names):
            return read

        def checked(position: int, end: int | None) -> Batches:
            if not position:
                check_new_columns(source, self._format, stored, full)
            yield from read(position, end)

        return checked

    def _end_if_ignored(self, reading: FileRead, error: DataError) -> Fetched:
        """Log an error that the options ignore, and end the split.

        Raises:
            DataError: The options do not ignore the error. It names the file's path.
        """
        # The error has ended the generator. A retry after a store error below must not take this for the file's end.
        reading.rewind()
        try:
            if not is_ignored(self._source, reading.stored, error):
                raise error
        except DataError as final:
            raise with_file(final, self._source, reading.split.id)  # noqa: B904 - often the same error
        _log.warning("skipped the rest of the file %s: %s", reading.split.id, error.message)
        return Fetched(reading.split.id, position=reading.position, finished=True)


# -- Reads one file or slice in record batches within the limits of the host.


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
