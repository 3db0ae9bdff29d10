# SPDX-License-Identifier: Apache-2.0
"""The changelogs of `changelog.py`, as Parquet for Spark and as plain bytes for Flink."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from forebay.table.changelog.shape import CHANGE_TYPE, CHANGE_TYPES, SEQUENCE, RowKind

SCHEMA = f"key long, value long, name string, {CHANGE_TYPE} string, {SEQUENCE} long"


@dataclass(frozen=True)
class Workload:
    """A changelog in its true order.

    Args:
        name: What it is.
        kinds: `RowKind`s.
        keys: The key of each change.
        values: The value of its row; the name of the row follows from it.
    """

    name: str
    kinds: np.ndarray
    keys: np.ndarray
    values: np.ndarray

    def first(self, events: int) -> Workload:
        """Return the beginning."""
        return Workload(self.name, self.kinds[:events], self.keys[:events], self.values[:events])

    def right(self) -> dict[int, int]:
        """Return the value of the current row of each key: the last one added that is live."""
        live: dict[int, dict[int, None]] = {}
        for kind, key, value in zip(self.kinds.tolist(), self.keys.tolist(), self.values.tolist(), strict=True):
            rows = live.setdefault(key, {})
            if kind in (RowKind.INSERT, RowKind.UPDATE_AFTER):
                rows[value] = None
            else:
                del rows[value]
        return {key: next(reversed(rows)) for key, rows in live.items() if rows}

    def write_parquet(self, directory: Path, files: int) -> None:
        """Write one file for each micro-batch."""
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        words, size = pa.array(CHANGE_TYPES), -(-len(self.kinds) // files)
        for number, start in enumerate(range(0, len(self.kinds), size)):
            part = slice(start, start + size)
            values = self.values[part]
            columns = {
                "key": self.keys[part],
                "value": values,
                "name": pa.array([f"name {value}" for value in values.tolist()]),
                CHANGE_TYPE: words.take(pa.array(self.kinds[part])),
                SEQUENCE: np.arange(start, start + len(values)),
            }
            pq.write_table(pa.table(columns), directory / f"{number:03}.parquet")

    def write_bytes(self, directory: Path, parts: int) -> None:
        """Write one file for each subtask of Flink's source, by the key."""
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        packed = np.empty(len(self.kinds), dtype=[("kind", "u1"), ("key", ">i8"), ("value", ">i8")])
        packed["kind"], packed["key"], packed["value"] = self.kinds, self.keys, self.values
        for part in range(parts):
            packed[self.keys % parts == part].tofile(directory / f"{part}.bin")


def one_row_a_key(events: int, keys: int) -> Workload:
    """Return updates of random keys: `+I` for a new one, `-U` and `+U` for others."""
    chosen = np.random.default_rng(1).integers(0, keys, events).tolist()
    live: dict[int, int] = {}
    changes: list[tuple[int, int, int]] = []
    for number, key in enumerate(chosen):
        if key in live:
            changes.append((RowKind.UPDATE_BEFORE, key, live[key]))
        changes.append((RowKind.UPDATE_AFTER if key in live else RowKind.INSERT, key, number))
        live[key] = number
        if len(changes) >= events:
            break
    return _workload(f"{events:,} events, {keys:,} keys", changes)


def many_rows_a_key(events: int, keys: int, rows: int) -> Workload:
    """Return inserts of so many rows for each key, then replacements of random rows, `-D` and `+I`."""
    random = np.random.default_rng(2)
    live: list[list[int]] = [[] for _ in range(keys)]
    changes: list[tuple[int, int, int]] = []
    for number, key in enumerate(random.permutation(np.tile(np.arange(keys), rows)).tolist()):
        changes.append((RowKind.INSERT, key, number))
        live[key].append(number)
    chosen, places = random.integers(0, keys, events), random.integers(0, rows, events)
    for number, (key, place) in enumerate(zip(chosen.tolist(), places.tolist(), strict=True), len(changes)):
        if len(changes) + 2 > events:
            break
        changes += [(RowKind.DELETE, key, live[key].pop(place)), (RowKind.INSERT, key, number)]
        live[key].append(number)
    return _workload(f"{events:,} events, {keys:,} keys × {rows} live rows", changes)


def _workload(name: str, changes: list[tuple[int, int, int]]) -> Workload:
    columns = np.array(changes, dtype=np.int64)
    return Workload(name, columns[:, 0], columns[:, 1], columns[:, 2])
