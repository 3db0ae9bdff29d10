# SPDX-License-Identifier: Apache-2.0
"""Sources whose offsets, state and checkpoints an earlier version wrote (data/), and how they are read on.

`python -P tests/golden/written.py SCRATCH CASE…` writes the data of new cases with the version of forebay that is
installed; the first cases are of commit 557c79a. What is there must be read by every later version.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

import forebay
from forebay.framework.microbatch.stream_planner import open_stream
from forebay.framework.tasks.read_task import run_task
from forebay.sources.files import FileSource
from forebay.sources.hybrid import HybridSource
from forebay.sources.rate import RateSource

STATE = "@stateLocation@"
"""Stands for the directory of the state in the data."""

DATA = Path(__file__).parent / "data"
N = pa.schema({"split": pa.string(), "n": pa.int64()})


class Known(forebay.SimpleSource):
    """Three splits of twelve rows; `latest` says how far each one reaches."""

    bounded = False
    positions_are_rows = True
    name = "golden_known"
    rows: int = 12
    topic: str = forebay.option(default="t", may_change=False)

    def schema(self):
        return N

    def splits(self):
        return ["a", "b", "c"]

    def latest(self, split):
        return self.rows

    def read(self, split):
        for n in range(split.position or 0, split.end or self.rows):
            yield forebay.Batch([(split.id, n)], n + 1)


class Pairs(Known):
    """Positions are pairs, and the ends are known only by reading."""

    positions_are_rows = False
    name = "golden_pairs"
    latest = forebay.SimpleSource.latest

    def read(self, split):
        count, _token = split.position or (0, "")
        for n in range(count, self.rows):
            if split.end is not None and n >= split.end[0]:
                return
            yield forebay.Batch([(split.id, n)], (n + 1, f"t{n + 1}"))


class Raw(Known):
    """An enumerator of FLIP-27's own kind, with state of its own."""

    name = "golden_raw"
    latest = forebay.SimpleSource.latest

    def create_enumerator(self, context):
        return Assigning(context, self.rows)


class Assigning(forebay.SplitEnumerator):
    """Gives out one split for each request; its state is how many."""

    def __init__(self, context, rows):
        self.context, self.rows, self.given, self.back = context, rows, 0, []

    def start(self):
        """Do nothing: splits are asked for."""

    def restore_state(self, state):
        self.given = state["given"]

    def handle_split_request(self, subtask, host):
        if self.back:
            split = self.back.pop()
        elif self.given < 4:
            split = forebay.Split(f"r{self.given}", 0, self.rows)
            self.given += 1
        else:
            return
        self.context.assign_splits({subtask: [split]})

    def add_splits_back(self, splits, subtask):
        self.back += splits

    def snapshot_state(self, checkpoint_id):
        return {"given": self.given}


def memory_files(case):
    """Write files into fsspec's memory, which have the same names and times in every process."""
    count = {"files": 10, "files_state": 1800, "hybrid": 10}.get(case, 0)
    import fsspec

    fs = fsspec.filesystem("memory")
    if fs.exists("/golden"):
        fs.rm("/golden", recursive=True)
    for number in range(count):
        path = f"/golden/part-{number:03}-{number * 2654435761 % 2**32:08x}.csv"
        fs.pipe(path, "".join(f"f{number:03},{n}\n" for n in range(1)).encode())
        fs.store[path].modified = fs.store[path].created = datetime.fromtimestamp(1_700_000_000 + number, UTC)
    for number in range(3 if case == "json" else 0):
        path = f"/golden/part-{number}.json"
        fs.pipe(path, "".join(f'{{"split": "j{number}", "n": {n}}}\n' for n in range(7)).encode())
        fs.store[path].modified = fs.store[path].created = datetime.fromtimestamp(1_700_000_000 + number, UTC)
    return fs


def files(**options):
    return FileSource(path="memory://golden/*.csv", file_format="csv", **options).with_schema(N)


def json_files():
    return FileSource(path="memory://golden/*.json", file_format="json").with_schema(N)


def skewed():
    return RateSource(rows=20, num_splits=2, start_time=0, rows_per_second=1.0, skew=4.0)


CASES = {
    "known": (Known, {"max_rows_per_trigger": 10}, False),
    "pairs": (Pairs, {"max_rows_per_trigger": 9}, True),
    "raw": (Raw, {"max_files_per_trigger": 1}, False),
    "files": (files, {"max_files_per_trigger": 3}, False),
    "files_state": (files, {"max_files_per_trigger": 850}, True),
    "rate": (lambda: RateSource(rows=20, num_splits=2, start_time=0), {"max_rows_per_trigger": 12}, False),
    "json": (json_files, {"max_bytes_per_trigger": 80}, False),
    "hybrid": (lambda: HybridSource(files(), Known()), {"max_rows_per_trigger": 10}, False),
    "aligned": (skewed, {"alignment_max_drift": "5s", "max_rows_per_trigger": 12}, False),
}
"""The source, the options of the host, and whether state lies below `stateLocation`."""


def options_of(case, state):
    _make, options, stateful = CASES[case]
    return forebay.HostOptions(**options, **({"state_location": str(state)} if stateful else {}))


class Stream:
    """Plans and reads the micro-batches of a case, as Spark does."""

    def __init__(self, case, state, log=()):
        self.source = CASES[case][0]()
        self.planner = open_stream(self.source, options_of(case, state), parallelism=2)
        self.log = json.loads(json.dumps(list(log)).replace(STATE, str(state)))
        self.initial = through(self.planner.initial())

    def read(self, start, end):
        tasks = [through_pickle(task) for task in self.planner.tasks(start, end)]
        return sorted(
            tuple(map(str, row.values())) for task in tasks for part in run_task(task) for row in part.batch.to_pylist()
        )

    def turn(self):
        """Plan and read one micro-batch; None if there is nothing new."""
        start = self.log[-1] if self.log else self.initial
        for _ in range(20):
            end = through(self.planner.latest(start))
            if end != start:
                self.log.append(end)
                return self.read(start, end)
            time.sleep(0.1)
        return None

    def turns(self):
        found = []
        while (rows := self.turn()) is not None:
            found.append(rows)
        return found


def through(offset):
    return json.loads(json.dumps(offset))


def through_pickle(task):
    import pickle

    return pickle.loads(pickle.dumps(task))


def tree(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes().hex()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def plant(directory, found):
    for name, content in found.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes.fromhex(content))


def write(scratch, cases):
    """Write the data of these cases: two micro-batches, and what an undisturbed run gives after them."""
    DATA.mkdir(exist_ok=True)
    for case in cases:
        state = scratch / case
        memory_files(case)
        stream = Stream(case, state)
        first = [stream.turn(), stream.turn()]
        kept = tree(state) if state.exists() else {}
        log = json.loads(json.dumps(stream.log).replace(str(state), STATE))
        rest = stream.turns()
        written = {
            "log": log,
            "state": kept,
            "micro_batches": first,
            "rest": sorted(row for rows in rest for row in rows),
        }
        (DATA / f"{case}.json").write_text(json.dumps(written) + "\n")


def write_checkpoint(scratch):
    """Write the checkpoint of a run in this process."""
    directory = scratch / "checkpoint"
    with forebay.run(
        Known(), checkpoint=directory, options=forebay.HostOptions(max_rows_per_batch=2, poll_interval="50ms")
    ) as run:
        for _ in range(5):
            next(run)
        run.checkpoint()
        positions = run.positions()
    written = {"checkpoint": tree(directory), "positions": positions}
    (DATA / "checkpoint.json").write_text(json.dumps(written) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]), [case for case in sys.argv[2:] if case != "checkpoint"])
    if "checkpoint" in sys.argv[2:]:
        write_checkpoint(Path(sys.argv[1]))
