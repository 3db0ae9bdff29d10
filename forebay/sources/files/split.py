# SPDX-License-Identifier: Apache-2.0
"""The split of the file source: one version of one file."""

from __future__ import annotations

from typing import Self

from forebay.framework.split import Position, Split
from forebay.stores.file_status import FileStatus

Partitions = tuple[tuple[str, str], ...]

_VERSION = "//@"  # listings never put two slashes in a row into the path of a local file


class FileSplit(Split):
    """One version of a file, as it was listed.

    The file format defines the position: a byte offset or a row index. Inside a parsed block, the position is a pair:
    the byte offset of the block, and the number of its rows that have been read.

    Args:
        size: Bytes of the whole file.
        modified_at: Time of the last change in nanoseconds since 1970; 0 if the store does not report it.
        etag: The store's text for the version of the content; None if the store has no versions.
        partitions: Names and raw directory values of the partition columns, outermost first.
        weight: Estimated bytes of a slice; None for the whole file.
        block: Start and length of a slice in bytes, for `_metadata`; None if `_metadata` is not read.
        mark: The version at the end of the split id; None for the first version that a stream read.
        clean: True if `cleanSource` was on when a stream began to read the file.
    """

    size: int
    modified_at: int
    etag: str | None = None
    partitions: Partitions = ()
    weight: int | None = None
    block: tuple[int, int] | None = None
    mark: str | None = None
    clean: bool | None = None

    @classmethod
    def of(cls, file: FileStatus, partitions: Partitions, *, split_id: str | None = None, clean: bool = False) -> Self:
        """Return the split that reads a listed file from its start."""
        return cls(
            file.path if split_id is None else split_id,
            0,
            size=file.size,
            modified_at=file.modified_at,
            etag=file.etag,
            partitions=partitions,
            mark=None if split_id in (None, file.path) else version_mark(file),
            clean=clean or None,
        )

    @property
    def path(self) -> str:
        """The path of the file."""
        return self.id if self.mark is None else self.id.removesuffix(_VERSION + self.mark)

    @property
    def status(self) -> FileStatus:
        """The file as it was listed."""
        return FileStatus(self.path, self.size, self.modified_at, self.etag)


def offset_and_rows(position: Position | None) -> tuple[int, int]:
    """Split a position of a `FileSplit` into the file format's position and the number of rows read after it."""
    match position:
        case int():
            return position, 0
        case (int(offset), int(rows)):
            return offset, rows
        case _:
            return 0, 0


def version_mark(status: FileStatus) -> str:
    """Return the text that distinguishes this version of a file from its other versions."""
    return f"{status.modified_at}-{status.size}" if status.etag is None else status.etag


def version_id(status: FileStatus) -> str:
    """Return the split id of a later version of a file, after the stream read its first version."""
    return f"{status.path}{_VERSION}{version_mark(status)}"


def path_of(split_id: str) -> str:
    """Return the path of the file from a split id."""
    return split_id.split(_VERSION, 1)[0]
