# SPDX-License-Identifier: Apache-2.0
"""Makes one call of a connector's client fail: on a socket, in a file or directory, or when SQLite connects.

The calls are those that Python code makes: `http.client`, `urllib`, `requests`, `httpx`, `redis`, files, directories
and `sqlite3`. A client that is written in C, such as libpq, does its own calls, which never fail here.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_SOCKET = ("connect", "send", "sendall", "recv", "recv_into")
_RECEIVES = ("recv", "recv_into")
_READERS = "forebay-"
"""The names of the framework's threads, on which readers run, begin with this."""


class FailingCalls:
    """Counts the calls of clients, and lets one of them fail.

    Args:
        fails: The number of the call that fails, from 1; 0 = none. A call on a socket that has failed fails again.
    """

    def __init__(self, fails: int) -> None:
        self._fails = fails
        self._lock = threading.Lock()
        self._thread = threading.get_ident()
        self.calls = 0
        """Number of calls so far."""
        self.on_sockets = False
        """Whether one of them was on a socket."""
        self.failed = ""
        """The call that failed, in words; "" if none has."""

    def count(self, name: str, error: Callable[[str], Exception]) -> None:
        """Count one call. Raise the error if it is the one that fails."""
        thread = threading.current_thread()
        if thread.ident != self._thread and not thread.name.startswith(_READERS):
            return  # of a server that the author's test runs in this process
        with self._lock:
            self.calls += 1
            self.on_sockets |= name.startswith("socket.")
            if self.calls != self._fails:
                return
            self.failed = name
        raise error(f"injected by forebay.testkit: {name} failed")


@contextmanager
def failing_calls(fails: int) -> Iterator[FailingCalls]:
    """Yield the counter of calls; within the block, call number `fails` of a client fails. One block at a time."""
    calls = FailingCalls(fails)
    places: list[tuple[Any, str, Any]] = [(socket.socket, name, _reset(calls, name)) for name in _SOCKET]
    # Not os.scandir: glob and os.walk take its errors for an empty directory, whoever calls them.
    places.append((os, "listdir", _unreadable(calls, "os.listdir()", os.listdir)))
    opening = _unreadable(calls, "open()", builtins.open)
    places += [(builtins, "open", opening), (io, "open", opening)]
    places.append((sqlite3, "connect", _locked(calls, sqlite3.connect)))
    missing = object()
    before = [(owner, name, vars(owner).get(name, missing)) for owner, name, _ in places]
    try:
        for owner, name, replaced in places:
            setattr(owner, name, replaced)
        yield calls
    finally:
        for owner, name, original in before:
            if original is missing:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


def _reset(calls: FailingCalls, name: str) -> Callable[..., Any]:
    original = getattr(socket.socket, name)

    def call(this: socket.socket, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - passed on
        # Received first, so that the author's server has sent its answer, and prints no traceback.
        received = original(this, *args, **kwargs) if name in _RECEIVES else None
        calls.count(f"socket.{name}()", lambda text: ConnectionResetError(errno.ECONNRESET, text))
        return received if name in _RECEIVES else original(this, *args, **kwargs)

    return call


def _unreadable(calls: FailingCalls, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - passed on
        calls.count(name, lambda text: OSError(errno.EIO, text))
        return original(*args, **kwargs)

    return call


def _locked(calls: FailingCalls, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - passed on
        calls.count("sqlite3.connect()", lambda text: sqlite3.OperationalError(f"database is locked ({text})"))
        return original(*args, **kwargs)

    return call
