# SPDX-License-Identifier: Apache-2.0
"""The protocol of a store: how listings and readers access a tree of files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import BinaryIO, NamedTuple, Protocol

from forebay.stores.file_status import FileStatus


class Directory(NamedTuple):
    """A directory with this path."""

    path: str


class Children(NamedTuple):
    """The entries of a directory."""

    directories: list[str]
    files: list[FileStatus]


class Store(Protocol):
    """A tree of files, used by one thread at a time. Each listing creates its own, so that no cache is stale.

    All methods raise ConfigurationError if a permission is missing or the store lacks the operation, and RetriableError
    if the store does not answer.
    """

    @property
    def keeps_empty_directories(self) -> bool:
        """Whether a directory may be empty; in an object store it exists only with its files."""

    @property
    def paths_are_keys(self) -> bool:
        """Whether `a//b`, `a/./b` and `a/b` are three files, as in an object store."""

    def stat(self, path: str) -> FileStatus | Directory | None:
        """The file or directory at a path; None if nothing is there. Refuses anything else, such as a pipe."""

    def children(self, path: str, keep: Callable[[str], bool]) -> Children | None:
        """The entries of a directory; None if it does not exist.

        Skips entries whose name `keep` rejects. Refuses a broken or circular link and a name that is not UTF-8. An
        entry that vanishes meanwhile raises RetriableError.
        """

    def walk(self, path: str, keep: Callable[[str], bool]) -> Sequence[FileStatus] | None:
        """All files below a directory, at any depth, if the store lists a tree at once; None if `children` must do it.

        Skips files and directories whose name `keep` rejects, except the names "", "." and "..", which only keys have.
        """

    def open(self, path: str, file: FileStatus | None = None, read_to: int | None = None) -> BinaryIO:
        """Open a file for reading, seekable.

        Args:
            path: The file.
            file: Its status when it was listed, if known. A store that pins it reads no other version.
            read_to: Where the caller expects to stop: nothing is fetched ahead from there on.

        Raises:
            FileNotFoundError: There is no such file, and `file` was not given.
        """

    def pins(self, file: FileStatus) -> bool:
        """Whether each read of `file` fails once it is not the listed version, so that nothing is left to check."""

    def delete(self, file: FileStatus) -> bool:
        """Delete a file that was read, but not a newer file at its path if the store can tell them apart.

        Return whether it was deleted; False if it no longer exists or was replaced: a newer file is kept.
        """

    def move(self, file: FileStatus, target: str) -> bool:
        """Move such a file; create the target's directories and replace a file there. Return as `delete` does."""
