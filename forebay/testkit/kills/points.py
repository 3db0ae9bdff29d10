# SPDX-License-Identifier: Apache-2.0
"""Named points where a process of a streaming query is killed by SIGKILL. A file arms each kill, which happens once."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from forebay.errors import ConfigurationError, FatalError
from forebay.testkit.servers.processes import alive, parent_jvm

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
