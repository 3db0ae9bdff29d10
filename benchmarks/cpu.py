# SPDX-License-Identifier: Apache-2.0
"""CPU seconds of this process and everything below it: the JVM, Spark's Python workers, and those that ended."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class Used(NamedTuple):
    """What a process has used: the name of its program, its own seconds, those of children that ended, its parent."""

    name: str
    own: float
    ended: float
    parent: int


def seconds_since(before: Mapping[int, Used], without: int | None = None, root: int | None = None) -> float:
    """Return user and system time of the process tree since `before`, which is what `tree` gave, in seconds."""
    return sum(by_program_since(before, without, root).values())


def by_program_since(
    before: Mapping[int, Used], without: int | None = None, root: int | None = None
) -> dict[str, float]:
    """Return the same by the name of the program, "java" for example.

    A process that ended leaves all its time to its parent, also that from before; or to nobody, as Spark's workers.
    """
    after = tree(without, root)
    left: dict[int, float] = {}
    for pid, one in before.items():
        if pid not in after:
            left[one.parent] = left.get(one.parent, 0.0) + one.own + one.ended
    found: dict[str, float] = {}
    for pid, now in after.items():
        was = before.get(pid, Used(now.name, 0.0, 0.0, now.parent))
        ended = max(0.0, now.ended - was.ended - left.get(pid, 0.0))
        found[now.name] = found.get(now.name, 0.0) + now.own - was.own + ended
    return found


def idle_cores(seconds: float, without: int | None = None) -> float:
    """Return how many cores the process tree uses while nothing happens, and has not for a while."""
    time.sleep(7)
    before, began = tree(without), time.perf_counter()
    time.sleep(seconds)
    after, lasted = tree(without), time.perf_counter() - began
    # Workers of the query before this one end meanwhile, and their time may be nobody's then.
    return sum(used.own - before[pid].own for pid, used in after.items() if pid in before) / lasted


def tree(without: int | None = None, root: int | None = None) -> dict[int, Used]:
    """Return the processes of the tree by their ids.

    Args:
        without: A process that does not count, with everything below it.
        root: The process at the top; None: this one.
    """
    parents: dict[int, int] = {}
    found: dict[int, Used] = {}
    tick = os.sysconf("SC_CLK_TCK")
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            name, rest = (entry / "stat").read_text().rsplit(")", 1)
        except OSError:
            continue  # it has ended meanwhile; its time is its parent's now
        fields = rest.split()
        user, system, ended_user, ended_system = (int(field) / tick for field in fields[11:15])
        parents[int(entry.name)] = int(fields[1])
        parent = parents[int(entry.name)]
        found[int(entry.name)] = Used(name.split("(", 1)[1], user + system, ended_user + ended_system, parent)
    mine = os.getpid() if root is None else root
    return {
        pid: used
        for pid, used in found.items()
        if _below(pid, mine, parents) and (without is None or not _below(pid, without, parents))
    }


def _below(pid: int, root: int, parents: dict[int, int]) -> bool:
    while pid not in (0, root):
        pid = parents.get(pid, 0)
    return pid == root
