# SPDX-License-Identifier: Apache-2.0
"""Any list of transactions gives the objects of a model: dictionaries of rows by key."""

from __future__ import annotations

import itertools
import tempfile
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.table.index import changelog, compaction
from forebay.table.index.follower import FullRule

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
    small=st.sampled_from([0, 2, 512]),
    equal_hashes=st.booleans(),
)
def test_increments_give_the_objects_of_the_model_and_of_a_full_build(
    new_objects, history, shards, threshold, runs, small, equal_hashes
):
    """P7: whatever the kinds, datasources, shards, thresholds, and merges of runs; also after a restart anywhere."""
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(changelog, "RUNS", runs)
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
            assert len(version.runs) <= compaction.RUNS
        if history:
            version = objects.follow(full=True)
            with objects.node() as fresh:
                assert objects.rows(fresh, "id", "name", "city") == model.objects()
            assert version.count == len(model.objects())
        assert counts <= {True}
        if node is not None:
            node.close()
