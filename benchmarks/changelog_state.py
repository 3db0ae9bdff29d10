# SPDX-License-Identifier: Apache-2.0
"""What a micro-batch costs by the number of stored keys, and the memory of a task with ten million keys in its shard.

One shard, one process, without Spark: the operator, its state on the local disk, and events as a task gets them. Each
number of keys is stored in micro-batches of 500,000; the process that is measured starts after that.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Self

import numpy as np
import pyarrow as pa

from forebay.state.local_state_store import LocalStateStore
from forebay.table.changelog.operators.events import Layout
from forebay.table.changelog.operators.micro_batch import run_micro_batch
from forebay.table.changelog.operators.retract import Retract
from forebay.table.changelog.shape import RowKind
from forebay.table.changelog.state.manifest import OperatorInfo
from forebay.table.changelog.state.segments import KEY_HASH, KIND, ORDER, ROW_HASH, StoredSegments
from forebay.table.changelog.state.shard import Shard
from forebay.text_tables import text_table

EVENTS = 10_000
BATCHES = 20
STORED = (100_000, 1_000_000, 10_000_000)
LOAD = 500_000
PAYLOAD = pa.schema([("key", pa.int64()), ("value", pa.int64()), ("name", pa.string())])
LAYOUT = Layout(("key",), tuple(PAYLOAD.names), PAYLOAD, orders=(pa.int64(),), by_version=False)
INFO = OperatorInfo("query", "materialize retract", 1, (("key", "bigint"),), 0)


def hashed(values: np.ndarray) -> np.ndarray:
    """Return 64 well mixed bits of each number."""
    mixed = values.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    return (mixed * np.uint64(0xC2B2AE3D27D4EB4F)).view(np.int64)


def events(keys: np.ndarray, values: np.ndarray, kinds: np.ndarray, first: int) -> pa.RecordBatch:
    """Return events as a task gets them."""
    names = pa.array([f"name {value:012}" for value in values.tolist()])
    columns = [keys, values, names, hashed(keys), hashed(keys * 31 + values), kinds.astype(np.int8)]
    columns.append(np.arange(first, first + len(keys)))
    names_of = [*PAYLOAD.names, KEY_HASH, ROW_HASH, KIND, f"{ORDER}0"]
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], names=names_of)


class Task:
    """One shard below a directory."""

    def __init__(self, directory: str) -> None:
        store = LocalStateStore(directory)
        self.shard = Shard(store, StoredSegments(store), "materialize/", 0, keep=2)

    def run(self, version: int, batch: pa.RecordBatch) -> tuple[float, float]:
        """Run a micro-batch; return its seconds by the clock and of CPU."""
        began, cpu = time.perf_counter(), time.process_time()
        run_micro_batch(Retract(on_missing="hold"), self.shard, INFO, version, [batch], layout=LAYOUT)
        return time.perf_counter() - began, time.process_time() - cpu


def load(directory: str, stored: int) -> int:
    """Store rows (key, 0) and return the next version."""
    task = Task(directory)
    for version, first in enumerate(range(0, stored, LOAD)):
        keys = np.arange(first, min(first + LOAD, stored))
        task.run(version, events(keys, np.zeros_like(keys), np.zeros_like(keys), first))
    return -(-stored // LOAD)


def updates(stored: int, number: int) -> pa.RecordBatch:
    """Return 5,000 updates of stored keys, `-U` and `+U`; a key is updated once."""
    step = stored // (EVENTS // 2 * BATCHES)
    keys = (np.arange(EVENTS // 2) * BATCHES + number) * max(1, step) % stored
    both, kinds = np.repeat(keys, 2), np.tile([RowKind.UPDATE_BEFORE, RowKind.UPDATE_AFTER], EVENTS // 2)
    return events(both, np.tile([0, number + 1], EVENTS // 2), kinds, stored + number * EVENTS)


class Memory:
    """The greatest memory of this process while it is entered: its own, and mapped files beside it."""

    def __enter__(self) -> Self:
        self.own = self.files = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.005):
            self._look()

    def _look(self) -> None:
        lines = Path("/proc/self/status").read_text().splitlines()
        found = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines if line.startswith("Rss")}
        self.own, self.files = max(self.own, found["RssAnon"]), max(self.files, found["RssFile"] + found["RssShmem"])


def measure(directory: str, stored: int, version: int) -> None:
    """Run the measured micro-batches in this process, the half for time and the half for memory; print JSON."""
    with tempfile.TemporaryDirectory() as empty, Memory() as idle:
        Task(empty).run(0, updates(stored, 0))
    batches = [updates(stored, number) for number in range(BATCHES)]
    task, half = Task(directory), BATCHES // 2
    # Watching costs CPU time, so that it is for the second half alone.
    seconds, cpu = zip(*(task.run(version + number, batches[number]) for number in range(half)), strict=True)
    with Memory() as used:
        for number in range(half, BATCHES):
            task.run(version + number, batches[number])
    files = [path.stat().st_size for path in Path(directory).rglob("*") if path.is_file()]
    figures = {
        "stored": stored,
        "seconds": seconds,
        "cpu_seconds": cpu,
        "own_mb": used.own - idle.own,
        "files_mb": used.files - idle.files,
        "bytes_a_key": sum(files) / stored,
    }
    print(json.dumps(figures))


def state_cells(sizes: tuple[int, ...] = STORED) -> list[dict[str, object]]:
    """Return the figures for each number of stored keys, each measured in a process of its own."""
    found = []
    for stored in sizes:
        with tempfile.TemporaryDirectory() as directory:
            version = load(directory, stored)
            command = [sys.executable, "-P", __file__, directory, str(stored), str(version)]
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ))
            found.append(json.loads(done.stdout))
    return found


def show(cells: list[dict[str, object]]) -> None:
    """Print the table."""
    rows, least = [], 0.0
    for cell in cells:
        seconds = [float(one) for one in cell["seconds"]]  # type: ignore[attr-defined]
        cpu = median(float(one) for one in cell["cpu_seconds"])  # type: ignore[attr-defined]
        least = least or cpu
        rows.append(
            [
                f"{cell['stored']:,}",
                f"{median(seconds) * 1000:.0f} ms",
                f"{sum(seconds) / len(seconds) * 1000:.0f} ms",
                f"{max(seconds) * 1000:.0f} ms",
                f"{cpu * 1000:.0f} ms",
                f"{cpu / least:.2f}×",
                f"{cell['own_mb']:.0f} + {cell['files_mb']:.0f} MB",
                f"{cell['bytes_a_key']:.0f} B",
            ]
        )
    header = ["stored keys", "micro-batch: median", "mean", "slowest", "CPU: median", "ratio of CPU"]
    header += ["memory above idle: own + mapped", "state a key"]
    print(f"A micro-batch of {EVENTS:,} events in one shard, {BATCHES // 2} times for time and as often for memory:")
    print(text_table(header, rows))


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] != "--sizes":
        measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    else:
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("--sizes", type=int, nargs="+", default=STORED)
        show(state_cells(tuple(parser.parse_args().sizes)))
