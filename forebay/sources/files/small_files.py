# SPDX-License-Identifier: Apache-2.0
"""Small files of a task: requested in advance, and parsed together, as starting a parser costs more than the rows."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import BinaryIO, Final, NamedTuple

import pyarrow as pa

from forebay.errors import ForebayError
from forebay.formats.base import FileFormat
from forebay.framework.arrow.casting import slices_within
from forebay.framework.runtime.host_options import HostOptions
from forebay.sources.files.split import FileSplit
from forebay.stores.file_status import FileStatus
from forebay.stores.paths import is_s3
from forebay.stores.stored_file import FileOpenedAhead, StoredFile

# -- Requests the next small files of a task in advance, so that it does not wait a round trip for each file.


AHEAD: Final = 8
"""Maximum number of files requested ahead of the current file. Each takes at most 1 MB (`S3Store.open_ahead`).

At 20 ms per request and 3 ms of work per file, seven requests run at the same time.
"""


class SmallFiles:
    """The next small files of one split reader, requested in advance. For one thread at a time.

    Args:
        stored: A function that returns a listed file with the settings of its store.
    """

    def __init__(self, stored: Callable[[FileStatus], StoredFile]) -> None:
        self._stored = stored
        self._opened: dict[str, FileOpenedAhead] = {}

    def request(self, waiting: Iterable[FileSplit]) -> None:
        """Request the small S3 files among the first `AHEAD` splits of `waiting`. Does not block."""
        for split in islice(waiting, AHEAD):
            if split.id in self._opened or not is_s3(split.path):
                continue
            if (opened := self._stored(split.status).open_ahead()) is not None:
                self._opened[split.id] = opened

    def take(self, split: FileSplit) -> StoredFile:
        """Return the file of the split that is read next: as requested in advance, or else not opened yet."""
        return self._opened.pop(split.id, None) or self._stored(split.status)

    def close(self) -> None:
        """Cancel the requests of files that were not read."""
        for opened in self._opened.values():
            opened.close()
        self._opened.clear()


SMALL_BYTES: Final = 64 << 10
"""Maximum bytes of a file that is parsed together with others."""
_MOST_FILES: Final = 32
"""Maximum number of files parsed together. More save little time, and delay the first rows of an object store."""
_MOST_BYTES: Final = 1 << 20
"""Maximum bytes of the files that are parsed together."""
_BACK_OFF_FILES: Final = 1_000
"""Number of files read alone after a joint read has failed, because it would probably fail for them too."""


class FileRows(NamedTuple):
    """The rows of one file that was read together with others; `batch` is None if the file has no rows."""

    split: FileSplit
    batch: pa.RecordBatch | None


@dataclass(frozen=True)
class FileInMemory(StoredFile):
    """A listed file whose whole content is in memory."""

    content: bytes = b""

    @property
    def size(self) -> int:
        """The size of the content in bytes."""
        return len(self.content)

    def open(self) -> BinaryIO:
        """Return a stream of the content."""
        return io.BytesIO(self.content)


@dataclass(frozen=True)
class FailedFile(StoredFile):
    """A listed file that could not be read. The first `open` raises the error; later ones open the file again."""

    errors: list[ForebayError] = field(default_factory=list, repr=False, compare=False)

    def open(self) -> BinaryIO:
        """Raise the stored error at the first call; open the file at later calls."""
        if self.errors:
            raise self.errors.pop()
        return super().open()


class JoinedFiles:
    """Reads small files of one split reader together, if their format can join them. Used on its fetcher thread.

    If a joint read is not safe or fails, the caller gets each file by `take` and reads it alone, so an error names one
    file.

    Args:
        small_files: Opens the files, and requests the next ones in advance.
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
        """Read the next files together, and remove their splits from `waiting`.

        Args:
            waiting: The splits to read.
            file_format: The file format that reads the files.
            columns: A function that returns for a split the schema of its file, and the schema of the columns to read.

        Returns:
            The rows of each file; an empty list if the caller must read the next file alone.
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
        file_rows, at = [], 0
        for split, count in zip(group, rows, strict=False):
            waiting.popleft()
            del self._loaded[split.id]
            file_rows.append(FileRows(split, batch.slice(at, count) if count else None))
            at += count
        return file_rows

    def take(self, split: FileSplit) -> StoredFile:
        """Return the file of a split, which the caller then reads alone."""
        self._alone = max(0, self._alone - 1)
        return self._loaded.pop(split.id, None) or self._small_files.take(split)

    def _group(self, waiting: deque[FileSplit], file_format: FileFormat) -> list[FileSplit]:
        """Return the next splits that can be read together: whole small files with the same columns."""
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
        """Read the files of the group into memory, up to the first file that cannot be read as it was listed.

        The error of that file is raised when the file is read alone, after the rows of the files before it.
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
        self, files: Sequence[FileInMemory], file_format: FileFormat, data: pa.Schema, projected: pa.Schema
    ) -> tuple[pa.RecordBatch | None, Sequence[int]]:
        """Return the rows of all files, and the number of rows of each file; None if each file must be read alone."""
        joined = file_format.join([file.content for file in files])
        if joined is None:
            return None, []
        together = FileInMemory(files[0].status, files[0].storage, content=joined.content)
        try:
            batches = [batch for batch, _ in file_format.read(together, data, columns=projected.names)]
        except ForebayError:
            batches = []
        if sum(batch.num_rows for batch in batches) != sum(joined.rows):
            self._alone = _BACK_OFF_FILES
            return None, []
        if not batches:
            return pa.RecordBatch.from_pylist([], schema=projected), joined.rows
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
