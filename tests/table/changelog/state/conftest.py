# SPDX-License-Identifier: Apache-2.0
"""A keyed state that is driven by micro-batches of events, beside a dictionary that says what must be in it."""

from __future__ import annotations

import uuid
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from forebay.table.changelog.operators.events import Layout
from forebay.table.changelog.operators.micro_batch import run_micro_batch
from forebay.table.changelog.operators.retract import Retract
from forebay.table.changelog.state.facts import SegmentInfo
from forebay.table.changelog.state.manifest import OperatorInfo
from forebay.table.changelog.state.segments import FIXED, KEY_HASH, KIND, ROW_HASH, Segment
from forebay.table.changelog.state.shard import OperatorState, Shard, StateChange, lookup

PAYLOAD = pa.schema([("k", pa.int64()), ("v", pa.string())])
MIX = 0x9E3779B97F4A7C15


def hash_of(*values):
    """64 bits of some values, NULL left out, the same in each process: where a key goes must not change."""
    mixed = 0
    for value in values:
        if value is not None:
            number = value if isinstance(value, int) else int.from_bytes(str(value).encode()[:8], "big")
            mixed = (mixed ^ number + 1) * MIX % (1 << 64)
            mixed ^= mixed >> 29
    return mixed - (1 << 63)


class Query:
    """A query with one operator. Events are (sign, row); a row is a tuple whose first value is the key."""

    def __init__(self, location, shards=3, retained=3, payload=PAYLOAD, operator=None, storage=None):
        self.state = OperatorState(str(location), "orders", storage or {}, shards, retained)
        self.payload, self.operator = payload, operator or Retract(on_missing="hold", preimages=True)
        self.version = 0
        self.query = "query-1"
        self.keys = (("k", "bigint"),)
        self.model = Counter()
        self.history = {-1: {}}

    def started(self):
        """The state as the driver finds it when the query is defined."""
        info = self.state.info()
        return self.state if info is None else self.state.at(info)

    def layout(self):
        return Layout((self.payload.names[0],), tuple(self.payload.names), self.payload)

    def batch(self, events):
        rows = [row for _, row in events]
        columns = [pa.array([row[place] for row in rows], one.type) for place, one in enumerate(self.payload)]
        columns.append(pa.array([hash_of(row[0]) for row in rows], pa.int64()))
        columns.append(pa.array([hash_of(*row) for row in rows], pa.int64()))
        columns.append(pa.array([0 if sign > 0 else 3 for sign, _ in events], pa.int8()))
        return pa.RecordBatch.from_arrays(columns, names=[*self.payload.names, KEY_HASH, ROW_HASH, KIND])

    def run_shard(self, number, events, state=None):
        """Run the task of a shard."""
        state = state or self.started()
        mine = [event for event in events if hash_of(event[1][0]) % state.shards == number]
        info = OperatorInfo(self.query, "materialize retract", state.shards, self.keys, self.version)
        shard = state.shard(number)
        batches = [self.batch(mine)] if mine else []
        return run_micro_batch(self.operator, shard, info, self.version, batches, layout=self.layout())

    def step(self, events, state=None):
        """Run a micro-batch in all shards; return its changes."""
        state = state or self.started()
        results = [self.run_shard(number, events, state) for number in range(state.shards)]
        for sign, row in events:
            self.model[row] += sign
        self.history[self.version] = {row: count for row, count in self.model.items() if count}
        self.version += 1
        return [change for result in results for change in result.changes.to_pylist()]

    def stored(self, version=None):
        """All rows of a version with their counts, from the files."""
        state = self.started()
        version = self.version - 1 if version is None else version
        found = {}
        for number in range(state.shards):
            shard = state.shard(number)
            manifest = shard.newest(version)
            assert manifest is not None, f"shard {number} has no version {version}"
            runs = shard.open(manifest)
            hashes = np.unique(np.concatenate([part.hashes for run in runs for part in run] or [np.empty(0, np.int64)]))
            entries = lookup(runs, hashes, timed=False)
            columns = entries.take(np.arange(len(entries)), list(self.payload))
            rows = zip(*(column.to_pylist() for column in columns), strict=True)
            for row, count in zip(rows, entries.counts.tolist(), strict=True):
                assert row not in found, f"{row} is stored twice"
                found[row] = count
        return found

    def files(self):
        """The names of all files of the operator, relative to its location."""
        root = self.root()
        return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())

    def root(self):
        from pathlib import Path

        return Path(self.state.location)


@pytest.fixture
def query(tmp_path):
    """Make a `Query` with its state in an empty directory."""
    return lambda **options: Query(tmp_path / "state", **options)


@pytest.fixture
def small(monkeypatch):
    """Make segments and runs small, so that few entries have many of them."""

    def set_limits(rows=16, size=1 << 20, small=8):
        from forebay.table.changelog.state import segments
        from forebay.table.changelog.state import shard as merging

        for module in (merging, segments):
            monkeypatch.setattr(module, "ROWS", rows)
            monkeypatch.setattr(module, "BYTES", size)
        monkeypatch.setattr(segments.split_rows, "__defaults__", (rows, size))
        monkeypatch.setattr(merging, "SMALL", small)

    return set_limits


class MemoryStore:
    """A `StateStore` and the `SegmentFiles` over it, in memory; counts what is written."""

    def __init__(self):
        self.location = f"memory:{uuid.uuid4()}"
        self.facts = {}
        self.written = 0
        self.rows_written = 0
        self.before_put = lambda name: None

    def get(self, name):
        return self.facts.get(name)

    def put_if_absent(self, name, data):
        self.before_put(name)
        if name in self.facts:
            return False
        self.facts[name] = data
        self.written += len(data)
        return True

    def names(self, prefix):
        return sorted(name for name in self.facts if name.startswith(prefix) and "/" not in name[len(prefix) :])

    def directories(self, prefix):
        below = {name[len(prefix) :].partition("/") for name in self.facts if name.startswith(prefix)}
        return sorted(f"{prefix}{name}/" for name, slash, _ in below if slash)

    def delete(self, names):
        for name in names:
            self.facts.pop(name, None)

    def write(self, prefix, batch):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
        data = sink.getvalue().to_pybytes()
        hashes = batch.column(KEY_HASH).to_numpy()
        name = f"{prefix}{len(self.facts)}-{self.written}.arrow"
        info = SegmentInfo(name, batch.num_rows, len(data), "", int(hashes[0]), int(hashes[-1]))
        assert self.put_if_absent(name, data)
        self.rows_written += batch.num_rows
        return info

    def forget(self, names):
        """There are no copies."""

    def open(self, info):
        return Segment(pa.ipc.open_file(pa.py_buffer(self.facts[info.name])).get_batch(0))


class MemoryShard:
    """A shard in memory, beside a dictionary of what each version must have: (key hash, row hash) → count.

    Without `remembers` there is no dictionary: for tests of costs, whose many entries would be copied at each step.
    """

    SCHEMA = pa.schema([*FIXED, ("v", pa.string())])
    INFO = OperatorInfo("query-1", "test", 1, (("k", "bigint"),), 0)

    def __init__(self, keep=3, *, remembers=True):
        self.store = MemoryStore()
        self.keep, self.text, self.remembers = keep, "", remembers
        self.shard = Shard(self.store, self.store, "op/", 0, keep)
        self.version, self.model, self.history = 0, {}, {}

    def change(self, entries, digest=0):
        names = list(entries)
        columns = [
            pa.array([key for key, _ in names], pa.int64()),
            pa.array([row for _, row in names], pa.int64()),
            pa.array(np.zeros(len(names), np.int32)),
            pa.array(list(entries.values()), pa.int64()),
            pa.array([f"{key}-{row}{self.text}" for key, row in names], pa.string()),
        ]
        return StateChange(pa.RecordBatch.from_arrays(columns, schema=self.SCHEMA), digest, None, {})

    def step(self, entries):
        before = self.shard.begin(self.INFO, self.version)
        manifest = self.shard.commit(before, self.version, self.change(entries))
        if self.remembers:
            self.model = {name: count for name, count in {**self.model, **entries}.items() if count}
            self.history[self.version] = self.model
        self.version += 1
        return manifest

    def stored(self, version, hashes=None):
        manifest = self.shard.manifest(version)
        assert manifest is not None
        runs = self.shard.open(manifest)
        if hashes is None:
            hashes = np.unique(np.concatenate([part.hashes for run in runs for part in run] or [np.empty(0, np.int64)]))
        entries = lookup(runs, hashes, timed=False)
        found = zip(entries.key_hashes.tolist(), entries.row_hashes.tolist(), strict=True)
        (texts,) = entries.take(np.arange(len(entries)), [pa.field("v", pa.string())])
        result = dict(zip(found, entries.counts.tolist(), strict=True))
        assert len(result) == len(entries), "an entry is there twice"
        assert texts.to_pylist() == [f"{key}-{row}" for key, row in result]
        return result

    def segments_in_use(self):
        found = [self.shard.manifest(version) for version in self.shard.versions()]
        return {segment.name for manifest in found if manifest is not None for run in manifest.runs for segment in run}

    def segment_files(self):
        return {name for name in self.store.facts if name.endswith(".arrow")}


@pytest.fixture(scope="session")
def memory_shard():
    """Make a `MemoryShard`."""
    return MemoryShard
