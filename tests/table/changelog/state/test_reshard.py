# SPDX-License-Identifier: Apache-2.0
"""A state gets another number of shards: nothing lost, nothing doubled, and the query goes on where it stopped."""

from __future__ import annotations

import random
from dataclasses import replace

import pyarrow as pa
import pytest

from forebay.errors import ConfigurationError, FatalError
from forebay.state.local_state_store import LocalStateStore
from forebay.table.changelog.state import reshard as resharding
from forebay.table.changelog.state.inspection import operators, verify
from forebay.table.changelog.state.reshard import reshard
from forebay.table.changelog.state.segments import StoredSegments


def random_events(rng, model, size):
    """Inserts, and retractions of rows that are there."""
    live = [row for row, count in model.items() if count > 0]
    events = []
    for _ in range(size):
        if live and rng.random() < 0.4:
            events.append((-1, live.pop(rng.randrange(len(live)))))
        else:
            events.append((1, (rng.randrange(60), f"v{rng.randrange(50)}")))
    return events


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 6))])
@pytest.mark.soak(but=["0-False", "1-True"])
def test_a_resharded_query_goes_on_with_the_same_rows(query, small, seed, repeated):
    """C8, P4: whether or not Spark repeats the last micro-batch."""
    small()
    rng = random.Random(seed)
    on = query(shards=3)
    changes, events = [], []
    for _ in range(4):
        for _ in range(rng.randrange(1, 5)):
            events = random_events(rng, on.model, rng.randrange(40))
            changes = on.step(events)
        shards = rng.choice([number for number in (1, 2, 4, 5, 6, 12) if number != on.started().shards])
        done = reshard(on.state, shards)
        assert (done.after, done.version) == (shards, on.version - 1)
        assert on.started().shards == shards
        assert on.stored() == on.history[on.version - 1]
        if repeated:
            on.version -= 1
            for sign, row in events:
                on.model[row] -= sign
            again = on.step(events)
            assert sorted(map(str, again)) == sorted(map(str, changes)), "the repeated micro-batch gives other changes"
            assert on.stored() == on.history[on.version - 1]


def test_it_goes_on_after_the_very_first_micro_batch(query):
    on = query(shards=2)
    on.step([(1, (1, "a")), (1, (2, "b"))])
    reshard(on.state, 3)
    on.version = 0
    on.model.clear()
    assert len(on.step([(1, (1, "a")), (1, (2, "b"))])) == 2
    on.step([(-1, (1, "a"))])
    assert on.stored() == {(2, "b"): 1}


def test_a_micro_batch_that_only_some_shards_have_is_repeated(query):
    on = query(shards=3)
    on.step([(1, (key, "a")) for key in range(30)])
    events = [(-1, (key, "a")) for key in range(10)]
    on.run_shard(1, events)  # the query was killed here
    assert reshard(on.state, 2).version == 0
    on.step(events)
    assert on.stored() == {(key, "a"): 1 for key in range(10, 30)}


@pytest.mark.soak
def test_old_shards_are_removed_and_versions_are_kept_as_before(query, small):
    small()
    on = query(shards=2, retained=2)
    for number in range(5):
        on.step([(1, (key, f"v{number}")) for key in range(20)])
    reshard(on.state, 3)
    assert not any(name.startswith("orders/0") for name in on.files())
    for number in range(5, 72):
        on.step([(1, (key, f"v{number}")) for key in range(3)])
    for version in range(on.version - 3, on.version):
        assert on.stored(version) == on.history[version]
    segments = {name for name in on.files() if name.endswith(".arrow")}
    shards = [on.started().shard(number) for number in range(3)]
    kept = [shard.newest(version) for shard in shards for version in shard.versions()]
    used = {segment.name for manifest in kept for run in manifest.runs for segment in run}
    assert len(segments - used) < 3 * 20, "segments of old versions stay"
    assert not [name for name in on.files() if name.endswith("-resharded.json")]


@pytest.mark.parametrize(
    "moment",
    [moment if moment % 2 == 0 else pytest.param(moment, marks=pytest.mark.soak) for moment in range(0, 40, 3)],
)
def test_a_kill_at_any_write_leaves_the_old_state_or_the_new_one(query, small, monkeypatch, moment):
    """P4: the process ends before its nth write or removal."""
    small()
    on = query(shards=2)
    for number in range(4):
        on.step([(1, (key, f"v{number}")) for key in range(number, 20)])

    class Killed(BaseException):
        pass

    calls = iter(range(10_000))

    def mortal(method):
        def call(self, *arguments):
            if next(calls) >= moment:
                raise Killed
            return method(self, *arguments)

        return call

    with monkeypatch.context() as patch:
        for name in ("put_if_absent", "delete"):
            patch.setattr(LocalStateStore, name, mortal(getattr(LocalStateStore, name)))
        try:
            reshard(on.state, 3)
            killed = False
        except Killed:
            killed = True
    assert on.stored() == on.history[on.version - 1]
    if killed and on.started().shards == 2:
        reshard(on.state, 3)
    elif killed:
        with pytest.raises(ConfigurationError, match="has 3 shards already"):
            reshard(on.state, 3)
    assert {name.split("/")[1] for name in on.files() if name.endswith(".arrow")} >= {on.started().inside[:-1]}
    assert not [name for name in on.files() if name.startswith("orders/0")], "old shards stay"
    on.step([(-1, (5, "v0"))])
    assert on.stored() == on.history[on.version - 1]


def test_a_running_query_is_noticed_before_and_after_the_switch(query, monkeypatch):
    on = query(shards=2)
    on.step([(1, (1, "a"))])
    with pytest.raises(FatalError, match="the query or another reshard is running"):
        reshard(on.state, 3, lambda written: on.step([(1, (2, "b"))]) if written == 1 else None)
    assert on.started().shards == 2

    put = LocalStateStore.put_if_absent
    state = on.started()

    def switched(self, name, data):
        if name.endswith("operator-00001.json"):
            on.run_shard(0, [], state)
        return put(self, name, data)

    with monkeypatch.context() as patch, pytest.raises(FatalError, match="is running"):
        patch.setattr(LocalStateStore, "put_if_absent", switched)
        reshard(on.state, 3)
    assert on.started().shards == 2
    assert not [name for name in on.files() if name.startswith("orders/g")]
    on.step([])
    assert on.stored() == {(1, "a"): 1, (2, "b"): 1}


def test_a_query_that_was_defined_before_is_refused(query, monkeypatch):
    on = query(shards=2)
    on.step([(1, (1, "a"))])
    before = on.started()
    reshard(on.state, 3)
    with pytest.raises(FatalError, match="another number of shards since this query was defined") as caught:
        on.step([(1, (2, "b"))], before)
    assert "define its DataFrame again" in caught.value.advice

    on = query(shards=2)
    monkeypatch.setattr(resharding, "_remove_others", lambda *_: None)  # killed before the old shards were removed
    before = on.started()
    on.version = 1
    reshard(on.state, 4)
    with pytest.raises(FatalError, match="another number of shards"):
        on.step([(1, (2, "b"))], before)


@pytest.mark.parametrize(("shards", "error"), [(2, "has 2 shards already"), (0, "shards is 0"), (-1, "shards is -1")])
def test_numbers_that_make_no_sense_are_refused(query, shards, error):
    on = query(shards=2)
    on.step([])
    with pytest.raises(ConfigurationError, match=error):
        reshard(on.state, shards)


def test_there_must_be_a_state(query):
    with pytest.raises(ConfigurationError, match="no state of 'orders'"):
        reshard(query().state, 2)


def test_shards_that_are_more_than_a_micro_batch_apart_are_refused(query):
    on = query(shards=2)
    for _ in range(3):
        on.step([(1, (1, "a"))])
    for path in (on.root() / "orders/00001").glob("v*[12].json"):
        path.unlink()
    with pytest.raises(FatalError, match="shard 1 is at micro-batch 0, and shard 0 is at micro-batch 2") as caught:
        reshard(on.state, 3)
    assert "finish its micro-batch" in caught.value.advice
    (on.root() / "orders/00001/v000000000000.json").unlink()
    with pytest.raises(FatalError, match="shard 1 has no version"):
        reshard(on.state, 3)


def test_a_damaged_state_stays_as_it_is(query):
    on = query(shards=2)
    on.step([(1, (key, "a")) for key in range(20)])
    segment = next(on.root().rglob("*.arrow"))
    segment.write_bytes(segment.read_bytes()[:-9] + b"x" * 9)
    before = on.files()
    with pytest.raises(FatalError, match=segment.name):
        reshard(on.state, 3)
    assert on.files() == before


def test_it_needs_memory_for_some_segments_not_for_the_state(query, small, monkeypatch):
    small(rows=500, size=1 << 20, small=100)
    on = query(shards=2)
    for start in range(0, 10_000, 2_000):
        on.step([(1, (key, "x" * 900)) for key in range(start, start + 2_000)])
    total = sum(path.stat().st_size for path in on.root().rglob("*.arrow"))
    before, held = pa.total_allocated_bytes(), []
    write = StoredSegments.write

    def measured(self, prefix, batch):
        held.append(pa.total_allocated_bytes() - before)
        return write(self, prefix, batch)

    monkeypatch.setattr(StoredSegments, "write", measured)
    reshard(on.state, 5)
    assert total > 8 << 20
    assert max(held) < total / 10, f"{max(held):,} bytes for {total:,} bytes of state"


@pytest.fixture
def s3_storage(s3_server):
    """Settings of a server with the bucket `state`."""
    s3_server.make_bucket("state")
    return s3_server.options()


@pytest.mark.soak
def test_on_s3_it_is_the_same(query, s3_storage, tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    on = query(shards=2, storage=s3_storage)
    on.state = replace(on.state, location="s3://state/orders-of-a-shop")
    on.step([(1, (key, "a")) for key in range(20)])
    on.step([(-1, (key, "a")) for key in range(5)])
    reshard(on.state, 3)
    store = on.state.store()
    assert store.directories("orders/") == [f"orders/{on.started().inside}"]
    assert operators(on.state) == ["orders"] and not verify(on.state).problems
    on.step([(1, (3, "b"))])
    assert on.stored() == on.history[2]
