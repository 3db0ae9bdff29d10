# SPDX-License-Identifier: Apache-2.0
"""A lock on a directory for one process, also between machines if their shared file system has locks."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import weakref
from pathlib import Path

from forebay.errors import ConfigurationError
from forebay.state.atomic_files import make_directory
from forebay.stores.local import store_error, wrap_errors

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
        ConfigurationError: Another process holds the lock, or there is no permission to write there.
        RetriableError: The directory could not be created or written.
    """
    path = directory / _NAME
    with wrap_errors(str(path), "write"):
        make_directory(directory)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
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
