# SPDX-License-Identifier: Apache-2.0
"""Small durable facts of streams, in a directory: written once, by whoever is first, and never changed."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

from forebay.errors import ConfigurationError, ForebayError, RetriableError
from forebay.storage.durable import put_if_absent
from forebay.storage.local import translated
from forebay.storage.storage_options import NO_OPTIONS, StorageOptions

OPTION: Final = "stateLocation"
"""The option that errors of these stores name."""

_S3: Final = ("s3", "s3a", "s3n")
_LOCAL: Final = ("file", "local")
# One letter is no scheme, and neither is a colon behind a slash.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+):")
_FILE = re.compile(r"(?:file|local):(?://(?:localhost)?(?=/))?", re.IGNORECASE)
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_ABANDONED: Final = 3600.0  # seconds after which a file still being written is that of a process that was killed


class StateStore(Protocol):
    """Named facts below one location. Any thread, any number of processes and machines at once.

    Attributes:
        location: The directory or URL, as the user gave it.
    """

    location: str

    def get(self, name: str) -> bytes | None:
        """Return the fact of this name; None if there is none.

        Raises:
            ConfigurationError: No permission.
            RetriableError: The store did not answer.
        """

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write a fact, unless there is one of this name; of several writers at most one is told that it won.

        A writer whose first try was taken, but whose answer was lost on the way, is told that it did not: who has to
        know reads back what stands.

        Returns:
            Whether this call wrote it.

        Raises:
            ConfigurationError: No permission, or the store cannot do it.
            RetriableError: The store did not answer, or is full.
        """

    def names(self, prefix: str) -> list[str]:
        """Return the names directly below a prefix which ends in `/`, sorted; not those below another `/`.

        Raises:
            ConfigurationError: No permission.
            RetriableError: The store did not answer.
        """

    def delete(self, names: Iterable[str]) -> None:
        """Delete facts; those that are gone already do not matter.

        Raises:
            ConfigurationError: No permission.
            RetriableError: The store did not answer.
        """


def scheme_of(location: str) -> str:
    """Return the scheme of a location in small letters; `file` for a plain path. Any thread."""
    found = _SCHEME.match(location)
    return found[1].lower() if found else "file"


def can_keep_state(location: str) -> bool:
    """Whether durable state can be kept in such a place: only where put-if-absent is certain (S13). Any thread."""
    return scheme_of(location) in (*_LOCAL, *_S3)


def open_state_store(location: str, options: StorageOptions = NO_OPTIONS) -> StateStore:
    """Return the store of a location; looks at nothing outside yet.

    Called by the hosts when a query starts, and by tasks, on any thread.

    Args:
        location: A directory, as a path or a `file:` URL, or `s3://bucket/prefix`.
        options: For S3, `stateStorage.*`: `endpoint_url`, `key`, `secret`, `token`, `region`, `profile`; what is not
            there comes from boto3's own chain. A directory takes none.

    Raises:
        ConfigurationError: No such store can keep state, boto3 is not installed, or an option is unknown.
    """
    scheme = scheme_of(location)
    if not location.strip() or "\x00" in location:
        raise ConfigurationError(f"not a directory: {location!r}", option=OPTION, advice="give a path or an s3:// URL")
    if scheme in _S3:
        from forebay.storage.s3_state_store import S3StateStore

        return S3StateStore(location, options)
    if scheme not in _LOCAL:
        raise ConfigurationError(
            f"{scheme}: is no store for what a stream remembers: it has to write a file only if there is none, "
            f"and that is certain only in local directories and on S3",
            option=OPTION,
            advice="give a directory of this machine or of a file system mounted on all of them, or s3://bucket/prefix",
        )
    if options:
        raise ConfigurationError(
            f"the directory {location!r} takes no stateStorage options",
            option=f"stateStorage.{min(options)}",
            advice="leave stateStorage.* out, or give an s3:// URL as stateLocation",
        )
    return LocalStateStore(location)


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
