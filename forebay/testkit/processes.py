# SPDX-License-Identifier: Apache-2.0
"""Finds processes, ends all processes of a session, and ends a command with its owner.

Run by its path, so it imports the standard library only.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_PATIENCE = 10.0
_DEAD = {"Z", "X"}


def alive(pid: int) -> bool:
    """Return whether a process is running. A zombie is not. Called on any thread."""
    if (state := _stat(pid)) is not None:
        return state[0] not in _DEAD
    if _PROC.joinpath("self").exists():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def session_of(leader: int) -> list[int]:
    """Return the ids of the running processes in the session of `leader`, of any process group. Linux only."""
    pids = []
    for entry in _PROC.iterdir() if _PROC.is_dir() else ():
        if entry.name.isdigit():
            state = _stat(int(entry.name))
            if state is not None and state[1] == leader and state[0] not in _DEAD:
                pids.append(int(entry.name))
    return pids


def parent_jvm() -> int | None:
    """Return the id of the nearest Java process among the parents of this one; None if there is none. Linux only."""
    pid = os.getppid()
    while pid > 1:
        try:
            name = (_PROC / str(pid) / "comm").read_text().strip()
        except (FileNotFoundError, ProcessLookupError):
            return None
        if name == "java":
            return pid
        state = _stat(pid)
        pid = 0 if state is None else state[2]
    return None


def end_session(leader: int) -> None:
    """Kill all processes in the session of `leader`, and wait at most ten seconds until they have ended.

    `Popen(start_new_session=True)` makes a process the leader of a session. The leader itself may have ended.
    """
    deadline = time.monotonic() + _PATIENCE
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
    while (left := session_of(leader)) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _stat(pid: int) -> tuple[str, int, int] | None:
    """Return the state, the session and the parent of a process; None without such a process or without /proc."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name, in parentheses, may hold anything, also spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[3]), int(fields[1])


# -- A command that ends with its owner.


def tied(directory: str | os.PathLike[str], *command: str) -> list[str]:
    """Return a command that runs `command`, and kills it when the owner dies, which closes standard input.

    Start it with a pipe as standard input and in its own session. If the owner dies, it also removes `directory`.
    """
    return [sys.executable, "-I", __file__, str(directory), *command]


def _main() -> int:
    """Run the command in the arguments; return its exit code. Kill the command when standard input ends."""
    directory, command = sys.argv[1], sys.argv[2:]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603 - our own command
    orphaned = threading.Event()

    def watch() -> None:
        while os.read(0, 1024):  # not by sys.stdin, whose lock would be held when this process ends
            pass
        orphaned.set()
        child.kill()

    # SIGTERM is passed on, so that the child can shut down cleanly.
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    threading.Thread(target=watch, daemon=True).start()
    code = child.wait()
    if orphaned.is_set():
        shutil.rmtree(directory, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(_main())
