# SPDX-License-Identifier: Apache-2.0
"""Reads files and slices of files, one after the other."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from functools import cached_property

import pyarrow as pa

from forebay.errors import ConfigurationError, DataError, RetriableError
from forebay.formats.base import FileFormat
from forebay.framework.arrow.batch_slices import slices_within
from forebay.framework.host_options import HostOptions
from forebay.framework.split import Position, Split
from forebay.framework.split_reader import Fetched, SplitReader
from forebay.sources.files.catalog import COUNT_ROWS
from forebay.sources.files.columns import METADATA, assemble, data_schema, metadata_value, partition_scalars
from forebay.sources.files.read_errors import excused, placed
from forebay.sources.files.scan import FileScan
from forebay.sources.files.split import FileSplit, place_of
from forebay.stores.paths import is_url
from forebay.stores.stored_file import StoredFile

_log = logging.getLogger(__name__)

Batches = Generator[tuple[pa.RecordBatch, int], None, None]
Place = tuple[int, int]
Parts = Generator[tuple[pa.RecordBatch, Place, Place], None, None]


class FileSplitReader(SplitReader):
    """A fetch is one record batch of the file at hand; at its end the file is checked once more.

    Args:
        source: With its schema settled.
        options: Most rows and bytes of a record batch; None for the defaults.
    """

    def __init__(self, source: FileScan, options: HostOptions | None = None) -> None:
        self._source = source
        self._options = options or HostOptions()
        self._waiting: deque[FileSplit] = deque()
        self._reading: _Reading | None = None

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Queue files."""
        self._waiting.extend(split for split in splits if isinstance(split, FileSplit))

    def fetch(self) -> Sequence[Fetched]:
        """Return the next record batch, or the end of the file at hand.

        Raises:
            ConfigurationError: The file does not go together with the schema or an option.
            DataError: The file is gone, damaged or no longer the one listed, or has a record that `mode` forbids.
            RetriableError: The store did not answer; the next call goes on after the last record batch.
        """
        if self._reading is None:
            if not self._waiting:
                return []
            self._reading = self._begin(self._waiting.popleft())
        reading = self._reading
        try:
            part = reading.next()
        except RetriableError:
            reading.rewind()
            raise
        except ConfigurationError as error:
            raise error.located(source=self._source.name, split=reading.split.id)  # noqa: B904 - the same error
        except DataError as error:
            part = self._excused(reading, error)
        if part.finished:
            self._reading = None
        return [part]

    def wake_up(self) -> None:
        """Do nothing: a fetch reads one block and comes back."""

    def close(self) -> None:
        """Close the file at hand."""
        if self._reading is not None:
            self._reading.rewind()
            self._reading = None

    @cached_property
    def _format(self) -> FileFormat:
        # Not in the constructor, which must not block; what planning learned of the format came along.
        return self._source.format()

    @cached_property
    def _schemas(self) -> tuple[pa.Schema, pa.Schema]:
        """All columns, and those to be read. Files are looked at only if no host has settled the schema."""
        full = self._source.full_schema()
        shown = self._source.with_schema(full).schema()
        return full, pa.schema([field.remove_metadata() for field in shown])

    def _begin(self, split: FileSplit) -> _Reading:
        self._source.learn_format(split.path)
        full, schema = self._schemas
        partitions = dict(split.partitions)
        data = data_schema(full, partitions)
        constants = partition_scalars(partitions, schema, self._source.time_zone)
        wanted = [name for name in schema.names if name not in constants and name != METADATA]
        # Of a read that wants nothing from inside the file, the rows are still counted.
        columns = wanted or data.names[:1]
        stored = self._source.stored(split.status)
        if METADATA in schema.names:
            start, length = split.block or (0, split.size)
            constants[METADATA] = metadata_value(split.status, start, length, schema.field(METADATA).type)

        def batches(position: int, end: int | None) -> Batches:
            found = self._format.read(stored, data, columns=columns, position=position, end=end)
            try:
                for batch, after in found:
                    yield assemble(batch, constants, schema, after), after
            finally:
                _close(found)

        counts_rows = self._source.format_name() in COUNT_ROWS
        return _Reading(split, stored, batches, self._options, counts_rows=counts_rows)

    def _excused(self, reading: _Reading, error: DataError) -> Fetched:
        """Return the end of a file whose trouble is to be ignored.

        Raises:
            DataError: It is not; the file is named.
        """
        # A generator that failed gives no more: if the store does not answer now, the next fetch must not take that for
        # the end of the file.
        reading.rewind()
        try:
            if not excused(self._source, reading.stored, error):
                raise error
        except DataError as final:
            raise placed(final, self._source, reading.split.id)  # noqa: B904 - often the same error
        _log.warning("left out the rest of %s: %s", reading.split.id, error.message)
        return Fetched(reading.split.id, position=reading.position, finished=True)


class _Reading:
    """One file or slice being read.

    A format gives record batches of any size, and the position after each. They go out in slices within the limits of
    the host; the position after an inner slice is the position before the whole batch and the number of rows since.
    """

    def __init__(
        self,
        split: FileSplit,
        stored: StoredFile,
        batches: Callable[[int, int | None], Batches],
        options: HostOptions,
        *,
        counts_rows: bool,
    ) -> None:
        self.split = split
        self.stored = stored
        self.position: Position = 0 if split.position is None else split.position
        self._batches = batches
        self._options = options
        self._counts_rows = counts_rows
        self._end = None if split.end is None else place_of(split.end)
        self._parts: Parts | None = None
        self._slices: deque[pa.RecordBatch] = deque()
        self._place = self._after = place_of(self.position)

    def next(self) -> Fetched:
        """Return the next record batch, or the end, after a last look whether the file is still the one listed."""
        if not self._slices and not self._fill():
            self._verify()
            end: Position = self.position if self.split.end is None else self.split.end
            return Fetched(self.split.id, position=end, finished=True)
        batch = self._slices.popleft()
        offset, rows = self._place
        self._place = (offset, rows + batch.num_rows) if self._slices else self._after
        self.position = self._position()
        return Fetched(self.split.id, batch, self.position)

    def rewind(self) -> None:
        """Close the file; `next` opens it again, after the last record batch. A generator that failed gives no more."""
        self._slices.clear()
        if self._parts is not None:
            self._parts.close()
            self._parts = None

    def _position(self) -> Position:
        offset, rows = self._place
        if self._counts_rows:
            return offset + rows
        return (offset, rows) if rows else offset

    def _fill(self) -> bool:
        """Slice the next record batch of the format; False at the end of the file."""
        if self._parts is None:
            self._parts = self._read(*place_of(self.position))
        options = self._options
        for batch, before, after in self._parts:
            self._place, self._after = before, after
            self._slices.extend(
                slices_within(batch, max_rows=options.max_rows_per_batch, max_bytes=options.max_bytes_per_batch)
            )
            if self._slices:
                return True
        return False

    def _read(self, offset: int, rows: int) -> Parts:
        """Yield record batches from a place to the end, each with its place and the place after it."""
        stop, last_rows = (None, 0) if self._end is None else self._end
        if stop is None or offset < stop:
            yield from self._blocks(offset, rows, stop)
            rows = 0
        if stop is not None and last_rows > rows:
            yield from self._rows_of_block(stop, rows, last_rows)

    def _blocks(self, offset: int, skip: int, stop: int | None) -> Parts:
        """Yield the records that start in `[offset, stop)`, but for the first rows."""
        with closing(self._batches(offset, stop)) as batches:
            for batch, position in batches:
                # The last record of a slice may reach into the next one, which begins with the record after it.
                after = position if stop is None else min(position, stop)
                if skip < batch.num_rows:
                    yield batch.slice(skip), (offset, skip), (after, 0)
                offset, skip = after, max(0, skip - batch.num_rows)

    def _rows_of_block(self, offset: int, start: int, stop: int) -> Parts:
        """Yield the rows `[start, stop)` after an offset; their places stay relative to it, to order before the end."""
        seen = 0
        with closing(self._batches(offset, None)) as batches:
            for batch, _ in batches:
                first, last = max(seen, start), min(seen + batch.num_rows, stop)
                if first < last:
                    yield batch.slice(first - seen, last - first), (offset, first), (offset, last)
                seen += batch.num_rows
                if seen >= stop:
                    return

    def _verify(self) -> None:
        # A local file that was deleted while it was open has been read whole all the same.
        if is_url(self.stored.path) or self.stored.now() is not None:
            self.stored.verify_unchanged()


def _close(batches: Iterator[object]) -> None:
    if isinstance(batches, Generator):
        batches.close()
