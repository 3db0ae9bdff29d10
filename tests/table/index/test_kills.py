# SPDX-License-Identifier: Apache-2.0
"""Processes that are killed or stopped at each write of a transaction, of its index, and of a collection."""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from dataclasses import replace

import pytest
from child_processes import Child

from forebay.errors import ConfigurationError, DataError, RetriableError
from forebay.index import Datasource, ObjectType, Property
from forebay.state.local_state_store import LocalStateStore
from forebay.table.index import compaction
from forebay.table.index import gc as collection
from forebay.table.index import log as log_module
from forebay.table.index.gc import collect, files_of
from forebay.table.index.pipelines import IndexStore
from forebay.table.index.verify import verify

BASE = [{"id": number, "name": f"name {number}", "note": "late"} for number in range(20)]
CHANGE = [{"id": number, "name": "changed"} for number in (1, 2, 3)] + [{"id": 4, "deleted": True}, {"id": 99}]
AFTER = {**{number: f"name {number}" for number in range(20)}, 1: "changed", 2: "changed", 3: "changed", 99: None}
del AFTER[4]


def named(objects):
    """Every file that a fact names, and every fact."""
    index = objects.index
    names = {index.log.name(number) for number in index.log.numbers()}
    for number in index.log.numbers():
        names |= set(files_of(index.log.get(number)))
    head = index.head()
    for pipeline in head.pipelines:
        for number in index.versions(pipeline):
            version = index.version(pipeline, number)
            names |= {index.version_name(pipeline, number), *(segment.name for segment in version.segments)}
    newest = index.newest_version(head.serving)
    return names | {index.edits.name(edit.offset) for edit in index.edits.after(newest.edits if newest else 0)}


def everything(objects):
    root = objects.index.store.local_path("O").parent
    files = [path for path in root.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return {str(path.relative_to(root)) for path in files if path.parent.name != "runs"}  # nothing depends on them


def unnamed(objects):
    """Every file that no fact names; without those that merges of the last facts replaced, which gc takes later."""
    last = objects.index.head().number - log_module.KEPT
    return {
        name
        for name in everything(objects) - named(objects)
        if "/states/" not in name or int(name.rpartition("/")[2].partition("-")[0]) < last
    }


def writes(objects_at, work):
    """The number of writes that work makes."""
    objects = objects_at()
    objects.commit("a", BASE, "snapshot")
    put, delete, seen = LocalStateStore.put_if_absent, LocalStateStore.delete, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStateStore, "put_if_absent", lambda *arguments: seen.append(1) or put(*arguments))
        patch.setattr(LocalStateStore, "delete", lambda *arguments: seen.append(1) or delete(*arguments))
        work(objects)
    return len(seen)


@pytest.fixture(autouse=True)
def few_runs(monkeypatch):
    """Each change merges runs, so that a kill meets the writes of a merge too."""
    monkeypatch.setattr(compaction, "RUNS", 1)


@pytest.mark.parametrize(
    ("when", "follows"),
    [
        ("before", "another transaction"),
        pytest.param("after", "the same transaction", marks=pytest.mark.soak),
        pytest.param("before", "the same transaction", marks=pytest.mark.soak),
        pytest.param("after", "another transaction", marks=pytest.mark.soak),
    ],
)
def test_a_kill_at_any_write_of_a_commit_loses_and_doubles_nothing(objects_at, monkeypatch, when, follows):
    """K1-K9, K18, K19, on a local directory: also if a different transaction comes next."""
    monkeypatch.setattr(log_module, "KEPT", 1)
    monkeypatch.setattr(collection, "KEPT", 1)

    def work(objects):
        objects.commit("a", CHANGE, transaction="killed")

    for at in range(1, writes(objects_at, work) + 1):
        objects = objects_at()
        objects.commit("a", BASE, "snapshot")
        node = objects.node()
        before = objects.rows(node, "id", "name")
        assert Child(lambda: work(objects), at, when, signal.SIGKILL).wait() == -signal.SIGKILL  # noqa: B023 - now
        node.refresh()
        committed = objects.index.log.head().number == 2
        if node.version.data == 1:
            assert objects.rows(node, "id", "name") == before
        expected = dict(AFTER)
        if follows == "the same transaction":
            done = objects.commit("a", CHANGE, transaction="killed")
            assert done.applied is not committed
        else:
            if not committed:
                expected = {row["id"]: row["name"] for row in BASE}
            objects.commit("a", [{"id": 7, "name": "next"}], transaction="next")
            expected[7] = "next"
        objects.follow()
        node.refresh()
        assert dict(objects.rows(node, "id", "name")) == expected
        assert verify(objects.index).is_equal and verify(objects.index, node.view()).is_equal
        # Nothing unnamed remains, once the log has gone on.
        objects.commit("b", [{"id": 1, "city": "x"}])
        objects.commit("b", [{"id": 1, "city": "y"}])
        collect(objects.index, keep=1, versions=1)
        assert everything(objects) == named(objects)
        assert verify(objects.index).is_equal


@pytest.mark.soak
@pytest.mark.parametrize("when", ["before", pytest.param("after", marks=pytest.mark.soak)])
def test_a_kill_at_any_write_of_a_collection_leaves_an_index(objects_at, monkeypatch, when):
    """K14."""
    monkeypatch.setattr(collection, "KEPT", 1)

    def fill(objects):
        for number in range(4):
            objects.commit("a", [{"id": number, "name": "new"}])

    def work(objects):
        collect(objects.index, keep=1, versions=1)

    def filled(objects):
        fill(objects)
        work(objects)

    for at in range(1, writes(objects_at, filled) - writes(objects_at, fill) + 1):
        objects = objects_at()
        objects.commit("a", BASE, "snapshot")
        fill(objects)
        expected = objects.rows(objects.node(), "id", "name")
        assert Child(lambda: work(objects), at, when, signal.SIGKILL).wait() == -signal.SIGKILL  # noqa: B023 - now
        assert objects.rows(objects.node(), "id", "name") == expected
        work(objects)
        assert everything(objects) == named(objects)
        objects.commit("a", [{"id": 0, "name": "after"}])
        assert verify(objects.index).is_equal


@pytest.mark.parametrize("source", ["a", pytest.param("b", marks=pytest.mark.soak)])
def test_a_process_that_was_stopped_past_the_retention_commits_nothing_that_is_lost(objects, monkeypatch, source):
    """K20: it is stopped before its put of the log; meanwhile others go on and everything old is collected."""
    monkeypatch.setattr(log_module, "KEPT", 3)
    monkeypatch.setattr(collection, "KEPT", 3)
    objects.commit("a", BASE, "snapshot")

    def work():
        try:
            objects.commit("a", CHANGE, transaction="stopped", follow=False)
        except RetriableError as error:
            return 40 if isinstance(error, log_module.MovedError) else 41
        return 0

    child = Child(work, 3, "before", signal.SIGSTOP)  # two shards, then the log
    assert child.wait() == signal.SIGSTOP
    for number in range(6):
        objects.commit(source, [{"id": 50 + number, "name": "other", "city": "c"}])
    collect(objects.index, keep=1, versions=1)
    os.kill(child.pid, signal.SIGCONT)
    # Its datasource moved: it is refused. Another one did: its files are gone, and it is refused too.
    assert child.wait() == (40 if source == "a" else 41)
    objects.follow()
    assert verify(objects.index).is_equal
    assert objects.node().get(1)["name"] == "name 1"
    assert objects.index.log.numbers() == [6, 7]
    objects.commit("a", CHANGE, transaction="stopped")
    assert objects.node().get(1)["name"] == "changed"


def undisturbed(step, number):
    """The transaction of a step, and which of two datasources it changes. Every seventh one is another than planned."""
    source, column = ("a", "name") if step % 2 else ("b", "city")
    rows = [{"id": (step * 7 + place) % 40, column: f"{step}.{number}"} for place in range(5)]
    if step % 5 == 4:
        rows[0]["deleted"] = True
    return source, column, rows


def apply_rows(expected, source, column, rows):
    for row in rows:
        if row.get("deleted"):
            expected[source].pop(row["id"], None)
        else:
            expected[source][row["id"]] = row[column]


def answers(expected):
    keys = expected["a"].keys() | expected["b"].keys()
    return [(key, expected["a"].get(key), expected["b"].get(key)) for key in sorted(keys)]


def disturb(objects, child_of, steps, check, slower=1):
    """Kill each step once, after times that differ; then commit it again, or another transaction, or a bad one."""
    expected = {"a": {}, "b": {}}
    kills = committed = 0
    longest = slower / 8
    for step in range(steps):
        source, column, rows = undisturbed(step, 0)
        child = child_of(source, rows, str(step))
        time.sleep((step * 37 % 100) / 100 * longest)
        os.kill(child.pid, signal.SIGKILL)
        killed = child.wait() == -signal.SIGKILL
        kills += killed
        longest *= 1.03 if killed else 0.9  # machines differ in speed: about three of four are killed in time
        if step % 7 == 3:  # one shard finds a duplicate after others are done: the id stays free
            bad = [{"id": 50 + place} for place in (*range(8), 7)]
            with pytest.raises(DataError, match="occurs 2 times"):
                objects.commit(source, bad, transaction=f"bad{step}")
        applied = objects.index.log.head()
        was_committed = applied is not None and applied.transaction == str(step)
        committed += was_committed
        if step % 7 == 5:  # the process comes back with other rows than those that it was killed with
            if was_committed:
                apply_rows(expected, source, column, rows)
            source, column, rows = undisturbed(step, 1)
            objects.commit(source, rows, transaction=f"other{step}")
        else:
            assert objects.commit(source, rows, transaction=str(step)).applied is not was_committed
        apply_rows(expected, source, column, rows)
        if step % 10 == 9:
            collect(objects.index, keep=2, versions=2)
            check(expected)
    check(expected)
    return kills, committed


@pytest.mark.soak
def test_300_kills_at_random_moments_lose_nothing(objects_at, monkeypatch):
    """K1-K19: processes that commit to two datasources are killed after random times, not at writes."""
    monkeypatch.setattr(log_module, "KEPT", 3)
    monkeypatch.setattr(collection, "KEPT", 3)
    objects = objects_at()
    node = []

    def check(expected):
        if not node:
            node.append(objects.node())
        node[0].refresh()
        assert objects.rows(node[0], "id", "name", "city") == answers(expected)
        assert objects.index.newest_version("000001").count == len(answers(expected))
        assert verify(objects.index).is_equal and verify(objects.index, node[0].view()).is_equal

    kills, committed = disturb(
        objects,
        lambda source, rows, name: Child(lambda: objects.commit(source, rows, transaction=name) and 0),
        300,
        check,
    )
    sys.stderr.write(f"{kills} of 300 processes were killed in time; {committed} had committed\n")
    for number in range(4):
        objects.commit("b", [{"id": 1, "city": str(number)}])
    collect(objects.index, keep=1, versions=1)
    assert not unnamed(objects) and named(objects) <= everything(objects)
    assert 0 < committed < kills


@pytest.mark.soak
def test_50_stops_past_the_retention_lose_nothing(objects_at, monkeypatch):
    """K20: each is stopped at another write, also of the index; others go on, and everything old is collected."""
    monkeypatch.setattr(log_module, "KEPT", 3)
    monkeypatch.setattr(collection, "KEPT", 3)
    outcomes = {}
    for number in range(50):
        objects = objects_at()
        objects.commit("a", BASE, "snapshot")
        source, at = "ab"[number % 2], 1 + number // 4 % 6
        when = "before" if number // 2 % 2 else "after"

        def work(objects=objects):
            try:
                return 0 if objects.commit("a", CHANGE, transaction="stopped").applied else 42
            except RetriableError as error:
                return 40 if isinstance(error, log_module.MovedError) else 41

        child = Child(work, at, when, signal.SIGSTOP)
        stopped = child.wait()
        changed = {}
        for step in range(6):
            row = {"id": 50 + step, "name": "other", "city": "c"}
            objects.commit(source, [row])
            changed[50 + step] = "other" if source == "a" else None
        collect(objects.index, keep=1, versions=1)
        code = stopped
        if stopped == signal.SIGSTOP:
            os.kill(child.pid, signal.SIGCONT)
            code = child.wait()
        outcomes[code] = outcomes.get(code, 0) + 1
        assert code in (0, 40, 41)
        objects.follow()
        node = objects.node()
        # It said so if it committed; else nothing of it is there, and it can commit again.
        present = objects.index.log.head().states["a"].digest_of("stopped") is not None
        assert present is (code == 0)
        expected = (AFTER if present else {row["id"]: row["name"] for row in BASE}) | changed
        assert dict(objects.rows(node, "id", "name")) == expected
        assert verify(objects.index).is_equal and verify(objects.index, node.view()).is_equal
        assert objects.commit("a", CHANGE, transaction="stopped").applied is not present
        node.refresh()
        assert dict(objects.rows(node, "id", "name")) == AFTER | changed
        for step in range(4):
            objects.commit("b", [{"id": 1, "city": str(step)}])
        collect(objects.index, keep=1, versions=1)
        assert not unnamed(objects) and named(objects) <= everything(objects)
    sys.stderr.write(f"what became of 50 processes: {outcomes}\n")
    assert {0, 40, 41} <= outcomes.keys()


def edited_base(objects):
    """An object type with a folded edit, and a pending one."""
    objects.commit("a", BASE, "snapshot")
    node = objects.node()
    node.edit(0, name="folded", city="c")
    objects.flush()
    node.edit(1, name="pending")
    return objects


def node_of_process(objects, **options):
    """A node with a cache that no other process has."""
    return objects.node(cache=objects._cache / uuid.uuid4().hex, **options)


def after_edits(node):
    found = {key: node.get(key) for key in range(4)}
    return {key: row and (row["name"], row["city"]) for key, row in found.items()}


@pytest.mark.soak
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_at_any_write_of_a_flush_loses_and_doubles_no_edit(objects_at, monkeypatch, when):
    """K25: between the state of edits, the log, and the index; then the flush is done again."""
    monkeypatch.setattr(log_module, "KEPT", 1)
    monkeypatch.setattr(collection, "KEPT", 1)
    expected = {0: ("folded", "c"), 1: ("pending", None), 2: None, 3: ("name 3", None)}

    def prepared():
        objects = edited_base(objects_at())
        objects.node().delete(2)
        return objects

    def flushed(objects):
        edited_base(objects)
        objects.node().delete(2)
        objects.flush()

    total = writes(objects_at, flushed)
    first = total - writes(objects_at, lambda objects: (edited_base(objects), objects.node().delete(2)))
    for at in range(1, first + 1):
        objects = prepared()
        node = objects.node()
        assert Child(objects.flush, at, when, signal.SIGKILL).wait() == -signal.SIGKILL
        for each in (node, objects.node()):
            each.refresh()
            assert after_edits(each) == expected and each.count() == 19
        objects.flush()
        node.refresh()
        assert (node.view().overlay.edits, objects.index.log.head().edits.offset) == ((), 3)
        assert after_edits(node) == expected and node.count() == 19
        assert verify(objects.index).is_equal and verify(objects.index, node.view()).is_equal
        objects.commit("b", [{"id": 9, "city": "x"}])
        objects.commit("b", [{"id": 9, "city": "y"}])
        collect(objects.index, keep=1, versions=1)
        assert not unnamed(objects) and objects.index.edits.offsets() == []
        assert after_edits(objects.node()) == expected


@pytest.mark.soak
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_process_that_was_stopped_while_it_edited_past_a_collection_edits_once(objects_at, when):
    """K20: it is stopped around its put; others edit, flush and collect what they folded."""
    objects = edited_base(objects_at())

    def work():
        node = node_of_process(objects)
        return 0 if node.edit(1, city="mine") else 1

    child = Child(work, 1, when, signal.SIGSTOP)
    assert child.wait() == signal.SIGSTOP
    other = objects.node()
    offsets = [other.edit(key, note=str(key)) for key in range(3)]
    assert offsets == ([3, 4, 5] if when == "before" else [4, 5, 6])
    objects.flush()
    collect(objects.index, versions=1)
    assert objects.index.edits.offsets() == []
    os.kill(child.pid, signal.SIGCONT)
    assert child.wait() == 0
    assert objects.index.edits.offsets() == ([6] if when == "before" else [])
    node = objects.node()
    assert after_edits(node)[1] == ("pending", "mine")
    objects.flush()
    node.refresh()
    assert after_edits(node)[1] == ("pending", "mine") and verify(objects.index, node.view()).is_equal


def edit_and_kill(objects, new_index, steps, node_of, slower=1):
    """Kill editors, and processes that flush and collect, at random moments; return how many were killed.

    An editor writes each number to one object: when it was killed, its edit is there or not, and those before it are.
    """
    kills, last = 0, dict.fromkeys(range(4), -1)
    for step in range(steps):
        key = step % 4

        def work(step=step, key=key):
            objects.index = new_index()
            if step % 3 == 2:
                objects.flush()
                collect(objects.index, keep=2, versions=1)
                return 0
            node = node_of()
            node.edit(key, name=str(step))
            return 0 if node.edit(key, note=str(step)) else 1

        child = Child(work)
        time.sleep((step * 37 % 100) / 1500 * slower)
        os.kill(child.pid, signal.SIGKILL)
        code = child.wait()
        kills += code == -signal.SIGKILL
        node = node_of()
        found = node.get(key)
        if step % 3 != 2:
            name, note = found and found["name"], found and found["note"]
            assert name in (str(step), str(last[key])) or last[key] == -1
            assert note != str(step) or name == str(step)
            if code == 0:
                assert (name, note) == (str(step), str(step))
            last[key] = int(name) if name and name.isdecimal() else -1
        elif last[key] != -1:
            assert found["name"] == str(last[key])
        if step % 10 == 9:
            assert verify(objects.index, node.view()).is_equal
            objects.flush()
            assert verify(objects.index).is_equal
        node.close()
    return kills


@pytest.mark.soak
def test_200_kills_of_editors_and_flushes_lose_no_edit(objects_at, monkeypatch):
    monkeypatch.setattr(log_module, "KEPT", 3)
    monkeypatch.setattr(collection, "KEPT", 3)
    objects = objects_at()
    objects.commit("a", BASE, "snapshot")
    kills = edit_and_kill(objects, lambda: objects.index, 200, lambda: node_of_process(objects))
    sys.stderr.write(f"{kills} of 200 editors and flushes were killed in time\n")
    objects.commit("b", [{"id": 1, "city": "x"}])
    for number in range(4):
        objects.commit("b", [{"id": 1, "city": str(number)}])
    collect(objects.index, keep=1, versions=1)
    assert not unnamed(objects) and named(objects) <= everything(objects)
    assert kills


@pytest.mark.soak
def test_kills_of_editors_and_flushes_lose_no_edit_on_s3(objects_at, s3_server, monkeypatch):
    monkeypatch.setattr(log_module, "KEPT", 3)
    monkeypatch.setattr(collection, "KEPT", 3)
    storage = s3_server.options()
    objects = objects_at(location=f"s3://{s3_server.make_bucket('edits')}/funnel", storage=storage)
    objects.commit("a", BASE, "snapshot")
    kills = edit_and_kill(
        objects,
        lambda: IndexStore(objects.location, "O", storage),
        30,
        lambda: node_of_process(objects, storage=storage),
        slower=10,
    )
    sys.stderr.write(f"on S3: {kills} of 30 editors and flushes were killed in time\n")
    assert kills


@pytest.mark.soak
def test_kills_at_random_moments_lose_nothing_on_s3(objects_at, s3_server, monkeypatch):
    """The same on a real server of S3."""
    monkeypatch.setattr(log_module, "KEPT", 3)
    monkeypatch.setattr(collection, "KEPT", 3)
    storage = s3_server.options()
    objects = objects_at(location=f"s3://{s3_server.make_bucket('kills')}/funnel", storage=storage)

    def child_of(source, rows, name):
        def work():
            objects.index = IndexStore(objects.location, "O", storage)  # with a client of its own
            objects.commit(source, rows, transaction=name)

        return Child(work)

    def check(expected):
        node = objects.node(storage=storage)
        assert objects.rows(node, "id", "name", "city") == answers(expected)
        assert verify(objects.index).is_equal and verify(objects.index, node.view()).is_equal

    kills, committed = disturb(objects, child_of, 40, check, slower=20)
    sys.stderr.write(f"on S3: {kills} of 40 processes were killed in time; {committed} had committed\n")
    assert kills


TITLED = ObjectType(
    "O",
    {"id": "bigint"},
    [
        Datasource("a", {"title": Property("string", column="name", filter=True, renamed_from="name")}, keep=["note"]),
        Datasource("b", {"city": Property("string", filter=True)}),
    ],
)


def replaceable(objects):
    """An object type with edits that are folded and pending, and its next definition."""
    edited_base(objects)
    return objects.defined(TITLED, shards=objects.shards)


def names_of(node):
    """The name of each object, or its title in the definition that replaces the first one."""
    rows = objects_of(node)
    return {row["id"]: row.get("title", row.get("name")) for row in rows}


def objects_of(node):
    found, page = [], node.objects.limit(7).fetch()
    while page.rows:
        found += page.rows
        page = page.next_page()
    return found


REPLACED = {**{number: f"name {number}" for number in range(20)}, 0: "folded", 1: "pending", 5: "late"}


@pytest.mark.soak
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_at_any_write_of_a_replacement_or_a_swap_leaves_an_index(objects_at, monkeypatch, when):
    """K21, K22: then live goes on, and the replacement is begun again."""
    monkeypatch.setattr(log_module, "KEPT", 1)
    monkeypatch.setattr(collection, "KEPT", 1)
    total = writes(objects_at, lambda objects: replaceable(objects).replace()) - writes(objects_at, replaceable)
    assert total >= 6
    served = []
    for at in range(1, total + 1):
        objects = objects_at()
        new = replaceable(objects)
        node = objects.node()
        assert Child(new.replace, at, when, signal.SIGKILL).wait() == -signal.SIGKILL
        node.refresh()
        assert names_of(node) == {**REPLACED, 5: "name 5"} and node.count() == 20
        served.append(node.version.pipeline)
        objects.commit("a", [{"id": 5, "name": "late"}])
        if at % 2:
            collect(objects.index, keep=1, versions=1)
        assert new.replace().serves
        node.refresh()
        assert names_of(node) == REPLACED and node.version.pipeline != "000001"
        assert verify(objects.index).is_equal and verify(objects.index, node.view()).is_equal
        objects.flush()
        objects.commit("b", [{"id": 9, "city": "x"}])
        collect(objects.index, keep=1, versions=1)
        assert everything(objects) == named(objects)
    assert {"000001"} < {*served}


@pytest.mark.soak
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_replacement_that_was_stopped_at_any_write_past_a_collection_harms_nothing(objects_at, monkeypatch, when):
    """K23: it is stopped; others commit, replace and collect; then it goes on, or says that it was dropped."""
    monkeypatch.setattr(log_module, "KEPT", 3)
    monkeypatch.setattr(collection, "KEPT", 3)
    total = writes(objects_at, lambda objects: replaceable(objects).replace()) - writes(objects_at, replaceable)
    outcomes = {}
    for at, others in [(at, others) for at in range(1, total + 1) for others in ("commit", "replace", "other")]:
        objects = objects_at()
        new = replaceable(objects)

        def work(new=new):
            try:
                return 0 if new.replace().serves else 42
            except (ConfigurationError, RetriableError):
                return 40

        child = Child(work, at, when, signal.SIGSTOP)
        assert child.wait() == signal.SIGSTOP
        other = objects.defined(replace(TITLED, datasources=[*TITLED.datasources, Datasource("c")]))
        for number in range(6):
            objects.commit("a", [{"id": 5, "name": "late"}, {"id": 6, "note": str(number), "name": "name 6"}])
        if others == "replace":
            new.replace()
        if others == "other" and other.replace().waits:
            other.commit("c", [{"id": 5}])
            other.replace()
        collect(objects.index, keep=1, versions=1)
        node = objects.node()
        before = node.version.pipeline
        os.kill(child.pid, signal.SIGCONT)
        code = child.wait()
        outcomes[others, code] = outcomes.get((others, code), 0) + 1
        assert code in (0, 40)
        for each in (node, objects.node()):
            each.refresh()
            assert names_of(each) == REPLACED and verify(objects.index, each.view()).is_equal
            assert each.version.pipeline == before or others == "commit" or code == 0
        objects.index.log.head()
        serving = objects.index.definition(objects.index.head().serving)
        if others == "other" and code == 40:
            assert serving.feeds("c")
        objects.commit("b", [{"id": 9, "city": "x"}])
        for number in range(4):
            objects.commit("b", [{"id": 9, "city": str(number)}])
        collect(objects.index, keep=1, versions=1)
        assert everything(objects) >= named(objects) and verify(objects.index).is_equal
    sys.stderr.write(f"what became of stopped replacements: {outcomes}\n")
    assert {code for _, code in outcomes} == {0, 40}


def replace_and_kill(objects, new, new_index, steps, node_of, slower=1):
    """Kill replacements at random moments, in both directions, while transactions go on."""
    kills = swaps = 0
    current, following = objects, new
    for step in range(steps):

        def work(following=following):
            following.index = new_index()
            following.replace()

        child = Child(work)
        time.sleep((step * 37 % 100) / 600 * slower)
        os.kill(child.pid, signal.SIGKILL)
        kills += child.wait() == -signal.SIGKILL
        current.commit("a", [{"id": 5, "name": str(step)}])
        if step % 4 == 3:
            following.replace()
            collect(objects.index, keep=2, versions=1)
        node = node_of()
        assert names_of(node) == {**REPLACED, 5: str(step)} and verify(objects.index, node.view()).is_equal
        if node.view().definition.fingerprint() == following.definition.fingerprint():
            current, following, swaps = following, current, swaps + 1
        node.close()
    return kills, swaps


BACK = ObjectType(
    "O",
    {"id": "bigint"},
    [
        Datasource("a", {"name": Property("string", renamed_from="title")}, keep=["note"]),
        Datasource("b", {"city": Property("string", filter=True)}),
    ],
)


@pytest.mark.soak
def test_100_kills_of_replacements_leave_an_index(objects_at, monkeypatch):
    monkeypatch.setattr(log_module, "KEPT", 3)
    monkeypatch.setattr(collection, "KEPT", 3)
    objects = objects_at()
    new = replaceable(objects)
    assert objects.defined(BACK).replace().serves
    kills, swaps = replace_and_kill(
        objects.defined(BACK), new, lambda: objects.index, 100, lambda: node_of_process(objects)
    )
    sys.stderr.write(f"{kills} of 100 replacements were killed in time; {swaps} swaps\n")
    assert kills and swaps >= 20


@pytest.mark.soak
def test_kills_of_replacements_leave_an_index_on_s3(objects_at, s3_server, monkeypatch):
    monkeypatch.setattr(log_module, "KEPT", 3)
    monkeypatch.setattr(collection, "KEPT", 3)
    storage = s3_server.options()
    objects = objects_at(location=f"s3://{s3_server.make_bucket('replace')}/funnel", storage=storage)
    objects.commit("a", BASE, "snapshot")
    node = objects.node(storage=storage)
    node.edit(0, name="folded", city="c")
    objects.flush()
    node.edit(1, name="pending")
    new = objects.defined(TITLED)
    assert objects.defined(BACK).replace().serves
    kills, swaps = replace_and_kill(
        objects.defined(BACK),
        new,
        lambda: IndexStore(objects.location, "O", storage),
        24,
        lambda: node_of_process(objects, storage=storage),
        slower=6,
    )
    sys.stderr.write(f"on S3: {kills} of 24 replacements were killed in time; {swaps} swaps\n")
    assert kills and swaps >= 4
