# SPDX-License-Identifier: Apache-2.0
"""What surrounds a connector in a check: its listing, the calls of its client, its process."""

from __future__ import annotations

import builtins
import errno
import importlib
import io
import json
import os
import pickle
import socket
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any, Self

from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.testkit.outcomes import NotApplicable, OutOfTime

# -- Shows a connector a directory as it was, or as the file system may list it: a file less, another order, other
# times.
#
# So `check` sees what happens to the ids of splits while an input grows, and changes nothing.


Listed = dict[str, list[str]]
"""The names that were listed, by directory."""


@contextmanager
def listings(change: Callable[[str, list[str]], list[str]], *, later: bool = False) -> Iterator[Listed]:
    """Change what `os.listdir`, `os.scandir` and `os.stat` return in the block. Yield the directories that are listed.

    Args:
        change: Returns the names of a directory, from its path and its names in order.
        later: Whether files are a second younger, and a byte longer, than they are.
    """
    listed: Listed = {}
    listdir, scandir, status = os.listdir, os.scandir, os.stat

    def changed_listdir(path: Any = ".") -> Any:  # noqa: ANN401 - as in os
        names = listdir(path)
        if isinstance(path, int) or not all(isinstance(name, str) for name in names):
            return names
        return _changed(os.fspath(path), names)

    def changed_scandir(path: Any = ".") -> Any:  # noqa: ANN401 - as in os
        with scandir(path) as entries:
            by_name = {entry.name: entry for entry in entries}
        if isinstance(path, int) or not all(isinstance(name, str) for name in by_name):
            return _Entries(list(by_name.values()))
        chosen = [by_name[name] for name in _changed(os.fspath(path), list(by_name)) if name in by_name]
        return _Entries([_Entry(entry) for entry in chosen] if later else chosen)

    def _changed(path: object, names: list[str]) -> list[str]:
        listed[str(path)] = sorted(names)
        return change(str(path), sorted(names))

    def changed_stat(*args: Any, **kwargs: Any) -> os.stat_result:  # noqa: ANN401 - as in os
        return _later(status(*args, **kwargs))

    os.listdir, os.scandir = changed_listdir, changed_scandir
    if later:
        os.stat = changed_stat
    try:
        yield listed
    finally:
        os.listdir, os.scandir, os.stat = listdir, scandir, status


def _later(status: os.stat_result) -> os.stat_result:
    """Return the status of a file that was written to a second later."""
    if not stat.S_ISREG(status.st_mode):
        return status
    fields = {name: getattr(status, name) for name in dir(status) if name.startswith("st_")}
    for name in ("st_mtime", "st_ctime"):
        fields[name] += 1.0
        fields[f"{name}_ns"] += 1_000_000_000
    values = list(status)
    values[6], values[8], values[9] = status.st_size + 1, values[8] + 1, values[9] + 1
    return os.stat_result(values, fields)


class _Entries:
    """The entries of a directory, as `os.scandir` returns them."""

    def __init__(self, entries: list[Any]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Any]:
        return self._entries

    def __next__(self) -> Any:  # noqa: ANN401 - an entry
        return next(self._entries)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing: the directory is closed already."""


class _Entry:
    """An `os.DirEntry` whose file was written to a second later."""

    def __init__(self, entry: Any) -> None:  # noqa: ANN401 - an entry
        self._entry = entry

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of an entry
        return getattr(self._entry, name)

    def __fspath__(self) -> Any:  # noqa: ANN401 - str or bytes
        return self._entry.__fspath__()

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return the changed status."""
        return _later(self._entry.stat(follow_symlinks=follow_symlinks))


# -- Makes one call of a connector's client fail: on a socket, in a file or directory, or when SQLite connects.
#
# The calls are those that Python code makes: `http.client`, `urllib`, `requests`, `httpx`, `redis`, files, directories
# and `sqlite3`. A client that is written in C, such as libpq, does its own calls, which never fail here.


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


# -- Reads a source in new processes, as Spark's tasks and a restarted run do: other ids, hash seeds and time zones.


_ZONES = ("UTC", "Asia/Kolkata")
"""The time zones of the processes, one for each: without daylight saving time, and no full hours apart."""

CHILD = "FOREBAY_TESTKIT_CHILD"
"""The environment variable that is set in the processes that `read_elsewhere` starts."""


def read_elsewhere(source: Source, splits: Sequence[Split], seconds: float) -> list[dict[str, list[str]]]:
    """Read splits in several new processes at the same time. Return the rows as text by split id, for each process.

    Raises:
        OutOfTime: The processes took longer than `seconds`.
        NotApplicable: The source cannot be sent to another process, or cannot be read there: its input may live in this
            process.
    """
    pickled = io.BytesIO()
    try:
        _Importable(pickled).dump((source, list(splits)))
    except (AttributeError, TypeError, pickle.PicklingError) as error:  # such as an object of a local class
        raise NotApplicable(f"the source cannot be sent to another process: {error}") from error
    job = {"path": [entry or os.getcwd() for entry in sys.path], "seconds": seconds}
    payload = pickle.dumps((job, pickled.getvalue()))
    code = f"from {__name__} import main; main()"
    with tempfile.TemporaryDirectory(prefix="forebay-testkit-") as directory:
        (place := Path(directory, "job")).write_bytes(payload)
        results = [Path(directory, f"{number}.json") for number in range(len(_ZONES))]
        processes = []
        for number, zone in enumerate(_ZONES):
            environment = {**os.environ, "TZ": zone, "PYTHONHASHSEED": str(number), CHILD: "1"}
            command = [sys.executable, "-P", "-c", code, str(place), str(results[number]), str(number)]
            with results[number].with_suffix(".log").open("wb") as log:
                processes.append(
                    subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # noqa: S603 - this Python
                )
        deadline = time.monotonic() + seconds
        try:
            for process in processes:
                process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise OutOfTime from None
        finally:
            for process in processes:
                process.kill()
                process.wait()
        for process, result in zip(processes, results, strict=True):
            if process.returncode:
                last = result.with_suffix(".log").read_text(errors="replace").strip().splitlines()[-1:] or [""]
                why = f"the source cannot be read in another process, as its input may live in this one: {last[0]:.200}"
                raise NotApplicable(why)
        return [json.loads(result.read_text()) for result in results]


class _Importable(pickle.Pickler):
    """Pickles a source whose class, and those of the sources and functions in it, another process can import."""

    def reducer_override(self, obj: object) -> Any:  # noqa: ANN401 - as typeshed has it
        if isinstance(obj, FunctionType) or (isinstance(obj, type) and issubclass(obj, Source)):
            _need_importable(obj)
        return NotImplemented


def _need_importable(part: type[Source] | FunctionType) -> None:
    """Raise `NotApplicable` if another process cannot import a part, as one of a script, a test or a notebook."""
    imported: object = sys.modules.get(part.__module__)
    for name in part.__qualname__.split("."):
        imported = getattr(imported, name, None)
    if part.__module__ == "__main__" or imported is not part:
        raise NotApplicable(
            f"{part.__qualname__} of the source cannot be imported in another process: put it into a module"
        )


def main() -> None:
    """Read the splits of a job. Called in the new process, with the paths of the job and of the result."""
    job, pickled = pickle.loads(Path(sys.argv[1]).read_bytes())  # noqa: S301 - written by `read_elsewhere`
    sys.path[:] = job["path"]
    importlib.invalidate_caches()
    from forebay.testkit.harness.reads import read
    from forebay.testkit.harness.subject import Subject

    if os.getpid() % len(_ZONES) != int(sys.argv[3]):
        process = os.getpid() + 1  # order by a process id shows only if the ids differ in their last bit
        os.getpid = lambda: process
    source, splits = pickle.loads(pickled)  # noqa: S301 - as above
    subject = Subject(source, seconds=6 * job["seconds"], seed=0, live=True)
    rows = {split.id: read(subject, [split], rows=100).rows[split.id] for split in splits}
    Path(sys.argv[2]).write_text(json.dumps(rows))
