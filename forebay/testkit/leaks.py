# SPDX-License-Identifier: Apache-2.0
"""Counts what a connector leaves behind: threads, open files and sockets, connections that nobody closed."""

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
from typing import Any, TextIO

from forebay.testkit.outcomes import Broken

LEFT_BY_READ = (
    "close what read() opens in a with block or a finally, and end its threads there; or keep one client for "
    "the process with forebay.cached"
)

_RUNS = 3
_HANDLES = "/proc/self/fd"


class Leaks:
    """Does something some times over and compares before with after.

    The first time is not counted, and one thread or handle less than there were runs is no leak: clients that a
    process keeps are made once. What is on its way out is waited for. A connection that only the garbage collector
    closes counts as left: nobody knows when it does, and another Python does it later.

    Args:
        patience: Seconds to wait for what is on its way out.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._known: set[int] | None = None
        self._seen: list[Any] = []

    def look(self) -> None:
        """Note the connections and files that are open; called by `use` where it holds what it opened."""
        if self._known is not None:
            seen = self._known | {id(one) for one in self._seen}
            self._seen += [one for one in _closable() if id(one) not in seen]

    def check(self, use: Callable[[], None], what: str, advice: str, *, rule: str | None = None) -> None:
        """Run `use`, and raise if something of each run stays.

        Raises:
            Broken: Threads, handles or connections are left.
        """
        use()
        threads, handles = set(threading.enumerate()), _handles()
        self._known = {id(one) for one in _closable()}
        with unclosed() as dropped:
            for _ in range(_RUNS):
                use()
            left = self._waited_for(threads, handles, dropped)
        self._seen.clear()
        if left:
            raise Broken(f"{_RUNS} times {what} left {left} behind", advice, rule=rule)

    def _waited_for(self, threads: set[threading.Thread], handles: int, dropped: list[str]) -> str:
        """Wait for what is on its way out; return what is left in the end, in words."""
        deadline = time.monotonic() + self._patience
        while True:
            self._seen = [one for one in self._seen if not _is_closed(one)]
            gc.collect()
            left = sorted(thread.name for thread in set(threading.enumerate()) - threads)
            if len(left) >= _RUNS:
                found = f"{len(left)} threads ({', '.join(left[:5])})"
            elif len(self._seen) >= _RUNS:
                found = f"{len(self._seen)} unclosed connections or files ({_name(type(self._seen[0]))})"
            elif _handles() - handles >= _RUNS:
                found = f"{_handles() - handles} open files or sockets"
            elif len(dropped) >= _RUNS:
                return f"{len(dropped)} connections or files to the garbage collector ({dropped[0]})"
            else:
                return ""
            if time.monotonic() > deadline:
                return found
            time.sleep(0.02)


@contextmanager
def unclosed() -> Iterator[list[str]]:
    """Collect what the garbage collector says that it had to close, instead of showing it; other warnings are shown."""
    dropped: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", ResourceWarning)
        show = warnings.showwarning

        def collect(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, ResourceWarning):
                dropped.append(str(message))
            else:
                show(message, category, filename, lineno, file, line)

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
        return False  # stands over one of those, or over nothing of the system's
    # Of a client library: by its name, because much that has `closed` stands over something that is closed already.
    return "connection" in kind.__name__.lower() and callable(getattr(kind, "close", None)) and hasattr(kind, "closed")


def _is_closed(one: Any) -> bool:  # noqa: ANN401 - whatever is alive
    try:
        if isinstance(one, socket.socket):
            return one.fileno() < 0
        if isinstance(one, sqlite3.Connection):
            return bool(one.total_changes < 0)
        return bool(one.closed)
    except Exception:  # noqa: BLE001 - a closed sqlite3.Connection raises, and what cannot say is not counted
        return True


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _handles() -> int:
    """Return how many files and sockets this process holds; 0 where the system does not say."""
    return len(os.listdir(_HANDLES)) if os.path.isdir(_HANDLES) else 0
