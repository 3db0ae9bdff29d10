# SPDX-License-Identifier: Apache-2.0
"""Any list of transactions gives the objects of a model: dictionaries of rows by key."""

from __future__ import annotations

import itertools
import tempfile
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import FatalError
from forebay.table.index import changelog, compaction, gc
from forebay.table.index.compaction import rows_of_runs
from forebay.table.index.follower import FullRule
from forebay.table.index.gc import collect
from forebay.table.index.verify import verify

KEYS = st.integers(-3, 8)
TEXTS = st.sampled_from([None, "", "a", "b", "late parcel", "配送 遅延"])


@st.composite
def transactions(draw):
    """A transaction: datasource, kind, rows with different keys, and what happens after it."""
    source = draw(st.sampled_from("ab"))
    kind = draw(st.sampled_from(["snapshot", "append", "update", "delete"]))
    keys = draw(st.lists(KEYS, unique=True, max_size=8))
    column = "name" if source == "a" else "city"
    rows = [
        {"id": key, column: draw(TEXTS), "deleted": draw(st.sampled_from([None, False, False, True]))} for key in keys
    ]
    after = draw(st.sampled_from(["follow", "follow", "nothing", "restart", "full"]))
    return source, kind, rows, after


class Model:
    """The rows of each datasource by key."""

    def __init__(self):
        self.rows = {"a": {}, "b": {}}

    def apply(self, source, kind, rows):
        state = self.rows[source]
        column = "name" if source == "a" else "city"
        if kind == "snapshot":
            state.clear()
        for row in rows:
            if kind == "delete" or row["deleted"]:
                state.pop(row["id"], None)
            else:
                state[row["id"]] = row[column]

    def objects(self):
        keys = sorted(self.rows["a"].keys() | self.rows["b"].keys())
        return [(key, self.rows["a"].get(key), self.rows["b"].get(key)) for key in keys]


@given(
    history=st.lists(transactions(), max_size=12),
    shards=st.sampled_from([1, 3, 8]),
    threshold=st.sampled_from([None, Fraction(4, 5), Fraction(1), Fraction(1, 1000)]),
    runs=st.sampled_from([1, 8]),
    index_runs=st.sampled_from([1, 2, 4, 10]),
    small=st.sampled_from([0, 2, 512]),
    equal_hashes=st.booleans(),
)
def test_increments_give_the_objects_of_the_model_and_of_a_full_build(
    new_objects, history, shards, threshold, runs, index_runs, small, equal_hashes
):
    """P7: whatever the kinds, datasources, shards, thresholds, and merges of runs; also after a restart anywhere."""
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(changelog, "RUNS", runs)
        patch.setattr(compaction, "RUNS", index_runs)
        patch.setattr(compaction, "SMALL", small)
        options = {"key_hash": lambda key: key[0] % 2} if equal_hashes else {}
        place = Path(directory)
        numbers = itertools.count()

        def opened():
            rule = FullRule(threshold)
            return new_objects(place / "store", place / f"c{next(numbers)}", shards=shards, rule=rule, **options)

        objects, model, node, counts = opened(), Model(), None, set()
        for source, kind, rows, after in history:
            objects.commit(source, rows, kind, follow=after != "nothing", allow_empty=True)
            model.apply(source, kind, rows)
            if after == "restart":
                objects = opened()
            if after == "full":
                objects.follow(full=True)
            if after == "nothing":
                continue
            node = node or objects.node(cache=place / "node")
            node.refresh()
            assert objects.rows(node, "id", "name", "city") == model.objects()
            assert [node.get(key) is not None for key in range(-3, 9)] == [
                key in {found[0] for found in model.objects()} for key in range(-3, 9)
            ]
            version = objects.index.newest_version("000001")
            counts.add(version.count == len(model.objects()) == node.count())
            assert len(version.runs) <= index_runs
        if history:
            version = objects.follow(full=True)
            with objects.node() as fresh:
                assert objects.rows(fresh, "id", "name", "city") == model.objects()
            assert version.count == len(model.objects())
        assert counts <= {True}
        if node is not None:
            node.close()


CHANGES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 4), st.booleans()), unique_by=lambda change: change[0], max_size=4
)


def newest_changes(new_objects, batches, runs):
    """Return the objects after micro-batches of changes (key, sequence, whether a row comes), and those of the model.

    At one sequence, a key has one row and one retraction at most: the row stays.
    """
    newest: dict[int, tuple[int, bool]] = {}
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(changelog, "RUNS", runs)
        objects = new_objects(Path(directory) / "store", Path(directory) / "cache")
        for number, batch in enumerate(batches):
            rows = [
                {"id": key, "sequence": sequence, "deleted": not adds, "name": str(sequence) if adds else None}
                for key, sequence, adds in batch
            ]
            objects.commit("a", rows, transaction=f"q/{number}", owner="q", batch=number)
            for key, *place in batch:
                newest[key] = max(newest.get(key, (-1, False)), tuple(place))
        with objects.node() as node:
            assert verify(objects.index, node.view()).is_equal
            shown = objects.rows(node, "id", "name")
    return shown, [(key, str(sequence)) for key, (sequence, adds) in sorted(newest.items()) if adds]


@given(st.lists(CHANGES.filter(bool), min_size=1, max_size=8), st.sampled_from([1, 2, 8]))
def test_changes_in_any_order_give_the_newest_one_of_each_key(new_objects, batches, runs):
    """Whatever comes late, again, or with one sequence in two micro-batches, and whatever runs are merged."""
    shown, expected = newest_changes(new_objects, batches, runs)
    assert shown == expected


ORDERS = [[[(0, 2, True)], [(0, 1, True)]], [[(0, 2, False)], [(0, 2, True)]], [[(0, 2, True)], [(0, 2, False)]]]


def all_are_newest(new_objects):
    return all(shown == expected for shown, expected in (newest_changes(new_objects, each, 8) for each in ORDERS))


@pytest.mark.parametrize("late", [np.zeros(1, np.bool_), np.ones(1, np.bool_)])
def test_changes_that_are_never_or_always_late_are_noticed(new_objects, monkeypatch, late):
    assert all_are_newest(new_objects)
    mutant = lambda difference, rows, entries, entry, event: (entry >= 0) & late  # noqa: E731
    monkeypatch.setattr(changelog._Difference, "_late", mutant)
    assert not all_are_newest(new_objects)


@st.composite
def collections(draw):
    """A transaction, whether a node is opened after it, and a collection: facts and versions to keep."""
    return draw(transactions()), draw(st.booleans()), draw(st.sampled_from([None, (1, 1), (2, 3), (100, 2), (3, 100)]))


def collected_history(new_objects, place, history):
    """Collect between transactions; return whether all versions that are kept, and pages that began, read as before."""
    objects = new_objects(place / "store", place / "c", rule=FullRule(None))
    made: dict[int, list[tuple[object, ...]]] = {}
    pages, equal = [], []

    def stored(version):
        found = rows_of_runs(objects.index, objects.definition, version.runs[::-1], keep_deleted=False)
        return [tuple(columns) for _, columns, exists in found if exists]

    for number, ((source, kind, rows, _), opens, keeps) in enumerate(history):
        objects.commit(source, rows, kind, allow_empty=True)
        newest = objects.index.newest_version("000001")
        made.setdefault(newest.number, stored(newest))
        if opens:
            with objects.node(cache=place / f"n{number}") as node:
                expected = objects.rows(node, "id", "name", "city")
            node = objects.node(cache=place / f"p{number}")
            pages.append((node, node.objects.limit(2).fetch(), expected))
        if keeps is not None:
            collect(objects.index, keep=keeps[0], versions=keeps[1])
            kept = [each for each in objects.index.versions("000001") if each > 0]
            equal.append(kept[-keeps[1] :] == sorted(made)[-min(keeps[1], len(kept)) :])
            try:
                equal += [stored(objects.index.version("000001", each)) == made[each] for each in kept]
            except FatalError:
                equal.append(False)
        made = {each: rows for each, rows in made.items() if each in objects.index.versions("000001")}
    for node, first, expected in pages:
        found, page = [], first
        while page.rows:
            found += [(row["id"], row["name"], row["city"]) for row in page.rows]
            page = page.next_page()
        equal.append(found == expected)
        node.close()
    return all(equal)


@pytest.mark.soak
@given(st.lists(collections(), max_size=10), st.sampled_from([1, 2, 4, 10]), st.sampled_from([0, 2, 512]))
def test_a_collection_at_any_moment_changes_no_version_that_is_kept(new_objects, history, runs, small):
    """P19."""
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "RUNS", runs)
        patch.setattr(compaction, "SMALL", small)
        assert collected_history(new_objects, Path(directory), history)


@pytest.mark.parametrize("mutant", [None, "it keeps the files of the newest version alone"])
def test_a_collection_that_keeps_too_little_is_noticed(new_objects, tmp_path, monkeypatch, mutant):
    named = gc._named
    if mutant is not None:
        monkeypatch.setattr(gc, "_named", lambda index, first, followers, versions: named(index, first, followers, 1))
    monkeypatch.setattr(compaction, "SMALL", 0)
    monkeypatch.setattr(compaction, "RUNS", 1)
    rows = [{"id": number, "name": "x", "deleted": False} for number in range(5)]
    history = [(("a", "update", rows[:number], ""), True, (1, 3)) for number in range(1, 6)]
    assert collected_history(new_objects, tmp_path, history) is (mutant is None)


def test_runs_are_merged_only_where_they_are_too_many(objects, monkeypatch):
    """A change writes what changed, and nothing again, until the runs would be more than `RUNS`."""
    monkeypatch.setattr(compaction, "RUNS", 4)
    objects.commit("a", [{"id": number, "name": "x"} for number in range(600)], "snapshot")
    runs = objects.index.newest_version("000001").runs
    for number in range(3):
        objects.commit("a", [{"id": number, "name": "y"}])
        assert objects.index.newest_version("000001").runs[:-1] == runs
        runs = objects.index.newest_version("000001").runs
    objects.commit("a", [{"id": 0, "name": "z"}])
    base, merged = objects.index.newest_version("000001").runs
    assert base == runs[0]
    assert compaction.run_rows(merged) == 3
