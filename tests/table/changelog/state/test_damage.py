# SPDX-License-Identifier: Apache-2.0
"""Damage, and states of something else: an error that names the file and the next step, never an empty state."""

from __future__ import annotations

import hashlib
import io
import json
import struct

import pyarrow as pa
import pytest

from forebay.errors import ConfigurationError, FatalError
from forebay.table.changelog.operators.latest import Latest
from forebay.table.changelog.state import segments
from forebay.table.changelog.state.inspection import verify

ADVICE = ("from one backup", "a new state location", "new checkpoint")


@pytest.fixture
def orders(query):
    """A query after three micro-batches, whose next one begins in a new process."""
    on = query(shards=2, retained=100)
    for number in range(3):
        on.step([(1, (key, f"v{number}")) for key in range(8)])
    segments._verified.clear()
    return on


def refused(on, kind=FatalError):
    files = on.files()
    with pytest.raises(kind) as caught:
        on.step([(-1, (3, "v0"))])
    # The other shard may have done its part; the damaged one wrote nothing.
    assert len(set(on.files()) - set(files)) <= 2
    return caught.value


def last_segment(on):
    manifest = on.started().shard(1).manifest(on.version - 1)
    return on.root() / manifest.runs[-1][-1].name


def cut_off(path):
    path.write_bytes(path.read_bytes()[:-100])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("damage", "text"),
    [(cut_off, "bytes instead of"), (flip, "its digest differs"), (lambda path: path.unlink(), "it does not exist")],
)
def test_a_damaged_segment_is_named(orders, damage, text):
    path = last_segment(orders)
    damage(path)
    error = refused(orders)
    assert f"orders/00001/{path.name}" in str(error) and text in str(error)
    assert all(advice in error.advice for advice in ADVICE)


def lying_offsets(batch, written):
    """The second text of the column `v` begins a gigabyte behind the file."""
    right = struct.pack(f"<{batch.num_rows + 1}i", *range(0, 2 * batch.num_rows + 1, 2))
    assert written.count(right) == 1
    return written.replace(right, right[:4] + struct.pack("<i", 1 << 30) + right[8:])


def no_batch(batch, _):
    return arrow_file(batch.schema)


def two_batches(batch, _):
    return arrow_file(batch.schema, batch, batch)


def text_for_hashes(batch, _):
    changed = batch.set_column(0, batch.schema.names[0], pa.array(["x"] * batch.num_rows))
    return arrow_file(changed.schema, changed)


def fewer_columns(batch, _):
    changed = batch.drop_columns([batch.schema.names[1]])
    return arrow_file(changed.schema, changed)


def unsorted(batch, _):
    changed = batch.take([0, *reversed(range(1, batch.num_rows - 1)), batch.num_rows - 1])
    return arrow_file(changed.schema, changed)


def arrow_file(schema, *batches):
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("forgery", "text"),
    [
        (lying_offsets, "it is no Arrow file"),
        (no_batch, "does not have one record batch"),
        (two_batches, "does not have one record batch"),
        (text_for_hashes, "of another type than int64"),
        (fewer_columns, "is not there"),
        (unsorted, "its entries are not sorted"),
    ],
)
def test_a_segment_whose_manifest_was_forged_with_it_is_refused(orders, forgery, text):
    """Its digest is right. Arrow itself would read what lies outside the file, or the process would end."""
    path = last_segment(orders)
    written = path.read_bytes()
    data = forgery(pa.ipc.open_file(written).get_batch(0), written)
    path.write_bytes(data)
    manifest = orders.root() / "orders" / "00001/v000000000002.json"
    facts = json.loads(manifest.read_text())
    facts.pop("sum")
    facts["runs"][-1][-1] |= {"size": len(data), "digest": hashlib.sha256(data).hexdigest()}
    manifest.write_text(json.dumps(facts))
    for _ in range(2):  # also by a process that knows the digest
        assert text in str(refused(orders))
    assert [text in problem for problem in verify(orders.state).problems] == [True]


@pytest.mark.parametrize("name", ["00001/v000000000002.json", "operator.json"])
@pytest.mark.parametrize("keep", [0, 20, -1])
def test_a_manifest_that_is_cut_off_is_named(orders, name, keep):
    path = orders.root() / "orders" / name
    path.write_bytes(path.read_bytes()[:keep])
    error = refused(orders)
    assert f"the file orders/{name} of the state is damaged" in str(error)
    assert all(advice in error.advice for advice in ADVICE)


@pytest.mark.parametrize("name", ["00001/v000000000002.json", "operator.json"])
def test_a_changed_number_in_a_manifest_is_noticed(orders, name):
    path = orders.root() / "orders" / name
    text = path.read_text()
    where = next(place for place, char in enumerate(text) if char.isdigit())
    path.write_text(text[:where] + str((int(text[where]) + 1) % 10) + text[where + 1 :])
    error = refused(orders)
    assert f"orders/{name}" in str(error)


@pytest.mark.parametrize("name", ["00001/v000000000002.json", "operator.json"])
@pytest.mark.parametrize(("version", "later"), [(2, True), (0, False)])
def test_another_format_is_refused(orders, name, version, later):
    """A later forebay reads what this one writes, and none reads an older format."""
    path = orders.root() / "orders" / name
    path.write_text(json.dumps({**json.loads(path.read_text()), "v": version, "new": True}))
    error = refused(orders)
    assert f"orders/{name} has format {version}" in str(error) and "install the version" in error.advice
    assert ("or a later one" in error.advice) == later


def test_a_state_of_the_first_release_is_read(orders):
    """Facts without a digest, a generation and counted tombstones."""
    for path in orders.root().rglob("*.json"):
        facts = json.loads(path.read_text())
        for name in ("sum", "generation", "directory"):
            facts.pop(name, None)
        for run in facts.get("runs", ()):
            for segment in run:
                del segment["tombstones"]
        path.write_text(json.dumps(facts))
    orders.step([(-1, (3, "v0"))])
    assert orders.stored() == orders.history[orders.version - 1]


def test_a_missing_manifest_of_one_shard_is_told(orders):
    (orders.root() / "orders/00001/v000000000002.json").unlink()
    error = refused(orders)
    assert (
        "shard 1 in orders/00001/ has no state of micro-batch 2; its last one before is that of micro-batch 1"
        in str(error)
    )
    assert all(advice in error.advice for advice in ADVICE)


@pytest.mark.parametrize("gone", ["v*2.json", "v*[12].json", "v*.json", "*"])
def test_missing_manifests_of_all_shards_are_no_empty_state(orders, gone):
    for number in range(2):
        for path in (orders.root() / f"orders/{number:05d}").glob(gone):
            path.unlink()
    error = refused(orders)
    assert "orders/0000" in str(error) and ("is missing" in str(error) or "has no state of micro-batch 2" in str(error))
    assert all(advice in error.advice for advice in ADVICE)


def test_a_version_that_was_removed_is_no_empty_state(query):
    on = query(shards=1, retained=2)
    for number in range(8):
        on.step([(1, (1, f"v{number}"))])
    on.version = 4
    error = refused(on)
    assert "the state of micro-batch 3 is missing" in str(error) and "no version before micro-batch 5" in str(error)


def test_a_missing_state_is_no_empty_state(orders):
    (orders.root() / "orders/operator.json").unlink()
    error = refused(orders, ConfigurationError)
    assert "no file orders/operator.json" in str(error) and "the query is at micro-batch 3" in str(error)


def test_a_micro_batch_that_was_skipped_is_refused(orders):
    """Spark runs all shards in each micro-batch, also without rows."""
    orders.version += 5
    error = refused(orders)
    assert "has no state of micro-batch 7; its last one before is that of micro-batch 2" in str(error)


def test_a_checkpoint_that_was_set_back_goes_on_after_newer_manifests_are_removed(orders):
    for path in orders.root().rglob("v*[12].json"):
        path.unlink()
    orders.version, orders.model = 1, orders.model.__class__(orders.history[0])
    orders.step([(-1, (3, "v0")), (1, (9, "new"))])
    assert orders.stored() == orders.history[1]
    orders.step([(-1, (9, "new"))])
    assert orders.stored() == orders.history[2]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"query": "query-2"}, "belongs to the query query-1, not to query-2"),
        (
            {"keys": (("k", "string"),)},
            "that of materialize retract by k bigint, not of materialize retract by k string",
        ),
        ({"keys": (("other", "bigint"),)}, "by k bigint, not of materialize retract by other bigint"),
    ],
)
def test_a_state_of_something_else_is_refused(orders, change, text):
    for name, value in change.items():
        setattr(orders, name, value)
    error = refused(orders, ConfigurationError)
    assert text in str(error) and "new" in error.advice


def test_another_number_of_shards_is_refused_by_the_tasks(orders):
    from dataclasses import replace

    with pytest.raises(ConfigurationError, match="has 2 shards, not 3") as caught:
        orders.step([], replace(orders.state, shards=3))
    assert "forebay state reshard" in caught.value.advice


def test_a_replay_with_other_events_is_refused(orders):
    orders.version -= 1
    error = refused(orders)
    assert "micro-batch 2 of shard" in str(error) and "has other events than when its state was written" in str(error)
    assert "the same at each replay" in error.advice


def test_a_replay_with_the_same_events_in_another_order_writes_nothing(orders):
    files = orders.files()
    orders.version -= 1
    orders.step([(1, (key, "v2")) for key in reversed(range(8))])
    assert orders.files() == files


def with_columns(on, *columns):
    on.payload = pa.schema(columns)
    return on


def test_a_new_column_is_null_in_older_entries_and_their_retractions_match(orders):
    with_columns(orders, ("k", pa.int64()), ("v", pa.string()), ("w", pa.int32()))
    orders.model = orders.model.__class__({(*row, None): count for row, count in orders.model.items()})
    changes = orders.step([(-1, (3, "v0", None)), (1, (3, "v0", 7))])
    assert [change["w"] for change in changes if change["k"] == 3] in ([None, 7], [])
    assert orders.stored() == orders.history[3]
    orders.step([(-1, (key, "v1", None)) for key in range(8)])
    assert orders.stored() == orders.history[4]


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ([("k", pa.int64())], "the column 'v' has the type string in the state, and is missing in the query"),
        ([("k", pa.int64()), ("v", pa.int64())], "'v' has the type string in the state, and is of type int64"),
        ([("k", pa.int64()), ("V", pa.string())], "the column 'v' has the type string in the state, and is missing"),
    ],
)
def test_a_column_that_was_removed_or_changed_is_refused_by_name(orders, columns, text):
    with_columns(orders, *columns)
    orders.payload = pa.schema(columns)
    rows = [(1, tuple([3, 4 if columns[-1][1] == pa.int64() else "x"][: len(columns)]))]
    with pytest.raises(ConfigurationError) as caught:
        orders.step(rows)
    assert text in str(caught.value) and "keep the old column and add a new one" in caught.value.advice


def test_another_order_of_changes_is_refused(query, monkeypatch):
    on = query(shards=1, operator=Latest())
    on.step([(1, (3, "a"))])
    layout = on.layout()
    monkeypatch.setattr(
        on, "layout", lambda: layout.__class__(layout.keys, layout.identity, layout.payload, timed=True)
    )
    with pytest.raises(ConfigurationError, match="written without a time to live"):
        on.run_shard(0, [])
    monkeypatch.setattr(
        on, "layout", lambda: layout.__class__(layout.keys, layout.identity, layout.payload, (pa.int64(),))
    )
    with pytest.raises(ConfigurationError, match="a column that orders changes does not exist in the state") as caught:
        on.run_shard(0, [])
    assert caught.value.option == "sequence_by"
