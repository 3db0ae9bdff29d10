# SPDX-License-Identifier: Apache-2.0
"""Edits by users: seen at once, durable, folded by a flush, and what wins over the rows of datasources."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from forebay.errors import ConfigurationError, RetriableError
from forebay.index import Datasource, ObjectType, Property
from forebay.table.changelog.state.facts import FORMAT, fact_bytes
from forebay.table.index import edits as edits_module
from forebay.table.index import node as node_module
from forebay.table.index.gc import collect
from forebay.table.index.pipelines import IndexVersion
from forebay.table.index.status import status
from forebay.table.index.verify import verify
from forebay.table.index.why import explain

RECENT = ObjectType(
    "O",
    key={"id": "bigint"},
    datasources=[
        Datasource(
            "a",
            {"name": Property("string", filter=True), "note": Property("string", text=True)},
            conflict="most_recent",
            timestamp="at",
        ),
        Datasource("b", {"city": Property("string", filter=True)}),
    ],
)
TIMES = {"a": {"at": "timestamp"}}
START = datetime(2026, 1, 1, tzinfo=UTC)


def at(minutes):
    return START + timedelta(minutes=minutes)


@pytest.fixture
def clock(monkeypatch):
    """The time of edits, in minutes."""
    minutes = [0]
    monkeypatch.setattr(
        edits_module, "now", lambda: int((at(minutes[0]) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1e6)
    )
    monkeypatch.setattr("forebay.table.index.object_set.now", edits_module.now)
    return minutes


def rows(*names, start=0):
    return [{"id": start + number, "name": name, "note": f"note {name}"} for number, name in enumerate(names)]


def equal(objects, node):
    """Whether the index, and what a node answers, are equal to the states and the pending edits."""
    node.refresh()
    return verify(objects.index).is_equal and verify(objects.index, node.view()).is_equal


def test_an_edit_is_seen_at_once_by_every_query(objects):
    objects.commit("a", rows("a", "b", "c"))
    node = objects.node()
    assert node.edit(1, name="z", note="配送 遅延") == 1
    assert node.get(1) == {"id": 1, "name": "z", "note": "配送 遅延", "city": None}
    assert [node.where(name=name).count() for name in "abcz"] == [1, 0, 1, 1]
    assert [row["id"] for row in node.search("配送").fetch().rows] == [1]
    assert node.search("b").count() == 0
    assert [row["name"] for row in node.order_by("-name").limit(2).fetch().rows] == ["z", "c"]
    assert node.count() == 3 and equal(objects, node)
    assert (node.version.data, node.version.offset) == (1, 1)


def test_a_deleted_and_a_created_object_are_counted(objects):
    objects.commit("a", rows("a", "b", "c"))
    node = objects.node()
    node.delete(1)
    assert (node.get(1), node.count(), node.where(name="b").count()) == (None, 2, 0)
    assert node.edit(7, city="Oslo") == 2
    assert node.get(7) == {"id": 7, "name": None, "note": None, "city": "Oslo"}
    assert (node.count(), node.where(city="Oslo").count()) == (3, 1)
    before = objects.rows(node, "id", "name", "city")
    assert equal(objects, node)
    objects.flush()
    assert objects.rows(node, "id", "name", "city") == before
    node.refresh()
    assert objects.rows(node, "id", "name", "city") == before == objects.rows(objects.node(), "id", "name", "city")
    assert equal(objects, node) and node.view().overlay.edits == ()
    assert objects.index.newest_version("000001").count == 3
    assert objects.index.log.head().kind == "flush"


def test_edits_to_different_properties_add_up_and_the_last_one_wins(objects):
    objects.commit("a", rows("a", "b"))
    one, other = objects.node(), objects.node()
    one.edit(1, name="x")
    assert other.get(1)["name"] == "b"
    other.edit(1, city="Oslo")  # it lost the first offset, and saw what has it
    assert other.get(1) == {"id": 1, "name": "x", "note": "note b", "city": "Oslo"}
    assert one.get(1, at_least=2)["city"] == "Oslo"
    objects.flush()
    assert one.edit(1, name="y") == 3
    objects.flush()
    for node in (one, other, objects.node()):
        node.refresh()
        assert node.get(1) == {"id": 1, "name": "y", "note": "note b", "city": "Oslo"}
        assert equal(objects, node)


def test_several_editors_at_once_lose_and_double_no_edit(objects):
    objects.commit("a", rows("a"))
    nodes, offsets = [objects.node() for _ in range(3)], []

    def work(number):
        offsets.extend(nodes[number].edit(number * 10 + each, name=f"{number}.{each}") for each in range(6))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(offsets) == list(range(1, 19)) == objects.index.edits.offsets()
    objects.flush()
    node = objects.node()
    assert [node.get(number * 10 + each)["name"] for number in range(3) for each in range(6)] == [
        f"{number}.{each}" for number in range(3) for each in range(6)
    ]


def test_what_does_not_fit_is_refused_before_anything_is_stored(objects_at):
    kinds = {"n": "int", "d": "decimal(4,2)", "t": "timestamp", "f": "float", "s": "struct<a:array<decimal(3,1)>>"}
    objects = objects_at(
        ObjectType("O", {"id": "bigint"}, [Datasource("a", {n: Property(k) for n, k in kinds.items()})])
    )
    objects.commit("a", [{"id": 1}])
    node = objects.node()
    wrong = [("n", "1"), ("n", 1.0), ("n", True), ("n", 1 << 31), ("d", 100), ("t", datetime(2026, 1, 1)), ("f", 1e300)]
    for name, value in [*wrong, ("s", {"a": [1000]}), ("s", {"a": "12"}), ("s", {"b": []}), ("s", [1]), ("f", "x")]:
        with pytest.raises(ConfigurationError, match=rf"the property '{name}' of type [\s\S]* cannot be"):
            node.edit(1, **{name: value})
    for call, text in (
        (lambda: node.edit(1, x=1), "'x' is no property of 'O'"),
        (lambda: node.edit(1, id=1), "'id' is the key of 'O'"),
        (lambda: node.edit(None, n=1), "is no key"),
        (lambda: node.edit("1", n=1), "is no key"),
        (lambda: node.edit(1), "names no property"),
        (lambda: node.delete(5), r"has no object \(id=5\) to delete"),
        (lambda: node.edit_many([]), "has 0 changes"),
        (lambda: node.edit_many([(1, {"n": 1})] * 1001), "has 1,001 changes"),
        (lambda: node.edit_many([(1, {"n": 1}), (1, None), (1, None)]), "to delete"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            call()
    assert objects.index.edits.offsets() == [] and node.get(1)["n"] is None
    given = {"n": 3, "d": 1, "t": START, "f": 0.1, "s": {"a": [1, None]}}
    node.edit_many([(1, given), (2, {"n": None}), (3, {"n": 1}), (3, None)])
    shown = node.get(1)
    assert (
        shown["f"] != 0.1 and abs(shown["f"] - 0.1) < 1e-7 and (shown["t"], str(shown["s"]["a"][0])) == (START, "1.0")
    )
    assert (node.get(3), node.count(), objects.index.edits.offsets()) == (None, 2, [1])
    objects.flush()
    node.refresh()
    assert (node.get(1), node.view().overlay.edits) == (shown, ()) and equal(objects, node)


def test_user_edits_win_for_ever_and_a_deletion_hides_later_rows(objects):
    objects.commit("a", rows("a", "b", "c"))
    objects.commit("b", [{"id": 1, "city": "Oslo"}])
    node = objects.node()
    node.edit(0, name="x")
    node.delete(1)
    objects.flush()
    objects.commit("a", rows("A", "B", "C"))
    node.refresh()
    assert [node.get(key) and node.get(key)["name"] for key in range(3)] == ["x", None, "C"]
    assert node.get(0)["note"] == "note A" and node.count() == 2
    node.edit(1, name="again")  # a new object: of the old rows nothing is left
    assert node.get(1) == {"id": 1, "name": "again", "note": None, "city": None}
    objects.flush()
    objects.commit("b", [{"id": 1, "city": "Bergen"}])
    node.refresh()
    assert node.get(1) == {"id": 1, "name": "again", "note": None, "city": None}
    assert equal(objects, node)


def test_most_recent_compares_the_time_of_the_row_with_that_of_the_edit(objects_at, clock):
    objects = objects_at(RECENT, types=TIMES)

    def commit(key, name, minutes):
        objects.commit("a", [{"id": key, "name": name, "at": None if minutes is None else at(minutes)}])

    commit(1, "old", 0)
    node = objects.node()
    clock[0] = 10
    node.edit(1, name="edit", city="Oslo")
    for minutes, wins in ((9, False), (10, False), (None, False), (11, True)):
        commit(1, "row", minutes)
        node.refresh()
        assert node.get(1)["name"] == ("row" if wins else "edit") and equal(objects, node)
        assert node.get(1)["city"] == "Oslo"
    objects.flush()
    for minutes, wins in ((9, False), (12, True), (10, False), (None, False)):
        commit(1, "row", minutes)
        node.refresh()
        assert node.get(1)["name"] == ("row" if wins else "edit") and equal(objects, node)
    clock[0] = 20
    node.delete(1)
    objects.flush()
    commit(1, "row", 20)
    node.refresh()
    assert node.get(1) is None and node.count() == 0
    objects.commit("b", [{"id": 1, "city": "Bergen"}])
    commit(1, "row", 21)
    node.refresh()
    # The row of b is not later than the deletion.
    assert node.get(1) == {"id": 1, "name": "row", "note": None, "city": None} and node.count() == 1
    assert equal(objects, node)


def test_the_time_of_an_edit_is_not_before_those_of_earlier_edits(objects_at, clock):
    objects = objects_at(RECENT, types=TIMES)
    objects.commit("a", [{"id": 1, "name": "row", "at": at(5)}])
    node, other = objects.node(), objects.node()
    clock[0] = 10
    node.edit(1, name="one")
    clock[0] = -100  # another computer
    other.edit(1, name="two")
    assert other.get(1)["name"] == "two"
    objects.flush()
    other.refresh()
    other.edit(1, name="three")
    objects.flush()
    assert objects.node().get(1)["name"] == "three"


def test_an_edited_object_leaves_with_its_rows_unless_a_user_created_it(objects):
    objects.commit("a", rows("a", "b"))
    node = objects.node()
    node.edit_many([(1, {"name": "x"}), (8, {"name": "y"})])
    objects.flush()
    objects.commit("a", [{"id": 1}, {"id": 8}], "delete")
    node.refresh()
    assert (node.get(1), node.get(8)["name"], node.count()) == (None, "y", 2) and equal(objects, node)
    # Its edit is kept: it counts when the row, or a user, brings the object back. Also after a full build.
    objects.follow(full=True)
    node.refresh()
    node.edit(1, city="Oslo")
    assert (node.get(1)["name"], node.get(1)["city"], node.count()) == ("x", "Oslo", 3)
    objects.flush()
    node.refresh()
    assert (node.get(1)["name"], node.get(1)["city"], node.count()) == ("x", "Oslo", 3) and equal(objects, node)


def test_a_cursor_keeps_the_edits_that_it_began_with(objects):
    objects.commit("a", rows(*"abcdef"))
    node = objects.node()
    node.edit(0, name="z")
    page = node.order_by("-name").limit(2).fetch()
    first = page.version
    node.edit_many([(4, None), (5, {"name": "a"}), (9, {"name": "d"})])
    objects.flush()
    node.refresh()
    names = []
    while page.rows:
        assert page.version == first
        names += [row["name"] for row in page.rows]
        page = page.next_page()
    assert names == ["z", "f", "e", "d", "c", "b"]
    assert [row["name"] for row in node.order_by("-name").fetch().rows] == ["z", "d", "d", "c", "b", "a"]
    assert (first.offset, node.version.offset) == (1, 2)


def test_at_least_waits_for_an_edit_and_names_the_last_one(objects, monkeypatch):
    monkeypatch.setattr(node_module, "WAIT", 0.2)
    objects.commit("a", rows("a"))
    node, other = objects.node(), objects.node()
    with pytest.raises(RetriableError, match="there is no edit 1 of 'O'"):
        node.get(0, at_least=1)
    assert node.get(0, at_least=other.edit(0, name="x"))["name"] == "x"
    offset = other.edit(0, name="y")
    objects.flush()
    collect(objects.index, keep=1, versions=1)
    assert objects.index.edits.offsets() == []
    assert node.get(0, at_least=offset)["name"] == "y"
    assert node.refresh(at_least=2).offset == 2


def test_at_least_shows_an_edit_that_was_made_on_a_newer_version(objects, monkeypatch):
    objects.commit("a", rows("a"))
    node = objects.node()
    newest = type(node)._newest

    def late(self):
        found = newest(self)
        monkeypatch.setattr(type(node), "_newest", newest)
        objects.commit("b", [{"id": 5, "city": "Oslo"}])
        objects.node().edit(5, name="x")
        return found

    monkeypatch.setattr(type(node), "_newest", late)
    assert node.get(5, at_least=1) == {"id": 5, "name": "x", "note": None, "city": "Oslo"}


def test_a_node_that_edits_needs_neither_spark_nor_pyarrow(objects, tmp_path):
    objects.commit("a", rows("x", "y"))
    program = f"""
import sys
from forebay.index import SearchNode
node = SearchNode({objects.location!r}, "O", cache={str(tmp_path / "other")!r})
print(node.edit(1, name="z"), node.delete(0), node.where(name="z").count(), node.search("note").count(), node.count())
loaded = {{name.partition(".")[0] for name in sys.modules}}
print(sorted(loaded & {{"pyarrow", "pyspark", "numpy", "py4j", "pandas"}}))
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.split("\n") == ["1 2 1 1 1", "[]", ""]


def pause_before_the_put(objects, monkeypatch, after=lambda: None):
    """Return a node that pauses before the put of its next edit, while others edit, flush and collect."""
    node, other = objects.node(), objects.node()
    put = type(objects.index.edits).put

    def late(log, *arguments):
        monkeypatch.setattr(type(log), "put", put)
        for number in range(3):
            other.edit(number, name=f"other {number}")
        objects.flush()
        after()
        collect(objects.index, keep=1, versions=1)
        assert objects.index.edits.offsets() == []
        return log.put(*arguments)

    monkeypatch.setattr(type(objects.index.edits), "put", late)
    return node


def test_an_edit_that_took_a_collected_place_misleads_no_later_editor(objects):
    """Its editor died before it could withdraw it, and the next editor is as far behind."""
    objects.commit("a", rows("a", "b"))
    node, other = objects.node(), objects.node()
    dead = node.view().new_edit([(9, {"name": "dead"})], 0)
    other.edit(0, name="other")
    objects.flush()
    collect(objects.index, keep=1, versions=1)
    objects.index.store.put_if_absent(objects.index.edits.name(1), fact_bytes({"v": FORMAT, **asdict(dead)}))
    assert node.edit(9, name="mine") == 2
    for _ in range(2):
        for each in (node, objects.node()):
            assert each.get(9) == {"id": 9, "name": "mine", "note": None, "city": None}
            assert equal(objects, each)
        objects.flush()


def test_an_edit_whose_offset_was_collected_meanwhile_is_made_again(objects, monkeypatch):
    objects.commit("a", rows("a", "b", "c"))
    node = pause_before_the_put(objects, monkeypatch)
    assert node.edit(1, name="mine") == 4
    assert objects.index.edits.offsets() == [4]
    assert [node.get(key)["name"] for key in range(3)] == ["other 0", "mine", "other 2"]
    objects.flush()
    assert objects.node().get(1)["name"] == "mine"


def test_an_edit_that_was_folded_while_its_editor_paused_counts_once(objects, monkeypatch):
    objects.commit("a", rows("a", "b", "c"))
    node = objects.node()
    head = type(objects.index.log).head

    def late(log, after=None):
        if not objects.index.edits.offsets():  # before the put
            return head(log, after)
        monkeypatch.setattr(type(objects.index.log), "head", head)
        objects.flush()
        collect(objects.index, versions=1)
        assert objects.index.edits.offsets() == []
        return log.head(after)

    monkeypatch.setattr(type(objects.index.log), "head", late)
    assert node.edit(1, name="mine") == 1
    assert node.get(1)["name"] == "mine"
    assert objects.index.edits.offsets() == []
    assert objects.flush().applied is False and equal(objects, node)


def test_an_edit_of_which_nothing_is_known_is_an_error(objects, monkeypatch):
    objects.commit("a", rows("a", "b", "c"))

    def others():
        for number in range(2):
            objects.commit("b", [{"id": number, "city": "Oslo"}])

    node = pause_before_the_put(objects, monkeypatch, others)
    with pytest.raises(RetriableError, match="nothing says any more whether it was applied"):
        node.edit(1, name="mine")
    assert objects.index.edits.offsets() == []


def test_a_flush_without_edits_and_two_flushes_at_once(objects, monkeypatch):
    objects.commit("a", rows("a"))
    assert objects.flush().applied is False
    node = objects.node()
    node.edit(0, name="x")
    node.edit(0, note="y")
    after, once = type(objects.index.edits).after, [1]

    def late(log, offset):
        found = after(log, offset)
        if once and found:
            once.pop()
            assert objects.flush().applied
        return found

    monkeypatch.setattr(type(objects.index.edits), "after", late)
    assert objects.flush().applied is False
    assert objects.index.log.numbers() == [0, 1, 2]
    node.refresh()
    assert node.get(0) == {"id": 0, "name": "x", "note": "y", "city": None} and equal(objects, node)


def test_a_flush_counts_no_share_and_goes_beside_other_transactions(objects):
    objects.commit("a", rows("a", "b"))
    node = objects.node()
    node.edit_many([(0, {"name": "x"}), (1, {"name": "y"})])
    base = objects.begin()[0]
    objects.flush()
    assert objects.index.newest_version("000001").decision == "INCREMENTAL"
    objects.commit("b", [{"id": 0, "city": "Oslo"}], base=base)
    head = objects.index.log.head()
    assert (head.kind, head.edits.offset, head.edits.ids) == ("transaction", 1, ())
    assert objects.node().get(0) == {"id": 0, "name": "x", "note": "note a", "city": "Oslo"}


def test_many_changes_of_an_object_are_as_one_after_the_other(objects_at, clock):
    """A row that is later than a deletion is there again, also for the next change of the same edit."""
    changes = [(7, None), (7, {"name": "zz"}), (8, None), (8, {"name": "new"}), (7, None), (7, None)]
    answers = []
    for at_once in (True, False):
        objects = objects_at(RECENT, types=TIMES)
        objects.commit("a", [{"id": 7, "name": "row", "at": at(60)}, {"id": 8, "name": "x", "at": None}])
        node = objects.node()
        for each in [changes] if at_once else [[change] for change in changes]:
            clock[0] += 1
            node.edit_many(each)
        shown = [(node.get(7), node.get(8))]
        objects.flush()
        objects.commit("a", [{"id": 7, "deleted": True}, {"id": 8, "deleted": True}])
        node.refresh()
        answers.append([*shown, (node.get(7), node.get(8))])
    assert answers[0] == answers[1] == [answers[1][0], (None, {"id": 8, "name": "new", "note": None, "city": None})]


def test_status_and_why_show_edits(objects, clock):
    objects.commit("a", rows("a", "b"))
    node = objects.node()
    clock[0] = 5
    node.edit(1, name="x")
    objects.flush()
    clock[0] = 6
    node.edit(1, name="y")
    node.delete(0)
    found = status(objects.index).edits
    assert (found.folded, found.pending, found.changes, found.oldest) == (1, 2, 2, "2026-01-01T00:06:00+00:00")
    assert found.due is None
    text = str(explain(objects.index, 1))
    assert "edits: name='x' at 2026-01-01T00:05:00+00:00" in text
    assert "pending: edit 2, of 2026-01-01T00:06:00+00:00: name='y'" in text
    assert "index: id=1, name='x'" in text and "an edit wins over the row" in text
    assert "pending: edit 3, of 2026-01-01T00:06:00+00:00: deleted" in str(explain(objects.index, 0))
    objects.flush()
    text = str(explain(objects.index, 0))
    assert "edits: deleted at 2026" in text and "a deletion hides the row of each datasource" in text
    clock[0] = 7
    node.edit(3, name="new")
    assert "nodes show pending edits over the index" in str(explain(objects.index, 3))
    clock[0] = 7 + 6 * 60
    assert status(objects.index).edits.due == "the oldest pending edit is of 2026-01-01T00:07:00+00:00"
    clock[0] = 8
    node.edit_many([(number, {"name": "x"}) for number in range(999)])
    assert status(objects.index).edits.due == "1,000 changes are pending"
    objects.flush()
    text = str(explain(objects.index, 3))
    assert "an object that a user created exists without a row" in text and "none has" not in text
    objects.commit("b", [{"id": 3, "city": "Oslo"}])
    text = str(explain(objects.index, 3))
    assert "edits: created by a user" in text and "    city: b.city" in text and "without a row it is NULL" in text


def test_verify_says_what_else_it_has_seen(objects):
    objects.commit("a", [{"id": 1, "name": "x"}])
    node = objects.node()
    node.edit(2, name="y")
    with_edits = (
        "version 1, at fact 1 of the log: equal to the states of all datasources and 1 pending edits, 2 objects"
    )
    assert str(verify(objects.index, node.view())) == with_edits
    objects.commit("a", [{"id": 3, "name": "x"}], follow=False)
    assert str(verify(objects.index)) == (
        "version 1, at fact 1 of the log, which is at 2: equal to the states of all datasources, 1 objects"
    )


def test_verify_finds_a_wrong_overlay(objects):
    objects.commit("a", rows("a", "b", "c"))
    node = objects.node()
    node.edit(1, name="x")
    (opened,) = node.view().overlay.run
    opened.connection.execute("UPDATE o SET c1 = 'wrong'")
    assert verify(objects.index, node.view()).named == ("(id=1) differs from the rows of its datasources",)


def test_gc_keeps_pending_edits_and_those_that_no_version_has(objects):
    objects.commit("a", rows("a", "b", "c"))
    node = objects.node()
    node.edit(0, name="x")
    objects.flush(follow=False)
    node.edit(1, name="y")
    collect(objects.index, keep=1, versions=1)
    assert objects.index.edits.offsets() == [1, 2]
    assert [objects.node().get(key)["name"] for key in range(3)] == ["x", "y", "c"]
    objects.follow()
    assert [name[-6:-5] for name in collect(objects.index, keep=1, versions=1).facts if "/edits/" in name] == ["1"]
    assert [objects.node().get(key)["name"] for key in range(3)] == ["x", "y", "c"]
    assert equal(objects, node)


def test_a_version_has_edits_that_change_nothing(objects, clock):
    objects.commit("a", rows("a", "b", "c"))
    node = objects.node()
    for _ in range(2):
        node.edit(0, name="x")
        objects.flush()
    node.refresh()
    assert (node.view().overlay.edits, objects.index.newest_version("000001").edits) == ((), 2)


def second_definition(objects, **properties):
    """Let another definition serve, as a replacement does when it is done."""
    definition = ObjectType("O", {"id": "bigint"}, [Datasource("a", properties), objects.definition.datasources[1]])
    objects.index.put_version(IndexVersion("000002", 0, -1, facts=definition.to_facts()))
    head = objects.index.log.head()
    swap = replace(head, number=head.number + 1, serving="000002", changes=(), counts={})
    objects.index.store.put_if_absent(objects.index.log.name(swap.number), swap.to_bytes())
    objects.definition = definition
    objects.follow()


def test_edits_of_an_older_definition_are_dropped_renamed_and_cast_or_become_dead_letters(objects_at):
    kinds = {"year": "string", "n": "int", "d": "decimal(6,2)", "old": "string", "gone": "int", "b": "boolean"}
    source = Datasource("a", {name: Property(kind) for name, kind in kinds.items()})
    objects = objects_at(ObjectType("O", {"id": "bigint"}, [source, Datasource("b", {"city": Property("string")})]))
    objects.commit("a", [{"id": number} for number in range(4)])
    node = objects.node()
    values = {"year": "1999", "n": 7, "d": Decimal("2.00"), "old": "kept", "gone": 1, "b": True}
    node.edit(0, **values)
    objects.flush()
    node.edit(1, **values)
    node.edit(2, year="19x", n=8)
    node.edit(3, d=Decimal("2.50"))
    for key in (0, 1):  # a value that cannot be cast leaves the edit before, folded or not
        node.edit(key, year="19y")
    new = {"year": "int", "n": "decimal(12,4)", "d": "bigint", "b": "string"}
    second_definition(objects, **{n: Property(k) for n, k in new.items()}, new=Property("string", renamed_from="old"))
    node.refresh()
    assert node.version.pipeline == "000002"
    expected = {"year": 1999, "n": Decimal("7.0000"), "d": 2, "b": "true", "new": "kept", "city": None}
    found = [
        {"id": 0, **expected},
        {"id": 1, **expected},
        {"id": 2, **dict.fromkeys(expected), "n": Decimal("8.0000")},
        {"id": 3, **dict.fromkeys(expected)},
    ]
    assert objects.rows(node) == found and equal(objects, node)
    node.edit(3, year=2000)
    found[3]["year"] = 2000
    objects.flush()
    assert objects.rows(node) == found
    node.refresh()
    assert objects.rows(node) == found and node.view().overlay.edits == () and equal(objects, node)
    edits = status(objects.index).edits
    assert (edits.dead_letters, edits.last_dead) == (
        5,
        (
            "edit 2, (id=1): gone: there is no such property for the int 1",
            "edit 3, (id=2): year: the string '19x' cannot be int",
            "edit 4, (id=3): d: the decimal(6,2) '2.50' cannot be bigint",
            "edit 5, (id=0): year: the string '19y' cannot be int",
            "edit 6, (id=1): year: the string '19y' cannot be int",
        ),
    )


def test_gc_removes_edits_one_by_one_in_the_order_of_their_offsets(objects, monkeypatch):
    objects.commit("a", rows("a"))
    node = objects.node()
    for number in range(12):
        node.edit(0, name=str(number))
    objects.flush()
    deleted, delete = [], type(objects.index.store).delete
    monkeypatch.setattr(
        type(objects.index.store), "delete", lambda store, names: deleted.append(list(names)) or delete(store, names)
    )
    collect(objects.index)
    assert [names for names in deleted if names and "/edits/" in names[0]] == [
        [objects.index.edits.name(offset)] for offset in range(1, 13)
    ]


def test_readers_see_each_edit_whole_while_it_is_made_folded_and_collected(objects):
    """P10: each answer is of one version and one offset, and neither goes back."""
    size = 20
    objects.commit("a", rows(*["v0"] * size))
    node, stop, problems = objects.node(), threading.Event(), []

    def read():
        last = 0
        while not stop.is_set():
            page = node.objects.limit(100).fetch()
            names = {row["name"] for row in page.rows}
            if names != {f"v{page.version.offset}"} or len(page.rows) != size or page.version.offset < last:
                problems.append((page.version, names, len(page.rows)))
            last = page.version.offset

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for number in range(1, 13):
            assert node.edit_many([(key, {"name": f"v{number}"}) for key in range(size)]) == number
            if number % 3 == 0:
                objects.flush()
                collect(objects.index, keep=1, versions=1)
            if number % 4 == 0:
                node.refresh()
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert problems == []
    assert node.version.offset == 12


@pytest.mark.parametrize(
    ("kind", "value", "wanted", "made"),
    [
        ("int", 7, "bigint", 7),
        ("bigint", 1 << 40, "int", None),
        ("int", 7, "decimal(3,1)", Decimal("7.0")),
        ("int", 700, "decimal(3,1)", None),
        ("bigint", (1 << 53) + 1, "double", None),
        ("bigint", 1 << 53, "double", float(1 << 53)),
        ("double", 0.1, "float", None),
        ("float", 0.5, "double", 0.5),
        ("double", 1.0, "int", None),
        ("decimal(5,2)", Decimal("2.50"), "decimal(4,1)", Decimal("2.5")),
        ("decimal(5,2)", Decimal("2.55"), "decimal(4,1)", None),
        ("boolean", True, "string", "true"),
        ("boolean", True, "int", None),
        ("decimal(5,2)", Decimal("2.50"), "string", "2.50"),
        ("date", START.date(), "string", "2026-01-01"),
        ("timestamp", START, "string", None),
        ("string", " 7", "int", 7),
        ("string", "1_0", "int", None),
        ("string", "\u0667", "int", None),
        ("string", "True", "boolean", True),
        ("string", "2.5", "decimal(4,1)", Decimal("2.5")),
        ("string", "2026-01-01", "date", START.date()),
        ("string", "2026-01-01T00:00:00", "timestamp", None),
        ("string", "2026-01-01T00:00:00+00:00", "timestamp", START),
        ("string", "ab", "binary", None),
        ("array<int>", [1, None], "array<bigint>", [1, None]),
        ("struct<a:int>", {"a": 1}, "struct<b:int>", None),
        ("map<string,int>", {"b": 1, "a": 2}, "map<string,bigint>", {"a": 2, "b": 1}),
    ],
)
def test_the_value_of_an_edit_is_cast_if_a_value_is_equal_to_it(objects_at, kind, value, wanted, made):
    objects = objects_at(ObjectType("O", {"id": "bigint"}, [Datasource("a", {"v": Property(kind)}), Datasource("b")]))
    objects.commit("a", [{"id": 0}])
    objects.node().edit(0, v=value)
    second_definition(objects, v=Property(wanted))
    node = objects.node()
    assert node.get(0) == {"id": 0, "v": made}
    objects.flush()
    node.refresh()
    assert node.get(0) == {"id": 0, "v": made} and equal(objects, node)
    assert status(objects.index).edits.dead_letters == (made is None)


@pytest.mark.soak
def test_editors_flushes_collections_and_transactions_at_once_lose_no_edit(objects_at):
    first = objects_at()
    first.commit("a", rows(*"abcdefghij"))
    working, problems, last = [3], [], {}

    def guarded(work):
        def run():
            own = objects_at(location=first.location)
            try:
                work(own)
            except Exception as error:  # noqa: BLE001 - shown by the assertion
                problems.append(error)

        return threading.Thread(target=run)

    def editor(number):
        def work(own):
            try:
                node = own.node()
                for step in range(150):
                    key = 100 * (number + 1) + step % 3
                    node.edit(key, name=f"{number}.{step}")
                    last[key] = f"{number}.{step}"
                    if step % 5 == 0:
                        node.refresh()
                    if node.get(key)["name"] != last[key]:
                        problems.append((key, last[key], node.get(key)))
            finally:
                working[0] -= 1

        return work

    def flusher(own):
        while working[0] > 0:
            own.flush()

    def collector(own):
        while working[0] > 0:
            collect(own.index, keep=20, versions=3)

    def writer(own):
        number = 0
        while working[0] > 0:
            number += 1
            own.commit("b", [{"id": number % 15, "city": str(number)}])

    threads = [guarded(work) for work in (*map(editor, range(3)), flusher, flusher, collector, writer)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    node = first.node()
    assert {key: node.get(key)["name"] for key in last} == last
    first.flush()
    assert equal(first, node) and {key: node.get(key)["name"] for key in last} == last
    assert node.version.offset == 450
