# SPDX-License-Identifier: Apache-2.0
"""Reads files and slices of files, one after the other."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cached_property

import pyarrow as pa

from forebay.errors import ConfigurationError, DataError, RetriableError
from forebay.formats.base import FileFormat
from forebay.framework.split import Split
from forebay.framework.split_reader import Fetched, SplitReader
from forebay.sources.files.columns import METADATA, assemble, data_schema, metadata_value, partition_scalars
from forebay.sources.files.source import FileSource
from forebay.sources.files.split import FileSplit
from forebay.sources.files.trouble import excused, placed
from forebay.storage.store import is_url
from forebay.storage.stored_file import StoredFile

_log = logging.getLogger(__name__)

Batches = Generator[tuple[pa.RecordBatch, int], None, None]


class FileSplitReader(SplitReader):
    """A fetch is one record batch of the file at hand; at its end the file is checked once more.

    Args:
        source: With its schema settled.
    """

    def __init__(self, source: FileSource) -> None:
        self._source = source
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
        self._source.told_by(split.path)
        full, schema = self._schemas
        partitions = dict(split.partitions)
        data = data_schema(full, partitions)
        constants = partition_scalars(partitions, schema, self._source.time_zone)
        wanted = [name for name in schema.names if name not in constants and name != METADATA]
        # Of a read that wants nothing from inside the file, the rows are still counted.
        columns = wanted or data.names[:1]
        stored = self._source.stored(split.status)
        end = split.end if isinstance(split.end, int) else None
        if METADATA in schema.names:
            start, length = split.block or (0, split.size)
            constants[METADATA] = metadata_value(split.status, start, length, schema.field(METADATA).type)

        def batches(position: int) -> Batches:
            found = self._format.read(stored, data, columns=columns, position=position, end=end)
            try:
                for batch, after in found:
                    yield assemble(batch, constants, schema, after), after
            finally:
                _close(found)

        return _Reading(split, stored, batches)

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
    """One file or slice being read."""

    def __init__(self, split: FileSplit, stored: StoredFile, batches: Callable[[int], Batches]) -> None:
        self.split = split
        self.stored = stored
        self.position = split.position if isinstance(split.position, int) else 0
        self._make = batches
        self._batches: Batches | None = None
        self._end = split.end if isinstance(split.end, int) else None

    def next(self) -> Fetched:
        """Return the next record batch, or the end, after a last look whether the file is still the one listed."""
        if self._batches is None:
            self._batches = self._make(self.position)
        found = next(self._batches, None)
        if found is None:
            self._verify()
            return Fetched(self.split.id, position=self._end if self._end is not None else self.position, finished=True)
        batch, position = found
        # The last record of a slice may reach into the next one, which begins with the record after it.
        self.position = position if self._end is None else min(position, self._end)
        return Fetched(self.split.id, batch, self.position)

    def rewind(self) -> None:
        """Close the file; `next` opens it again, after the last record batch. A generator that failed gives no more."""
        if self._batches is not None:
            self._batches.close()
            self._batches = None

    def _verify(self) -> None:
        # A local file that was deleted while it was open has been read whole all the same.
        if is_url(self.stored.path) or self.stored.now() is not None:
            self.stored.verify_unchanged()


def _close(batches: Iterator[object]) -> None:
    if isinstance(batches, Generator):
        batches.close()
