# SPDX-License-Identifier: Apache-2.0
"""A state store in a local directory, or in one that machines share; its files are written whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import tempfile
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from forebay.errors import ConfigurationError, ForebayError, RetriableError
from forebay.state.state_store import STREAM, Purpose, checked_name, checked_prefix
from forebay.stores.local import store_error, wrap_errors
from forebay.stores.paths import LOCAL

# -- Writes local files atomically, and only if they do not exist.


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


def open_regular(path: str | Path, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
    """Open a file that is neither a link nor a pipe nor a device, and return its descriptor. For any thread.

    Where others may write, a link leads to a file of somebody else, a pipe waits for ever, and a device has no end.

    Raises:
        ConfigurationError: It is something else than a file.
        OSError: It cannot be opened; FileNotFoundError if it does not exist.
    """
    try:
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno == errno.ENXIO or (error.errno == errno.ELOOP and Path(path).is_symlink()):
            raise _no_file(path) from error
        raise
    kind = os.fstat(handle).st_mode
    if not stat.S_ISREG(kind):
        os.close(handle)
        raise IsADirectoryError(errno.EISDIR, "it is a directory") if stat.S_ISDIR(kind) else _no_file(path)
    return handle


def _no_file(path: str | Path) -> ConfigurationError:
    return ConfigurationError(
        f"{str(path)!r} is a link or something else than a file",
        option="path",
        advice="find out who put it there, and remove it; only a whole directory that is configured may be a link",
    )


def private_directory(name: str) -> Path:
    """Return a directory for copies that processes of this user on this machine share; it is created. For any thread.

    It is in the local directory that Spark gives its workers, if there is one. Others may write there too.

    Args:
        name: What the copies are of. The name of the directory has the user too.

    Raises:
        ConfigurationError: A link or a directory of somebody else has its name, or there is no permission.
        RetriableError: It could not be created.
    """
    local = Path(os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir())
    directory = local / f"{name}-{os.geteuid()}"
    with wrap_errors(str(directory), "write"):
        local.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            directory.mkdir(mode=0o700)
        status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise ConfigurationError(
            f"{str(directory)!r}, for copies of files, is a link or can be written by another user",
            option="SPARK_LOCAL_DIRS",
            advice="find out who put it there, and remove it; or set SPARK_LOCAL_DIRS to a directory of this user",
        )
    return directory


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
    above = directory.parent.stat()
    try:
        directory.mkdir()
    except FileExistsError as error:
        if directory.is_symlink() and not directory.exists():
            raise NotADirectoryError(errno.ENOTDIR, "it is a broken link") from error
    except FileNotFoundError as error:
        # Either its parent was just removed, or its parent is in /proc or the like, where nothing can be made.
        if os.path.samestat(above, directory.parent.stat()):
            raise PermissionError(errno.EPERM, "the file system makes no directories there") from error
        raise
    _sync_directory(directory.parent)


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# -- A lock on a directory for one process, also between machines if their shared file system has locks.


_NAME = ".lock"
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
_held: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()


class DirectoryLock:
    """A lock on a directory. It ends with `release`, with the process, or when this object is deleted. For any thread.

    The kernel releases the lock of a killed process; the file `.lock` stays and names the last owner. Forked processes
    do not hold the lock.
    """

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._finalizer = weakref.finalize(self, _unlock, handle)
        _held.add(self)

    def release(self) -> None:
        """Release the lock; further calls do nothing."""
        self._finalizer()

    def forget_after_fork(self) -> None:
        """Close the descriptor in a forked child; the parent keeps the lock."""
        if self._finalizer.detach() is not None:
            os.close(self._handle)


def lock_directory(directory: Path) -> DirectoryLock | None:
    """Lock a directory, created if necessary, and return the lock; None if its file system has no locks.

    Raises:
        ConfigurationError: Another process holds the lock, there is no permission to write there, or the file of the
            lock is a link.
        RetriableError: The directory could not be created or written.
    """
    path = directory / _NAME
    with wrap_errors(str(path), "write"):
        make_directory(directory)
        handle = open_regular(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
    except OSError as error:
        owner = os.pread(handle, 300, 0).decode(errors="replace")
        os.close(handle)
        if error.errno in _NO_LOCKS:
            return None
        if isinstance(error, BlockingIOError):
            # The caller knows the use of the directory, and adds the advice.
            raise ConfigurationError(f"{directory} is in use by {owner or 'another process'}") from None
        raise store_error(error, str(path), "write") from error
    return DirectoryLock(handle)


def _unlock(handle: int) -> None:
    fcntl.flock(handle, fcntl.LOCK_UN)
    os.close(handle)


def _forget_all() -> None:
    for lock in list(_held):
        lock.forget_after_fork()


os.register_at_fork(after_in_child=_forget_all)


# -- A state store in a local directory, or in a directory that machines share.

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
