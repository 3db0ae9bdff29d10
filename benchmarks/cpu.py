# SPDX-License-Identifier: Apache-2.0
"""CPU seconds of this process and everything below it: the JVM, Spark's Python workers, and those that ended."""

from __future__ import annotations

import os
from pathlib import Path


def tree_cpu_seconds() -> float:
    """Return user and system time of the process tree, from /proc (Linux)."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # it has ended meanwhile; its time is its parent's now
        parents[int(entry.name)] = int(fields[1])
        ticks[int(entry.name)] = sum(int(field) for field in fields[11:15])
    mine = os.getpid()
    return sum(ticks[pid] for pid in ticks if _below(pid, mine, parents)) / os.sysconf("SC_CLK_TCK")


def _below(pid: int, root: int, parents: dict[int, int]) -> bool:
    while pid not in (0, root):
        pid = parents.get(pid, 0)
    return pid == root
