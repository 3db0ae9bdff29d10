# SPDX-License-Identifier: Apache-2.0
"""The local file system as a store: the standard library only, one `stat` for each file."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import BinaryIO

from forebay.errors import ConfigurationError, ForebayError, RetriableError
from forebay.stores.file_status import FileStatus
from forebay.stores.safe_delete import take_away
from forebay.stores.store import Children, Directory

_scan = os.scandir
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


class LocalStore:
    """The files of this machine, by plain absolute paths. Implements `Store`; holds nothing between calls.

    Args:
        ignore_missing: Leave out entries that vanish while they are listed, and broken links, instead of failing.
        ignore_vanished: Leave out entries that vanish only.
    """

    keeps_empty_directories = True
    paths_are_keys = False

    def __init__(self, *, ignore_missing: bool = False, ignore_vanished: bool = False) -> None:
        self._ignore_missing = ignore_missing
        self._ignore_vanished = ignore_vanished

    def stat(self, path: str) -> FileStatus | Directory | None:
        """What the path is now; see `Store.stat`."""
        try:
            found = Path(path).stat()
        except OSError as error:
            if error.errno in _NOT_THERE:
                return None
            raise translated(error, path) from error
        if stat.S_ISDIR(found.st_mode):
            return Directory(path)
        if not stat.S_ISREG(found.st_mode):
            raise ConfigurationError(
                f"neither a file nor a directory: {path!r}", option="path", advice="name a regular file or a directory"
            )
        return FileStatus(path, found.st_size, found.st_mtime_ns)

    def prefetch(self, path: str) -> None:
        """Nothing to gain here; see `Store.prefetch`."""

    def children(self, path: str, keep: Callable[[str], bool]) -> Children | None:
        """What lies directly in a directory; see `Store.children`. Pipes, sockets and devices are left out."""
        directories: list[str] = []
        files: list[FileStatus] = []
        try:
            with _scan(path) as entries:
                for entry in entries:
                    if keep(entry.name):
                        self._add(entry, directories, files)
        except OSError as error:
            if error.errno in _NOT_THERE:
                return None
            raise translated(error, path) from error
        return Children(directories, files)

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading; see `Store.open`."""
        try:
            return Path(path).open("rb")
        except OSError as error:
            if error.errno in _NOT_THERE:
                raise FileNotFoundError(path) from error
            raise translated(error, path) from error

    def delete(self, file: FileStatus) -> bool:
        """Delete a file and no newer one; see `Store.delete`, and `set_aside`."""
        try:
            return take_away(file, _unlink)
        except OSError as error:
            raise translated(error, file.path, "delete") from error

    def move(self, file: FileStatus, target: str) -> bool:
        """Rename a file, or copy and delete it where the target is on another disk; see `Store.move`."""
        try:
            Path(target).parent.mkdir(parents=True, exist_ok=True)
            return take_away(file, partial(_move, target=target))
        except OSError as error:
            raise translated(error, file.path, "move") from error

    def _add(self, entry: os.DirEntry[str], directories: list[str], files: list[FileStatus]) -> None:
        if not entry.name.isascii():
            _check_text(entry)
        try:
            if entry.is_dir():
                if entry.is_symlink():
                    _check_no_loop(entry.path)
                directories.append(entry.path)
                return
            found = entry.stat()
        except OSError as error:
            if error.errno not in _NOT_THERE:
                raise translated(error, entry.path) from error
            if not (self._ignore_missing or (self._ignore_vanished and not entry.is_symlink())):
                raise _missing(entry) from error
            return
        if stat.S_ISREG(found.st_mode):
            files.append(FileStatus(entry.path, found.st_size, found.st_mtime_ns))


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
    """Copy beside the target first: under its own name there is never half a file."""
    half = Path(f"{target}.{uuid.uuid4().hex}.tmp")
    try:
        shutil.copy2(path, half)
        half.replace(target)
    except BaseException:  # cleaned up after, also when interrupted, and raised again
        half.unlink(missing_ok=True)
        raise
    Path(path).unlink()


def translated(error: OSError, path: str, doing: str = "read") -> ForebayError:
    """The error of ours for an error of the operating system about a path."""
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ConfigurationError(
            f"no permission to {doing} {path!r} ({error.strerror})",
            option="path",
            advice=f"let the user of this process {doing} it; a file system without hard links holds no durable state",
        )
    if error.errno == errno.ELOOP:
        return _loop(path)
    return RetriableError(
        f"could not {doing} {path!r}: {error.strerror or error}", advice="check the disk or mount if this stays"
    )


def _missing(entry: os.DirEntry[str]) -> ForebayError:
    if entry.is_symlink():
        return ConfigurationError(
            f"broken link: {entry.path!r} leads to {str(Path(entry.path).readlink())!r}, which is not there",
            option="path",
            advice="remove the link, or set ignoreMissingFiles=true to leave it out",
        )
    return RetriableError(
        f"{entry.path!r} went away while its directory was being listed",
        advice="set ignoreMissingFiles=true to leave out files that go away",
    )


def _check_no_loop(path: str) -> None:
    """Refuse a link to one of the directories it lies in: a walk would go round until the system stops it."""
    target = os.path.realpath(path)
    if any(os.path.realpath(above) == target for above in Path(path).parents):
        raise _loop(path)


def _loop(path: str) -> ConfigurationError:
    return ConfigurationError(
        f"the link {path!r} leads back to a directory it lies in", option="path", advice="remove the link"
    )


def _check_text(entry: os.DirEntry[str]) -> None:
    try:
        entry.name.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(
            f"the name {os.fsencode(entry.path)!r} is not UTF-8",
            option="path",
            advice="rename it, or move it out of the directory that is read",
        ) from None
