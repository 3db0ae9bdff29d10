# SPDX-License-Identifier: Apache-2.0
"""The first load of a large index, a node that hydrates it, and small changes after it: time and peaks of memory.

Prints the highest RSS of a task of Spark and of a node, and the CPU of a change: the median and the most. Run it:
``make bench BENCH=index_large``, or with less: ``BENCH_ARGS='--rows 1000000 --changes 10'``.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow.parquet as pq
from cpu import tree
from index import ORDER, rows, session

from forebay.index import Funnel

PIECE = 500_000
"""Rows of a file of the input."""


@contextmanager
def highest_task(found: list[float]) -> Iterator[None]:
    """Note the highest RSS of a Python worker of Spark, in megabytes."""
    ended, highest = threading.Event(), [0.0]

    def watch() -> None:
        while not ended.wait(0.2):
            for place in (Path(f"/proc/{pid}") for pid in tree()):  # not of other programs
                try:
                    if b"pyspark.daemon" in (place / "cmdline").read_bytes():
                        pages = int((place / "statm").read_text().split()[1])
                        highest[0] = max(highest[0], pages * resource.getpagesize() / 1e6)
                except (OSError, IndexError):  # it has ended
                    continue

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    yield
    ended.set()
    watching.join()
    found.append(highest[0])


NODE = """
import json, random, sys, time
from forebay.index import SearchNode
location, cache, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
began = time.perf_counter()
with SearchNode(location, "Order", cache=cache) as node:
    node.refresh()
    hydrated = round(time.perf_counter() - began, 2)
    missing = sum(node.get(random.randrange(size)) is None for _ in range(1_000))
    node.where("amount < 9000", city="c7").search("w11").order_by("-amount").fetch()
    found = {"seconds to hydrate": hydrated, "objects": node.count(), "missing": missing}
(peak,) = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(json.dumps({**found, "MB at most": int(peak) // 1000}))
"""
"""A node hydrates the index and is asked: a process that imports nothing else, whose peak the kernel knows."""


def main() -> None:
    """Load, hydrate, change."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--changes", type=int, default=100, help="transactions of ten rows after the load")
    parser.add_argument("--shards", type=int, default=10, help="one for each million objects")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="forebay-bench-", ignore_cleanup_errors=True) as directory:
        work = Path(directory)
        (work / "in").mkdir()
        for first in range(0, given.rows, PIECE):
            piece = rows(np.arange(first, min(first + PIECE, given.rows)), first)
            pq.write_table(piece, str(work / "in" / f"{first:010}.parquet"))
        spark = session()
        funnel = Funnel(str(work / "index"), ORDER, shards=given.shards)
        began, peaks = time.perf_counter(), list[float]()
        with highest_task(peaks):
            funnel.commit("orders", spark.read.parquet(str(work / "in")), kind="snapshot")
        size = sum(file.stat().st_size for file in (work / "index").rglob("*") if file.is_file())
        print(
            f"{given.rows:,} objects in {time.perf_counter() - began:.0f} s, {size / 1e6:,.0f} MB; "
            f"the highest task {peaks[0]:.0f} MB",
            flush=True,
        )

        def node() -> None:
            command = [sys.executable, "-c", NODE, str(work / "index"), str(work / "cache"), str(given.rows)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            print("node:", done.stdout.strip(), flush=True)

        node()
        spent: list[float] = []
        for number in range(given.changes):
            changed = spark.createDataFrame(rows(np.arange(10) + 10 * number, 7 * number))
            before = sum(used.own + used.ended for used in tree().values())
            funnel.commit("orders", changed, kind="update")
            spent.append(sum(used.own + used.ended for used in tree().values()) - before)
        print(
            f"{given.changes} changes of 10 rows: CPU {median(spent):.2f} s each, {max(spent):.2f} at most", flush=True
        )
        node()
        print("verify:", funnel.verify(), flush=True)
        spark.stop()


if __name__ == "__main__":
    main()
