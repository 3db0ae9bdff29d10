# SPDX-License-Identifier: Apache-2.0
"""Attempts that die at any access to the state store, that run side by side, and replays of old micro-batches."""

from __future__ import annotations

import random
import zlib
from dataclasses import replace

import pyarrow as pa
import pytest

from forebay.errors import FatalError
from forebay.state.local_state_store import LocalStateStore
from forebay.table.changelog.operators.events import Layout
from forebay.table.changelog.operators.micro_batch import run_micro_batch
from forebay.table.changelog.operators.retract import Retract
from forebay.table.changelog.shape import RowKind
from forebay.table.changelog.state import shard as merging
from forebay.table.changelog.state import shard as shard_module
from forebay.table.changelog.state.manifest import OperatorInfo
from forebay.table.changelog.state.segments import KEY_HASH, KIND, ROW_HASH, StoredSegments
from forebay.table.changelog.state.shard import Shard

KEEP, VERSIONS = 3, 9
PAYLOAD = pa.schema([("k", pa.int64()), ("v", pa.string())])
LAYOUT = Layout(("k",), tuple(PAYLOAD.names), PAYLOAD)
INFO = OperatorInfo("query", "materialize retract", 1, (("k", "bigint"),), 0)


def batch(changes):
    """Changes are (kind, row)."""
    columns = list(zip(*(row for _, row in changes), strict=True)) or [[], []]
    hashes = [[zlib.crc32(repr(one).encode()) for one in ones] for ones in (columns[0], [row for _, row in changes])]
    kinds = pa.array([int(kind) for kind, _ in changes], pa.int8())
    arrays = [pa.array(column, one.type) for column, one in zip(columns, PAYLOAD, strict=True)]
    arrays += [*(pa.array(column, pa.int64()) for column in hashes), kinds]
    return pa.RecordBatch.from_arrays(arrays, names=[*PAYLOAD.names, KEY_HASH, ROW_HASH, KIND])


class Died(BaseException):
    """The process ends here."""


class Store(LocalStateStore):
    """Runs `meet` before and after each access that changes the store, and counts them."""

    def __init__(self, location, meet=lambda number: None):
        super().__init__(location)
        self.meet, self.number, self.loses = meet, 0, set()

    def _met(self):
        self.number += 1
        self.meet(self.number)

    def put_if_absent(self, name, data):
        self._met()
        written = super().put_if_absent(name, data)
        self._met()
        return written and self.number not in self.loses

    def delete(self, names):
        for name in sorted(names):
            self._met()
            super().delete([name])
        self._met()


@pytest.fixture(autouse=True)
def _merges_and_sweeps_happen_soon(monkeypatch):
    monkeypatch.setattr(merging, "SMALL", 6)
    monkeypatch.setattr(shard_module, "SWEEP", 4)


def micro_batches(seed=3):
    rng = random.Random(seed)
    live, changes = {}, []
    for number in range(VERSIONS * 6):
        key = rng.randrange(9)
        row = (key, f"v{number}")
        if key in live:
            changes.append((RowKind.UPDATE_BEFORE, live[key]))
        changes.append((RowKind.UPDATE_AFTER if key in live else RowKind.INSERT, row))
        live[key] = row
    rng.shuffle(changes)
    size = len(changes) // VERSIONS + 1
    return [changes[start : start + size] for start in range(0, len(changes), size)]


def attempt(store, version, changes):
    """One attempt of one task; changes in another order each time, as a shuffle gives them."""
    random.shuffle(changes := list(changes))
    shard = Shard(store, StoredSegments(store), "op/", 0, keep=KEEP)
    result = run_micro_batch(Retract(on_missing="hold"), shard, INFO, version, [batch(changes)], layout=LAYOUT)
    return result.changes


def undisturbed(directory):
    store = Store(str(directory))
    outputs = [attempt(store, version, changes) for version, changes in enumerate(micro_batches())]
    return outputs, store


def stored(store, version):
    found = Shard(store, StoredSegments(store), "op/", 0).manifest(version)
    assert found is not None
    return found


def manifest(store, version):
    """A manifest without the random parts of names."""
    found = stored(store, version)
    runs = tuple(tuple(replace(one, name=one.name[:21]) for one in run) for run in found.runs)
    return replace(found, runs=runs, retired=tuple((dropped, name[:21]) for dropped, name in found.retired))


def kept(store):
    return store.names("op/00000/")


A_THIRD_OF_ACCESSES = pytest.mark.parametrize(
    "first", [1, pytest.param(2, marks=pytest.mark.soak), pytest.param(3, marks=pytest.mark.soak)]
)
"""Every third one: some of these are before a write or a removal, some are after it."""


@A_THIRD_OF_ACCESSES
def test_an_attempt_may_die_at_any_access_to_the_store(tmp_path, first):
    outputs, plain = undisturbed(tmp_path / "plain")
    assert plain.number > 45
    for at in range(first, plain.number + 1, 3):

        def die(number, at=at):
            if number == at:
                raise Died

        store = Store(str(tmp_path / f"{at}"), die)
        deaths = 0
        for version, changes in enumerate(micro_batches()):
            try:
                found = attempt(store, version, changes)
            except Died:
                deaths += 1
                found = attempt(store, version, changes)
            assert found.equals(outputs[version]), f"death {at}, micro-batch {version}"
        assert deaths == 1
        assert manifest(store, VERSIONS - 1) == manifest(plain, VERSIONS - 1)
        # Two sweeps later nothing is left of the dead attempt.
        for version in range(VERSIONS, VERSIONS + 9):
            attempt(store, version, [])
        alive = stored(store, VERSIONS + 8)
        names = {one.name for run in alive.runs for one in run} | {name for _, name in alive.retired}
        assert {name for name in kept(store) if name.endswith(".arrow")} <= names
        assert len([name for name in kept(store) if name.endswith(".json")]) == KEEP + 1


@pytest.mark.soak
@A_THIRD_OF_ACCESSES
def test_another_attempt_may_run_from_begin_to_end_at_any_access_to_the_store(tmp_path, first):
    """Speculation: both attempts give the same rows, and the state is that of one of them."""
    outputs, plain = undisturbed(tmp_path / "plain")
    for at in range(first, plain.number + 1, 3):
        other = Store(str(tmp_path / f"{at}"))
        now = {}

        def overtake(number, at=at, other=other, now=now):
            if number == at:
                now["other"] = attempt(other, now["version"], now["changes"])

        store = Store(str(tmp_path / f"{at}"), overtake)
        for version, changes in enumerate(micro_batches()):
            now |= {"version": version, "changes": changes}
            found = attempt(store, version, changes)
            assert found.equals(outputs[version])
            assert now.pop("other", found).equals(found)
        last = stored(store, VERSIONS - 1)
        named = {one.name for run in last.runs for one in run} | {name for _, name in last.retired}
        assert named - {name for dropped, name in last.retired if dropped <= VERSIONS - 1 - KEEP} <= set(kept(store))
        assert attempt(store, VERSIONS, []).num_rows == 0, "the state of both attempts can be read"


def test_an_answer_that_is_lost_on_the_way_is_no_other_attempt(tmp_path):
    """The store has the manifest, and says that it was there already."""
    outputs, plain = undisturbed(tmp_path / "plain")
    store = Store(str(tmp_path / "lost"))
    store.loses = set(range(1, 10 * plain.number))
    for version, changes in enumerate(micro_batches()):
        assert attempt(store, version, changes).equals(outputs[version])
    assert manifest(store, VERSIONS - 1) == manifest(plain, VERSIONS - 1)


def test_each_kept_version_is_replayed_with_the_same_rows_and_older_ones_are_refused(tmp_path):
    """The last commits of the checkpoint are gone: Spark repeats their micro-batches."""
    outputs, store = undisturbed(tmp_path)
    before = kept(store)
    for version in range(VERSIONS - KEEP, VERSIONS):
        assert attempt(store, version, micro_batches()[version]).equals(outputs[version])
    assert kept(store) == before
    for version in range(1, VERSIONS - KEEP):
        with pytest.raises(
            FatalError, match=f"the state of micro-batch {version - 1} is missing|has other events|gone"
        ):
            attempt(store, version, micro_batches()[version])


def test_a_micro_batch_that_was_skipped_is_noticed_by_the_next_one(tmp_path):
    """A function of foreachBatch that does not read a micro-batch would lose its events."""
    store = Store(str(tmp_path))
    attempt(store, 0, micro_batches()[0])
    with pytest.raises(
        FatalError,
        match=r"has no state of micro-batch 1; its last one before is that of micro-batch 0\n(.|\n)*each micro",
    ):
        attempt(store, 2, micro_batches()[2])


def test_other_events_in_a_replay_are_refused_and_change_nothing(tmp_path):
    _, store = undisturbed(tmp_path)
    before = kept(store)
    with pytest.raises(FatalError, match="other events than when its state was written"):
        attempt(store, VERSIONS - 1, micro_batches(seed=4)[VERSIONS - 1])
    assert kept(store) == before
