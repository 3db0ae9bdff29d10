# SPDX-License-Identifier: Apache-2.0
"""Finds processes, and ends all processes of a session."""

from __future__ import annotations

import os
import signal
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
