# SPDX-License-Identifier: Apache-2.0
"""The vectorised materializer behind the interface of the references: a shard of state in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from changelogs.reference import Change
from forebay.table.changelog.operators.events import Layout
from forebay.table.changelog.operators.micro_batch import Operator, run_micro_batch
from forebay.table.changelog.operators.retract import Retract
from forebay.table.changelog.shape import CHANGE_TYPES, RowKind
from forebay.table.changelog.state.facts import SegmentInfo
from forebay.table.changelog.state.manifest import OperatorInfo
from forebay.table.changelog.state.segments import KEY_HASH, KIND, ORDER, ROW_HASH, Segment, StoredSegments
from forebay.table.changelog.state.shard import Shard

PAYLOAD = pa.schema([("c0", pa.int64()), ("c1", pa.int64()), ("c2", pa.string())])
_INFO = OperatorInfo("query", "materialize retract", 1, (("c0", "bigint"),), 0)


_APART = 1_000_000
"""The keys of each changelog of `run_together` begin at a multiple of this."""


class MemoryStore:
    """A state store in memory: a step of a property test costs no writes to a disk."""

    location = "memory"

    def __init__(self) -> None:
        self._facts: dict[str, bytes] = {}

    def get(self, name: str) -> bytes | None:
        """See `StateStore`."""
        return self._facts.get(name)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """See `StateStore`."""
        return self._facts.setdefault(name, data) is data

    def names(self, prefix: str) -> list[str]:
        """See `StateStore`."""
        return sorted(name for name in self._facts if name.startswith(prefix) and "/" not in name[len(prefix) :])

    def directories(self, prefix: str) -> list[str]:
        """See `StateStore`."""
        below = (name[len(prefix) :] for name in self._facts if name.startswith(prefix))
        return sorted({f"{prefix}{name.split('/')[0]}/" for name in below if "/" in name})

    def delete(self, names: Iterable[str]) -> None:
        """See `StateStore`."""
        for name in names:
            self._facts.pop(name, None)

    def local_path(self, name: str) -> None:
        """See `StateStore`."""


class MemorySegments(StoredSegments):
    """Segments in a `MemoryStore`."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self._memory = store

    def open(self, info: SegmentInfo) -> Segment:
        """See `SegmentFiles.open`."""
        data = self._memory.get(info.name)
        assert data is not None, f"{info.name} was removed while a version needs it"
        return Segment(pa.ipc.open_file(pa.py_buffer(data)).get_batch(0))


class Vectorised:
    """`Retract` on rows of two numbers and a text; changes without an order have that of their arrival.

    Args:
        key: The index of the sink's key.
        operator: The operator; by default `Retract`.
        bits: How many bits hashes have: with few, they collide.
    """

    def __init__(self, key: int = 0, operator: Operator | None = None, bits: int = 63) -> None:
        store = MemoryStore()
        self._shard = Shard(store, MemorySegments(store), "op/", 0, keep=3)
        names = tuple(PAYLOAD.names)
        self._layout = Layout((names[key],), names, PAYLOAD, orders=(pa.int64(),), by_version=False)
        self._operator = operator or Retract(on_missing="hold")
        self._key, self._bits = key, bits
        self._version = self._arrived = 0
        self.counts: dict[str, int] = {}
        """What the operator counted in the last step."""

    def step(self, changes: Iterable[Change]) -> list[Change]:
        """Run a micro-batch."""
        some = list(changes)
        result = run_micro_batch(
            self._operator, self._shard, _INFO, self._version, [self._batch(some)], layout=self._layout
        )
        self._version += 1
        self.counts = result.counts
        return [
            Change(RowKind(CHANGE_TYPES.index(row["_change_type"])), tuple(row[name] for name in PAYLOAD.names))
            for row in result.changes.to_pylist()
        ]

    def _batch(self, changes: list[Change]) -> pa.RecordBatch:
        rows = [change.row for change in changes]
        orders = [self._arrived + at if change.order is None else change.order for at, change in enumerate(changes)]
        self._arrived += len(changes)
        columns: list[tuple[str, list[Any], pa.DataType]] = [
            *((field.name, [row[at] for row in rows], field.type) for at, field in enumerate(PAYLOAD)),
            (KEY_HASH, [self._hashed(row[self._key]) for row in rows], pa.int64()),
            (ROW_HASH, [self._hashed(row) for row in rows], pa.int64()),
            (KIND, [int(change.kind) for change in changes], pa.int8()),
            (f"{ORDER}0", orders, pa.int64()),
        ]
        return pa.RecordBatch.from_arrays(
            [pa.array(values, kind) for _, values, kind in columns], names=[name for name, _, _ in columns]
        )

    def _hashed(self, value: object) -> int:
        return hash(repr(value)) % (1 << self._bits) - (1 << self._bits - 1)


def run_together(logs: Sequence[Sequence[Sequence[Change]]], *, key: int = 0) -> list[list[list[Change]]]:
    """Run many changelogs in one state, each with keys of its own; return the changes of each micro-batch of each.

    Args:
        logs: Changelogs as micro-batches. The first ones of all of them are one micro-batch, and so on.
        key: The index of the sink's key, whose values are integers below a million.
    """

    def moved(change: Change, by: int) -> Change:
        row = list(change.row)
        row[key] = int(str(row[key])) + by
        return change._replace(row=tuple(row))

    steps = Vectorised(key)
    out: list[list[list[Change]]] = [[] for _ in logs]
    for at in range(max(len(log) for log in logs)):
        batch = [
            moved(change, _APART * number)
            for number, log in enumerate(logs)
            for change in (log[at] if at < len(log) else [])
        ]
        emitted = steps.step(batch)
        for one in out:
            one.append([])
        for change in emitted:
            number = int(str(change.row[key])) // _APART
            out[number][at].append(moved(change, -_APART * number))
    return out
