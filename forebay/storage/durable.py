# SPDX-License-Identifier: Apache-2.0
"""Small durable facts on the local file system: written whole or not at all, or only if nobody was first."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path

from forebay.storage.local import translated


def write_atomically(path: str, data: bytes) -> None:
    """Write a file so that after any crash it holds either the old content or the new, whole.

    Called for checkpoints, on any thread. The directory is made if it is not there. When this returns, the content
    survives a loss of power.

    Raises:
        ConfigurationError: No permission to write there.
        RetriableError: The disk did not take it.
    """
    try:
        temporary = _write_beside(Path(path), data)
        try:
            temporary.replace(path)
        except BaseException:  # cleaned up after, also when interrupted, and raised again
            temporary.unlink(missing_ok=True)
            raise
        _sync_directory(temporary.parent)
    except OSError as error:
        raise translated(error, path, "write") from error


def put_if_absent(path: str, data: bytes) -> bool:
    """Write a file unless there is one; of several writers exactly one wins, on any number of machines.

    Called for claims and segments of streaming state, on any thread. A link to a finished temporary file makes the
    name appear at once, with all of its content.

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
        finally:
            temporary.unlink()
        _sync_directory(temporary.parent)
    except OSError as error:
        raise translated(error, path, "write") from error
    return True


def _write_beside(path: Path, data: bytes) -> Path:
    _make_directory(path.parent)
    temporary = path.parent / f".{path.name[:64]}.{uuid.uuid4().hex}.tmp"
    try:
        with temporary.open("xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
    except BaseException:  # cleaned up after, also when interrupted, and raised again
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def _make_directory(directory: Path) -> None:
    """Make a directory and those above it, each made durable in the one it lies in."""
    if directory.is_dir():
        return
    _make_directory(directory.parent)
    with suppress(FileExistsError):
        directory.mkdir()
    _sync_directory(directory.parent)


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
