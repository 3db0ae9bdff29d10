# SPDX-License-Identifier: Apache-2.0
"""P13: what a node shows before a flush is what the index has after it, whatever is interleaved; a model decides."""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.index import Datasource, ObjectType, Property
from forebay.table.index import changelog, compaction, object_set
from forebay.table.index.follower import FullRule
from forebay.table.index.gc import collect
from forebay.table.index.verify import verify

NEVER = datetime(1970, 1, 1, tzinfo=UTC)
PROPERTIES = {"name": "a", "note": "a", "city": "b"}
KEYS = st.integers(0, 5)
TEXTS = st.sampled_from([None, "", "x", "late parcel", "配送"])


def definition(recent):
    """The object type; the datasources in `recent` have the rule `most_recent`."""
    properties = {
        "a": {"name": Property("string", filter=True), "note": Property("string", text=True)},
        "b": {"city": Property("string", filter=True)},
    }
    options = {name: {"conflict": "most_recent", "timestamp": "at"} if name in recent else {} for name in "ab"}
    return ObjectType("O", {"id": "bigint"}, [Datasource(name, properties[name], **options[name]) for name in "ab"])


@dataclass
class Edited:
    """What users did to an object, in the words of the documentation."""

    deleted: int | None = None
    created: bool = False
    values: dict[str, tuple[str | None, int]] = field(default_factory=dict)


class Model:
    """Rows of each datasource by key, and edits by key: plain dictionaries."""

    def __init__(self, recent):
        self.recent = recent
        self.rows = {"a": {}, "b": {}}
        self.edits: dict[int, Edited] = {}

    def object(self, key, rows=None):
        edits = self.edits.get(key, Edited())
        found, exists = dict.fromkeys(PROPERTIES), edits.created
        for source, by_key in (rows or self.rows).items():
            row = by_key.get(key)
            time = row["at"] if row is not None and source in self.recent else None
            later = -1 if time is None else time
            if row is None or (edits.deleted is not None and later <= edits.deleted):
                row, later = None, -1
            exists = exists or row is not None
            for name in (name for name, of in PROPERTIES.items() if of == source):
                found[name] = None if row is None else row.get(name)
                if name in edits.values and edits.values[name][1] >= later:
                    found[name] = edits.values[name][0]
        return found if exists else None

    def objects(self, rows=None):
        keys = {*(rows or self.rows)["a"], *(rows or self.rows)["b"], *self.edits}
        found = [(key, self.object(key, rows)) for key in sorted(keys)]
        return [(key, *each.values()) for key, each in found if each is not None]

    def edit(self, key, values, time, rows):
        """`rows` are what the editor's version has: whether it creates the object depends on them."""
        before = self.edits.get(key, Edited())
        if values is None:
            self.edits[key] = Edited(deleted=time)
            return
        created = before.created or self.object(key, rows) is None
        edited = {name: (value, time) for name, value in values.items()}
        self.edits[key] = Edited(before.deleted, created, {**before.values, **edited})


@st.composite
def steps(draw):
    """One thing that happens."""
    what = draw(st.sampled_from(["rows", "rows", "edit", "edit", "edit", "flush", "gc", "restart", "full", "follow"]))
    if what == "rows":
        source = draw(st.sampled_from("ab"))
        names = [name for name, of in PROPERTIES.items() if of == source]
        keys = draw(st.lists(KEYS, unique=True, max_size=4))
        rows = [
            {
                "id": key,
                "at": draw(st.none() | st.integers(0, 12)),
                "deleted": draw(st.sampled_from([False, False, True])),
                **{name: draw(TEXTS) for name in names},
            }
            for key in keys
        ]
        return what, source, draw(st.sampled_from(["snapshot", "update", "delete"])), rows, draw(st.booleans())
    if what == "edit":
        edited = st.dictionaries(st.sampled_from(list(PROPERTIES)), TEXTS, min_size=1, max_size=2) | st.none()
        changes = draw(st.lists(st.tuples(KEYS, edited), min_size=1, max_size=3))
        return what, draw(st.integers(0, 1)), changes, draw(st.integers(0, 12))
    if what in ("flush", "gc"):
        return what, draw(st.booleans())
    return (what, draw(st.integers(0, 1)))


class Run:
    """An object type and two nodes beside its model."""

    def __init__(self, new_objects, place, recent, options):
        self.place, self.new_objects, self.options = place, new_objects, options
        self.recent, self.numbers = recent, itertools.count()
        self.objects = self.opened()
        self.model = Model(recent)
        self.nodes = [None, None]
        self.seen = [{"a": {}, "b": {}}] * 2
        self.indexed = {"a": {}, "b": {}}
        self.objects.commit("a", [{"id": 0, "name": "first", "at": None}])
        self.model.rows["a"] = {0: {"name": "first", "at": None}}
        self.indexed = {name: dict(rows) for name, rows in self.model.rows.items()}

    def opened(self):
        types = {name: {"at": "timestamp"} for name in self.recent}
        return self.new_objects(
            self.place / "store",
            self.place / f"c{next(self.numbers)}",
            definition(self.recent),
            types=types,
            **self.options,
        )

    def node(self, number):
        if self.nodes[number] is None:
            self.nodes[number] = self.objects.node(cache=self.place / f"n{next(self.numbers)}")
        self.nodes[number].refresh()
        self.seen[number] = self.indexed
        return self.nodes[number]

    def rows(self, source, kind, rows, follow):
        stored = [
            {**row, "at": None if row["at"] is None else NEVER + timedelta(minutes=row["at"])}
            if source in self.recent
            else {name: value for name, value in row.items() if name != "at"}
            for row in rows
        ]
        self.objects.commit(source, stored, kind, follow=follow, allow_empty=True)
        state = self.model.rows[source] = {} if kind == "snapshot" else dict(self.model.rows[source])
        for row in rows:
            state.pop(row["id"], None)
            if kind != "delete" and not row["deleted"]:
                state[row["id"]] = {**row, "at": None if row["at"] is None else row["at"] * 60_000_000}
        if follow:
            self.follow()

    def follow(self, **options):
        self.objects.follow(**options)
        self.indexed = {name: dict(rows) for name, rows in self.model.rows.items()}

    def edit(self, number, changes, minutes, patch):
        node = self.node(number)
        last = max([each.time for each in node.view().overlay.edits[-1:]] + [node._head.edits.time])
        now = max(last, minutes * 60_000_000)
        patch.setattr(object_set, "now", lambda: minutes * 60_000_000)
        rows, given = self.seen[number], []
        for key, values in changes:
            if values is not None or self.model.object(key, rows) is not None:
                given.append((key, values))
                self.model.edit(key, values, now, rows)
        if given:
            node.edit_many(given)
        self.check(node, self.seen[number])

    def check(self, node, rows):
        expected = self.model.objects(rows)
        assert self.objects.rows(node, "id", *PROPERTIES) == expected
        assert node.count() == len(expected)
        assert [node.get(key) is not None for key in range(6)] == [
            key in {each[0] for each in expected} for key in range(6)
        ]
        for text in ("x", "late parcel"):
            assert node.where(name=text).count() == sum(each[1] == text for each in expected)
            assert {row["id"] for row in node.search(text).fetch().rows} == {
                each[0] for each in expected if each[2] == text
            }

    def step(self, what, *arguments, patch):
        match what:
            case "rows":
                self.rows(*arguments)
            case "edit":
                number, changes, minutes = arguments
                self.edit(number, changes, minutes, patch)
            case "flush":
                self.objects.flush(follow=False)
                if arguments[0]:
                    self.follow()
            case "gc":
                collect(self.objects.index, keep=1 if arguments[0] else 3, versions=1)
            case "restart":
                self.objects = self.opened()
                self.nodes[arguments[0]] = None
            case "full":
                self.follow(full=True)
            case "follow":
                self.follow()
                self.check(self.node(arguments[0]), self.indexed)

    def end(self):
        for node in (self.node(0), self.node(1)):
            self.check(node, self.indexed)
            assert verify(self.objects.index, node.view()).is_equal
        self.objects.flush(follow=False)
        self.follow()
        assert verify(self.objects.index).is_equal
        expected = self.model.objects()
        assert self.objects.index.newest_version("000001").count == len(expected)
        for number in (0, 1):
            node = self.node(number)
            assert node.view().overlay.edits == ()
            self.check(node, self.indexed)
            node.close()


def play(new_objects, history, recent, **options):
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(changelog, "RUNS", options.pop("runs"))
        patch.setattr(compaction, "RUNS", options.pop("index_runs"))
        patch.setattr(compaction, "SMALL", options.pop("small_runs"))
        run = Run(new_objects, Path(directory), recent, options)
        for what, *arguments in history:
            run.step(what, *arguments, patch=patch)
        run.end()


SETUP = {
    "history": st.lists(steps(), max_size=14),
    "recent": st.sampled_from(["", "a", "b", "ab"]),
    "shards": st.sampled_from([1, 3]),
    "runs": st.sampled_from([1, 8]),
    "index_runs": st.sampled_from([1, 2, 4, 10]),
    "small_runs": st.sampled_from([0, 2, 512]),
    "small": st.sampled_from([0, 50_000]),
    "equal_hashes": st.booleans(),
}


def played(new_objects, given):
    options = {"key_hash": lambda key: key[0] % 2} if given.pop("equal_hashes") else {}
    play(new_objects, rule=FullRule(None), **given, **options)


@settings(max_examples=12)
@given(st.fixed_dictionaries(SETUP))
def test_what_is_pending_is_shown_as_it_is_after_a_flush(new_objects, setup):
    played(new_objects, setup)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@settings(max_examples=800)
@given(st.fixed_dictionaries(SETUP | {"history": st.lists(steps(), min_size=10, max_size=40)}))
def test_what_is_pending_is_shown_as_it_is_after_a_flush_in_long_histories(new_objects, setup):
    played(new_objects, setup)
