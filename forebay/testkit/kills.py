# SPDX-License-Identifier: Apache-2.0
"""Kills processes of a streaming query at named points, and shows whether its rows still arrived exactly once.

```python
class KillableOrders(Killable, Orders): ...          # the source under test, with kill points

kills = KillList(directory)
kills.arm(Kill("plan-ends", "jvm", at=3), Kill("read-middle"))
files = MicroBatchFiles(f"{directory}/rows", kills)  # the sink: frame.writeStream.foreachBatch(files)
restart_until_done(start, kills)                     # calls start() again after each kill that ended the query
assert kills.armed() == [] and sorted(files.rows()) == sorted(undisturbed.rows())
```
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, Protocol, get_args
from unittest.mock import patch

import pyarrow as pa

from forebay.errors import ConfigurationError, ContractError, FatalError
from forebay.framework.discovery import DiscoveryEnumerator
from forebay.framework.enumerator import SplitEnumerator, SplitEnumeratorContext
from forebay.framework.microbatch.stream_planner import StreamPlanner
from forebay.framework.runtime.runtime import Runtime
from forebay.framework.source import Source
from forebay.framework.tasks.read_task import Delivered, ReadTask
from forebay.options import option
from forebay.state.local_state_store import LocalStateStore
from forebay.state.s3_state_store import S3StateStore
from forebay.table.changelog.state import shard
from forebay.table.changelog.state.segments import StoredSegments
from forebay.table.changelog.state.shard import Shard, merge
from forebay.testkit.processes import alive, end_session, parent_jvm

__all__ = [
    "POINTS",
    "STATE_POINTS",
    "Kill",
    "KillList",
    "Killable",
    "MicroBatchFiles",
    "killable_state",
    "restart_until_done",
    "run_until_done",
]

# -- Kill points, and the list of the kills of a run.


STATE_POINTS: Final = {
    "segment-written": "a task has written a segment of keyed state, and no manifest names it",
    "merge-done": "a task has merged runs of keyed state into one, and no manifest names it",
    "manifest-begins": "a task is about to write the manifest of a micro-batch",
    "manifest-written": "the manifest of a micro-batch is written, and the task has handed no change on",
    "removed-some": "a task has removed some of the files that no kept version needs, and not the others",
    "removed-all": "a task has removed the files that no kept version needs, and has handed no change on",
    "changes-handed-on": "a task has handed on changes, and has not ended",
}
"""The kill points in tasks with keyed state, for queries that are created within `killable_state`."""

POINTS: Final = {
    **STATE_POINTS,
    "plan-begins": "the stream runner is asked for the next offset; the micro-batch before it is committed",
    "discovered": "discover() has returned, and nothing is planned",
    "ends-known": "latest() has returned the ends of the splits",
    "state-begins": "the planner is about to write to the state location",
    "state-written": "the planner has written to the state location; the offset is not made",
    "plan-ends": "the offset is made, and Spark has not logged it",
    "tasks-begin": "the offset is logged, and not yet turned into tasks",
    "tasks-end": "the tasks are made, and Spark has none of them",
    "commit-begins": "Spark commits a micro-batch to the source; the offset of the next micro-batch is logged",
    "commit-ends": "the source has finished its work after a micro-batch",
    "read-begins": "a task begins, and nothing is read",
    "read-first": "a task has its first record batch, and has handed none on",
    "read-middle": "a task has handed on some rows, and has more; a task with a single row has handed it on",
    "read-ends": "a task has handed on its last record batch, and has not ended",
    "claim-begins": "a task is about to write to the state location",
    "claim-made": "a task has written to the state location, and has handed on no row since",
    "sink-begins": "the sink is called, and nothing is read",
    "sink-written": "the sink has the rows, and Spark has not logged that the micro-batch is done",
    "offset-logged": "the file of an offset appears in the checkpoint; watched from outside",
    "commit-logged": "the file of a finished micro-batch appears in the checkpoint; watched from outside",
}
"""All kill points, each with what has happened when a process reaches it, and what has not."""

Victim = Literal["self", "executor", "jvm", "driver", "broker"]

_PATIENCE = 10.0


@dataclass(frozen=True)
class Kill:
    """A SIGKILL of one process when a named point is reached.

    Args:
        point: One of `POINTS`.
        victim: The process that reaches the point, its executor (the JVM above a worker), the driver's JVM, the
            driver's Python process, or a broker that the source reads from.
        at: The number of the visit of the point that kills, counted from 1 over all processes and restarts. For
            `offset-logged` and `commit-logged`, which `run_until_done` detects in the checkpoint, the micro-batch id.
    """

    point: str
    victim: Victim = "self"
    at: int = 1

    def __post_init__(self) -> None:
        if self.point not in POINTS:
            raise ConfigurationError(
                f"{self.point!r} is not the name of a kill point",
                option="point",
                advice=f"use one of {', '.join(POINTS)}",
            )
        if self.victim not in get_args(Victim):
            raise ConfigurationError(
                f"{self.victim!r} is no process that can be killed",
                option="victim",
                advice=f"use one of {', '.join(get_args(Victim))}",
            )


class KillList:
    """The armed and the fired kills of a run, in a directory that all processes of the run share.

    Args:
        directory: The shared directory; created by the first write.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = str(directory)
        self._root = Path(directory)

    def arm(self, *kills: Kill) -> None:
        """Arm kills. Called by a test, before the run."""
        for name in ("armed", "fired", "visits"):
            (self._root / name).mkdir(parents=True, exist_ok=True)
        number = len(self.armed()) + len(self.fired())
        for index, kill in enumerate(kills, number):
            (self._root / "armed" / f"{kill.point}.{index}").write_text(json.dumps(asdict(kill)))

    def armed(self) -> list[Kill]:
        """Return the kills that have not happened yet."""
        return self._all("armed")

    def fired(self) -> list[Kill]:
        """Return the kills that have happened."""
        return self._all("fired")

    def these_are(self, *, jvm: int, driver: int) -> None:
        """Register the processes that can be killed. Called by the driver of each start, before the query starts."""
        self._register("processes", jvm=jvm, driver=driver)

    def broker_is(self, pid: int) -> None:
        """Register the broker. The test calls it after each start of the broker, which may outlive a driver."""
        self._register("broker", broker=pid)

    def forget_processes(self) -> None:
        """Forget the registered processes. Called before a driver is restarted: their ids may be reused."""
        (self._root / "processes").unlink(missing_ok=True)

    def processes(self) -> dict[str, int]:
        """Return the process ids that the last driver has registered: of `jvm` and `driver`."""
        return self._registered("processes")

    def meet(self, point: str) -> None:
        """Report that a point is reached, and carry out a kill armed there. Called in any process, on any thread."""
        if not (self._root / "armed").is_dir():
            return
        visit = self._visit(point)
        for path, kill in self.armed_files(point):
            if visit < kill.at or (kill.victim == "broker" and not self._broker_lives()):
                continue  # a broker that is just starting is killed at a later visit
            if self.take(path) is not None:
                self.carry_out(kill)
                return

    def armed_files(self, point: str) -> list[tuple[Path, Kill]]:
        """Return the file and the content of each armed kill of a point."""
        return _loaded(self._root / "armed", f"{point}.*")

    def take(self, path: Path) -> Kill | None:
        """Mark the armed kill in the file `path` as fired, and return it. Return None if another process was first."""
        fired = self._root / "fired" / path.name
        with suppress(FileNotFoundError):
            path.rename(fired)
            return _load(fired)
        return None

    def carry_out(self, kill: Kill) -> None:
        """Kill the victim of `kill`, and wait until it is dead.

        Raises:
            ConfigurationError: The victim is not registered, or no Java process stands above this one.
            FatalError: The victim is still alive after the maximum wait.
        """
        own = {"self": os.getpid, "executor": parent_jvm}.get(kill.victim)
        registered = {**self.processes(), **self._registered("broker")}
        pid = registered.get(kill.victim) if own is None else own()
        if pid is None and kill.victim == "executor":
            raise ConfigurationError(
                "no Java process stands above this one, so there is no executor to kill",
                advice="kill executors at points of tasks only, on a cluster",
            )
        if pid is None:
            raise ConfigurationError(
                f"no process is registered as {kill.victim!r}",
                advice="call these_are(…), or broker_is(…) for a broker, before the query starts",
            )
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + _PATIENCE
        while alive(pid):
            if time.monotonic() > deadline:
                raise FatalError(f"process {pid} still runs after SIGKILL", advice=f"look at /proc/{pid}/status")
            time.sleep(0.001)

    def _broker_lives(self) -> bool:
        pid = self._registered("broker").get("broker")
        return pid is None or alive(pid)  # an unregistered broker is an error of `carry_out`

    def _register(self, name: str, **pids: int) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        temporary = self._root / f"{name}.{os.getpid()}"
        temporary.write_text(json.dumps(pids))
        temporary.replace(self._root / name)

    def _registered(self, name: str) -> dict[str, int]:
        try:
            return {str(name): int(pid) for name, pid in json.loads((self._root / name).read_text()).items()}
        except FileNotFoundError:
            return {}

    def _visit(self, point: str) -> int:
        # Appending moves this handle to the end of its own byte, so each visit gets its own number.
        handle = os.open(self._root / "visits" / point, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(handle, b".")
            return os.lseek(handle, 0, os.SEEK_CUR)
        finally:
            os.close(handle)

    def _all(self, state: str) -> list[Kill]:
        return [kill for _, kill in _loaded(self._root / state, "*")]


def _loaded(directory: Path, pattern: str) -> list[tuple[Path, Kill]]:
    """Return the files that match `pattern`, each with its kill. Skip a file that another process moves meanwhile."""
    loaded = []
    for path in sorted(directory.glob(pattern)):
        with suppress(FileNotFoundError):
            loaded.append((path, _load(path)))
    return loaded


def _load(path: Path) -> Kill:
    return Kill(**json.loads(path.read_text()))


# -- `MicroBatchFiles`: a sink that shows whether every row of a stream arrived exactly once.


class Frame(Protocol):
    """The methods of a DataFrame that the sink calls."""

    def collect(self) -> Sequence[tuple[object, ...]]:
        """Return the rows."""

    def count(self) -> int:
        """Return how many rows there are."""


class MicroBatchFiles:
    """A sink for `foreachBatch`: writes one file per micro-batch. A replay replaces the file, so rows are not repeated.

    The sink reads each micro-batch twice. It checks that all reads of a micro-batch, also after a restart, return the
    same rows.

    Args:
        directory: The directory of the files; created by the first write.
        kills: The kill list for the points `sink-begins` and `sink-written`.
    """

    def __init__(self, directory: str | os.PathLike[str], kills: KillList | None = None) -> None:
        self._root = Path(directory)
        self._kills = kills

    def __call__(self, frame: Frame, micro_batch: int) -> None:
        """Write one micro-batch. Called by Spark in the driver's process, on a thread of the query.

        Raises:
            ContractError: Two reads of the micro-batch returned different rows.
        """
        self._meet("sink-begins")
        counted = frame.count()
        texts = sorted(json.dumps(list(row), default=str) for row in frame.collect())
        if counted != len(texts):
            raise _differs(micro_batch, f"one action read {counted} rows, the next one {len(texts)}")
        self._root.mkdir(parents=True, exist_ok=True)
        path = self._root / f"{micro_batch:08}"
        if path.exists() and (before := path.read_text().splitlines()) != texts:
            lost, new = sorted(set(before) - set(texts)), sorted(set(texts) - set(before))
            raise _differs(
                micro_batch,
                f"it held {len(before)} rows, and its replay has {len(texts)}; gone: {lost[:3]}, new: {new[:3]}",
            )
        temporary = self._root / f".{micro_batch}.{os.getpid()}"
        temporary.write_text("".join(f"{text}\n" for text in texts))
        temporary.replace(path)
        self._meet("sink-written")

    def rows(self) -> list[str]:
        """Return all rows, sorted. Each row is a JSON list of its values, in the order of the columns.

        A value that JSON cannot represent, such as a timestamp, is written as its `str`.
        """
        return sorted(line for path in self._files() for line in path.read_text().splitlines())

    def micro_batches(self) -> int:
        """Return how many micro-batches were written."""
        return len(self._files())

    def _files(self) -> list[Path]:
        return sorted(self._root.glob("[0-9]*"))

    def _meet(self, point: str) -> None:
        if self._kills is not None:
            self._kills.meet(point)


def _differs(micro_batch: int, what: str) -> ContractError:
    return ContractError(
        f"two reads of micro-batch {micro_batch} differ: {what}",
        rule="S6",
        advice="a read must depend on its split alone: the same rows in the same order, exactly up to split.end",
    )


_WATCHED = {"offset-logged": "offsets", "commit-logged": "commits"}
_POLL = 0.002


class AwaitableQuery(Protocol):
    """The method of a `StreamingQuery` that `restart_until_done` calls."""

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802 - Spark's name
        """Wait until the query ends, at most `timeout` seconds. Raise the error that ended the query."""


def restart_until_done(start: Callable[[], AwaitableQuery], kills: KillList, *, starts: int = 100) -> int:
    """Start a query, again after each kill that ended it, until it ends by itself. Called in the driver.

    For kills of the stream runner and of workers, which the driver survives.

    Args:
        start: Starts the query, on the same checkpoint each time.
        kills: The kills that may end it.
        starts: Maximum number of starts.

    Returns:
        The number of starts.

    Raises:
        Exception: The query's error, if no kill ended it.
        FatalError: The query did not end within `starts` starts.
    """
    for number in range(1, starts + 1):
        before = len(kills.fired())
        try:
            start().awaitTermination()
        except Exception:  # a kill leaves errors of any kind; without a kill it is the query's own
            if len(kills.fired()) == before:
                raise
        else:
            return number
    raise _endless(starts)


def run_until_done(
    command: Sequence[str],
    kills: KillList,
    *,
    checkpoint: str | os.PathLike[str],
    starts: int = 100,
    timeout: float = 120.0,
) -> int:
    """Run a driver program, again after each kill that ended it, until it exits with 0.

    For kills of the driver, its JVM or its Python process. Workers and stream runners of a dead driver end by
    themselves, as on a real machine. The function waits for a JVM that outlives its driver, because two drivers on one
    checkpoint are a mistake of the user.

    Args:
        command: The program; it calls `KillList.these_are`.
        kills: The kills that may end it.
        checkpoint: The checkpoint directory, watched for `offset-logged` and `commit-logged`.
        starts: Maximum number of starts.
        timeout: Maximum seconds of one run.

    Returns:
        The number of starts.

    Raises:
        FatalError: The program failed without a kill, took too long, or did not end. The text has the end of its
            output.
    """
    leaders: list[int] = []
    try:
        for number in range(1, starts + 1):
            before = len(kills.fired())
            code, output = _run(command, kills, Path(checkpoint), timeout, leaders)
            if code == 0:
                return number
            if code is None or len(kills.fired()) == before:
                what = f"took more than {timeout:g} s" if code is None else f"ended with code {code}, without a kill"
                raise FatalError(f"start {number} {what}:\n{output[-4000:]}", advice="read this output")
    finally:
        for leader in leaders:
            end_session(leader)
    raise _endless(starts)


def _run(
    command: Sequence[str], kills: KillList, checkpoint: Path, timeout: float, leaders: list[int]
) -> tuple[int | None, str]:
    """Run the command once. Return its exit code (None after the timeout) and its output."""
    kills.forget_processes()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(  # noqa: S603 - the test's own program
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        leaders.append(process.pid)
        watched = _watched(kills, checkpoint)
        deadline = time.monotonic() + timeout
        while (code := process.poll()) is None and time.monotonic() < deadline:
            _watch(kills, watched)
            time.sleep(_POLL)
        _wait_for_jvm(kills, deadline)
        if code is None:
            end_session(process.pid)
            process.wait()
        output.seek(0)
        return code, output.read().decode(errors="replace")


def _watched(kills: KillList, checkpoint: Path) -> dict[Path, Path]:
    """Map the file of each armed kill at `offset-logged` or `commit-logged` to the checkpoint file that triggers it."""
    return {
        path: checkpoint / directory / str(kill.at)
        for point, directory in _WATCHED.items()
        for path, kill in kills.armed_files(point)
    }


def _watch(kills: KillList, watched: dict[Path, Path]) -> None:
    for path, appears in list(watched.items()):
        # Not before the driver has registered its JVM: the previous one is dead.
        if appears.exists() and kills.processes():
            del watched[path]
            if (kill := kills.take(path)) is not None:
                kills.carry_out(kill)


def _wait_for_jvm(kills: KillList, deadline: float) -> None:
    jvm = kills.processes().get("jvm")
    while jvm is not None and alive(jvm) and time.monotonic() < deadline:
        time.sleep(_POLL)


def _endless(starts: int) -> FatalError:
    return FatalError(
        f"the query did not end in {starts} starts", advice="check KillList.fired() and the log of the query"
    )


# -- Kill points of any source, and of the framework in each process that has this source.


_PLANNING: Final = {
    "latest": ("plan-begins", "plan-ends"),
    "tasks": ("tasks-begin", "tasks-end"),
    "commit": ("commit-begins", "commit-ends"),
}

_hooked: list[KillList] = []
_done: set[str] = set()
"""The names of the hooks that this process has."""
_met: set[str] = set()
"""The points that this process has reached."""


class Killable(Source):
    """A mixin that adds kill points to a source: `class KillableOrders(Killable, Orders)`. Not for production.

    Each process that creates or unpickles such a source gets the kill points as hooks in the framework's planner, tasks
    and state store, and in this source's enumerator.
    """

    kills: str = option(doc="the directory of the kill list")

    def __post_init__(self) -> None:
        super().__post_init__()
        _hook(self.kills)

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        _hook(self.kills)

    def create_enumerator(self, context: SplitEnumeratorContext) -> SplitEnumerator | DiscoveryEnumerator:
        """Return the source's own enumerator, with kill points."""
        enumerator = super().create_enumerator(context)  # type: ignore[safe-super]  # of the class mixed with
        if isinstance(enumerator, DiscoveryEnumerator):
            # On the object: a wrapper would have to forward all that the class may have.
            _around(enumerator, "discover", None, "discovered")
            _around(enumerator, "latest", None, "ends-known")
        return enumerator


def _meet(point: str) -> None:
    """Report that this process has reached a kill point. If a kill is armed there, it happens now."""
    _met.add(point)
    _hooked[-1].meet(point)


def _is_new(hooks: str, directory: str) -> bool:
    """Use the `KillList` of `directory` in this process. Return whether the hooks named `hooks` must still be added."""
    if not _hooked or _hooked[-1].directory != directory:
        _hooked[:] = [KillList(directory)]
    new = hooks not in _done
    _done.add(hooks)
    return new


def _hook(directory: str) -> None:
    """Add kill points to the framework's methods in this process. A second call only replaces the `KillList`.

    Args:
        directory: The directory of the `KillList`.
    """
    if not _is_new("source", directory):
        return
    for name, (before, after) in _PLANNING.items():
        _around(StreamPlanner, name, before, after)
    for store in (LocalStateStore, S3StateStore):
        _hook_store(store)
    _hook_tasks()


def _hook_store(store: type[LocalStateStore | S3StateStore]) -> None:
    put = store.put_if_absent

    def put_if_absent(self: Any, name: str, data: bytes) -> bool:  # noqa: ANN401 - one of both stores
        plans = any(before in _met for before, _ in _PLANNING.values())  # a planner writes state, a task writes claims
        _meet("state-begins" if plans else "claim-begins")
        written = put(self, name, data)
        _meet("state-written" if plans else "claim-made")
        return written

    setattr(store, "put_if_absent", put_if_absent)  # noqa: B010 - a class is patched on purpose


def _hook_tasks() -> None:
    from forebay.spark import batch

    run_task = vars(batch)["run_task"]

    def run(task: ReadTask, *, runtime: Runtime | None = None) -> Generator[Delivered, None, None]:
        _meet("read-begins")
        rows = 0
        with closing(run_task(task, runtime=runtime)) as running:
            for delivered in running:
                _meet("read-middle" if rows else "read-first")
                if not rows and delivered.batch.num_rows > 1:  # the batch may be the only one
                    middle = delivered.batch.num_rows // 2
                    yield replace(delivered, batch=delivered.batch.slice(0, middle))
                    _meet("read-middle")
                    yield replace(delivered, batch=delivered.batch.slice(middle))
                else:
                    yield delivered
                rows += delivered.batch.num_rows
        if rows == 1:
            _meet("read-middle")
        _meet("read-ends")

    vars(batch)["run_task"] = run


def _around(owner: object, name: str, before: str | None, after: str) -> None:
    """Replace the method `name` of `owner` by one that reaches the point `before`, if given, and the point `after`."""
    method = getattr(owner, name)

    def around(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever the method takes
        if before is not None:
            _meet(before)
        result = method(*args, **kwargs)
        _meet(after)
        return result

    setattr(owner, name, around)


# -- Kill points in tasks that keep keyed state, such as those of `materialize`.


_Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@contextmanager
def killable_state(kills: KillList, *, small: int = 0) -> Iterator[None]:
    """Add the kill points `STATE_POINTS` to stateful functions that the driver's program calls in the `with` block.

    ```python
    with killable_state(kills):
        view = materialize(df, "id", state_location=location)
    ```

    Args:
        kills: The kill list.
        small: The state merges stored runs of at most this many entries with each new run (without kills, 4,096).
    """
    from forebay.spark.changelog import stateful

    task = stateful._Task  # noqa: SLF001 - the kill point is where Spark calls the function

    def make(*arguments: Any, **named: Any) -> _KillableTask:  # noqa: ANN401 - those of the task
        return _KillableTask(task(*arguments, **named), kills.directory, small)

    with patch.object(stateful, "_Task", make):
        yield


class _KillableTask:
    """The function of `mapInArrow`, with hooks in each process that unpickles it."""

    def __init__(self, task: _Task, kills: str, small: int) -> None:
        self.task, self.kills, self.small = task, kills, small

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _hook_state(self.kills, self.small)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in self.task(batches):
            yield batch
            _meet("changes-handed-on")


def _hook_state(directory: str, small: int) -> None:
    if not _is_new("state", directory):
        return
    vars(shard)["SMALL"] = small
    _around(StoredSegments, "write", None, "segment-written")
    _around(Shard, "_remove_old", "manifest-written", "removed-all")

    def merged(runs: Sequence[Any], *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - as of `merge`
        result = merge(runs, *arguments, **named)
        if len(runs) > 1:
            _meet("merge-done")
        return result

    vars(shard)["merge"] = merged
    for store in (LocalStateStore, S3StateStore):
        _hook_state_store(store)


def _hook_state_store(store: type[LocalStateStore | S3StateStore]) -> None:
    put, delete = store.put_if_absent, store.delete

    def put_if_absent(self: Any, name: str, data: bytes) -> bool:  # noqa: ANN401 - one of both stores
        if name.rpartition("/")[2].startswith("v"):
            _meet("manifest-begins")
        return put(self, name, data)

    def delete_in_parts(self: Any, names: Iterable[str]) -> None:  # noqa: ANN401 - one of both stores
        first, *others = names
        delete(self, [first])
        _meet("removed-some")
        delete(self, others)

    store.put_if_absent = put_if_absent  # type: ignore[method-assign]
    store.delete = delete_in_parts  # type: ignore[method-assign]
