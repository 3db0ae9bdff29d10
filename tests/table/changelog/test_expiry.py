# SPDX-License-Identifier: Apache-2.0
"""C11: the time to live of keys; the view never keeps a row that the state has forgotten."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from forebay.state.local_state_store import LocalStateStore
from forebay.table.changelog.operators.events import Layout
from forebay.table.changelog.operators.latest import First, Latest
from forebay.table.changelog.operators.micro_batch import run_micro_batch
from forebay.table.changelog.operators.retract import Retract
from forebay.table.changelog.shape import CHANGE_TYPES, RowKind
from forebay.table.changelog.state.manifest import OperatorInfo
from forebay.table.changelog.state.segments import KEY_HASH, KIND, ROW_HASH, TOUCHED, StoredSegments
from forebay.table.changelog.state.shard import Shard

PAYLOAD = pa.schema([("k", pa.int64()), ("v", pa.int64())])
LAYOUT = Layout(("k",), ("k", "v"), PAYLOAD, timed=True)
INFO = OperatorInfo("query", "test", 1, (("k", "bigint"),), 0)
ADD, RETRACT = RowKind.INSERT, RowKind.DELETE


class Timed:
    """A shard with a time to live of 1,000 µs."""

    def __init__(self, location, operator):
        store = LocalStateStore(str(location))
        self.shard = Shard(store, StoredSegments(store), "op/", 0, keep=2)
        self.operator, self.version, self.counts = operator, 0, {}

    def step(self, *events):
        """Events are (kind, time, key, value); the changes come as (kind, key, value)."""
        columns = list(zip(*events, strict=True)) or [[], [], [], []]
        kinds, times, keys, values = ([int(value) for value in column] for column in columns)
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array(keys, pa.int64()),
                pa.array(values, pa.int64()),
                pa.array([hash((key, "key")) for key in keys], pa.int64()),
                pa.array([hash(row) for row in zip(keys, values, strict=True)], pa.int64()),
                pa.array(kinds, pa.int8()),
                pa.array(times, pa.int64()),
            ],
            names=["k", "v", KEY_HASH, ROW_HASH, KIND, TOUCHED],
        )
        result = run_micro_batch(
            self.operator, self.shard, INFO, self.version, [batch], layout=LAYOUT, time_to_live=1000
        )
        self.version += 1
        self.counts = result.counts
        rows = result.changes.to_pylist()
        return sorted((RowKind(CHANGE_TYPES.index(row["_change_type"])).short, row["k"], row["v"]) for row in rows)


@pytest.fixture(params=[Retract(on_missing="hold"), Latest()], ids=["retract", "latest"])
def table(request, tmp_path):
    return Timed(tmp_path, request.param)


def test_the_row_of_a_key_leaves_with_its_state(table):
    """A9, A11."""
    assert table.step((ADD, 1, 4, 40)) == [("+I", 4, 40)]
    assert table.step((ADD, 1000, 5, 50)) == [("+I", 5, 50)]
    assert table.step((ADD, 1001, 6, 60)) == [("+I", 6, 60), ("-D", 4, 40)]
    assert table.counts["expired"] == 1
    assert table.step((RETRACT, 1002, 4, 40)) == [], "the target has no row that could be deleted"
    assert table.step((ADD, 1003, 7, 70)) == [("+I", 7, 70)]


def test_an_event_of_a_key_keeps_it(table):
    table.step((ADD, 0, 1, 10))
    assert table.step((RETRACT, 900, 1, 10), (ADD, 900, 1, 11)) == [("+U", 1, 11)]
    assert table.step((ADD, 1500, 2, 20)) == [("+I", 2, 20)]
    assert ("-D", 1, 11) in table.step((ADD, 1900, 3, 30))


def test_an_event_that_comes_when_its_key_expires_begins_it_again(table):
    table.step((ADD, 0, 1, 10))
    assert table.step((ADD, 5000, 1, 10)) == [], "the same row goes and comes: nothing changes"
    assert table.step((RETRACT, 5001, 1, 10)) == [("-D", 1, 10)]


def test_the_clock_never_goes_back(table):
    table.step((ADD, 5000, 1, 10))
    table.step((ADD, 10, 2, 20))
    assert table.step((ADD, 20, 3, 30)) == [("+I", 3, 30), ("-D", 2, 20)]


def test_a_held_retraction_expires_too(tmp_path):
    """A11: on_missing hold."""
    table = Timed(tmp_path, Retract(on_missing="hold"))
    table.step((RETRACT, 0, 1, 10))
    table.step((ADD, 1000, 2, 20))
    assert table.step((ADD, 1001, 1, 10)) == [("+I", 1, 10)]


def test_a_key_is_forgotten_by_deduplicate(tmp_path):
    table = Timed(tmp_path, First())
    assert table.step((ADD, 0, 1, 10)) == [("+I", 1, 10)]
    assert table.step((ADD, 500, 1, 11)) == []
    assert table.step((ADD, 1499, 1, 12)) == [], "each event keeps the key"
    assert table.step((ADD, 2499, 1, 13)) == [("+I", 1, 13)]


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(4, 10))])
def test_the_view_is_that_of_the_rows_that_live(seed, tmp_path):
    """Random events in order; a key expires with its last event."""
    rng, table, now = random.Random(seed), Timed(tmp_path, Retract(on_missing="hold")), 0
    rows, last, view = {}, {}, {}
    for _ in range(40):
        events = []
        for key in rng.sample(range(8), rng.randrange(1, 5)):
            now += rng.choice([1, 10, 400])
            if key in rows and now - last[key] < 1000:
                events.append((RETRACT, now, key, rows[key]))
            rows[key], last[key] = rng.randrange(1000), now
            events.append((ADD, now, key, rows[key]))
        for kind, key, value in table.step(*events):
            if kind == "-D":
                assert view.pop(key) == value
            else:
                view[key] = value
        for key in [key for key in rows if last[key] <= now - 1000 and key not in {event[2] for event in events}]:
            del rows[key], last[key]
        assert view == rows


def test_a_retraction_in_time_is_no_unmatched_one_although_the_clock_is_far_ahead(tmp_path):
    table = Timed(tmp_path, Retract(on_missing="error"))
    table.step((ADD, 0, 1, 10))
    assert table.step((RETRACT, 900, 1, 10), (ADD, 9000, 2, 20)) == [("+I", 2, 20), ("-D", 1, 10)]
    assert table.step((ADD, 9001, 1, 10)) == [("+I", 1, 10)]
