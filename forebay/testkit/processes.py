# SPDX-License-Identifier: Apache-2.0
"""Looks at processes, and ends those of one session for sure."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")


def alive(pid: int) -> bool:
    """Return whether a process runs; one that is dead and not yet waited for does not. Any thread."""
    state = _stat(pid)
    if state is not None:
        return state[0] not in {"Z", "X"}
    if _PROC.joinpath("self").exists():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def session_of(leader: int) -> list[int]:
    """Return the running processes of the session that a process leads, whatever groups they made; Linux only."""
    found = []
    for entry in _PROC.iterdir() if _PROC.is_dir() else ():
        if entry.name.isdigit():
            state = _stat(int(entry.name))
            if state is not None and state[1] == leader and state[0] not in {"Z", "X"}:
                found.append(int(entry.name))
    return found


def parent_jvm() -> int | None:
    """Return the nearest Java process above this one; None if there is none. Linux only."""
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


def end_session(leader: int, *, patience: float = 10.0) -> None:
    """Kill everything in the session that a process leads (made by `Popen(start_new_session=True)`), and wait for it.

    Args:
        leader: The process id; the process itself may be gone.
        patience: Seconds to wait.
    """
    deadline = time.monotonic() + patience
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
    while (left := session_of(leader)) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _stat(pid: int) -> tuple[str, int, int] | None:
    """Return the state, the session and the parent of a process; None if there is none, or no /proc."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name, in parentheses, may hold anything, also spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[3]), int(fields[1])
