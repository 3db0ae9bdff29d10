# SPDX-License-Identifier: Apache-2.0
"""Mutants: wrong code that the comparison with the model must notice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forebay.errors import DataError
from forebay.table.index import changelog, compaction, follower, merge, object_set, segments
from forebay.table.index.follower import FullRule
from forebay.table.index.verify import verify


def history(objects):
    """A few transactions; returns whether the index, its count and a node are as the model."""
    objects.commit("a", [{"id": number, "name": str(number)} for number in range(600)], "snapshot")
    objects.commit("b", [{"id": number, "city": "c"} for number in range(3)])
    node = objects.node()
    objects.commit("a", [{"id": 1, "name": "new"}, {"id": 700, "name": "more"}])
    objects.commit("a", [{"id": 2}, {"id": 5}], "delete")
    objects.commit("a", [{"id": 1, "name": "newer"}])
    node.refresh()
    model: dict[int, tuple[str | None, str | None]] = {
        number: (str(number), "c" if number < 3 else None) for number in range(600)
    }
    model |= {1: ("newer", "c"), 2: (None, "c"), 700: ("more", None)}
    del model[5]
    found = objects.rows(node, "id", "name", "city")
    version = objects.index.newest_version("000001")
    return (
        found == [(key, *model[key]) for key in sorted(model)]
        and node.count() == version.count == len(model)
        and node.get(5) is None
        and verify(objects.index, node.view()).is_equal
    )


def test_without_a_mutant_the_history_is_as_the_model(objects):
    assert history(objects)


MUTANTS = {
    "masks are dropped": (object_set.Newer, "overruled", lambda newer, keys: set()),
    "deleted keys are left out": (
        merge.RowEncoder,
        "objects",
        lambda encoder, merged, shard: OBJECTS(encoder, replace(merged, gone=merged.gone.slice(0, 0)), shard),
    ),
    "runs are merged oldest first": (compaction, "newest_rows", lambda runs, **more: NEWEST(runs[::-1], **more)),
    "everything existed before": (merge, "_existed", lambda changed, codes, places, size: np.ones(size, np.bool_)),
    "rows with equal hashes are equal": (changelog, "equal_rows", lambda left, right: np.ones(len(left[0]), np.bool_)),
}
NEWEST = segments.newest_rows
OBJECTS = merge.RowEncoder.objects


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_noticed(objects, monkeypatch, name):
    monkeypatch.setattr(*MUTANTS[name])
    assert not history(objects)


def test_greater_instead_of_at_least_80_percent_is_noticed(objects, monkeypatch):
    """The edges in test_transactions: 80 of 100 rows build everything."""

    def greater(rule, entries, objects):
        shares = [(entry.changed, entry.before) for entry in entries if not entry.micro_batch]
        return next((f"{one} of {all_}" for one, all_ in shares if one * 5 > all_ * 4), None)

    monkeypatch.setattr(follower.FullRule, "reason", greater)
    objects.commit("a", [{"id": number, "name": "x"} for number in range(100)], "snapshot")
    objects.commit("a", [{"id": number, "name": "y"} for number in range(80)], "append")
    assert objects.index.newest_version("000001").decision != "FULL"
    monkeypatch.undo()
    assert FullRule().reason([objects.index.log.head()], 100) == "80 of 100 rows of a changed"


def test_folding_the_duplicates_of_a_transaction_is_noticed(objects, monkeypatch):
    rows = [{"id": 7, "name": "one"}, {"id": 7, "name": "two"}]
    with pytest.raises(DataError):
        objects.commit("a", rows)
    monkeypatch.setattr(changelog._Difference, "_note_duplicates", lambda *arguments: False)
    objects.commit("a", rows)
    assert objects.node().get(7)["name"] in ("one", "two")
