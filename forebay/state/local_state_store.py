# SPDX-License-Identifier: Apache-2.0
"""A state store in a local directory, or in a directory that machines share."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from forebay.errors import ConfigurationError, ForebayError, RetriableError
from forebay.state.local_files import open_regular, put_if_absent
from forebay.state.state_store import STREAM, Purpose, checked_name, checked_prefix
from forebay.stores.local import store_error
from forebay.stores.paths import LOCAL

_PASSING: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN)
"""Errors of a disk or mount that can pass in seconds: it is full, or read-only while its server fails over."""
_ABANDONED: Final = 3600.0  # seconds after which the writer of an unfinished file is taken for killed


class LocalStateStore:
    """Stores each fact in a file, written atomically by a hard link. Implements `StateStore`.

    The location is a path or a `file:` URL; the directory is created with the first fact. Errors name the purpose.
    """

    def __init__(self, location: str, purpose: Purpose = STREAM) -> None:
        self.location = location
        self._purpose = purpose
        self._root = Path(LOCAL.sub("", location, count=1)).absolute()

    def local_path(self, name: str) -> Path:
        """Return the path of a fact; see `StateStore.local_path`. A link out of the location is refused."""
        path = self._root / checked_name(name, self.location, self._purpose)
        self._refuse_links(path.parent)
        return path

    def _refuse_links(self, directory: Path) -> None:
        """Refuse a directory below the location that is reached by a link out of it; others may write to the state."""
        path, root = str(directory), str(self._root)
        while len(path) > len(root) and not os.path.islink(path):
            path = os.path.dirname(path)
        if path == root:
            return
        if not Path(os.path.realpath(directory)).is_relative_to(os.path.realpath(root)):
            raise ConfigurationError(
                f"{str(directory)!r} is reached by a link that leads out of the state below {self.location!r}",
                option=self._purpose.option,
                advice="replace the link by the directory; only the whole location may be a link",
            )

    def get(self, name: str) -> bytes | None:
        """Return a fact, or None; see `StateStore.get`."""
        path = self.local_path(name)
        with self._wrap_errors(path, "read"):
            try:
                handle = open_regular(path)
            except FileNotFoundError:
                return None
            with open(handle, "rb") as file:
                return file.read()

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write a fact unless it exists; see `StateStore.put_if_absent`."""
        path = self.local_path(name)
        with self._wrap_errors(path, "write"):
            return put_if_absent(str(path), data)

    def names(self, prefix: str) -> list[str]:
        """Return the names below a prefix, without unfinished files and links; see `StateStore.names`."""
        return self._listed(prefix, lambda entry: entry.is_file(follow_symlinks=False))

    def directories(self, prefix: str) -> list[str]:
        """Return the directories below a prefix; see `StateStore.directories`."""
        return [f"{name}/" for name in self._listed(prefix, lambda entry: entry.is_dir(follow_symlinks=False))]

    def _listed(self, prefix: str, accepts: Callable[[os.DirEntry[str]], bool]) -> list[str]:
        directory = self._root / checked_prefix(prefix, self.location, self._purpose)
        self._refuse_links(directory)
        with self._wrap_errors(directory, "list"):
            try:
                with os.scandir(directory) as entries:
                    names = [entry.name for entry in entries if accepts(entry) and not entry.name.startswith(".")]
            except FileNotFoundError:
                return []
        return sorted(prefix + name for name in names)

    def delete(self, names: Iterable[str]) -> None:
        """Delete facts, and directories that become empty.

        A write to such a directory at the same moment raises a RetriableError.
        """
        directories: set[Path] = set()
        for path in [self.local_path(name) for name in names]:
            with self._wrap_errors(path, "delete"), suppress(FileNotFoundError):
                path.unlink()
            directories.update(parent for parent in path.parents if self._root in parent.parents)
        for directory in sorted(directories, key=lambda path: -len(path.parts)):
            with suppress(OSError):  # not empty, or gone already: either is as it should be
                _sweep(directory)
                directory.rmdir()

    @contextmanager
    def _wrap_errors(self, path: Path, doing: str) -> Iterator[None]:
        """Convert errors in a `with` block to ForebayErrors that name the option of the location."""
        try:
            yield
        except OSError as error:
            raise self._state_error(error, store_error(error, str(path), doing)) from error
        except ForebayError as error:
            raise self._state_error(error.__cause__, error) from error

    def _state_error(self, cause: BaseException | None, error: ForebayError) -> ForebayError:
        error.option = self._purpose.option
        if isinstance(cause, OSError) and cause.errno == errno.ENOTDIR:
            return ConfigurationError(
                f"{self.location!r} or one of its parents is not a directory",
                option=self._purpose.option,
                advice="give a directory; it is created if it does not exist",
            )
        if not isinstance(cause, OSError) or cause.errno not in _PASSING:
            return error
        return RetriableError(
            f"{self._purpose.what} could not be written below {self.location!r}: {cause.strerror}",
            option=self._purpose.option,
            advice=f"free some space, or mount the disk for writing, and {self._purpose.again}",
        )


def _sweep(directory: Path) -> None:
    """Remove the unfinished files of killed writers from a directory."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(".") and time.time() - entry.stat().st_mtime > _ABANDONED:
                Path(entry.path).unlink()
