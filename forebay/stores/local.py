# SPDX-License-Identifier: Apache-2.0
"""The local file system as a store."""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

from forebay.errors import ConfigurationError, ForebayError, RetriableError
from forebay.stores.file_status import FileStatus
from forebay.stores.store import Children, Directory

# -- Deletes or moves a local file only if it is still the version that was read.


_log = logging.getLogger(__name__)

_link = os.link
_HIDDEN = re.compile(r"\.(.+)\.cleaning-[0-9a-f]{8}", re.DOTALL)


def take_if_unchanged(file: FileStatus, action: Callable[[str], None]) -> bool:
    """Delete or move a file if it is still the version that was read; return whether that was done.

    Called by one thread at a time. `action` is called with a path, and deletes or moves the file there.

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


def _take(path: str, accepts: Callable[[str], bool], action: Callable[[str], None]) -> bool:
    hidden = _hidden(path)
    try:
        Path(path).rename(hidden)
    except (FileNotFoundError, NotADirectoryError):
        return False
    read = False
    try:
        read = accepts(hidden)
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
    """Restore the names of files that killed processes left hidden in a directory. Called by one thread at a time.

    `was_read` is called with the file's status, which has its original path, and returns whether the file was read.

    Raises:
        OSError: The directory cannot be listed, or a file cannot be renamed.
    """
    try:
        with os.scandir(directory) as entries:
            hidden_files = [
                (Path(entry.path), match[1]) for entry in entries if (match := _HIDDEN.fullmatch(entry.name))
            ]
    except (FileNotFoundError, NotADirectoryError):
        return
    for hidden, name in hidden_files:
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
    stat_result = Path(hidden).stat()
    return FileStatus(path, stat_result.st_size, stat_result.st_mtime_ns)


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


_scan = os.scandir
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
_LASTING = (
    *(errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.EILSEQ, errno.EFBIG),
    *(errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP),
)
"""Errors of a path, or of a file system that lacks the operation. No waiting ends them; a person must."""


class LocalStore:
    """The files of this machine, as a `Store`. Paths are plain absolute paths. See `store_for` for the arguments."""

    keeps_empty_directories = True
    paths_are_keys = False

    def __init__(self, *, ignore_missing: bool = False, ignore_vanished: bool = False) -> None:
        self._ignore_missing = ignore_missing
        self._ignore_vanished = ignore_vanished

    def stat(self, path: str) -> FileStatus | Directory | None:
        """Return the file or directory at a path, or None; see `Store.stat`."""
        with suppress(FileNotFoundError), _reading(path):
            stat_result = Path(path).stat()
            if stat.S_ISDIR(stat_result.st_mode):
                return Directory(path)
            if not stat.S_ISREG(stat_result.st_mode):
                raise ConfigurationError(
                    f"{path!r} is neither a file nor a directory",
                    option="path",
                    advice="name a regular file or a directory",
                )
            return FileStatus(path, stat_result.st_size, stat_result.st_mtime_ns)
        return None

    def walk(self, path: str, keep: Callable[[str], bool], after: str = "") -> None:
        """Return None, so that the caller lists with `children`; see `Store.walk`."""

    def children(self, path: str, keep: Callable[[str], bool]) -> Children | None:
        """Return the entries of a directory, without pipes, sockets and devices; see `Store.children`."""
        directories: list[str] = []
        files: list[FileStatus] = []
        with suppress(FileNotFoundError), _reading(path), _scan(path) as entries:
            for entry in entries:
                if keep(entry.name):
                    self._add(entry, directories, files)
            return Children(directories, files)
        return None

    def open(self, path: str, file: FileStatus | None = None, read_to: int | None = None) -> BinaryIO:
        """Open a file for reading; see `Store.open`."""
        with _reading(path):
            return Path(path).open("rb")

    def pins(self, file: FileStatus) -> bool:
        """Return False: reads of a local file do not check its version; see `Store.pins`."""
        return False

    def delete(self, file: FileStatus) -> bool:
        """Delete a file unless a newer one has replaced it; see `Store.delete`."""
        with wrap_errors(file.path, "delete"):
            return take_if_unchanged(file, _unlink)

    def move(self, file: FileStatus, target: str) -> bool:
        """Rename a file, or copy and delete it if the target is on another disk; see `Store.move`."""
        with wrap_errors(file.path, "move"):
            Path(target).parent.mkdir(parents=True, exist_ok=True)
            return take_if_unchanged(file, partial(_move, target=target))

    def _add(self, entry: os.DirEntry[str], directories: list[str], files: list[FileStatus]) -> None:
        if not entry.name.isascii():
            _check_text(entry)
        try:
            if entry.is_dir():
                if entry.is_symlink():
                    _check_no_loop(entry.path)
                directories.append(entry.path)
                return
            stat_result = entry.stat()
        except OSError as error:
            if error.errno not in _NOT_THERE:
                raise store_error(error, entry.path) from error
            if not (self._ignore_missing or (self._ignore_vanished and not entry.is_symlink())):
                raise _missing(entry) from error
            return
        if stat.S_ISREG(stat_result.st_mode):
            files.append(FileStatus(entry.path, stat_result.st_size, stat_result.st_mtime_ns))


def _unlink(path: str) -> None:
    Path(path).unlink(missing_ok=True)


def _move(path: str, *, target: str) -> None:
    try:
        Path(path).replace(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _move_between_disks(path, target)


def _move_between_disks(path: str, target: str) -> None:
    """Move a file to another disk: copy it to a temporary name, and rename the copy.

    So `target` never holds half a file.
    """
    half = Path(f"{target}.{uuid.uuid4().hex}.tmp")
    try:
        shutil.copy2(path, half)
        half.replace(target)
    except BaseException:  # cleaned up also when interrupted, and raised again
        half.unlink(missing_ok=True)
        raise
    Path(path).unlink()


@contextmanager
def wrap_errors(path: str, doing: str = "read") -> Iterator[None]:
    """Convert errors of the operating system in a `with` block to ForebayErrors; see `store_error`.

    `doing` is the failed request as a verb, such as `read`.
    """
    try:
        yield
    except OSError as error:
        raise store_error(error, path, doing) from error


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Convert errors as `wrap_errors` does, but raise FileNotFoundError for a path that does not exist."""
    try:
        yield
    except OSError as error:
        if error.errno in _NOT_THERE:
            raise FileNotFoundError(path) from error
        raise store_error(error, path) from error


def store_error(error: OSError, path: str, doing: str = "read") -> ForebayError:
    """Return the ForebayError for an error of the operating system. `doing` is the failed request, such as `read`."""
    if error.errno in (errno.EACCES, errno.EPERM):
        return ConfigurationError(
            f"no permission to {doing} {path!r} ({error.strerror})",
            option="path",
            advice=f"give the user of this process the permission to {doing} it; a directory of state or checkpoints "
            "must be on a file system with hard links",
        )
    if error.errno == errno.ELOOP:
        return _loop(path)
    if error.errno in _LASTING:
        return ConfigurationError(
            f"cannot {doing} {path!r}: {error.strerror}",
            option="path",
            advice="give another path, which its file system can have; a directory of state or checkpoints must be on "
            "a file system with hard links",
        )
    return RetriableError(
        f"could not {doing} {path!r}: {error.strerror or error}",
        advice="if this persists, check the disk or mount: free some space, or mount it for writing",
    )


def _missing(entry: os.DirEntry[str]) -> ForebayError:
    if entry.is_symlink():
        return ConfigurationError(
            f"broken link: {entry.path!r} leads to {str(Path(entry.path).readlink())!r}, which does not exist",
            option="path",
            advice="remove the link, or set ignoreMissingFiles=true to skip it",
        )
    return RetriableError(
        f"{entry.path!r} vanished while its directory was listed",
        advice="set ignoreMissingFiles=true to skip files that vanish",
    )


def _check_no_loop(path: str) -> None:
    """Raise an error for a link to one of its own parent directories: a walk through it would never end."""
    target = os.path.realpath(path)
    if any(os.path.realpath(above) == target for above in Path(path).parents):
        raise _loop(path)


def _loop(path: str) -> ConfigurationError:
    return ConfigurationError(
        f"the link {path!r} points to one of its own parent directories", option="path", advice="remove the link"
    )


def _check_text(entry: os.DirEntry[str]) -> None:
    try:
        entry.name.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(
            f"the name {os.fsencode(entry.path)!r} is not UTF-8",
            option="path",
            advice="rename the file, or move it out of the directory",
        ) from None
