# SPDX-License-Identifier: Apache-2.0
"""Reads a source into SQLite, exactly once, in processes that are killed; prints the result.

The recipe is that of docs/writing-a-source.md. This process forks one process after the other, so that pyarrow is
imported once; each but the last gets SIGKILL a moment after one of its record batches came.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import sys
import time

import pyarrow as pa

import forebay

SPLITS = {"north": 700, "south": 500, "west": 600}


class Measurements(forebay.SimpleSource):
    """Rows come at an uneven pace, so batch boundaries differ between runs."""

    def schema(self):
        return pa.schema({"region": pa.string(), "id": pa.int64()})

    def splits(self):
        return list(SPLITS)

    def read(self, split):
        for n in range(split.position or 0, SPLITS[split.id]):
            if random.random() < 0.1:
                time.sleep(0.0005)
            yield {"region": split.id, "id": n}


def attempt(path: str, seed: int, reported: int) -> None:
    """Start at the stored positions, and store rows and positions in one transaction."""
    random.seed(seed)
    db = sqlite3.connect(path)
    # A killed process, unlike a loss of power, loses nothing that was written.
    db.execute("PRAGMA synchronous = OFF")
    positions = {split: json.loads(position) for split, position in db.execute("SELECT split, position FROM positions")}
    options = forebay.HostOptions(max_rows_per_batch=random.choice([7, 16, 50]), max_batch_delay="1ms")
    with forebay.run(Measurements(), parallelism=2, positions=positions, options=options) as batches:
        for batch in batches:
            os.write(reported, b".")
            with db:
                db.executemany("INSERT INTO measurements VALUES (:region, :id)", batch.to_pylist())
                db.executemany(
                    "INSERT OR REPLACE INTO positions VALUES (?, ?)",
                    [(split, json.dumps(position)) for split, position in batches.positions().items()],
                )


def forked(path: str, seed: int) -> tuple[int, int]:
    """Start an attempt; return its process id, and where it writes a byte for each record batch."""
    heard, reported = os.pipe()
    child = os.fork()
    if child:
        os.close(reported)
        return child, heard
    try:
        attempt(path, seed, reported)
    except BaseException:  # noqa: BLE001 - this process must end here
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def count(path: str) -> int:
    """Return the rows stored so far."""
    with sqlite3.connect(path) as db:
        return int(db.execute("SELECT count(*) FROM measurements").fetchone()[0])


def main(path: str, attempts: int) -> None:
    """Kill, count, let the last attempt finish."""
    db = sqlite3.connect(path)
    # No unique key: a duplicate row must be detected.
    db.executescript(
        "PRAGMA journal_mode = WAL; CREATE TABLE measurements (region TEXT, id INTEGER);"
        "CREATE TABLE positions (split TEXT PRIMARY KEY, position TEXT);"
    )
    db.close()
    kills, progressed, chance = 0, 0, random.Random(14)
    for seed in range(attempts):
        before = count(path)
        child, heard = forked(path, seed)
        for _ in range(chance.randrange(6)):
            os.read(heard, 1)
        time.sleep(chance.uniform(0.0, 0.004))
        os.kill(child, signal.SIGKILL)
        os.close(heard)
        _, status = os.waitpid(child, 0)
        kills += os.WIFSIGNALED(status)
        progressed += count(path) > before
    _, status = os.waitpid(forked(path, attempts)[0], 0)
    if status:
        raise SystemExit("the last attempt failed")
    db = sqlite3.connect(path)
    rows, distinct = db.execute("SELECT count(*), count(DISTINCT region || id) FROM measurements").fetchone()
    reported = {"kills": kills, "kills with progress": progressed, "rows": rows, "distinct": distinct}
    sys.stdout.write(json.dumps({**reported, "expected": sum(SPLITS.values())}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
