# SPDX-License-Identifier: Apache-2.0
"""Taking away a file of this machine, and no other that came under its name: out of sight first, then looked at."""

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


def take_away(file: FileStatus, then: Callable[[str], None]) -> bool:
    """Take a file from its place, if it is still the one that was read, and hand it to `then` under a hidden name.

    Between a look and a deletion a writer may put a newer file in its place. A rename takes just one of them, and what
    was taken can be looked at in peace, for no listing shows it. Called by `LocalStore`, on the planning thread.

    Args:
        file: As it was when it was read.
        then: Deletes or moves it. Where that fails, the file gets its name back.

    Returns:
        Whether it was taken; False: it is gone, or another one is there, which nobody has read and which stays.

    Raises:
        OSError: It could not be renamed, or `then` failed.
    """
    hidden = _hidden(file.path)
    try:
        Path(file.path).rename(hidden)
    except (FileNotFoundError, NotADirectoryError):
        return False
    read = False
    try:
        read = file.same_file(_status(file.path, hidden))
        if read:
            then(hidden)
    except FileNotFoundError:
        if Path(hidden).exists():
            raise
        return False  # another process that cleans here has given it back
    finally:
        _put_back(hidden, file.path, read=read)
    return read


def remove_broken_link(path: str) -> bool:
    """Remove a link that leads nowhere, and nothing that came in its place. Called on the planning thread.

    Args:
        path: What was read under this name, and is gone.

    Returns:
        Whether there was such a link.

    Raises:
        OSError: It could not be renamed or removed, or nobody may look where it leads.
    """
    if not _leads_nowhere(path):
        return False
    hidden = _hidden(path)
    try:
        Path(path).rename(hidden)
    except FileNotFoundError:
        return False
    removed = False
    try:
        removed = _leads_nowhere(hidden)
        if removed:
            Path(hidden).unlink(missing_ok=True)
    finally:
        _put_back(hidden, path, read=removed)
    return removed


def give_back(directory: str, was_read: Callable[[FileStatus], bool]) -> None:
    """Give files their names back that a process had under hidden ones when it was killed; read ones too.

    Called when a process cleans in a directory for the first time, on the planning thread.

    Args:
        directory: Where to look, not below it.
        was_read: Told a file by its own name; whether this very one is known to have been read.

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
            continue  # another process that cleans here has just done it
        _put_back(str(hidden), path, read=was_read(status))


def _put_back(hidden: str, path: str, *, read: bool) -> None:
    """Give a file its name back, if it still is under the hidden one, without replacing one that came meanwhile."""
    if not os.path.lexists(hidden):
        return  # deleted, moved on, or given back by somebody else
    try:
        _link(hidden, path, follow_symlinks=False)
    except FileNotFoundError:
        return  # just now
    except FileExistsError:
        if _one_file(hidden, path):  # somebody was killed between the two names
            Path(hidden).unlink(missing_ok=True)
        else:
            _beside(hidden, path, read=read)
    except OSError:  # a file system without hard links
        if os.path.lexists(path):
            _beside(hidden, path, read=read)
        else:
            Path(hidden).rename(path)
    else:
        Path(hidden).unlink(missing_ok=True)


def _beside(hidden: str, path: str, *, read: bool) -> None:
    """Settle what becomes of a file whose name another one has taken."""
    if read:
        _log.warning("%s was read and not cleaned; a newer file has its name by now, and it stays as %s", path, hidden)
        return
    directory, name = os.path.split(path)
    stem, dot, suffixes = name.partition(".")
    visible = os.path.join(directory, f"{stem}-{uuid.uuid4().hex[:8]}{dot}{suffixes}")
    Path(hidden).rename(visible)
    _log.warning(
        "%s was replaced twice while an earlier file of this name was cleaned; what was there in between was not read "
        "and is now %s",
        path,
        visible,
    )


def _status(path: str, hidden: str) -> FileStatus:
    found = Path(hidden).stat()
    return FileStatus(path, found.st_size, found.st_mtime_ns)


def _leads_nowhere(path: str) -> bool:
    if not os.path.islink(path):
        return False
    try:
        Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    return False


def _one_file(hidden: str, path: str) -> bool:
    try:
        return os.path.samestat(os.lstat(hidden), os.lstat(path))
    except FileNotFoundError:
        return False


def _hidden(path: str) -> str:
    directory, name = os.path.split(path)
    return os.path.join(directory, f".{name}.cleaning-{uuid.uuid4().hex[:8]}")
