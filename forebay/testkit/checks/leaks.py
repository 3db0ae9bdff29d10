# SPDX-License-Identifier: Apache-2.0
"""Counts the threads, open files, sockets and connections that a connector leaves behind."""

from __future__ import annotations

import gc
import io
import os
import socket
import sqlite3
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from forebay.testkit.findings import Broken

LEFT_BY_READ = (
    "close what read() opens in a with block or a finally, and end its threads there; or keep one client for "
    "the process with forebay.cached"
)

_RUNS = 3
_HANDLES = "/proc/self/fd"


class Leaks:
    """Runs an action several times, and compares the open resources before and after.

    The first run does not count, because a process creates some clients once and keeps them. For the same reason, fewer
    new threads or handles than runs are no leak. A connection that only the garbage collector closes is a leak.

    Args:
        patience: Seconds to wait until everything is closed.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._known: set[int] | None = None
        self._open: list[Any] = []

    def record_open(self) -> None:
        """Record the open connections and files. Called by the `use` of `check`, while its resources are open."""
        if self._known is not None:
            known = self._known | {id(one) for one in self._open}
            self._open += [one for one in _closable() if id(one) not in known]

    def check(self, use: Callable[[], None], what: str, advice: str, *, rule: str | None = None) -> None:
        """Run `use` several times. Raise `Broken` if each run leaves a thread, handle or connection open."""
        use()
        threads, handles = set(threading.enumerate()), _handles()
        self._known = {id(one) for one in _closable()}
        with unclosed() as dropped:
            for _ in range(_RUNS):
                use()
            left = self._left(threads, handles, dropped)
        self._open.clear()
        if left:
            raise Broken(f"{_RUNS} repetitions of {what} left {left} behind", advice, rule=rule)

    def _left(self, threads: set[threading.Thread], handles: int, dropped: list[str]) -> str:
        """Wait until everything is closed. Return a text about what is still open, or ""."""
        deadline = time.monotonic() + self._patience
        while True:
            self._open = [one for one in self._open if not _is_closed(one)]
            gc.collect()
            names = sorted(thread.name for thread in set(threading.enumerate()) - threads)
            more = _handles() - handles
            found = [
                (len(names), f"threads ({', '.join(names[:5])})"),
                (len(self._open), f"unclosed connections or files ({_name(self._open)})"),
                (more, "open files or sockets"),
            ]
            left = next((f"{count} {text}" for count, text in found if count >= _RUNS), "")
            if not left and len(dropped) >= _RUNS:
                return f"{len(dropped)} connections or files that only the garbage collector closed ({dropped[0]})"
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.02)


@contextmanager
def unclosed() -> Iterator[list[str]]:
    """Yield a list that collects the `ResourceWarning`s of unclosed files and connections; show other warnings."""
    dropped: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", ResourceWarning)
        show = warnings.showwarning

        def collect(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - passed on
            if issubclass(args[1], ResourceWarning):
                dropped.append(str(args[0]))
            else:
                show(*args, **kwargs)

        warnings.showwarning = collect
        yield dropped


def _closable() -> list[Any]:
    """Return every object that is an open connection or file."""
    wanted: dict[type, bool] = {}
    found = []
    for one in gc.get_objects():
        kind = type(one)
        if kind not in wanted:
            wanted[kind] = _looks_closable(kind)
        if wanted[kind] and not _is_closed(one):
            found.append(one)
    return found


def _looks_closable(kind: type) -> bool:
    if issubclass(kind, (sqlite3.Connection, socket.socket, io.FileIO)):
        return True
    if issubclass(kind, (io.IOBase, type)):
        return False  # wraps one of those, or no handle of the system
    # A client library's class, by its name: many other classes with `closed` wrap something that is closed already.
    return "connection" in kind.__name__.lower() and callable(getattr(kind, "close", None)) and hasattr(kind, "closed")


def _is_closed(one: Any) -> bool:  # noqa: ANN401 - any object
    try:
        if isinstance(one, socket.socket):
            return one.fileno() < 0
        if isinstance(one, sqlite3.Connection):
            return bool(one.total_changes < 0)
        return bool(one.closed)
    except Exception:  # noqa: BLE001 - a closed sqlite3.Connection raises; other errors do not count
        return True


def _name(found: list[Any]) -> str:
    return f"{type(found[0]).__module__}.{type(found[0]).__qualname__}" if found else ""


def _handles() -> int:
    """Return how many files and sockets this process has open; 0 if the system does not report it."""
    return len(os.listdir(_HANDLES)) if os.path.isdir(_HANDLES) else 0
