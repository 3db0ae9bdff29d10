# SPDX-License-Identifier: Apache-2.0
"""Small durable facts on the local file system: written whole or not at all, and only if nobody was first."""

from __future__ import annotations

import errno
import os
import uuid
from contextlib import suppress
from pathlib import Path

from forebay.stores.local import translated

_TEMPORARY = ".tmp"
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


def put_if_absent(path: str, data: bytes, *, without_links: bool = False) -> bool:
    """Write a file unless there is one; of several writers exactly one wins, on any number of machines.

    Called for claims and segments of streaming state, and for checkpoints, on any thread. A link to a finished
    temporary file makes the name appear at once, with all of its content.

    Args:
        path: The file.
        data: Its content.
        without_links: On a file system without hard links, write the file all the same. Of two writers at the same
            moment both may then be told that they won.

    Returns:
        Whether this call wrote the file.

    Raises:
        ConfigurationError: No permission to write there, or the file system has no hard links.
        RetriableError: The disk did not take it.
    """
    try:
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
    except OSError as error:
        raise translated(error, path, "write") from error
    return True


def remove_unfinished(directory: Path, prefix: str) -> None:
    """Remove the temporary files that killed writers left. Called when nobody else writes to files of this prefix.

    Args:
        directory: Where the files are.
        prefix: How their names begin.

    Raises:
        ConfigurationError: No permission to write there.
        RetriableError: The disk did not take it.
    """
    try:
        for entry in list(directory.iterdir()):
            if entry.name.startswith(f".{prefix}") and entry.suffix == _TEMPORARY:
                entry.unlink(missing_ok=True)
    except OSError as error:
        raise translated(error, str(directory), "write") from error


def _write_beside(path: Path, data: bytes) -> Path:
    make_directory(path.parent)
    temporary = path.parent / f".{path.name[:64]}.{uuid.uuid4().hex}{_TEMPORARY}"
    try:
        with temporary.open("xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
    except BaseException:  # cleaned up after, also when interrupted, and raised again
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def make_directory(directory: Path) -> None:
    """Make a directory and those above it, each made durable in the one it lies in. Any thread.

    Raises:
        OSError: It cannot be made.
    """
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
