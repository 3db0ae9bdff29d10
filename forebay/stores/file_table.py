# SPDX-License-Identifier: Apache-2.0
"""A table of very many listed files in little memory."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Self, overload

from forebay.stores.file_status import FileStatus

_CHUNK = 1 << 16
"""Maximum number of files in one chunk. A single growing buffer would be copied again and again."""


class FileTable(Sequence[FileStatus]):
    """Listed files in columns: 32 bytes of memory each, plus path and etag. A list of `FileStatus` takes 3× as much.

    Each access makes a new `FileStatus`. Not thread-safe while it grows.
    """

    def __init__(self) -> None:
        self._chunks: list[_Chunk] = []
        self._starts: list[int] = []
        self._length = 0

    @classmethod
    def of(cls, files: Iterable[FileStatus]) -> Self:
        """Return a table of these files, in their order."""
        table = cls()
        for file in files:
            table.append(file.path, file.size, file.modified_at, file.etag)
        return table

    def append(self, path: str, size: int, modified_at: int, etag: str | None) -> None:
        """Add a file; the arguments are the fields of `FileStatus`."""
        if not self._chunks or len(self._chunks[-1].sizes) >= _CHUNK:
            self._starts.append(self._length)
            self._chunks.append(_Chunk())
        self._chunks[-1].append(path, size, modified_at, etag)
        self._length += 1

    def extend(self, other: FileTable) -> None:
        """Add the files of another table. That table must not grow afterwards, because both tables share its chunks."""
        self._starts.extend(self._length + start for start in other._starts)
        self._chunks.extend(other._chunks)
        self._length += len(other)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> FileStatus: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[FileStatus]: ...

    def __getitem__(self, index: int | slice) -> FileStatus | Sequence[FileStatus]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(self._length))]
        place = index + self._length if index < 0 else index
        if not 0 <= place < self._length:
            raise IndexError(index)
        chunk = bisect_right(self._starts, place) - 1
        return self._chunks[chunk].status(place - self._starts[chunk])

    def __iter__(self) -> Iterator[FileStatus]:
        for chunk in self._chunks:
            yield from map(chunk.status, range(len(chunk.sizes)))

    def paths(self) -> Iterator[str]:
        """Yield the path of each file, without creating a `FileStatus`."""
        for chunk in self._chunks:
            yield from map(chunk.path, range(len(chunk.sizes)))

    def sizes(self) -> Iterator[int]:
        """Yield the size of each file in bytes, without creating a `FileStatus`."""
        for chunk in self._chunks:
            yield from chunk.sizes

    def mentions(self, text: str) -> bool:
        """Return whether a path may contain a text. The check is fast, and may wrongly return True."""
        wanted = text.encode()
        return any(wanted in chunk.texts for chunk in self._chunks)

    def is_ascending(self) -> bool:
        """Return whether the paths are sorted, without duplicates."""
        return all(one < other for one, other in pairwise(self.paths()))

    def select(self, places: Sequence[int]) -> FileTable:
        """Return a table of the files at these ascending indexes; this table itself if they are all of its files."""
        return self if len(places) == self._length else FileTable.of(self[place] for place in places)


class _Chunk:
    """The columns of some files. For each file, `ends` has the end of its path and the end of its etag in `texts`."""

    __slots__ = ("ends", "sizes", "texts", "times")

    def __init__(self) -> None:
        self.texts = bytearray()
        self.ends = array("Q", [0])
        self.sizes = array("q")
        self.times = array("q")

    def append(self, path: str, size: int, modified_at: int, etag: str | None) -> None:
        self.texts += path.encode()
        self.ends.append(len(self.texts))
        if etag:
            self.texts += etag.encode()
        self.ends.append(len(self.texts))
        self.sizes.append(size)
        self.times.append(modified_at)

    def path(self, place: int) -> str:
        return self.texts[self.ends[2 * place] : self.ends[2 * place + 1]].decode()

    def status(self, place: int) -> FileStatus:
        start, middle, end = self.ends[2 * place : 2 * place + 3]
        path, etag = self.texts[start:middle].decode(), self.texts[middle:end].decode() or None
        return FileStatus(path, self.sizes[place], self.times[place], etag)


def paths_of(files: Sequence[FileStatus]) -> Iterator[str]:
    """Yield the paths of files, without creating a `FileStatus` for each."""
    return files.paths() if isinstance(files, FileTable) else (file.path for file in files)


def sizes_of(files: Sequence[FileStatus]) -> Iterator[int]:
    """Yield the sizes of files, without creating a `FileStatus` for each."""
    return files.sizes() if isinstance(files, FileTable) else (file.size for file in files)
