# SPDX-License-Identifier: Apache-2.0
"""Named points where a process of a streaming query dies by SIGKILL, armed by files, each once."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from forebay.errors import ConfigurationError, FatalError
from forebay.testkit.processes import alive, parent_jvm

POINTS: Final = {
    "plan-begins": "the stream runner is asked for the next offset; the micro-batch before it is proven done",
    "discovered": "the enumerator has looked for splits, and nothing is decided",
    "ends-known": "the enumerator has said how far the splits go",
    "state-begins": "the planner is about to write to the state location",
    "state-written": "the planner has written to the state location; the offset is not made",
    "plan-ends": "the offset is made, and Spark has not logged it",
    "tasks-begin": "the offset is logged, and not yet turned into tasks",
    "tasks-end": "the tasks are made, and Spark has none of them",
    "commit-begins": "Spark commits a micro-batch to the source, whose successor is logged",
    "commit-ends": "the source has done what it does after a micro-batch",
    "read-begins": "a task begins, and nothing is read",
    "read-first": "a task has its first record batch, and has handed none on",
    "read-middle": "a task has handed on some rows, and has more; one of a single row has handed that on",
    "read-ends": "a task has handed on its last record batch, and has not ended",
    "claim-begins": "a task is about to write to the state location",
    "claim-made": "a task has written to the state location, and handed nothing on for it",
    "sink-begins": "the sink is called, and nothing is read",
    "sink-written": "the sink has the rows, and Spark has not logged that the micro-batch is done",
    "offset-logged": "the file of an offset appears in the checkpoint; watched from outside",
    "commit-logged": "the file of a finished micro-batch appears in the checkpoint; watched from outside",
}
"""What has happened and what has not, at each point."""

Victim = Literal["self", "executor", "jvm", "driver", "broker"]

_PATIENCE = 10.0


@dataclass(frozen=True)
class Kill:
    """One death.

    Args:
        point: Where; one of `POINTS`.
        victim: Who: the process that comes to the point, the JVM that it works for (a worker's executor), the JVM of
            the driver, the driver's Python process, or a broker that the source reads from.
        at: At which visit of the point, over all processes and restarts, from 1. For the points that are watched
            from outside: the number of the micro-batch.
    """

    point: str
    victim: Victim = "self"
    at: int = 1

    def __post_init__(self) -> None:
        if self.point not in POINTS:
            raise ConfigurationError(
                f"there is no point {self.point!r}", option="point", advice=f"choose from {', '.join(POINTS)}"
            )


class KillList:
    """The kills of a run, in a directory that all of its processes see: armed, then fired.

    Any number of objects, in any number of processes, may stand for one directory.

    Args:
        directory: Where; made when it is needed.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = str(directory)
        self._root = Path(directory)

    def arm(self, *kills: Kill) -> None:
        """Add kills. Called by a test, before the run."""
        for name in ("armed", "fired", "visits"):
            (self._root / name).mkdir(parents=True, exist_ok=True)
        number = len(self.armed()) + len(self.fired())
        for index, kill in enumerate(kills, number):
            (self._root / "armed" / f"{kill.point}.{index}").write_text(json.dumps(asdict(kill)))

    def armed(self) -> list[Kill]:
        """Return the kills that have not happened."""
        return self._all("armed")

    def fired(self) -> list[Kill]:
        """Return the kills that have happened."""
        return self._all("fired")

    def these_are(self, *, jvm: int, driver: int) -> None:
        """Say who the victims are. Called by the driver of each start, before the query starts."""
        self._root.mkdir(parents=True, exist_ok=True)
        temporary = self._root / f"processes.{os.getpid()}"
        temporary.write_text(json.dumps({"jvm": jvm, "driver": driver}))
        temporary.replace(self._root / "processes")

    def broker_is(self, pid: int) -> None:
        """Say which process the broker is. Called by the test after each of its starts: a driver's death is not its."""
        self._root.mkdir(parents=True, exist_ok=True)
        temporary = self._root / f"broker.{os.getpid()}"
        temporary.write_text(json.dumps({"broker": pid}))
        temporary.replace(self._root / "broker")

    def forget_processes(self) -> None:
        """Forget who the victims are. Called before a driver is started again: their numbers may be others' soon."""
        (self._root / "processes").unlink(missing_ok=True)

    def processes(self) -> dict[str, int]:
        """Return the process ids that the last driver has told; none before the first."""
        return self._told("processes")

    def meet(self, point: str) -> None:
        """Come to a point: somebody dies here if it is armed. Called in any process, on any thread."""
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
        """Return the armed kills of a point with their files, for who watches from outside."""
        return _loaded(self._root / "armed", f"{point}.*")

    def take(self, path: Path) -> Kill | None:
        """Make one armed kill a fired one; None if another process was first."""
        fired = self._root / "fired" / path.name
        try:
            path.rename(fired)
        except FileNotFoundError:
            return None
        return _load(fired)

    def carry_out(self, kill: Kill) -> None:
        """Kill, and return only when the victim is dead.

        Raises:
            ConfigurationError: Nobody has said who the victim is, or there is none.
            FatalError: It does not die.
        """
        own = {"self": os.getpid, "executor": parent_jvm}.get(kill.victim)
        told = {**self.processes(), **self._told("broker")}
        pid = told.get(kill.victim) if own is None else own()
        if pid is None:
            raise ConfigurationError(
                f"nobody said which process {kill.victim!r} is",
                advice="call these_are(…), and broker_is(…) for a broker, before the query starts",
            )
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + _PATIENCE
        while alive(pid):
            if time.monotonic() > deadline:
                raise FatalError(f"process {pid} lives on after SIGKILL", advice="see what the kernel says of it")
            time.sleep(0.001)

    def _broker_lives(self) -> bool:
        pid = self._told("broker").get("broker")
        return pid is None or alive(pid)  # one that nobody named is an error, told where it should die

    def _told(self, name: str) -> dict[str, int]:
        try:
            return {str(name): int(pid) for name, pid in json.loads((self._root / name).read_text()).items()}
        except FileNotFoundError:
            return {}

    def _visit(self, point: str) -> int:
        # Appending moves this handle to the end of its own byte, so no two visits have one number.
        handle = os.open(self._root / "visits" / point, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(handle, b".")
            return os.lseek(handle, 0, os.SEEK_CUR)
        finally:
            os.close(handle)

    def _all(self, state: str) -> list[Kill]:
        return [kill for _, kill in _loaded(self._root / state, "*")]


def _loaded(directory: Path, pattern: str) -> list[tuple[Path, Kill]]:
    """Return the kills of these files; not those that another process takes while one looks."""
    found = ((path, _load_if_there(path)) for path in sorted(directory.glob(pattern)))
    return [(path, kill) for path, kill in found if kill is not None]


def _load(path: Path) -> Kill:
    return Kill(**json.loads(path.read_text()))


def _load_if_there(path: Path) -> Kill | None:
    """Return an armed kill; None if another process has just taken it."""
    try:
        return _load(path)
    except FileNotFoundError:
        return None
