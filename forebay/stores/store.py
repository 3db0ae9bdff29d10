# SPDX-License-Identifier: Apache-2.0
"""The protocol of a store, by which listings and readers access a tree of files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import BinaryIO, NamedTuple, Protocol

from forebay.stores.file_status import FileStatus


class Directory(NamedTuple):
    """The path of a directory that `stat` found."""

    path: str


class Children(NamedTuple):
    """The entries directly in a directory: the paths of its directories, and its files."""

    directories: list[str]
    files: list[FileStatus]


class Store(Protocol):
    """A tree of files. Used by one thread at a time. Each listing creates a new store, so that no cache is stale.

    All methods raise ConfigurationError if a permission is missing or the store lacks the operation. They raise
    RetriableError if the store does not answer.
    """

    @property
    def keeps_empty_directories(self) -> bool:
        """Whether a directory may be empty.

        False for an object store, in which a directory exists only as long as it contains files.
        """

    @property
    def paths_are_keys(self) -> bool:
        """Whether `a//b`, `a/./b` and `a/b` are three files, as in an object store."""

    def stat(self, path: str) -> FileStatus | Directory | None:
        """Return the file or directory at a path; None if nothing is there. Anything else raises ConfigurationError."""

    def children(self, path: str, keep: Callable[[str], bool]) -> Children | None:
        """Return the entries of a directory; None if it does not exist.

        Skips entries whose name `keep` rejects. A broken or circular link, and a name that is not UTF-8, raise
        ConfigurationError. An entry that disappears during the call raises RetriableError.
        """

    def walk(self, path: str, keep: Callable[[str], bool], after: str = "") -> Sequence[FileStatus] | None:
        """Return all files below a directory, at any depth; None if the store can only list with `children`.

        With `after`, return only files whose key sorts after it. Callers pass `after` only for S3.

        Skips files and directories whose name `keep` rejects, except the names "", "." and "..", which only keys have.
        """

    def open(self, path: str, file: FileStatus | None = None, read_to: int | None = None) -> BinaryIO:
        """Open a file for reading, seekable.

        Args:
            path: The file.
            file: The status of the file when it was listed, if known. A store that pins versions reads only the version
                of this status.
            read_to: The byte at which the caller expects to stop. Bytes from there on are not fetched ahead.

        Raises:
            FileNotFoundError: There is no such file, and `file` was not given.
        """

    def pins(self, file: FileStatus) -> bool:
        """Return whether the store pins `file`: each read fails if the file is no longer the listed version."""

    def delete(self, file: FileStatus) -> bool:
        """Delete a file that was read. A newer file at its path is kept, if the store can tell the two apart.

        Return whether the file was deleted; False if it no longer exists or was replaced.
        """

    def move(self, file: FileStatus, target: str) -> bool:
        """Move a file that was read to `target`: create the target's directories, and replace a file at the target.

        A newer file at the file's path is kept, as in `delete`. Return whether the file was moved.
        """
