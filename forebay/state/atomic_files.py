# SPDX-License-Identifier: Apache-2.0
"""Writes local files atomically, and only if they do not exist."""

from __future__ import annotations

import errno
import os
import uuid
from contextlib import suppress
from pathlib import Path

from forebay.stores.local import wrap_errors

_TEMPORARY = ".tmp"
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


def put_if_absent(path: str, data: bytes, *, without_links: bool = False) -> bool:
    """Write a file unless it exists; return whether this call wrote it. For any thread.

    Of several writers on any machines exactly one succeeds: a hard link to a complete temporary file makes the name
    appear with all of its content. `without_links` allows a file system without hard links, on which two simultaneous
    writers may both succeed.

    Raises:
        ConfigurationError: The permission to write there is missing, or the file system has no hard links.
        RetriableError: The write failed.
    """
    with wrap_errors(path, "write"):
        temporary = _write_beside(Path(path), data)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError as error:
            if not without_links or error.errno not in _NO_LINKS:
                raise
            if Path(path).exists():
                return False
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        _sync_directory(temporary.parent)
    return True


def remove_unfinished(directory: Path, prefix: str) -> None:
    """Remove the temporary files of killed writers; the caller must be the only writer of files with this prefix.

    Raises:
        ConfigurationError: The permission to write there is missing.
        RetriableError: The directory could not be read or written.
    """
    with wrap_errors(str(directory), "write"):
        for entry in list(directory.iterdir()):
            if entry.name.startswith(f".{prefix}") and entry.suffix == _TEMPORARY:
                entry.unlink(missing_ok=True)


def _write_beside(path: Path, data: bytes) -> Path:
    make_directory(path.parent)
    temporary = path.parent / f".{path.name[:64]}.{uuid.uuid4().hex}{_TEMPORARY}"
    try:
        with temporary.open("xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
    except BaseException:  # cleaned up also when interrupted, and raised again
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def make_directory(directory: Path) -> None:
    """Create a directory and its missing parents; flush the entry of each to disk. For any thread."""
    if directory.is_dir():
        return
    make_directory(directory.parent)
    with suppress(FileExistsError):
        directory.mkdir()
    _sync_directory(directory.parent)


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
