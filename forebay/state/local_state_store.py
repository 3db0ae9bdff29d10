# SPDX-License-Identifier: Apache-2.0
"""Small durable facts in a directory: files that are written by link, once."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from forebay.errors import ConfigurationError, ForebayError, RetriableError
from forebay.state.atomic_files import put_if_absent
from forebay.state.state_store import OPTION
from forebay.stores.local import translated

_FILE = re.compile(r"(?:file|local):(?://(?:localhost)?(?=/))?", re.IGNORECASE)
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_ABANDONED: Final = 3600.0  # seconds after which a file still being written is that of a process that was killed


class LocalStateStore:
    """Facts are files, written by link; the directory may be shared by machines.

    Args:
        location: The directory, as a path or a `file:` URL; made when the first fact is written.
    """

    def __init__(self, location: str) -> None:
        self.location = location
        self._root = Path(_FILE.sub("", location, count=1)).absolute()

    def get(self, name: str) -> bytes | None:
        """Read a file."""
        path = self._root / name
        with self._explained(path, "read"):
            try:
                return path.read_bytes()
            except FileNotFoundError:
                return None

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write a file beside, and link it to its name."""
        path = self._root / name
        with self._explained(path, "write"):
            return put_if_absent(str(path), data)

    def names(self, prefix: str) -> list[str]:
        """List a directory; files still being written are not facts."""
        directory = self._root / prefix
        with self._explained(directory, "list"):
            try:
                with os.scandir(directory) as entries:
                    found = [entry.name for entry in entries if entry.is_file() and not entry.name.startswith(".")]
            except FileNotFoundError:
                return []
        return sorted(prefix + name for name in found)

    def delete(self, names: Iterable[str]) -> None:
        """Unlink files, and the directories that they leave empty.

        Who writes into a directory at the moment it goes finds it missing, which is retriable.
        """
        directories: set[Path] = set()
        for name in names:
            path = self._root / name
            with self._explained(path, "delete"), suppress(FileNotFoundError):
                path.unlink()
            directories.update(parent for parent in path.parents if self._root in parent.parents)
        for directory in sorted(directories, key=lambda path: -len(path.parts)):
            with suppress(OSError):  # not empty, or gone already: either is as it should be
                _sweep(directory)
                directory.rmdir()

    @contextmanager
    def _explained(self, path: Path, doing: str) -> Iterator[None]:
        """Raise an error of ours that names the option."""
        try:
            yield
        except OSError as error:
            raise self._error(error, translated(error, str(path), doing)) from error
        except ForebayError as error:
            raise self._error(error.__cause__, error) from error

    def _error(self, cause: BaseException | None, error: ForebayError) -> ForebayError:
        error.option = OPTION
        if isinstance(cause, OSError) and cause.errno == errno.ENOTDIR:
            return ConfigurationError(
                f"{self.location!r} is no directory, or lies below something that is none",
                option=OPTION,
                advice="give a directory, which is made if it is not there",
            )
        if not isinstance(cause, OSError) or cause.errno not in _FULL:
            return error
        return RetriableError(
            f"there is no room left for what the stream remembers: {cause.strerror}, writing below {self.location!r}",
            option=OPTION,
            advice="make room there and start the query again: it goes on where it stands; to move it, copy the "
            "directory and give its new place",
        )


def _sweep(directory: Path) -> None:
    """Remove what writers that were killed long ago left behind."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(".") and time.time() - entry.stat().st_mtime > _ABANDONED:
                Path(entry.path).unlink()
