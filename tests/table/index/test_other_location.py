# SPDX-License-Identifier: Apache-2.0
"""Nodes under which a location goes away, comes back, is made anew, or is restored from an older copy."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from forebay.errors import ConfigurationError, FatalError, RetriableError
from forebay.index import SearchNode
from forebay.table.index.edits import EditLog
from forebay.table.index.gc import collect
from forebay.table.index.pipelines import IndexStore


@pytest.fixture
def away(objects, tmp_path):
    """Moves the location away and back, as a mount that is lost; an empty directory may stay for it."""

    class Away:
        place, other = Path(objects.location), tmp_path / "other"

        def leave(self, *, empty: bool = False) -> None:
            shutil.move(self.place, self.other)
            if empty:
                self.place.mkdir()

        def come_back(self) -> None:
            shutil.rmtree(self.place, ignore_errors=True)
            shutil.move(self.other, self.place)

    return Away()


def commit(objects, count=6):
    objects.commit("a", [{"id": number, "name": f"name {number}"} for number in range(count)])


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("pending", [0, 2])
@pytest.mark.parametrize("refresh", [False, True])
def test_an_edit_while_the_location_is_away_is_refused_and_hides_no_later_one(objects, away, empty, pending, refresh):
    commit(objects)
    node = objects.node()
    for number in range(pending):
        node.edit(number, name="before")
    away.leave(empty=empty)
    if refresh:
        with pytest.raises(ConfigurationError, match="nothing of 'O' is below"):
            node.refresh()
    for change in (lambda: node.edit(5, name="lost"), lambda: node.delete(5)):
        with pytest.raises(ConfigurationError, match="nothing of 'O' is below"):
            change()
    assert not away.place.exists() or not any(away.place.iterdir())  # an empty mount point stays empty
    away.come_back()
    assert [node.edit(number, name="after") for number in range(2, 5)] == [pending + 1, pending + 2, pending + 3]
    expected = ["before" if number < pending else f"name {number}" for number in range(2)] + ["after"] * 3 + ["name 5"]
    assert [row["name"] for row in objects.rows(node)] == expected
    assert [row["name"] for row in objects.rows(objects.node())] == expected
    assert objects.flush().applied
    assert [row["name"] for row in objects.rows(objects.node())] == expected


def after_the_put(objects, monkeypatch, happens):
    """Let something happen between the put of an edit and the look at the log."""
    log, head = type(objects.index.log), type(objects.index.log).head

    def late(self, after=None):
        if objects.index.edits.offsets():
            monkeypatch.setattr(log, "head", head)
            happens()
        return head(self, after)

    monkeypatch.setattr(log, "head", late)


def test_an_edit_may_be_stored_if_the_location_goes_away_while_it_is_put(objects, away, monkeypatch):
    commit(objects)
    node = objects.node()
    after_the_put(objects, monkeypatch, away.leave)
    with pytest.raises(RetriableError, match="the log went away while the edit 1 was put; it may be stored"):
        node.edit(1, name="mine")
    away.come_back()
    assert objects.node().get(1)["name"] == "mine"
    node.refresh()
    assert node.edit(2, name="next") == 2
    assert [row["name"] for row in objects.rows(objects.node())][1:3] == ["mine", "next"]


def test_no_edit_of_a_log_that_was_made_anew_meanwhile_is_removed(objects, monkeypatch):
    commit(objects)
    node = objects.node()

    def made_anew():
        shutil.rmtree(objects.location)
        commit(objects)
        assert objects.node().edit(2, name="theirs") == 1

    after_the_put(objects, monkeypatch, made_anew)
    with pytest.raises(RetriableError, match="it may be stored"):
        node.edit(1, name="mine")
    assert [row["name"] for row in objects.rows(objects.node())][1:3] == ["name 1", "theirs"]


def test_edits_that_were_folded_and_collected_before_a_put_are_no_hole(objects, monkeypatch):
    commit(objects)
    node = objects.node()
    for number in range(3):
        node.edit(number, name="before")
    put = EditLog.put

    def late(self, edit, log, head):
        monkeypatch.setattr(EditLog, "put", put)
        objects.flush()
        collect(objects.index, versions=1)
        assert objects.index.edits.offsets() == []
        return put(self, edit, log, head)

    monkeypatch.setattr(EditLog, "put", late)
    assert node.edit(3, name="mine") == 4
    expected = ["before"] * 3 + ["mine", "name 4", "name 5"]
    assert [row["name"] for row in objects.rows(node)] == expected
    assert [row["name"] for row in objects.rows(objects.node())] == expected


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("pending", [0, 1])
def test_a_node_refuses_a_location_that_was_removed_and_made_anew(objects, more, pending):
    for _ in range(3):
        commit(objects)
    node = objects.node()
    for _ in range(pending):
        node.edit(1, name="edited")
    shutil.rmtree(objects.location)
    for number in range(6 if more else 1):
        objects.commit("a", [{"id": 1, "name": f"new {number}"}])
    for ask in (node.refresh, lambda: node.edit(1, name="x"), lambda: node.get(1, at_least=pending + 1)):
        with pytest.raises(FatalError, match="not the one that this node follows: it was removed and made anew"):
            ask()
    assert node.get(1)["name"] == ("edited" if pending else "name 1")  # of the version before
    newer = objects.node()
    assert objects.rows(newer) == [{"id": 1, "name": f"new {5 if more else 0}", "note": None, "city": None}]
    assert newer.edit(1, name="y") == 1


def test_a_node_refuses_a_location_that_was_made_anew_with_another_pipeline(objects):
    commit(objects)
    node = objects.node()
    shutil.rmtree(objects.location)
    commit(objects)
    sources = objects.definition.datasources
    other = objects.defined(replace(objects.definition, datasources=[sources[0]]))
    assert other.replace().serves
    collect(objects.index, versions=1)
    with pytest.raises(FatalError, match="it was removed and made anew"):
        node.refresh()


@pytest.mark.parametrize("more", [0, 1])
def test_a_node_refuses_a_copy_that_lacks_transactions_that_it_has_seen(objects, tmp_path, more):
    commit(objects)
    shutil.copytree(objects.location, tmp_path / "copy")
    objects.commit("a", [{"id": 7, "name": "not in the copy"}])
    node = objects.node()
    shutil.rmtree(objects.location)
    shutil.move(tmp_path / "copy", objects.location)
    for number in range(more):
        objects.commit("a", [{"id": number, "name": "after it"}])
    for ask in (node.refresh, lambda: node.edit(7, note="edited")):
        with pytest.raises(FatalError, match="or restored from an older copy"):
            ask()
    assert objects.node().get(7) is None
    assert objects.index.edits.offsets() == []


def test_a_cache_of_a_log_that_is_gone_serves_the_new_one(objects, tmp_path):
    commit(objects)
    with SearchNode(objects.location, "O", cache=tmp_path / "mine") as node:
        assert node.count() == 6
    shutil.rmtree(objects.location)
    objects.commit("a", [{"id": 9, "name": "new"}])
    with SearchNode(objects.location, "O", cache=tmp_path / "mine") as node:
        assert [row["name"] for row in objects.rows(node)] == ["new"]


def test_a_node_makes_no_hole_behind_edits_that_a_restored_copy_lacks(objects, tmp_path):
    commit(objects)
    node = objects.node()
    node.edit(0, name="kept")
    shutil.copytree(objects.location, tmp_path / "copy")
    node.edit(1, name="not in the copy")
    shutil.rmtree(objects.location)
    shutil.move(tmp_path / "copy", objects.location)
    with pytest.raises(FatalError, match="the edits before 3, which this node has seen, are not there .* nothing was"):
        node.edit(2, name="x")
    assert objects.index.edits.offsets() == [1]
    newer = objects.node()
    assert newer.edit(2, name="y") == 2
    names = [row["name"] for row in objects.rows(objects.node())]
    assert names == ["kept", "name 1", "y", "name 3", "name 4", "name 5"]


def test_a_transaction_that_began_in_a_log_that_is_gone_is_not_committed(objects):
    commit(objects)
    base = objects.index.head()
    shutil.rmtree(objects.location)
    commit(objects)
    with pytest.raises(RetriableError, match="the log was removed and begun anew"):
        objects.index.log.append(base, lambda head: head, "a")
    assert objects.index.head().number == 1


def test_what_may_not_be_listed_is_not_named(objects, monkeypatch):
    def refused(store):
        raise RetriableError("no right to list")

    commit(objects)
    monkeypatch.setattr("forebay.table.index.pipelines.object_types", refused)
    with pytest.raises(ConfigurationError, match="nothing of 'P' is below .* yet\n"):
        IndexStore(objects.location, "P").head()
