# SPDX-License-Identifier: Apache-2.0
"""The protocol of a store: what a listing asks of a tree of files."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO, NamedTuple, Protocol

from forebay.stores.file_status import FileStatus


class Directory(NamedTuple):
    """A directory found under this path."""

    path: str


class Children(NamedTuple):
    """What lies directly in a directory."""

    directories: list[str]
    files: list[FileStatus]


class Store(Protocol):
    """A tree of files. Used by one thread at a time; made for each listing, so that nothing in it can be stale."""

    @property
    def keeps_empty_directories(self) -> bool:
        """Whether a directory is there without files too; in an object store it comes and goes with them."""

    @property
    def paths_are_keys(self) -> bool:
        """Whether `a//b`, `a/./b` and `a/b` are three files, as in an object store."""

    def stat(self, path: str) -> FileStatus | Directory | None:
        """What the path is now; None if there is nothing.

        Raises:
            ConfigurationError: No permission, or neither a file nor a directory.
            RetriableError: The store did not answer.
        """

    def children(self, path: str, keep: Callable[[str], bool]) -> Children | None:
        """What lies directly in a directory; None if the directory is not there.

        Args:
            path: A directory that `stat` or `children` has named.
            keep: Told each name; what it declines is not looked at any further.

        Raises:
            ConfigurationError: No permission, a broken or circular link, or a name that is no text.
            RetriableError: The store did not answer, or an entry went away meanwhile.
        """

    def prefetch(self, path: str) -> None:
        """Told once before a walk below a directory: a store that can list a whole tree at once may do it here.

        Raises:
            ConfigurationError: No permission.
            RetriableError: The store did not answer.
        """

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading, seekable.

        Raises:
            FileNotFoundError: The file is gone.
            ConfigurationError: No permission.
            RetriableError: The store did not answer.
        """

    def delete(self, file: FileStatus) -> bool:
        """Delete a file that was read, and, as far as the store can tell, no newer one that came under its name.

        Returns:
            Whether it was deleted; False: it is gone already, or another one is there and stays.

        Raises:
            ConfigurationError: No permission.
            RetriableError: The store did not answer.
        """

    def move(self, file: FileStatus, target: str) -> bool:
        """Give such a file another path in this store, whose directories are made; a file that is there is replaced.

        Returns:
            As `delete`.

        Raises:
            ConfigurationError: No permission, or the store cannot do it.
            RetriableError: The store did not answer.
        """
