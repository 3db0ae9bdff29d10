# SPDX-License-Identifier: Apache-2.0
"""Plans, and replacements that are built behind the index that serves."""

from __future__ import annotations

import itertools
import random
import sys
import threading
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from forebay.errors import ConfigurationError, DataError, FatalError, RetriableError
from forebay.index import Datasource, ObjectType, Property
from forebay.state.local_state_store import LocalStateStore
from forebay.table.index import replacement as replacement_module
from forebay.table.index.follower import Follower
from forebay.table.index.gc import collect
from forebay.table.index.log import Log, StoppedError
from forebay.table.index.pipelines import IndexStore
from forebay.table.index.runs import graph_text, runs
from forebay.table.index.segment_cache import SegmentCache
from forebay.table.index.status import status
from forebay.table.index.verify import verify
from forebay.table.index.why import explain

A = {"name": Property("string", filter=True), "note": Property("string", text=True)}
CITY = {"city": Property("string", filter=True)}
ROWS = [{"id": number, "name": f"n{number}", "note": "late"} for number in range(10)]


def changed(a=A, b=CITY, **options):
    """The object type of `conftest`, with other properties."""
    return ObjectType("O", {"id": "bigint"}, [Datasource("a", a), Datasource("b", b, **options)])


FILTERED = changed({**A, "note": Property("string", text=True, filter=True)})


@pytest.fixture
def live(objects):
    objects.commit("a", ROWS, "snapshot")
    objects.commit("b", [{"id": 3, "city": "Oslo"}, {"id": 50, "city": "Bergen"}])
    return objects


def test_a_replacement_serves_and_nodes_flip_to_it(live):
    node, new = live.node(), live.defined(FILTERED)
    with pytest.raises(ConfigurationError, match="note"):
        node.where(note="late").count()
    page = node.objects.limit(2).fetch()
    assert new.plan().kind == "REPLACEMENT" and "'note' has another filter" in str(new.plan())
    done = new.replace()
    assert (done.serves, done.pipeline, done.waits) == (True, "r000003", ())
    node.refresh()
    assert node.version.pipeline == "r000003" and node.where(note="late").count() == 10
    assert page.next_page().rows[0]["id"] == 2 and page.next_page().version.pipeline == "000001"
    assert live.rows(node, "id", "name", "city") == [(n, f"n{n}", "Oslo" if n == 3 else None) for n in range(10)] + [
        (50, None, "Bergen")
    ]
    assert new.plan().kind == "INCREMENTAL" and verify(live.index, node.view()).is_equal
    assert [(each.role, each.behind) for each in status(live.index).pipelines] == [
        ("serves", 0),
        ("was replaced or dropped", 0),
    ]
    removed = collect(live.index, keep=1, versions=1)
    assert any("pipelines/000001/segments" in name for name in removed.files)
    assert live.index.pipelines() == ["r000003"]
    new.commit("a", [{"id": 1, "name": "x"}])
    live.commit("b", [{"id": 1, "city": "y"}])  # with the definition before
    node.refresh()
    assert (node.get(1)["name"], node.get(1)["city"]) == ("x", "y") and live.node().count() == 11


def test_a_node_has_the_files_of_a_replacement_before_its_swap(live, monkeypatch):
    live.commit("a", [{"id": number, "note": "late"} for number in range(2_000)])
    node, new = live.node(), live.defined(FILTERED)
    new.replace(swap=False)
    assert node.refresh().pipeline == "000001"
    live.commit("a", [{"id": 1, "name": "x"}])
    assert node.refresh().data == 5 and node.get(1)["name"] == "x"  # which keeps the files of the replacement
    assert new.replace().serves
    copied = []

    def get(store, name):
        copied.append(name)
        return store_get(store, name)

    store_get = LocalStateStore.get
    monkeypatch.setattr(LocalStateStore, "get", get)
    assert node.refresh().pipeline == "r000004" and node.where(note="late").count() == 1_999
    segments = node.view().version.segments
    assert [name for name in copied if "/segments/" in name] == [each.name for each in segments if each.rows == 1]
    assert len(segments) > 1


def test_what_is_copied_ahead_harms_no_refresh(live, monkeypatch):
    node, new = live.node(), live.defined(FILTERED)
    new.replace(swap=False)

    def fails(cache, segments, progress=None):
        if any("/r000003/" in segment.name for segment in segments):
            raise RetriableError("the disk is full")
        fetch(cache, segments, progress)

    fetch = SegmentCache.fetch
    live.commit("a", [{"id": 1, "name": "x"}])
    with monkeypatch.context() as patch:
        patch.setattr(SegmentCache, "fetch", fails)
        assert node.refresh().data == 4 and node.get(1)["name"] == "x"
    assert new.replace().serves
    with monkeypatch.context() as patch:
        patch.setattr(SegmentCache, "fetch", fails)
        with pytest.raises(RetriableError, match="the disk is full"):
            node.refresh()
    assert node.refresh().pipeline == "r000003"


def test_a_node_looks_only_at_pipelines_that_there_are(live):
    new = live.defined(FILTERED)
    new.replace(swap=False)
    assert live.node(pipeline="r000003").get(1) == live.node().get(1)
    live.replace()
    for pipeline in ("r000003", "../x", 5):
        with pytest.raises(ConfigurationError, match=r"'O' has no pipeline .*give one of 000001|has no pipeline"):
            live.node(pipeline=pipeline)
    for at_least in (True, -1, "1"):
        with pytest.raises(ConfigurationError, match="at_least is"):
            live.node().get(1, at_least=at_least)


def test_plans_say_what_changed(live):
    def kind(definition):
        return live.defined(definition).plan()

    assert kind(live.definition).kind == "INCREMENTAL"
    for definition, reason in (
        (changed({**A, "more": Property("int")}), "the property 'more' is new"),
        (changed({"name": A["name"]}), "the property 'note' is gone"),
        (changed({**A, "note": Property("int")}), "'note' has another type and text"),
        (changed({**A, "name": Property("string", column="x")}), "'name' has another column and filter"),
        (changed({"name": A["name"]}, {**CITY, "note": A["note"]}), "'note' comes from another datasource"),
        (changed(conflict="most_recent", timestamp="at"), "'b' has another rule for edits"),
        (replace(live.definition, datasources=[Datasource("a", A)]), "the datasource 'b' is gone"),
        (changed(keep=["x"]), "'b' keeps other columns"),
        (changed(dict(reversed(A.items()))), "another order"),
    ):
        found = kind(definition)
        assert found.kind == "REPLACEMENT" and reason in str(found)
    for definition, reason in (
        (replace(live.definition, key={"id": "string"}), "the key is (id bigint), and would be (id string)"),
        (replace(live.definition, key={"id": "bigint", "x": "string"}), "that is a new object type"),
        (replace(live.definition, key=["id", "x"]), "would be (id bigint, x)"),
        (changed(key={"id": "other"}), "'b' would find keys or deleted rows by other columns"),
        (changed(deleted="gone"), "give it a new name"),
        (changed({**A, "name": Property("string", column="Name")}), "write 'name', as in Property(column='name')"),
    ):
        found = kind(definition)
        assert found.kind == "REFUSED" and reason in str(found)
    live.commit("a", [{"id": n, "name": "z"} for n in range(9)], follow=False)
    assert live.plan() == replace(live.plan(), kind="FULL", reasons=("9 rows of a changed, of 10 before",))


def test_before_a_transaction_everything_is_new(objects):
    assert objects.plan().kind == "FULL"


def test_another_definition_is_refused_until_it_is_a_replacement(live):
    new = live.defined(FILTERED)
    with pytest.raises(ConfigurationError, match="differs from the one that serves"):
        new.commit("a", ROWS)
    new.replace(swap=False)
    new.commit("a", [{"id": 0, "name": "new"}])
    live.commit("a", [{"id": 1, "name": "live"}])
    with live.node() as node, live.node(pipeline="r000003") as preview:
        assert (node.version.data, preview.version.data, node.get(0)["name"]) == (5, 3, "new")
        with pytest.raises(ConfigurationError, match="does not serve"):
            preview.edit(1, name="x")
        assert new.replace().serves
        preview.refresh()
        assert preview.get(1)["name"] == "live" and preview.edit(1, name="x") == 1


def test_a_new_column_waits_for_a_snapshot_that_feeds_both(live):
    more = changed({**A, "size": Property("string", column="cm", filter=True)})
    new = live.defined(more)
    assert "commit a snapshot of the datasource 'a' with the columns cm" in str(new.plan())
    found = new.replace()
    assert not found.serves and found.version is None and len(found.waits) == 1
    assert status(live.index).pipelines[1].waits == found.waits
    # Live goes on without the column; an update does not bring it, since the other rows would have NULL.
    live.commit("a", [{"id": 1, "name": "x"}])
    new.commit("a", [{"id": 2, "name": "y", "cm": "5"}])
    assert new.replace().waits == found.waits
    new.commit("a", [{**row, "cm": str(row["id"])} for row in ROWS], "snapshot")
    live.frames = {"id", "name", "note", "cm"}
    live.commit("a", [{"id": 1, "name": "x", "cm": "9"}])
    assert new.replace().serves
    node = live.node()
    assert [node.get(n)["size"] for n in (1, 2, 3)] == ["9", "2", "3"] and node.where(size="2").count() == 1
    # A snapshot of the definition before would lose the column; it is refused by Spark's rows, and here it is NULL.
    assert verify(live.index, node.view()).is_equal


def test_an_update_brings_no_column_to_rows_that_have_only_keys(objects_at):
    """A state of nothing but keys is not one of nothing but deletes, which have no columns either."""

    def members(**properties):
        return ObjectType("O", {"id": "bigint"}, [Datasource("a", A), Datasource("members", properties)])

    objects = objects_at(members())
    objects.commit("members", [{"id": number} for number in range(5)], "snapshot")
    new = objects.defined(members(level=Property("string", filter=True)))
    waits = new.replace().waits
    assert len(waits) == 1 and "a snapshot of the datasource 'members' with the columns level" in waits[0]
    new.commit("members", [{"id": 0, "level": "gold"}])
    assert new.replace().waits == waits
    new.commit("members", [{"id": number, "level": "gold"} for number in range(5)], "snapshot")
    assert new.replace().serves and objects.node().where(level="gold").count() == 5


def test_an_update_brings_columns_where_nothing_but_deletes_came(objects):
    objects.commit("a", [{"id": 1}], "delete")
    objects.commit("a", [{"id": 2, "name": "x"}])
    assert objects.node().get(2)["name"] == "x"


def test_a_live_transaction_without_the_column_lets_the_replacement_wait_again(live):
    new = live.defined(changed({**A, "size": Property("string")}))
    new.replace()
    new.commit("a", [{**row, "size": "1"} for row in ROWS], "snapshot")
    assert new.plan().waits == ()
    live.commit("a", [{"id": 1, "name": "x"}])
    assert len(new.replace().waits) == 1
    new.commit("a", [{**row, "size": "2"} for row in ROWS], "snapshot")
    assert new.replace().serves and live.node().get(1)["size"] == "2"


def test_a_datasource_that_is_replaced_by_another_one(live):
    shipments = Datasource("c", CITY, key={"id": "id"}, deleted="gone")
    new = live.defined(ObjectType("O", {"id": "bigint"}, [Datasource("a", A), shipments]))
    assert new.replace().waits == ("commit the datasource 'c', which is new",)
    new.commit("c", [{"id": 3, "city": "Rome"}, {"id": 60, "city": "Nice"}])
    live.commit("b", [{"id": 3, "city": "Paris"}])
    node = live.node()
    assert (node.get(3)["city"], node.get(60), node.get(50)["city"]) == ("Paris", None, "Bergen")
    assert new.replace().serves
    node.refresh()
    assert (node.get(3)["city"], node.get(60)["city"], node.get(50)) == ("Rome", "Nice", None)
    assert sorted(live.index.head().states) == ["a", "c"] and verify(live.index).is_equal
    with pytest.raises(ConfigurationError, match="no datasource 'b'"):
        live.commit("b", [{"id": 3, "city": "x"}])


def test_a_value_that_does_not_fit_fails_the_replacement_and_never_live(live):
    new = live.defined(changed({**A, "note": Property("int", column="name")}))
    named = (
        r"the column 'name' of the datasource 'a' in the row[\s\S]*; the replacement r\d+ cannot be built with this row"
    )
    with pytest.raises(DataError, match=named + r", and 000001 goes on to serve[\s\S]*or drop the replacement"):
        new.replace()
    live.commit("a", [{"id": n, "name": str(n)} for n in range(9)])
    assert live.node().get(1)["name"] == "1" and [each.role for each in status(live.index).pipelines] == [
        "serves",
        "is being built",
    ]
    live.commit("a", [{"id": 9, "name": "9"}])
    assert new.replace().serves and live.node().get(9)["note"] == 9


def test_a_value_that_comes_while_the_replacement_is_proven_names_it_too(live):
    live.commit("a", [{"id": n, "name": str(n)} for n in range(9)], "snapshot")
    new = live.defined(changed({**A, "note": Property("int", column="name")}))
    follower = new.follower

    def late(pipeline):
        following = follower(pipeline)
        first = following.follow

        def follow(**options):
            version = first(**options)
            if not options:
                live.commit("a", [{"id": 3, "name": "three"}])
            return version

        following.follow = follow
        return following

    new.follower = late
    with pytest.raises(DataError, match=r"; the replacement r\d+ cannot be built with this row, and 000001 goes on to"):
        new.replace()


def test_a_newer_replacement_drops_the_one_before(live):
    first, second = live.defined(FILTERED), live.defined(changed({"name": A["name"]}))
    first.replace(swap=False)
    follower = first.follower("r000003")
    second.replace(swap=False)
    with pytest.raises(StoppedError, match="r000003 of 'O' was dropped"):
        follower.follow()
    collect(live.index)
    assert live.index.pipelines() == ["000001", "r000004"]
    with pytest.raises(ConfigurationError, match="differs from"):
        first.commit("a", ROWS)
    assert live.replace().pipeline == "000001"  # the definition that serves drops what is built
    assert live.index.head().building is None and second.replace().pipeline == "r000006"
    assert verify(live.index).is_equal


def test_the_loser_of_the_swap_catches_up_and_offers_again(live, monkeypatch):
    new, put, times = live.defined(FILTERED), Log.put, iter(range(3))

    def late(log, entry, head, is_in):
        if entry.kind == "swap" and (number := next(times, None)) is not None:
            live.commit("a", [{"id": 100 + number, "name": "late"}])
        return put(log, entry, head, is_in)

    monkeypatch.setattr(Log, "put", late)
    node = live.node()
    assert new.replace().serves
    node.refresh()
    assert node.version.pipeline == "r000003" and node.count() == 14 and verify(live.index, node.view()).is_equal


def test_a_transaction_that_loses_to_the_swap_counts_after_it_or_is_refused(live):
    more = live.defined(changed({**A, "size": Property("string")}))
    more.replace()
    head = live.index.head()
    more.commit("a", [{**row, "size": "1"} for row in ROWS], "snapshot")
    base = live.index.head()
    assert more.replace().serves
    more.commit("b", [{"id": 3, "city": "between"}], base=base)
    assert more.node().get(3)["city"] == "between"
    for wrong in (head, base):
        with pytest.raises((RetriableError, ConfigurationError)):
            live.commit("a", [{"id": 3, "name": "y"}], base=wrong)
    assert verify(live.index).is_equal


def test_edits_are_migrated_or_refused_by_name(live):
    node = live.node()
    node.edit_many([(1, {"name": "7"}), (2, {"name": "x"}), (3, {"note": "mine"}), (4, None), (70, {"city": "new"})])
    live.flush()
    node.edit(5, name="8", note="pending")
    renamed = {"title": Property("string", filter=True, column="name", renamed_from="name"), "note": A["note"]}
    without = live.defined(changed({"title": Property("string", column="name")}))
    plan = without.plan()
    assert plan.kind == "REFUSED" and "3 edited values of 'name'" in str(plan)
    assert "Property(renamed_from='name')" in str(plan) and "drop_edits=['note']" in str(plan)
    new = live.defined(changed(renamed))
    assert new.replace().serves
    node.refresh()
    assert [node.get(n) and node.get(n)["title"] for n in (1, 2, 4, 5)] == ["7", "x", None, "8"]
    assert (node.get(3)["note"], node.get(70)["city"], node.get(5)["note"]) == ("mine", "new", "pending")
    live.node().edit(6, note="of the new definition")
    # Names of two definitions before are needed too; values that cannot be cast are refused, or dead letters.
    number = {"no": Property("int", column="name", renamed_from="title"), "note": A["note"]}
    assert "3 edited values of 'name'" in str(live.defined(changed(number)).plan())
    number["no"] = replace(number["no"], renamed_from=["title", "name"], column="nr")
    third = live.defined(changed(number))
    assert third.plan().kind == "REFUSED" and "the string 'x' cannot be int" in str(third.plan())
    assert third.replace(drop_edits=["name"]).waits
    third.commit("a", [{**row, "nr": row["id"]} for row in ROWS], "snapshot")
    assert third.replace(drop_edits=["name"]).serves
    node.refresh()
    assert [node.get(n)["no"] for n in (1, 2, 5)] == [7, 2, 8]
    live.flush()
    edits = status(live.index).edits
    assert edits.dead_letters == 1 and "(id=2), name: the string 'x' cannot be int" in edits.last_dead[0]
    assert verify(live.index, live.node().view()).is_equal


VALUES = {"int": [1, 7], "double": [2.5, 7.25], "string": ["x", "7", "2.5"]}
CASTS = {("int", "double"): float, ("int", "string"): str, ("string", "int"): int}


def cast(kind, value, target):
    """The value with another type; None if no value is equal to it."""
    try:
        return value if kind == target else CASTS[kind, target](value)
    except (KeyError, ValueError):
        return None


@pytest.mark.parametrize("seed", range(4))
def test_the_newest_edit_counts_whenever_it_fits_and_a_flush_changes_no_answer(objects_at, seed):
    def retyped(kind):
        return changed({"name": Property(kind), "note": A["note"]}, {"city": CITY["city"]})

    chance = random.Random(seed)
    kind = "double"
    objects = objects_at(retyped(kind))
    objects.commit("a", [{"id": 0, "note": "late"}])
    newest = shown = None
    for _ in range(24):
        step = chance.choice(["edit", "edit", "flush", "retype"])
        if step == "edit":
            newest = shown = kind, chance.choice(VALUES[kind])
            objects.node().edit(0, name=newest[1])
        elif step == "retype":
            kind = chance.choice([other for other in VALUES if other != kind])
            objects = objects.defined(retyped(kind))
            assert objects.replace(drop_edits=["name"]).serves
            shown = None
        before = objects.node().get(0)["name"]
        if step == "flush":
            objects.flush()
        after = objects.node().get(0)["name"]
        assert after == before and (shown is None or after == shown[1])
        if newest is not None and (expected := cast(*newest, kind)) is not None:
            assert after == expected, (seed, kind, newest)
        assert verify(objects.index, objects.node().view()).is_equal


def test_of_two_properties_that_one_edit_sets_and_that_become_one_that_with_the_name_counts(live):
    editor = live.node()
    editor.edit(1, note="N", name="M")
    editor.edit(2, name="M", note="N")
    merged = {"name": Property("string", renamed_from="note")}
    assert live.defined(changed(merged)).replace().serves
    editor.refresh()
    for look in (lambda: None, live.flush):
        look()
        editor.refresh()
        with live.node() as other:
            assert other.version == editor.version
            assert [node.get(key)["name"] for node in (editor, other) for key in (1, 2)] == ["M"] * 4


def test_a_plan_says_that_another_replacement_cannot_have_the_rows_of_the_one_before(live):
    new = live.defined(
        ObjectType("O", {"id": "bigint"}, [*changed().datasources, Datasource("c", {"z": Property("int")})])
    )
    assert new.replace().waits == ("commit the datasource 'c', which is new",)
    new.commit("c", [{"id": 1, "z": 2}])
    flagged = Datasource("c", {"z": Property("int")}, deleted="d")
    other = live.defined(ObjectType("O", {"id": "bigint"}, [*changed().datasources, flagged]))
    assert other.plan().waits == ("commit the datasource 'c', which is new",) == other.replace().waits
    same = live.defined(new.definition)
    assert same.plan().waits == same.replace().waits != ()


def test_an_edit_that_comes_while_a_replacement_is_proven_holds_up_the_swap(live, monkeypatch):
    narrow = live.defined(changed({"name": A["name"]}))
    holds = replacement_module._Proof.holds

    def edited(*arguments):
        proven = holds(*arguments)
        live.node().edit(1, note="mine")
        return proven

    monkeypatch.setattr(replacement_module._Proof, "holds", edited)
    with pytest.raises(ConfigurationError, match="edited values of 'note' would not count any more"):
        narrow.replace()
    assert live.node().get(1)["note"] == "mine"
    failed = runs(live.index)[-1]
    assert "replacement r000003" in graph_text(failed, runs(live.index), "O").partition("FAILED")[0]


def test_a_replacement_that_another_process_follows_too_is_proven_anew(live, monkeypatch):
    new, faster = live.defined(FILTERED), iter(range(3))
    holds = replacement_module._Proof.holds

    def followed(*arguments):
        for number in itertools.islice(faster, 1):
            live.commit("a", [{"id": 1, "name": f"faster {number}"}])
            new.follower(live.index.head().building.pipeline).follow()
        return holds(*arguments)

    monkeypatch.setattr(replacement_module._Proof, "holds", followed)
    assert new.replace().serves
    assert live.node().get(1)["name"] == "faster 2"


def test_who_paused_over_a_swap_and_a_collection_is_told_to_do_it_again(live):
    before = live.index.head()
    assert live.defined(FILTERED).replace().serves
    collect(live.index)
    for paused in (lambda: live.index.definition(before.serving), lambda: live.index.serving(before)):
        with pytest.raises(
            RetriableError, match="000001 of 'O' was replaced or dropped, and collected; r000003 serves"
        ):
            paused()


def test_a_plan_says_which_property_is_another_one_under_a_new_name(live):
    live.node().edit(1, name="mine")
    title = live.defined(changed({"title": Property("string", column="name", renamed_from="name"), "note": A["note"]}))
    assert title.plan().reasons == ("the property 'title' was 'name', and takes its edits; it has another filter",)
    assert title.replace().serves
    plan = live.plan()
    assert plan.kind == "REFUSED" and "write Property(renamed_from='title')" in str(plan)
    back = live.defined(changed({"name": Property("string", renamed_from=["title"]), "note": A["note"]}))
    assert back.replace().serves and live.node().get(1)["name"] == "mine"


def test_edits_never_count_for_another_property_that_takes_the_old_name(live):
    live.node().edit(1, name="mine")
    renamed = {"title": Property("string", column="name", renamed_from="name"), "note": A["note"]}
    assert live.defined(changed(renamed)).replace().serves
    reused = {"title": Property("string", column="name"), "note": A["note"], "name": Property("string", column="nr")}
    plan = live.defined(changed(reused)).plan()
    assert plan.kind == "REFUSED" and "edits of 'title' that were made as 'name' would count for 'name'" in str(plan)
    assert live.defined(changed(reused)).plan(drop_edits=["name"]).kind == "REFUSED"
    back = {"name": Property("string", renamed_from="title"), "note": A["note"]}
    assert live.defined(changed(back)).replace().serves and live.node().get(1)["name"] == "mine"


def test_an_edit_of_a_node_that_has_not_seen_the_swap_counts(live):
    node = live.node()
    live.defined(
        changed({"title": Property("string", column="name", renamed_from="name"), "note": A["note"]})
    ).replace()
    node.edit(1, name="late edit")
    with live.node() as other:
        assert other.get(1)["title"] == "late edit"
    live.flush()
    node.refresh()
    assert node.get(1)["title"] == "late edit" and node.view().overlay.edits == ()


def test_a_new_rule_for_edits_needs_the_time_of_rows(live):
    node = live.node()
    node.edit(3, city="edited")
    recent = changed(conflict="most_recent", timestamp="at")
    new = live.defined(recent, types={"b": {"at": "timestamp"}})
    assert "with the columns at" in new.replace().waits[0]
    rows = [{"id": 3, "city": "row", "at": datetime(9000, 1, 1, tzinfo=UTC)}]
    text = live.defined(recent, types={"b": {"at": "string"}})
    text.commit("b", [{"id": 3, "city": "row", "at": "x"}], "snapshot")
    assert "whose 'at' is a timestamp" in new.replace().waits[0]
    new.commit("b", rows, "snapshot")
    assert node.get(3)["city"] == "edited" and new.replace().serves
    node.refresh()
    assert node.get(3)["city"] == "row"
    new.flush()
    assert live.node().get(3)["city"] == "row" and verify(live.index).is_equal


def test_a_time_that_is_no_timestamp_compares_with_no_edit(objects_at):
    """As whole numbers, seconds would be taken for microseconds."""

    def rule(**options):
        return ObjectType("O", {"id": "bigint"}, [Datasource("a", CITY, **options)])

    times = {"a": {"at": "timestamp"}}
    objects = objects_at(rule(conflict="most_recent", timestamp="at"), types=times)
    objects.commit("a", [{"id": 1, "city": "Oslo", "at": datetime(2024, 1, 1, tzinfo=UTC)}])
    objects.node().edit(1, city="edited")
    new = objects.defined(rule(keep=["at"]), types={"a": {"at": "bigint"}})
    assert not new.replace(swap=False).serves
    with pytest.raises(DataError, match="the timestamp 'at' of the datasource 'a' is BIGINT in its rows"):
        new.commit("a", [{"id": 1, "city": "Rome", "at": 4_000_000_000}], "snapshot")
    assert objects.node().get(1)["city"] == "edited"
    assert new.replace().serves and objects.node().get(1)["city"] == "edited"


def test_operations_know_what_is_built(live):
    new = live.defined(FILTERED)
    new.replace(swap=False)
    for number in range(4):
        live.commit("a", [{"id": 1, "name": str(number)}])
    found = status(live.index).pipelines
    assert [(each.role, each.behind, each.version.data) for each in found] == [
        ("serves", 0, 7),
        ("is being built", 4, 3),
    ]
    text = str(explain(live.index, 1))
    assert "replacement: r000003, at fact 3 of the log, 4 behind: id=1, name='n1'" in text
    collect(live.index, keep=1, versions=1)
    assert live.index.log.numbers() == [3, 4, 5, 6, 7]  # what the replacement has not seen is kept
    assert verify(live.index, replacement=True).is_equal
    with pytest.raises(ConfigurationError, match="no replacement of 'O' is built"):
        new.replace() and verify(live.index, replacement=True)


def test_what_is_built_first_is_pinned(live, monkeypatch):
    new = live.defined(FILTERED)
    follow = Follower.follow

    def slow(follower, **options):
        for number in range(5):
            live.commit("b", [{"id": 1, "city": str(number)}], follow=False)
        follow(live.follower("000001"))
        collect(live.index, keep=1, versions=1)
        monkeypatch.setattr(Follower, "follow", follow)
        return follow(follower, **options)

    monkeypatch.setattr(Follower, "follow", slow)
    assert new.replace().serves and live.node().get(1)["city"] == "4"


def test_a_wrong_replacement_does_not_serve(live, monkeypatch):
    new = live.defined(FILTERED)
    new.replace(swap=False)
    version = live.index.newest_version("r000003")
    live.index.put_version(replace(version, number=version.number + 1, count=version.count + 1))
    with pytest.raises(FatalError, match="has 11 objects instead of 12"):
        new.replace()
    path = live.index.store.local_path(version.segments[0].name)
    path.write_bytes(b"x" + path.read_bytes()[1:])
    with pytest.raises(FatalError, match="damaged"):
        new.replace()
    assert live.node().version.pipeline == "000001"
    live.replace()
    assert new.replace().serves


def test_a_node_whose_pipeline_was_replaced_and_collected_goes_on(live, monkeypatch):
    new, built = live.defined(FILTERED), IndexStore.built
    node = live.node()

    def late(index, pipeline, known=None):
        if pipeline == "000001" and index.head().serving == "000001":
            new.replace()
            collect(live.index, keep=1, versions=1)
        return built(index, pipeline, known)

    monkeypatch.setattr(IndexStore, "built", late)
    assert node.refresh().pipeline == "r000003" and node.where(note="late").count() == 10


@pytest.mark.soak
def test_readers_of_four_threads_see_no_error_and_no_mixed_page_over_200_versions_and_2_swaps(objects):
    """Each transaction gives all objects its number: an answer with two numbers, or a lower one, would be mixed."""
    rows = [{"id": number, "name": "0", "note": "x"} for number in range(60)]
    objects.commit("a", rows, "snapshot")
    node, stop, problems, answers = objects.node(), threading.Event(), [], [0] * 4
    definitions = [objects.definition, FILTERED, changed({"name": Property("string", filter=True)})]

    def read(place):
        last = (0, 0)
        while not stop.is_set():
            try:
                page, numbers, count = node.order_by("name").limit(25).fetch(), set(), 0
                version = page.version
                while page.rows:
                    numbers |= {row["name"] for row in page.rows}
                    count += len(page.rows)
                    page = page.next_page()
                    assert page.version == version
                (name,) = numbers
                assert count == 60 and (version.data, int(name)) >= last, (count, version, name, last)
                assert node.get(place)["name"] >= "0" and node.count() == 60
                last = version.data, int(name)
                answers[place] += 1
            except BaseException as error:  # noqa: BLE001 - the verdict of the test
                problems.append(error)
                return

    def refresh():
        while not stop.is_set():
            try:
                node.refresh()
            except BaseException as error:  # noqa: BLE001 - the verdict of the test
                problems.append(error)
                return

    threads = [*(threading.Thread(target=read, args=(place,)) for place in range(4)), threading.Thread(target=refresh)]
    for thread in threads:
        thread.start()
    try:
        for number in range(1, 201):
            objects.commit("a", [{**row, "name": str(number)} for row in rows])
            if number in (70, 140):
                assert objects.defined(definitions[number // 70]).replace().serves
            if number % 20 == 0:
                collect(objects.index, keep=2, versions=1)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert problems == [] and min(answers) > 50
    node.refresh()
    assert objects.rows(node, "name") == [("200",)] * 60 and node.version.pipeline.startswith("r")
    sys.stderr.write(f"{sum(answers)} answers of four threads\n")


def test_why_knows_a_datasource_that_only_the_replacement_has(objects):
    objects.commit("a", [{"id": 1, "name": "x"}])
    a, b = objects.definition.datasources
    waiting = replace(a, properties={**a.properties, "more": Property("string")})
    new = objects.defined(
        replace(objects.definition, datasources=[waiting, b, Datasource("c", {"v": Property("int")})])
    )
    assert not new.replace().serves
    new.commit("c", [{"id": 1, "v": 5}])
    objects.commit("a", [{"id": 1, "name": "y"}])
    assert "name='y'" in str(explain(objects.index, 1))
