# SPDX-License-Identifier: Apache-2.0
"""A queue of jobs in SQLite: its own enumerator assigns each job once, to a reader that asks for one.

Each job is a split that ends. Run it: ``python examples/job_queue.py``.
"""

import sqlite3
import tempfile
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

import forebay
from forebay import Fetched, RetriableError, Source, Split, SplitEnumerator, SplitEnumeratorContext, SplitReader, option

SCHEMA = pa.schema({"job": pa.int64(), "n": pa.int64(), "text": pa.string()})
TABLES = """
    CREATE TABLE IF NOT EXISTS jobs (id INTEGER PRIMARY KEY AUTOINCREMENT, items INTEGER NOT NULL);
    CREATE TABLE IF NOT EXISTS items (job INTEGER, n INTEGER, text TEXT, PRIMARY KEY (job, n));
"""


class JobQueue(Source):
    bounded = False
    path: str = option(doc="the SQLite file with the tables jobs and items")
    page_rows: int = option(default=500, doc="items read in one query")

    def schema(self) -> pa.Schema:
        return SCHEMA

    def create_enumerator(self, context: SplitEnumeratorContext) -> "JobEnumerator":
        return JobEnumerator(self.path, context)

    def create_split_reader(self, context: forebay.SourceReaderContext) -> "JobReader":
        return JobReader(self.path, self.page_rows)


class JobEnumerator(SplitEnumerator):
    """All methods run on one thread, except `find`, which gets its input as an argument and changes no state."""

    def __init__(self, path: str, context: SplitEnumeratorContext) -> None:
        self.path, self.context = path, context
        self.newest = 0  # the newest job found so far
        self.waiting: list[Split] = []  # found and not assigned
        self.asking: list[int] = []  # readers without a job

    def start(self) -> None:
        self.poll(delay=0.0)

    def poll(self, delay: float) -> None:
        self.context.call_async(partial(self.find, self.newest), self.found, delay=delay)

    def find(self, newest: int) -> list[tuple[int, int]]:
        with closing(sqlite3.connect(self.path)) as db:
            return db.execute("SELECT id, items FROM jobs WHERE id > ? ORDER BY id", [newest]).fetchall()

    def found(self, jobs: list[tuple[int, int]] | None, error: BaseException | None) -> None:
        if error is not None:
            raise error
        for job, items in jobs or []:
            self.waiting.append(Split(f"job-{job}", 0, items))
            self.newest = job
        self.assign()
        self.poll(delay=1.0)

    def handle_split_request(self, subtask: int, host: str | None) -> None:
        self.asking.append(subtask)
        self.assign()

    def assign(self) -> None:
        alive = self.context.registered_readers()
        self.asking = [subtask for subtask in self.asking if subtask in alive]
        while self.waiting and self.asking:
            self.context.assign_splits({self.asking.pop(0): [self.waiting.pop(0)]})

    def add_splits_back(self, splits: Sequence[Split], subtask: int | None) -> None:
        self.waiting[:0] = splits  # from a failed reader or a checkpoint, with their progress
        self.assign()

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return {"newest": self.newest, "waiting": [split.to_json() for split in self.waiting]}

    def restore_state(self, state: Any) -> None:
        self.newest, self.waiting = state["newest"], [Split.from_json(split) for split in state["waiting"]]


class JobReader(SplitReader):
    """Reads one job after the other, a page at a time."""

    def __init__(self, path: str, page_rows: int) -> None:
        self.db = sqlite3.connect(path, check_same_thread=False)
        self.path, self.page_rows = path, page_rows
        self.splits: list[Split] = []

    def add_splits(self, splits: Sequence[Split]) -> None:
        self.splits.extend(splits)

    def fetch(self) -> list[Fetched]:
        split = self.splits[0]  # fetch is called only while the reader has a split
        stop = min(split.position + self.page_rows, split.end)
        query = "SELECT job, n, text FROM items WHERE job = ? AND n >= ? AND n < ? ORDER BY n"
        try:
            rows = self.db.execute(query, (split.id.removeprefix("job-"), split.position, stop)).fetchall()
        except sqlite3.OperationalError as error:  # locked: the next fetch begins at the same place
            raise RetriableError(f"{self.path}: {error}", split=split.id) from error
        batch = pa.RecordBatch.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)
        self.splits[:1] = [split.at(stop)] if stop < split.end else []
        return [Fetched(split.id, batch, stop, finished=stop == split.end)]

    def wake_up(self) -> None:
        """Do nothing: no fetch waits for long."""

    def close(self) -> None:
        self.db.close()


def add_job(path: str | Path, texts: Sequence[str]) -> int:
    """Put a job into the queue; return its id."""
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript(TABLES)
        job = db.execute("INSERT INTO jobs (items) VALUES (?)", [len(texts)]).lastrowid or 0
        db.executemany("INSERT INTO items VALUES (?, ?, ?)", [(job, n, text) for n, text in enumerate(texts)])
    return job


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        queue = Path(directory) / "queue.db"
        for texts in (["a", "b"], ["c"], ["d", "e", "f"]):
            add_job(queue, texts)
        with forebay.run(JobQueue(path=str(queue)), until_caught_up=True, parallelism=2) as batches:
            for batch in batches:
                print(batches.delivered, batch.to_pylist())
