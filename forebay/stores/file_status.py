# SPDX-License-Identifier: Apache-2.0
"""The status of a listed file, and the forms of its path in Spark's `_metadata` column."""

from __future__ import annotations

import datetime as dt
import re
import unicodedata
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self, overload

from forebay.errors import DataError
from forebay.stores.paths import is_url, last_name

# -- The errors for a file that no longer exists, or that has changed since it was listed.


def changed(then: FileStatus | None, now: FileStatus, doing: str) -> str:
    """Return an error text: a file has changed since it was `doing`, which is "listed" or "read".

    `then` is its status at that time, or None if that is unknown.
    """
    if then is None:
        return f"the file {now.path!r} has changed since it was {doing} (now {_shown(now)})"
    return f"the file {then.path!r} has changed since it was {doing} (then {_shown(then)}; now {_shown(now)})"


def changed_error(then: FileStatus, now: FileStatus) -> DataError:
    """Return the error for a file that has changed since it was listed."""
    return DataError(
        changed(then, now, "listed"),
        advice="start the read again, and write new files instead of changing old ones; for a stream, which repeats a "
        "planned micro-batch, restore the old file, or have the micro-batch planned again (docs/operations.md)",
    )


def gone_error(path: str) -> DataError:
    """Return the error for a file that no longer exists, although it was listed."""
    return DataError(
        f"the file {path!r} was listed but no longer exists",
        advice="start the read again, or set ignoreMissingFiles=true to skip missing files; for a stream, which "
        "repeats a planned micro-batch, restore the file or set that option",
    )


def _shown(status: FileStatus) -> str:
    moment = dt.datetime.fromtimestamp(status.modified_at / 1e9, dt.UTC).isoformat() if status.modified_at else "?"
    etag = "" if status.etag is None else f", etag {status.etag}"
    return f"{status.size} bytes, modified {moment}{etag}"


GENERATION = "generation="
"""Prefix that marks an `etag` as an object's generation number on Google Cloud Storage."""

_NANOS_PER_MILLI = 1_000_000
_UNITS = (1_000_000_000, _NANOS_PER_MILLI, 1000, 1)
# The ASCII characters that java.net.URI does not escape in a path.
_URI_SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.!~*'():@&=+$,;/")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://([^/]*)(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FileStatus:
    """The status of a file when it was listed. Readers compare the file with it. Splits hold it; it has no secrets.

    Attributes:
        path: The full URL, or the plain absolute path of a local file.
        size: Bytes of the stored file, which may be compressed.
        modified_at: The time of the last change, in nanoseconds since 1970 UTC; 0 if the store does not report it.
        etag: The store's own version of the content (ETag, generation, version), or None. `etag` takes precedence over
            `modified_at`, because a store may report times in different precisions.
    """

    path: str
    size: int
    modified_at: int
    etag: str | None = None

    @property
    def name(self) -> str:
        """The last part of the path."""
        return last_name(self.path)

    @property
    def modified_ms(self) -> int:
        """The time of the last change, in milliseconds since 1970 UTC, rounded down as in Spark."""
        return self.modified_at // _NANOS_PER_MILLI

    @property
    def has_time(self) -> bool:
        """Whether the time of the last change is known. ZIP archives and Databricks' store report none."""
        return self.modified_at != 0 or not is_url(self.path)

    @property
    def has_version(self) -> bool:
        """Whether the time or the etag can distinguish this file from another version with the same path and size."""
        return self.has_time or self.etag is not None

    def same_file(self, now: FileStatus) -> bool:
        """Return whether `now` is the same version: equal size, and equal etag or, without two etags, equal time.

        Times are compared in the precision that both have: a listing of S3 may have milliseconds where the answer to
        HEAD has seconds. A generation number and an ETag are never compared with each other.
        """
        if self.size != now.size:
            return False
        if self.etag and now.etag and self.etag.startswith(GENERATION) == now.etag.startswith(GENERATION):
            return self.etag == now.etag
        if self.modified_at == now.modified_at:
            return True
        return is_url(self.path) and _same_moment(self.modified_at, now.modified_at)


def _same_moment(one: int, other: int) -> bool:
    """Return whether two different times, in nanoseconds, are equal in the precision of the less precise one."""
    if not one or not other:  # unknown
        return False
    unit = max(next(unit for unit in _UNITS if not moment % unit) for moment in (one, other))
    return one // unit == other // unit


def spark_file_path(path: str) -> str:
    """Return the value of Spark's `_metadata.file_path`: `file:/d/a%20b.csv`, `s3://b/x%23y`.

    Spark 4.2 writes `file:/` with one slash. Characters are escaped as by `java.net.URI`, which keeps letters of any
    script and emoji.
    """
    match = _URL.fullmatch(path)
    if match is None:
        return "file:" + _quote(path)
    scheme, authority, path_part = match.groups()
    return f"{scheme}://{authority}{_quote(path_part)}"


def spark_file_name(path: str) -> str:
    """Return the value of Spark's `_metadata.file_name`: the last part of `spark_file_path`."""
    return _quote(last_name(path))


def _quote(text: str) -> str:
    if text.isascii() and _URI_SAFE.issuperset(text):
        return text
    return "".join(char if _plain(char) else "".join(f"%{byte:02X}" for byte in char.encode()) for char in text)


def _plain(char: str) -> bool:
    if char < "\x80":
        return char in _URI_SAFE
    return unicodedata.category(char) not in ("Zs", "Zl", "Zp", "Cc")


# -- A table of very many listed files in little memory.


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
        encoded = text.encode()
        return any(encoded in chunk.texts for chunk in self._chunks)

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
