# SPDX-License-Identifier: Apache-2.0
"""The split of the file source: one version of one file."""

from __future__ import annotations

from forebay.framework.split import Position, Split
from forebay.stores.file_status import FileStatus

_VERSION = "//@"  # no path that a listing makes of a local file has two slashes in a row


class FileSplit(Split):
    """One file, as it was listed.

    The position is what its format says: a byte offset, or a row index. Where a byte offset has several rows after it
    that were parsed together, a position between them is the pair of the offset and the number of rows.

    Args:
        size: Bytes of the whole file.
        modified_at: Nanoseconds since 1970 of the last change; 0 where the store does not say.
        etag: The store's own mark of the content, if it has one.
        partitions: Names and raw texts of the partition columns, outermost first.
        weight: Estimated bytes of a slice; None for the whole file.
        block: First byte and length of a slice as `_metadata` shows them; None where nothing shows them.
        mark: What the id has behind the path, where a stream has read an earlier version of the file.
        clean: It may be deleted or archived once it is read: `cleanSource` was on when it was begun. None = no.
    """

    size: int
    modified_at: int
    etag: str | None = None
    partitions: tuple[tuple[str, str], ...] = ()
    weight: int | None = None
    block: tuple[int, int] | None = None
    mark: str | None = None
    clean: bool | None = None

    @property
    def path(self) -> str:
        """The path of the file: the id, but for the mark of a later version."""
        return self.id if self.mark is None else self.id.removesuffix(_VERSION + self.mark)

    @property
    def status(self) -> FileStatus:
        """The file as it was listed: what a reader checks it against."""
        return FileStatus(self.path, self.size, self.modified_at, self.etag)


def place_of(position: Position | None) -> tuple[int, int]:
    """Return the position of the format that a split's position is based on, and the number of rows after it."""
    match position:
        case int():
            return position, 0
        case (int(before), int(rows)):
            return before, rows
        case _:
            return 0, 0


def version_mark(status: FileStatus) -> str:
    """Return what tells one version of a file from another."""
    return f"{status.modified_at}-{status.size}" if status.etag is None else status.etag


def version_id(status: FileStatus) -> str:
    """Return the id of a version of a file that is not the first one read."""
    return f"{status.path}{_VERSION}{version_mark(status)}"


def is_version_id(split_id: str) -> bool:
    """Whether an id is that of a version that is not the first one."""
    return _VERSION in split_id


def path_of(split_id: str) -> str:
    """Return the path that an id begins with."""
    return split_id.split(_VERSION, 1)[0]
