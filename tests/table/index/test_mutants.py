# SPDX-License-Identifier: Apache-2.0
"""Mutants: wrong code that the comparison with the model must notice."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import UTC, datetime

import numpy as np
import pytest

from forebay.errors import DataError, FatalError
from forebay.index import Datasource, ObjectType, Property
from forebay.table.changelog.state.facts import fact_bytes
from forebay.table.index import (
    changelog,
    compaction,
    flush,
    follower,
    merge,
    object_set,
    opened_segments,
    replacement,
    segments,
    transactions,
)
from forebay.table.index import node as node_module
from forebay.table.index.edits import EditLog, EditRules
from forebay.table.index.follower import FullRule
from forebay.table.index.gc import collect
from forebay.table.index.log import Log
from forebay.table.index.verify import verify


@pytest.fixture(autouse=True)
def few_runs(monkeypatch):
    """Merges of runs are among what mutants break."""
    monkeypatch.setattr(compaction, "RUNS", 2)


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
    "masks are dropped": (opened_segments.Newer, "overruled", lambda newer, keys: set()),
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
    assert FullRule().reason([objects.index.log.head()], 100) == "80 rows of a changed, of 100 before"


def test_folding_the_duplicates_of_a_transaction_is_noticed(objects, monkeypatch):
    rows = [{"id": 7, "name": "one"}, {"id": 7, "name": "two"}]
    with pytest.raises(DataError):
        objects.commit("a", rows)
    monkeypatch.setattr(changelog._Difference, "_note_duplicates", lambda *arguments: False)
    objects.commit("a", rows)
    assert objects.node().get(7)["name"] in ("one", "two")


def edited(objects, patch):
    """A few edits by two editors; returns whether a node shows them before and after each flush, each once."""
    definition = ObjectType(
        "O",
        {"id": "bigint"},
        [
            Datasource("a", {"name": Property("string")}, conflict="most_recent", timestamp="at"),
            Datasource("b", {"city": Property("string")}),
        ],
    )
    objects = objects(definition, types={"a": {"at": "timestamp"}})
    early, late = datetime(2001, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
    objects.commit("a", [{"id": number, "name": "row", "at": early} for number in range(4)])
    node, other = objects.node(), objects.node()
    put = EditLog.put

    def paused(log, *arguments):
        patch.setattr(EditLog, "put", put)
        other.edit_many([(0, {"name": "x"}), (1, None), (2, {"name": "y"})])
        objects.flush()
        collect(objects.index, versions=1)
        return ACKNOWLEDGED(log, *arguments)

    patch.setattr(EditLog, "put", paused)
    node.edit(0, city="c")
    objects.commit("a", [{"id": 0, "name": "old", "at": early}, {"id": 2, "name": "new", "at": late}])
    node.edit(2, name="z", city="d")
    node.delete(3)
    expected = [(0, "x", "c"), (2, "new", "d")]
    shown = []
    for _ in range(2):
        node.refresh()
        shown.append(objects.rows(node, "id", "name", "city") == expected and node.count() == 2)
        objects.flush()
    node.refresh()
    return all(shown) and objects.rows(node, "id", "name", "city") == expected and verify(objects.index).is_equal


def acknowledged(log, edit, facts, head):
    return log._store.put_if_absent(log.name(edit.offset), fact_bytes({"v": 1, **asdict(edit)}))


ACKNOWLEDGED = EditLog.put
THEN = EditRules.then
EDIT_MUTANTS = {
    "an edit is acknowledged after its offset was collected": (f"{__name__}.ACKNOWLEDGED", acknowledged),
    "the row that comes last wins": (EditRules, "_is_later", lambda rules, columns, stamp, at: stamp is not None),
    "the edit wins always": (EditRules, "_is_later", lambda rules, columns, stamp, at: False),
    "a deletion is forgotten": (
        EditRules,
        "then",
        lambda rules, edits, change, at: THEN(rules, edits, change, at) if change.values else (edits, []),
    ),
    "an overlay shows deleted objects": (
        object_set.EditedKey,
        "object",
        lambda key, rules: OBJECT(key, rules) or key.row,
    ),
    "a flush loses what was folded before": (flush, "_folded_before", lambda *arguments: {}),
    "an edit loses the properties of earlier ones": (
        EditRules,
        "then",
        lambda rules, edits, change, at: THEN(rules, replace(edits, values=()), change, at),
    ),
    "flushed keys are not merged again": (merge.RowEncoder, "_edited", lambda encoder, row, edits: row),
}
OBJECT = object_set.EditedKey.object


def test_without_a_mutant_edits_are_as_expected(objects_at, monkeypatch):
    assert edited(objects_at, monkeypatch)


@pytest.mark.parametrize("name", EDIT_MUTANTS)
def test_a_mutant_of_edits_is_noticed(objects_at, monkeypatch, name):
    monkeypatch.setattr(*EDIT_MUTANTS[name])
    assert not edited(objects_at, monkeypatch)


def replaced(objects_at, patch):
    """A replacement that waits for a column, and loses its first swap; whether a node reads what the model says."""
    objects = objects_at(types={"a": {"size": "string"}})
    objects.commit("a", [{"id": number, "name": "n"} for number in range(20)], "snapshot")
    node = objects.node()
    node.edit(7, name="edited")
    properties = {"title": Property("string", column="name", renamed_from="name"), "size": Property("string")}
    new = objects.defined(
        ObjectType("O", {"id": "bigint"}, [Datasource("a", properties), Datasource("b", {"city": Property("string")})])
    )
    if new.plan().kind != "REPLACEMENT":
        return False
    first = new.replace()
    new.commit("a", [{"id": 1, "name": "n", "size": "1"}])
    second = new.replace()
    new.commit("a", [{"id": number, "name": "n", "size": "1"} for number in range(20)], "snapshot")
    follow, times = follower.Follower.follow, [1, 2]

    def late(given, **options):
        version = follow(given, **options)
        if options.get("exact") and times:
            objects.commit("b", [{"id": 3 + times.pop(), "city": "late"}])
        return version

    put, flips = Log.put, []

    def watched(log, entry, head, is_in):
        node.refresh()
        done = put(log, entry, head, is_in)
        if entry.kind == "swap" and done:
            flips.append(node.refresh().pipeline)
        return done

    patch.setattr(follower.Follower, "follow", late)
    patch.setattr(Log, "put", watched)
    try:
        third = new.replace()
    except FatalError:
        return False
    node.refresh()
    expected = [(n, "edited" if n == 7 else "n", "1", "late" if n in (4, 5) else None) for n in range(20)]
    return (
        [each.serves for each in (first, second, third)] == [False, False, True]
        and flips == [third.pipeline]
        and objects.rows(node, "id", "title", "size", "city") == expected
        and verify(objects.index, node.view()).is_equal
    )


REPLACEMENT_MUTANTS = {
    "a swap without the version check": (replacement, "_has_all", lambda version, head: True),
    "a node compares versions of two pipelines by their numbers": (
        node_module,
        "_is_newer",
        lambda found, known: (found.data, found.number) > (known.data, known.number),
    ),
    "a replacement does not wait for its columns": (replacement, "waits_for", lambda *arguments: ()),
    "an update brings a column": (transactions, "_evolved", lambda stored, incoming, *_, **__: (incoming, False)),
    "edits by an earlier name are lost": (Property, "earlier_names", property(lambda given: ())),
}


def test_without_a_mutant_the_replacement_is_as_the_model(objects_at, monkeypatch):
    assert replaced(objects_at, monkeypatch)


@pytest.mark.parametrize("name", REPLACEMENT_MUTANTS)
def test_a_mutant_of_replacements_is_noticed(objects_at, monkeypatch, name):
    monkeypatch.setattr(*REPLACEMENT_MUTANTS[name])
    assert not replaced(objects_at, monkeypatch)
