# SPDX-License-Identifier: Apache-2.0
"""A replacement of an index while transactions go on, one a second: what it costs them, and what a node sees of it.

The replacement, the node and the transactions are three processes, all of which are there from the first transaction
on; those without a replacement come first. Run it:
``make bench BENCH=index_replacement``, or with less to do by ``BENCH_ARGS='--rows 100000'``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import IO, Any

import numpy as np
from index import ORDER, rows, session

from forebay.index import Funnel, Property, SearchNode

QUIET = 15
"""Transactions without a replacement."""

_SOURCE = ORDER.datasources[0]
TEXTS = {**_SOURCE.properties, "city": Property("string", filter=True, text=True)}
NEW = replace(ORDER, datasources=[replace(_SOURCE, properties=TEXTS)])


def build(location: str) -> None:
    """Replace the definition, and print how long that took."""
    funnel = Funnel(location, NEW)
    spark = session()
    spark.range(1).count()
    print("ready", flush=True)
    sys.stdin.readline()
    start = time.monotonic()
    done = funnel.replace(spark)
    print(json.dumps({"seconds": time.monotonic() - start, "objects": done.version and done.version.count}), flush=True)
    spark.stop()


def read(location: str) -> None:
    """Read objects until standard input ends, while a thread takes each version; print what the swap took."""
    with tempfile.TemporaryDirectory() as cache, SearchNode(location, "Order", cache=cache) as node:
        ended, flips = threading.Event(), 0
        swap: dict[str, Any] = {}

        def refresh() -> None:
            nonlocal flips
            while not ended.wait(0.02):
                before, start = node.version, time.monotonic()
                after = node.refresh()
                flips += after != before
                if after.pipeline != before.pipeline:
                    swap.update(start=start, end=time.monotonic(), data=(before.data, after.data))

        def wait() -> None:
            sys.stdin.read()
            ended.set()

        threads = [threading.Thread(target=work, daemon=True) for work in (wait, refresh)]
        for thread in threads:
            thread.start()
        slowest = {"before": 0.0, "during the swap": 0.0}
        taken, answering = ask(node, ended)
        threads[1].join()
        for start, seconds in taken:
            name = "during the swap" if swap and swap["start"] - 0.05 <= start <= swap["end"] else "before"
            slowest[name] = max(slowest[name], seconds)
        facts: dict[str, Any] = {"slowest": slowest, "flips": flips}
        if swap:  # the call also closes the files of the index before, while others answer
            times = {"until it answers": answering - swap["start"], "the call of refresh": swap["end"] - swap["start"]}
            facts = {"swap": times, "data": swap["data"], **facts}
        print(json.dumps(facts))


def ask(node: SearchNode, ended: threading.Event) -> tuple[list[tuple[float, float]], float]:
    """Ask until it ended; return the beginnings and seconds of answers, and when another pipeline answered first."""
    taken: list[tuple[float, float]] = []
    served, answering = node.version.pipeline, 0.0
    while not ended.is_set():
        start = time.monotonic()
        if not answering and node.version.pipeline != served:
            answering = start
        if node.get(7) is None or node.where(city="nowhere").count():
            raise SystemExit("an answer is wrong")
        taken.append((start, time.monotonic() - start))
        time.sleep(0.001)
    return taken, answering


def child(what: str, location: str) -> subprocess.Popen[str]:
    """Start this program as a process that builds or reads."""
    command = [sys.executable, "-P", __file__, "--child", what, location]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def line(stream: IO[str] | None) -> str:
    """Return the next line of a process that is no message of Spark."""
    assert stream is not None
    return next(each for each in stream if each.startswith(("ready", "{")))


def main() -> None:
    """Run the measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        {"build": build, "read": read}[given.child[0]](given.child[1])
        return
    with tempfile.TemporaryDirectory(prefix="forebay-bench-", ignore_cleanup_errors=True) as location:
        spark = session()
        funnel = Funnel(location, ORDER)
        funnel.commit("orders", spark.createDataFrame(rows(np.arange(given.rows), 1)), kind="snapshot")
        random, number = np.random.default_rng(5), 0

        def transaction() -> float:
            nonlocal number
            number += 1
            changed = rows(random.choice(given.rows, 10, replace=False), number)
            start = time.monotonic()
            funnel.commit("orders", spark.createDataFrame(changed), kind="update")
            seconds = time.monotonic() - start
            time.sleep(max(0.0, 1 - seconds))
            return seconds

        for _ in range(3):
            transaction()
        reader, builder = child("read", location), child("build", location)
        line(builder.stdout)  # both JVMs are up in both parts
        quiet = [transaction() for _ in range(QUIET)]
        report: dict[str, Any] = {}
        busy, after = replaced(builder, transaction, report)
        assert reader.stdin is not None
        reader.stdin.close()
        seen = json.loads(line(reader.stdout))
        reader.wait()
        print(f"{given.rows:,} objects, a transaction of 10 rows each second")
        print(
            f"replacement: {report['seconds']:.1f} s, {len(busy)} transactions meanwhile, {report['objects']:,} objects"
        )
        for name, values in (("without", quiet), ("while it is built", busy), ("after the swap", after)):
            print(f"a transaction and its version, {name}: median {median(values):.2f} s, most {max(values):.2f} s")
        print(f"ratio of the medians, while it is built / without: {median(busy) / median(quiet):.2f}")
        print(f"a node: {seen}")
        found = funnel.verify()
        print(found)
        if not found.is_equal:
            raise SystemExit(1)
        spark.stop()


def replaced(
    builder: subprocess.Popen[str], transaction: Callable[[], float], report: dict[str, Any]
) -> tuple[list[float], list[float]]:
    """Replace the index while transactions go on; return what they took before and after the swap."""
    busy: list[float] = []
    ended = threading.Event()

    def watch() -> None:
        report.update(json.loads(line(builder.stdout)))
        ended.set()

    assert builder.stdin is not None
    builder.stdin.write("go\n")
    builder.stdin.flush()
    threading.Thread(target=watch, daemon=True).start()
    while not ended.is_set():
        busy.append(transaction())
    builder.wait()
    return busy, [transaction() for _ in range(5)]


if __name__ == "__main__":
    main()
