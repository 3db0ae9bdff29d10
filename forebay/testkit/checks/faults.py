# SPDX-License-Identifier: Apache-2.0
"""Checks of a source whose client fails: a failure is an error, never an empty result or an end (rule ERR-1)."""

from __future__ import annotations

import gc
import io
import os
import socket
import sqlite3
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from forebay.errors import ConfigurationError, FatalError
from forebay.framework.discovery import DiscoveryEnumerator
from forebay.framework.runtime.clients import drop_clients
from forebay.framework.simple import SimpleSource
from forebay.framework.source import Source
from forebay.framework.split import Position, Split
from forebay.testkit.checks.base import Checks, check_into
from forebay.testkit.harness.sessions import ReaderSession
from forebay.testkit.harness.subject import Hybrid, Subject, Trace
from forebay.testkit.harness.surroundings import FailingCalls, failing_calls
from forebay.testkit.outcomes import Broken, Finding, NotApplicable

# -- Counts the threads, open files, sockets and connections that a connector leaves behind.


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
            known = self._known | {id(item) for item in self._open}
            self._open += [item for item in _closable() if id(item) not in known]

    def check(self, use: Callable[[], None], what: str, advice: str, *, rule: str | None = None) -> None:
        """Run `use` several times. Raise `Broken` if each run leaves a thread, handle or connection open."""
        use()
        threads, handles = set(threading.enumerate()), _handles()
        self._known = {id(item) for item in _closable()}
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
            self._open = [item for item in self._open if not _is_closed(item)]
            gc.collect()
            names = sorted(thread.name for thread in set(threading.enumerate()) - threads)
            more = _handles() - handles
            counts = [
                (len(names), f"threads ({', '.join(names[:5])})"),
                (len(self._open), f"unclosed connections or files ({_name(self._open)})"),
                (more, "open files or sockets"),
            ]
            left = next((f"{count} {text}" for count, text in counts if count >= _RUNS), "")
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
    looks_closable: dict[type, bool] = {}
    closable = []
    for item in gc.get_objects():
        kind = type(item)
        if kind not in looks_closable:
            looks_closable[kind] = _looks_closable(kind)
        if looks_closable[kind] and not _is_closed(item):
            closable.append(item)
    return closable


def _looks_closable(kind: type) -> bool:
    if issubclass(kind, (sqlite3.Connection, socket.socket, io.FileIO)):
        return True
    if issubclass(kind, (io.IOBase, type)):
        return False  # wraps one of those, or no handle of the system
    # A client library's class, by its name: many other classes with `closed` wrap something that is closed already.
    return "connection" in kind.__name__.lower() and callable(getattr(kind, "close", None)) and hasattr(kind, "closed")


def _is_closed(item: Any) -> bool:  # noqa: ANN401 - any object
    try:
        if isinstance(item, socket.socket):
            return item.fileno() < 0
        if isinstance(item, sqlite3.Connection):
            return bool(item.total_changes < 0)
        return bool(item.closed)
    except Exception:  # noqa: BLE001 - a closed sqlite3.Connection raises; other errors do not count
        return True


def _name(items: list[Any]) -> str:
    return f"{type(items[0]).__module__}.{type(items[0]).__qualname__}" if items else ""


def _handles() -> int:
    """Return how many files and sockets this process has open; 0 if the system does not report it."""
    return len(os.listdir(_HANDLES)) if os.path.isdir(_HANDLES) else 0


FAULTS: Checks = []
"""Checks that let calls of the client fail. They run last, because a client may be broken afterwards."""

_MOST_FAULTS = 8
_PLANNING = 2.0
"""Maximum seconds in which an enumerator of the source's own assigns all splits."""

NO_CALL = "no call of a client was seen that can be made to fail: the source opens no file, socket or SQLite database"


def _refuse_others(source: Source, calls: FailingCalls) -> None:
    """Raise NotApplicable if no call can fail, or if a service is called by readers of the source's own.

    Their client may try again for minutes, as Kafka's does. One that reads files has nothing to wait for.
    """
    if not calls.calls:
        raise NotApplicable(NO_CALL)
    if calls.on_sockets and not isinstance(source, SimpleSource):
        raise NotApplicable(
            "the source has its own readers, whose client may wait and try again; let its service fail behind the "
            "fixture fault_proxy"
        )


Answer = tuple[list[str], Mapping[str, Position]]
"""The ids of the splits, and the present ends."""


@check_into(FAULTS)
def failing_discovery_is_an_error(subject: Subject) -> None:
    """ERR-1: discovery and latest() report a failure as an error, never as fewer splits, no end or an earlier one."""
    with failing_calls(0) as calls:
        try:
            answer = _ask(subject)
        except FatalError as error:
            if error.rule != "ENU-2":
                raise
            raise NotApplicable(f"the source's own SplitEnumerator needs more than {_PLANNING:g} s") from error
    _refuse_others(subject.source, calls)
    for number in _some(subject, calls.calls):
        with failing_calls(number) as failing:
            try:
                later = _ask(subject)
            except Finding:
                raise
            except Exception as error:  # noqa: BLE001 - any error is a right answer
                drop_clients(subject.source.name, error)
                subject.need_time()  # an enumerator of the source's own may wait until it can look
                continue
        if failing.failed:
            _compare(subject, answer, later, failing.failed)
        subject.need_time()


def _ask(subject: Subject) -> Answer:
    """Return what discovery and `latest` answer; of an enumerator of the source's own, what a batch read gets."""
    with subject.enumerator() as enumerator:
        if isinstance(enumerator, DiscoveryEnumerator):
            splits = enumerator.discover({}, True).splits
            return [split.id for split in splits], dict(enumerator.latest(splits))
    try:
        return [split.id for split in subject.planned(_PLANNING)], {}
    except ConfigurationError as error:
        if subject.source.bounded:
            raise
        raise NotApplicable("the source's own SplitEnumerator ends no batch read, which could be short") from error


def _compare(subject: Subject, answer: Answer, later: Answer, failed: str) -> None:
    """Raise `Broken` if the answer after a failure has fewer splits or earlier ends than the one before."""
    (ids, ends), (found, ends_found), key = answer, later, subject.source.order_key
    if missing := sorted(set(ids) - set(found)):
        raise Broken(
            f"{failed} failed, and discovery returned {len(found)} of {len(ids)} splits, without {missing[0]!r}, and "
            "no error: a new query would never know of the failure",
            _RAISE,
        )
    if lost := sorted(ends.keys() - ends_found.keys()):
        raise Broken(f"{failed} failed, and latest() returned no end for split {lost[0]!r}", _RAISE)
    if earlier := sorted(split_id for split_id, end in ends.items() if key(ends_found[split_id]) < key(end)):
        raise Broken(
            f"{failed} failed, and latest() returned {ends_found[earlier[0]]!r} for split {earlier[0]!r}, before "
            f"{ends[earlier[0]]!r}, which it had returned: as if there were nothing new, and no error",
            _RAISE,
        )


@check_into(FAULTS)
def failing_reads_are_errors(subject: Subject) -> None:
    """ERR-1: a read whose client fails raises an error, or reads on: it never ends early, and skips no row."""
    if not any(trace.rows for trace in subject.traces):
        raise NotApplicable("the source has no rows")
    longest: dict[int, Trace] = {}  # of each leg of a hybrid
    for trace in sorted(subject.traces, key=lambda candidate: len(candidate.rows)):
        longest[subject.leg_of(trace.split)] = trace
    refused: list[NotApplicable] = []
    for leg, trace in longest.items():
        with failing_calls(0) as calls:
            _rows_or_error(subject, trace.split)
        try:
            _refuse_others(subject.source.legs[leg] if isinstance(subject.source, Hybrid) else subject.source, calls)
        except NotApplicable as why:
            refused.append(why)
            continue
        _read_with_failures(subject, trace, calls.calls)
    if len(refused) == len(longest):
        raise refused[0]


def _read_with_failures(subject: Subject, trace: Trace, calls: int) -> None:
    """Read a split several times, with another call that fails each time, and compare the rows."""
    for number in _some(subject, calls):
        with failing_calls(number) as failing:
            rows = _rows_or_error(subject, trace.split)
        if rows is not None and failing.failed:
            how = f"after {failing.failed} had failed, and the read had ended without an error"
            subject.compare(trace.split.id, rows, trace.rows, how, _RAISE)
        subject.need_time()


def _rows_or_error(subject: Subject, split: Split) -> list[str] | None:
    """Read a split. Return its rows; None if the read ended with an error."""
    try:
        with ReaderSession(subject, [split]) as session:
            session.run(session.caught_up)
    except Finding:
        raise
    except Exception as error:  # noqa: BLE001 - any error is a right answer
        drop_clients(subject.source.name, error)
        return None
    return session.rows[split.id]


def _some(subject: Subject, calls: int) -> Iterable[int]:
    """Return the numbers of the calls that fail, one in each read: the first, the last and some between."""
    if calls <= _MOST_FAULTS:
        return range(1, calls + 1)
    chosen = subject.random("faults").sample(range(2, calls), _MOST_FAULTS - 2)
    return sorted({1, calls, *chosen})


_RAISE = (
    "let the error leave the method, as a RetriableError if it may pass (`with forebay.http_errors(…)` raises it); "
    "never return nothing, fewer results or an end instead"
)
