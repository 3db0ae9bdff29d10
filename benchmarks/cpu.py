# SPDX-License-Identifier: Apache-2.0
"""CPU seconds of this process and everything below it: the JVM, Spark's Python workers, and those that ended."""

from __future__ import annotations

import os
from pathlib import Path


def tree_cpu_seconds(without: int | None = None) -> float:
    """Return user and system time of the process tree, from /proc (Linux); see `tree_cpu`."""
    return sum(tree_cpu(without).values())


def tree_cpu(without: int | None = None) -> dict[str, float]:
    """Return user and system time of the process tree by the name of the program, "java" for example, in seconds.

    Args:
        without: A process that does not count, with everything below it.
    """
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    names: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            name, rest = (entry / "stat").read_text().rsplit(")", 1)
        except OSError:
            continue  # it has ended meanwhile; its time is its parent's now
        fields = rest.split()
        parents[int(entry.name)] = int(fields[1])
        names[int(entry.name)] = name.split("(", 1)[1]
        ticks[int(entry.name)] = sum(int(field) for field in fields[11:15])
    mine, found = os.getpid(), dict[str, float]()
    for pid, used in ticks.items():
        if _below(pid, mine, parents) and (without is None or not _below(pid, without, parents)):
            found[names[pid]] = found.get(names[pid], 0.0) + used / os.sysconf("SC_CLK_TCK")
    return found


def _below(pid: int, root: int, parents: dict[int, int]) -> bool:
    while pid not in (0, root):
        pid = parents.get(pid, 0)
    return pid == root
