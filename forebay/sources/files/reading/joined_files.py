# SPDX-License-Identifier: Apache-2.0
"""Parses the small files of a task together: to parse each one alone costs more than its rows."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import BinaryIO, Final, NamedTuple

import pyarrow as pa

from forebay.errors import ForebayError
from forebay.formats.base import FileFormat
from forebay.framework.arrow.batch_slices import slices_within
from forebay.framework.runtime.host_options import HostOptions
from forebay.sources.files.small_files import SmallFiles
from forebay.sources.files.split import FileSplit
from forebay.stores.stored_file import StoredFile

SMALL_BYTES: Final = 64 << 10
"""Largest file that is parsed with others."""
_MOST_FILES: Final = 32
"""Files parsed together. More save little, and the first rows of an object store would come later."""
_MOST_BYTES: Final = 1 << 20
"""Bytes parsed together."""
_BACK_OFF_FILES: Final = 1_000
"""Files that are read alone after a read of several was in vain, because they are likely to have the same fault."""


class FileRows(NamedTuple):
    """The rows of one file that was read together with others; None if it has none."""

    split: FileSplit
    batch: pa.RecordBatch | None


@dataclass(frozen=True)
class FileInMemory(StoredFile):
    """A listed file of which the whole content has been read."""

    content: bytes = b""

    @property
    def size(self) -> int:
        """Bytes of the content."""
        return len(self.content)

    def open(self) -> BinaryIO:
        """Return a stream of the content."""
        return io.BytesIO(self.content)


@dataclass(frozen=True)
class FailedFile(StoredFile):
    """A listed file that could not be read. The first `open` raises the error; later ones open the file again."""

    errors: list[ForebayError] = field(default_factory=list, repr=False, compare=False)

    def open(self) -> BinaryIO:
        """See `StoredFile.open`."""
        if self.errors:
            raise self.errors.pop()
        return super().open()


class JoinedFiles:
    """Reads small files of one split reader together, if their format can join them. Used on its fetcher thread.

    If that is not safe, or fails, `take` gives each file to the caller, who reads it alone. So errors name one file.

    Args:
        small_files: Where the files come from.
        options: Row and byte limits of a record batch.
    """

    def __init__(self, small_files: SmallFiles, options: HostOptions) -> None:
        self._small_files = small_files
        self._options = options
        self._loaded: dict[str, FileInMemory | FailedFile] = {}
        self._alone = 0

    def read(
        self, waiting: deque[FileSplit], file_format: FileFormat, columns: Callable[[FileSplit], Sequence[pa.Schema]]
    ) -> list[FileRows]:
        """Read the next files together and remove their splits from `waiting`; return [] if the next one is read alone.

        Args:
            waiting: The splits to read.
            file_format: Reads the files.
            columns: Returns the schema of the data in the file of a split, and the columns to read.
        """
        if self._alone or type(file_format).join is FileFormat.join:
            return []
        group = self._group(waiting, file_format)
        if len(group) < 2 or not len(columns(group[0])[1]):
            return []
        files = self._load(group, waiting)
        batch, rows = self._parsed(files, file_format, *columns(group[0])) if len(files) > 1 else (None, [])
        if batch is None:
            self._alone = max(self._alone, len(files), 1)
            return []
        found, at = [], 0
        for split, count in zip(group, rows, strict=False):
            waiting.popleft()
            del self._loaded[split.id]
            found.append(FileRows(split, batch.slice(at, count) if count else None))
            at += count
        return found

    def take(self, split: FileSplit) -> StoredFile:
        """Return the file of a split that the caller reads alone."""
        self._alone = max(0, self._alone - 1)
        return self._loaded.pop(split.id, None) or self._small_files.take(split)

    def _group(self, waiting: deque[FileSplit], file_format: FileFormat) -> list[FileSplit]:
        """Return the next splits that are whole small files with the same columns."""
        group: list[FileSplit] = []
        size = 0
        for split in waiting:
            size += split.size
            whole = split.position in (None, 0) and split.end in (None, split.size)
            if not whole or split.size > SMALL_BYTES or len(group) == _MOST_FILES or (group and size > _MOST_BYTES):
                break
            if group and [name for name, _ in split.partitions] != [name for name, _ in group[0].partitions]:
                break
            if not file_format.sliceable(StoredFile(split.status)):
                break
            group.append(split)
        return group

    def _load(self, group: Sequence[FileSplit], waiting: deque[FileSplit]) -> list[FileInMemory]:
        """Return the files of the group up to the first one that cannot be read as it was listed.

        Its error is raised when it is read alone, after the rows of the files before it.
        """
        files: list[FileInMemory] = []
        for number, split in enumerate(group):
            if split.id not in self._loaded:
                stored = self._small_files.take(split)
                self._small_files.request(islice(waiting, number + 1, None))
                self._loaded[split.id] = _read_whole(stored)
            file = self._loaded[split.id]
            if isinstance(file, FailedFile):
                break
            files.append(file)
        return files

    def _parsed(
        self, files: Sequence[FileInMemory], file_format: FileFormat, data: pa.Schema, wanted: pa.Schema
    ) -> tuple[pa.RecordBatch | None, Sequence[int]]:
        """Return the rows of all files and the number of rows of each; None if each file must be read alone."""
        joined = file_format.join([file.content for file in files])
        if joined is None:
            return None, []
        together = FileInMemory(files[0].status, files[0].storage, content=joined.content)
        try:
            batches = [batch for batch, _ in file_format.read(together, data, columns=wanted.names)]
        except ForebayError:
            batches = []
        if sum(batch.num_rows for batch in batches) != sum(joined.rows):
            self._alone = _BACK_OFF_FILES
            return None, []
        if not batches:
            return pa.RecordBatch.from_pylist([], schema=wanted), joined.rows
        (batch,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
        limits = self._options
        parts = slices_within(batch, max_rows=limits.max_rows_per_batch, max_bytes=limits.max_bytes_per_batch)
        if len(list(parts)) > 1:
            self._alone = _BACK_OFF_FILES
            return None, []
        return batch, joined.rows


def _read_whole(stored: StoredFile) -> FileInMemory | FailedFile:
    try:
        with stored.open() as stream:
            content = stream.read()
        stored.verify_read()
    except ForebayError as error:
        return FailedFile(stored.status, stored.storage, errors=[error])
    return FileInMemory(stored.status, stored.storage, content=content)
