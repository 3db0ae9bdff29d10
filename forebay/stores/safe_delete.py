# SPDX-License-Identifier: Apache-2.0
"""Deletes or moves a local file only if it is still the version that was read."""

from __future__ import annotations

import logging
import os
import re
import uuid
from collections.abc import Callable
from pathlib import Path

from forebay.stores.file_status import FileStatus

_log = logging.getLogger(__name__)

_link = os.link
_HIDDEN = re.compile(r"\.(.+)\.cleaning-[0-9a-f]{8}", re.DOTALL)


def take_if_unchanged(file: FileStatus, action: Callable[[str], None]) -> bool:
    """Delete or move a file if it is still the version that was read; return whether that was done.

    Called on the planning thread. `action` is called with a path, and deletes or moves the file there.

    A writer may replace the file between a check and a deletion. So the file is first renamed to a hidden name, which
    no listing shows, and then checked. If the action fails or the file is another version, its name is restored.

    Raises:
        OSError: The file could not be renamed, or the action failed.
    """
    return _take(file.path, lambda hidden: file.same_file(_status(file.path, hidden)), action)


def remove_broken_link(path: str) -> bool:
    """Remove a broken link; return whether one existed. A file that replaces the link meanwhile is kept.

    Raises:
        OSError: The link could not be removed.
    """
    return _is_broken_link(path) and _take(path, _is_broken_link, lambda hidden: Path(hidden).unlink(missing_ok=True))


def _take(path: str, wanted: Callable[[str], bool], action: Callable[[str], None]) -> bool:
    hidden = _hidden(path)
    try:
        Path(path).rename(hidden)
    except (FileNotFoundError, NotADirectoryError):
        return False
    read = False
    try:
        read = wanted(hidden)
        if read:
            action(hidden)
    except FileNotFoundError:
        if Path(hidden).exists():
            raise
        return False  # another process that cleans here has restored it
    finally:
        _put_back(hidden, path, read=read)
    return read


def restore_hidden(directory: str, was_read: Callable[[FileStatus], bool]) -> None:
    """Restore the names of files that killed processes left hidden in a directory. Called on the planning thread.

    `was_read` is called with the file's status, which has its original path, and returns whether the file was read.

    Raises:
        OSError: The directory cannot be listed, or a file cannot be renamed.
    """
    try:
        with os.scandir(directory) as entries:
            found = [(Path(entry.path), match[1]) for entry in entries if (match := _HIDDEN.fullmatch(entry.name))]
    except (FileNotFoundError, NotADirectoryError):
        return
    for hidden, name in found:
        path = str(hidden.with_name(name))
        try:
            status = _status(path, str(hidden))
        except FileNotFoundError:
            continue  # another process that cleans here has restored it
        _put_back(str(hidden), path, read=was_read(status))


def _put_back(hidden: str, path: str, *, read: bool) -> None:
    """Rename a hidden file, if it exists, back to `path`. A newer file at `path` is kept.

    The hidden file then stays beside it; see `_keep_beside`.
    """
    if not os.path.lexists(hidden):
        return
    try:
        _link(hidden, path, follow_symlinks=False)
    except FileNotFoundError:
        return
    except FileExistsError:
        if _same_inode(hidden, path):  # a process was killed between link and unlink
            Path(hidden).unlink(missing_ok=True)
        else:
            _keep_beside(hidden, path, read=read)
    except OSError:  # a file system without hard links
        if os.path.lexists(path):
            _keep_beside(hidden, path, read=read)
        else:
            Path(hidden).rename(path)
    else:
        Path(hidden).unlink(missing_ok=True)


def _keep_beside(hidden: str, path: str, *, read: bool) -> None:
    """Keep a hidden file whose name a newer file took: it stays hidden if it was read, else gets a new visible name."""
    if read:
        _log.warning(
            "%s was read but not cleaned, because a newer file took its name; the file that was read stays as %s",
            path,
            hidden,
        )
        return
    directory, name = os.path.split(path)
    stem, dot, suffixes = name.partition(".")
    visible = os.path.join(directory, f"{stem}-{uuid.uuid4().hex[:8]}{dot}{suffixes}")
    Path(hidden).rename(visible)
    _log.warning(
        "%s was replaced twice while an earlier file of this name was cleaned; the first replacement was not read, and "
        "is now %s",
        path,
        visible,
    )


def _status(path: str, hidden: str) -> FileStatus:
    found = Path(hidden).stat()
    return FileStatus(path, found.st_size, found.st_mtime_ns)


def _is_broken_link(path: str) -> bool:
    if not os.path.islink(path):
        return False
    try:
        Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    return False


def _same_inode(hidden: str, path: str) -> bool:
    try:
        return os.path.samestat(os.lstat(hidden), os.lstat(path))
    except FileNotFoundError:
        return False


def _hidden(path: str) -> str:
    directory, name = os.path.split(path)
    return os.path.join(directory, f".{name}.cleaning-{uuid.uuid4().hex[:8]}")
