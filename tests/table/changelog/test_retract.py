# SPDX-License-Identifier: Apache-2.0
"""The signed multiset over Arrow against sequential application, on a real directory of state."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace

import pyarrow as pa
import pytest

from forebay.errors import DataError
from forebay.state.local_state_store import LocalStateStore
from forebay.table.changelog.operators.events import Layout
from forebay.table.changelog.operators.micro_batch import run_micro_batch
from forebay.table.changelog.operators.retract import Retract
from forebay.table.changelog.shape import CHANGE_TYPES, RowKind
from forebay.table.changelog.state.manifest import OperatorInfo
from forebay.table.changelog.state.segments import KEY_HASH, KIND, ORDER, ROW_HASH, StoredSegments
from forebay.table.changelog.state.shard import Shard

PAYLOAD = pa.schema([("k", pa.int64()), ("v", pa.string()), ("x", pa.float64())])
LAYOUT = Layout(("k",), tuple(PAYLOAD.names), PAYLOAD)
INFO = OperatorInfo("query", "materialize retract", 1, (("k", "bigint"),), 0)


def hashed(value: object, bits: int) -> int:
    return hash(repr(value)) % (1 << bits) - (1 << bits - 1)


def batch(changes, bits=63, orders=()):
    """Changes are (kind, row)."""
    columns = list(zip(*(row for _, row in changes), strict=True)) or [[], [], []]
    ordered = [pa.array(orders, pa.int64())] if orders else []
    return pa.RecordBatch.from_arrays(
        [
            *(pa.array(column, field.type) for column, field in zip(columns, PAYLOAD, strict=True)),
            pa.array([hashed(row[0], bits) for _, row in changes], pa.int64()),
            pa.array([hashed(row, bits) for _, row in changes], pa.int64()),
            pa.array([int(kind) for kind, _ in changes], pa.int8()),
            *ordered,
        ],
        names=[*PAYLOAD.names, KEY_HASH, ROW_HASH, KIND, *([f"{ORDER}0"] if orders else [])],
    )


class Table:
    """A shard and the view that its changes make."""

    def __init__(self, location, bits=63, operator=None, layout=LAYOUT):
        store = LocalStateStore(str(location))
        self.shard = Shard(store, StoredSegments(store), "op/", 0, keep=3)
        self.operator = operator or Retract(on_missing="hold", preimages=True)
        self.version, self.bits, self.view, self.layout = 0, bits, {}, layout

    def step(self, changes, orders=()):
        batches = [batch(changes, self.bits, orders)] if changes else []
        result = run_micro_batch(self.operator, self.shard, INFO, self.version, batches, layout=self.layout)
        batches = [batch(changes[::-1], self.bits, orders[::-1])] if changes else []
        again = run_micro_batch(self.operator, self.shard, INFO, self.version, batches, layout=self.layout)
        assert again.changes.equals(result.changes), "a replay gives other changes"
        self.version += 1
        given = []
        for change in result.changes.to_pylist():
            kind = CHANGE_TYPES.index(change["_change_type"])
            row = tuple(change[name] for name in PAYLOAD.names)
            given.append((RowKind(kind).short, row))
            if kind == RowKind.INSERT:
                assert row[0] not in self.view
                self.view[row[0]] = row
            elif kind in (RowKind.UPDATE_BEFORE, RowKind.DELETE):
                assert self.view.pop(row[0]) == row
            else:
                self.view[row[0]] = row
        return given


def strict_changelog(rng, keys, length):
    """A random changelog with at most one live row for each key."""
    live, out = {}, []
    for number in range(length):
        key = rng.randrange(keys)
        row = (key, f"v{number % 7}", rng.choice([0.5, 1.0, float(number)]))
        if key not in live:
            out.append((RowKind.INSERT, row))
            live[key] = row
        elif rng.random() < 0.3:
            out.append((RowKind.DELETE, live.pop(key)))
        else:
            out += [(RowKind.UPDATE_BEFORE, live[key]), (RowKind.UPDATE_AFTER, row)]
            live[key] = row
    return out, live


@pytest.mark.parametrize("bits", [63, 2, 1])
@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 12))])
@pytest.mark.soak(but=["0-63", "1-1", "2-2"])
def test_any_shuffle_in_any_cuts_gives_the_view_of_sequential_application(tmp_path, seed, bits):
    """P2, P4, P12: also where all hashes collide."""
    rng = random.Random(seed)
    changes, live = strict_changelog(rng, 12, 150)
    rng.shuffle(changes)
    table = Table(tmp_path, bits)
    while changes:
        cut = rng.randrange(25)
        table.step(changes[:cut])
        changes = changes[cut:]
    assert table.view == live


def test_counts_of_rows_that_are_added_twice_are_kept(tmp_path):
    table = Table(tmp_path)
    row, other = (1, "a", 0.5), (1, "b", 0.5)
    assert table.step([(0, row), (0, row)]) == [("+I", row)]
    assert table.step([(3, row)]) == []
    assert table.step([(3, row), (0, other)]) == [("-U", row), ("+U", other)]
    assert table.step([(3, other)]) == [("-D", other)]
    assert Counter(table.view) == Counter()


def test_a_row_that_is_added_twice_is_a_conflict(tmp_path):
    """A12: also if the second one comes in another micro-batch."""
    row = (1, "a", 0.5)
    with pytest.raises(DataError, match=r"is \(k=1\) with 2 rows"):
        Table(tmp_path / "one", operator=Retract(on_conflict="error")).step([(0, row), (0, row)])
    table = Table(tmp_path / "two", operator=Retract(on_conflict="error"))
    assert table.step([(0, row)]) == [("+I", row)]
    with pytest.raises(DataError, match="several rows"):
        table.step([(0, row)])


def test_the_first_row_stays_the_first_when_it_is_added_again(tmp_path):
    table = Table(tmp_path, operator=Retract(on_conflict="nothing"))
    row, other = (1, "a", 0.5), (1, "b", 0.5)
    assert table.step([(0, row)]) == [("+I", row)]
    assert table.step([(0, other)]) == []
    assert table.step([(0, row)]) == []
    assert table.step([(3, row)]) == []
    assert table.step([(3, row)]) == [("+U", other)]


def test_a_held_retraction_gives_its_row_no_place(tmp_path):
    """Of the live rows the one that was added last is the current one, also if a retraction of it came first."""
    by_sequence = replace(LAYOUT, orders=(pa.int64(),), by_version=False)
    table = Table(tmp_path, operator=Retract(on_missing="hold"), layout=by_sequence)
    row, other = (1, "a", 0.5), (1, "b", 0.5)
    assert table.step([(3, row)], orders=[9]) == []
    assert table.step([(0, row), (0, row), (0, other)], orders=[1, 2, 5]) == [("+I", other)]


@pytest.mark.parametrize("on_missing", ["warn", "error"])
def test_a_second_early_retraction_of_a_row_names_its_key(tmp_path, caplog, on_missing):
    row, other = sorted([(1, "a", 0.5), (1, "b", 0.5)], key=lambda row: hashed(row, 63))  # the order of entries
    table = Table(tmp_path, operator=Retract(on_missing="hold"))
    table.step([(3, row), (0, other)])
    table.operator = Retract(on_missing=on_missing)
    with pytest.raises(DataError, match=r"the key \(k=1\)") if on_missing == "error" else nullcontext():
        table.step([(3, row)])
    assert on_missing == "error" or "the first key is (k=1)" in caplog.text
