# SPDX-License-Identifier: Apache-2.0
"""P9 and P16: replacements at any moment, with any failures, against a model; and what plans say about definitions."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.errors import ConfigurationError, ForebayError
from forebay.index import Datasource, ObjectType, Property
from forebay.state.local_state_store import LocalStateStore
from forebay.table.index.gc import collect
from forebay.table.index.verify import verify

COLUMNS = {"a": ("x", "y"), "b": ("z", "w")}
NUMBERS = st.sampled_from([None, 1, 2, 30])


@st.composite
def definitions(draw):
    """A definition over four columns of two datasources."""
    sources = []
    for source, columns in COLUMNS.items():
        some = draw(st.lists(st.sampled_from(columns), unique=True, min_size=source == "a"))
        names = {column: draw(st.sampled_from([column, column, f"{column}2"])) for column in some}
        properties = {
            name: Property(
                draw(st.sampled_from(["int", "bigint", "string"])),
                column=column,
                filter=draw(st.booleans()),
                renamed_from=column if name != column and draw(st.booleans()) else None,
            )
            for column, name in names.items()
        }
        if properties:
            keep = draw(st.sampled_from([(), columns]))
            sources.append(Datasource(source, properties, deleted=draw(st.sampled_from([None] * 5 + ["d"])), keep=keep))
    return ObjectType("O", {"id": draw(st.sampled_from(["bigint"] * 7 + ["string"]))}, sources)


class Model:
    """Rows of datasources with all columns, and edits in their order, by key."""

    def __init__(self):
        self.rows = {"a": {}, "b": {}}
        self.edits = {}

    def value(self, definition, name, key):
        """The value of a property: the last edit of its name or of its earlier one, else that of the row."""
        each = definition.properties[name]
        source = next(source.name for source in definition.datasources if name in source.properties)
        row = self.rows[source].get(key)
        found = None if row is None else row.get(each.column or name)
        for edited, value in self.edits.get(key, {}).items():
            if edited in (name, *each.earlier_names):
                found = value
        return found if found is None or each.type != "string" else str(found)

    def objects(self, definition):
        keys = {key for source in definition.datasources for key in self.rows[source.name]}
        return {
            key: {name: self.value(definition, name, key) for name in definition.properties} for key in sorted(keys)
        }


def stated(node):
    rows, page = {}, node.objects.limit(3).fetch()
    while page.rows:
        rows |= {row["id"]: {name: value for name, value in row.items() if name != "id"} for row in page.rows}
        page = page.next_page()
    return rows


@st.composite
def steps(draw):
    """One thing that happens."""
    what = draw(
        st.sampled_from(["rows"] * 4 + ["again", "edit", "edit", "flush", "gc", "replace", "replace", "build", "fail"])
    )
    if what == "rows":
        source = draw(st.sampled_from("ab"))
        keys = draw(st.lists(st.integers(0, 6), unique=True, max_size=5))
        rows = [{"id": key, **{name: draw(NUMBERS) for name in COLUMNS[source]}} for key in keys]
        return what, source, draw(st.sampled_from(["snapshot", "update", "delete"])), rows, draw(st.booleans())
    if what == "again":
        return what, draw(st.sampled_from("ab")), draw(st.booleans()), draw(st.booleans())
    if what == "edit":
        return what, draw(st.integers(0, 6)), draw(st.integers(0, 3)), draw(NUMBERS)
    if what in ("replace", "build"):
        return what, draw(definitions())
    return (what, draw(st.integers(1, 12)))


class Run:
    """An object type whose definition is replaced, and a node, beside the model."""

    def __init__(self, new_objects, place):
        first = ObjectType(
            "O",
            {"id": "bigint"},
            [Datasource(source, {c: Property("int") for c in COLUMNS[source]}) for source in "ab"],
        )
        types = {source: dict.fromkeys(columns, "int") for source, columns in COLUMNS.items()}
        self.live = new_objects(place / "store", place / "c", first, types=types, shards=2)
        self.wanted = None
        self.live.commit("a", [{"id": 0, "x": 1, "y": 2}])
        self.model = Model()
        self.model.rows["a"][0] = {"x": 1, "y": 2}
        self.known, self.numbers = {}, itertools.count()
        self.node = self.live.node(cache=place / "node")
        self.last = self.node.version

    def check(self):
        """What the node answers is the model in the definition that serves, and the node never goes back."""
        version = self.node.refresh()
        assert version.data >= self.last.data and self.node.view().definition.fingerprint() == self.fingerprint()
        self.last = version
        assert stated(self.node) == self.model.objects(self.live.definition)
        assert self.node.count() == len(stated(self.node))

    def fingerprint(self):
        return self.live.definition.fingerprint()

    def committer(self, source, with_new):
        """Who commits rows of a datasource: with the definition that serves, or the one of a replacement."""
        by = self.wanted if with_new and self.wanted is not None else self.live
        others = [each for each in (by, self.live, self.wanted) if each is not None and each.definition.feeds(source)]
        for each in others:
            each.frames = {"id", "x", "y", "z", "w"}
        return next(iter(others), None)

    def again(self, source, with_new, other):
        """The last transaction of a datasource comes again, as after a crash; or another one with its id."""
        by = self.committer(source, with_new)
        if by is None or source not in self.known:
            return
        name, kind, rows = self.known[source]
        if other:
            with pytest.raises(ConfigurationError, match="with other rows"):
                by.commit(source, [*rows, {"id": 77}], kind, name, allow_empty=True)
        else:
            assert not by.commit(source, rows, kind, name, allow_empty=True).applied

    def rows(self, source, kind, rows, with_new):
        by = self.committer(source, with_new)
        if by is None:
            return
        name = f"t{next(self.numbers)}"
        by.commit(source, rows, kind, name, allow_empty=True)
        self.known[source] = name, kind, rows
        state = self.model.rows[source]
        if kind == "snapshot":
            state.clear()
        for row in rows:
            state.pop(row["id"], None)
            if kind != "delete":
                state[row["id"]] = row

    def forget(self, source):
        """A datasource is no more."""
        self.model.rows[source] = {}
        self.known.pop(source, None)

    def edit(self, key, place, value):
        names = sorted(self.live.definition.properties)
        name = names[place % len(names)]
        if key not in self.model.objects(self.live.definition):
            return
        text = self.live.definition.properties[name].type == "string"
        self.node.edit(key, **{name: str(value) if text and value is not None else value})
        edits = self.model.edits.setdefault(key, {})
        edits.pop(name, None)
        edits[name] = value

    @staticmethod
    def counts_for_another(edited, stored, definition):
        """Whether edits under a name count for a property that is not, and was not, the one that they count for now."""

        def taker(properties):
            renamed = [name for name, each in properties.items() if edited in each.earlier_names]
            return edited if edited in properties else renamed[0]

        now, then = taker(stored.properties), taker(definition.properties)
        return now != then and now not in definition.properties[then].earlier_names

    def replace(self, definition, *, swap):
        new = self.live.defined(definition)
        plan = new.plan()
        before = self.model.objects(self.live.definition)
        if plan.kind == "INCREMENTAL":
            assert definition.fingerprint() == self.fingerprint()
            return
        if plan.kind == "REFUSED":
            stored = self.live.definition
            other_rows = any(
                stored.feeds(each.name) and stored.datasource(each.name).deleted != each.deleted
                for each in definition.datasources
            )
            names = {n for name, each in definition.properties.items() for n in (name, *each.earlier_names)}
            old = {n for name, each in stored.properties.items() for n in (name, *each.earlier_names)}
            edited = {name for edits in self.model.edits.values() for name in edits}
            lost = edited & old - names
            moved = {name for name in edited & old & names if self.counts_for_another(name, stored, definition)}
            assert definition.keys != stored.keys or other_rows or lost or moved, plan
            return
        for source in "ab":
            known = [each.definition for each in (self.live, self.wanted) if each and each.definition.feeds(source)]
            flags = {each.datasource(source).deleted for each in (*known, definition) if each.feeds(source)}
            if not self.live.definition.feeds(source) and not (known and definition.feeds(source) and len(flags) == 1):
                self.forget(source)  # rows that only a replacement had that is dropped
        self.wanted = new
        done = new.replace(swap=swap)
        waits = {wait for wait in plan.waits if "commit" in wait}
        assert done.serves is (swap and not waits) and bool(done.waits) is bool(waits)
        if done.serves:
            gone = [source for source in "ab" if not definition.feeds(source)]
            for source in gone:
                self.forget(source)
            self.live, self.wanted = new, None
        else:
            assert self.model.objects(self.live.definition) == before

    def fail(self, at):
        """The replacement fails at a write; live does not notice, unless it was the last one: then it serves."""
        if self.wanted is None:
            return
        with pytest.MonkeyPatch.context() as patch:
            put, seen = LocalStateStore.put_if_absent, itertools.count(1)

            def failing(store, name, data):
                if next(seen) == at:
                    raise OSError("the disk is gone")
                return put(store, name, data)

            patch.setattr(LocalStateStore, "put_if_absent", failing)
            try:
                self.wanted.replace()
            except (OSError, ForebayError, AssertionError):
                patch.undo()
            if self.live.index.head().serving != self.last.pipeline:
                for source in "ab":
                    if not self.wanted.definition.feeds(source):
                        self.forget(source)
                self.live, self.wanted = self.wanted, None

    def step(self, what, *arguments):
        match what:
            case "rows":
                self.rows(*arguments)
            case "again":
                self.again(*arguments)
            case "edit":
                self.edit(*arguments)
            case "flush":
                self.live.flush()
            case "gc":
                collect(self.live.index, keep=1, versions=1)
            case "fail":
                self.fail(*arguments)
            case "replace" | "build":
                self.replace(*arguments, swap=what == "replace")
        self.check()


def play(new_objects, history):
    with tempfile.TemporaryDirectory() as directory:
        run = Run(new_objects, Path(directory))
        for step in history:
            run.step(*step)
        assert verify(run.live.index, run.node.view()).is_equal
        run.live.flush()
        run.check()
        run.node.close()


@settings(max_examples=10)
@given(st.lists(steps(), max_size=12))
def test_live_reads_are_those_of_the_model_whatever_is_replaced(new_objects, history):
    play(new_objects, history)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@settings(max_examples=600)
@given(st.lists(steps(), min_size=8, max_size=40))
def test_live_reads_are_those_of_the_model_whatever_is_replaced_in_long_histories(new_objects, history):
    play(new_objects, history)
