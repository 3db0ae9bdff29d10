# SPDX-License-Identifier: Apache-2.0
"""Nodes under which a location goes away, comes back, is made anew, or is restored from an older copy."""

from __future__ import annotations

import itertools
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from forebay.errors import ConfigurationError, FatalError, RetriableError
from forebay.index import SearchNode
from forebay.table.index.gc import collect
from forebay.table.index.pipelines import IndexStore
from forebay.table.index.verify import verify


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
    with pytest.raises(RetriableError, match="the location went away while the edit 1 was put; it may be stored"):
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


@pytest.mark.parametrize("editors", [1, 2])
def test_edits_that_were_folded_and_collected_before_the_next_one_are_not_gone(objects, editors):
    commit(objects)
    nodes = [objects.node() for _ in range(editors)]
    for number in range(3):
        nodes[0].edit(number, name="before")
    for node in nodes:
        node.refresh()
    objects.flush()
    collect(objects.index, versions=1)
    assert objects.index.edits.offsets() == []
    assert nodes[-1].edit(3, name="mine") == 4
    expected = ["before"] * 3 + ["mine", "name 4", "name 5"]
    for node in (*nodes, objects.node()):
        node.refresh()
        assert [row["name"] for row in objects.rows(node)] == expected


@pytest.mark.parametrize("pending", [0, 2])
@pytest.mark.parametrize("calls", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("first", range(1, 13))
def test_no_edit_is_lost_to_a_mount_that_comes_and_goes(objects, away, monkeypatch, pending, first, calls):
    """Some calls of the store meet an empty mount point. What is put there stays there."""
    commit(objects)
    node = objects.node()
    for number in range(pending):
        node.edit(number, name="before")
    store, count = type(node._index.store), itertools.count(1)
    under = IndexStore(str(away.other), "O").store

    def flickering(name):
        method = getattr(store, name)

        def call(self, *arguments):
            gone = self is node._index.store and first <= next(count) < first + calls
            return method(under if gone else self, *arguments)

        monkeypatch.setattr(store, name, call)

    for name in ("get", "put_if_absent", "names", "delete"):
        flickering(name)
    outcome = ""
    try:
        node.edit(5, name="mine")
    except (ConfigurationError, RetriableError, FatalError) as error:
        outcome = str(error)
    monkeypatch.undo()
    shown = objects.node().get(5)["name"]
    if not outcome:
        assert shown == "mine"
    elif "may be stored" not in outcome:
        assert shown == "name 5"
    theirs = objects.node()
    theirs.edit(4, name="theirs")
    try:
        node.refresh()
    except FatalError:
        node = objects.node()
    assert (node.get(4)["name"], node.get(5)["name"]) == ("theirs", shown)
    node.edit(3, name="last")
    assert [row["name"] for row in objects.rows(objects.node())][3:] == ["last", "theirs", shown]


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
        with pytest.raises(
            FatalError, match="not the one that this node knows: the location was removed and made anew"
        ):
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
    with pytest.raises(FatalError, match="the location was removed and made anew"):
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


@pytest.mark.parametrize("theirs", [0, 1, 2])
def test_a_node_refuses_a_copy_that_lacks_edits_that_it_has_seen(objects, tmp_path, theirs):
    commit(objects)
    node = objects.node()
    node.edit(0, name="kept")
    shutil.copytree(objects.location, tmp_path / "copy")
    node.edit(1, name="not in the copy")
    shutil.rmtree(objects.location)
    shutil.move(tmp_path / "copy", objects.location)
    newer = objects.node()
    for number in range(theirs):
        assert newer.edit(2, name=f"theirs {number}") == number + 2
    for ask in (node.refresh, lambda: node.edit(2, name="x"), lambda: node.delete(2)):
        with pytest.raises(FatalError, match="the edit 2 of 'O' below .* or restored from an older copy"):
            ask()
    assert len(objects.index.edits.offsets()) == theirs + 1
    names = [row["name"] for row in objects.rows(objects.node())]
    assert names[:3] == ["kept", "name 1", f"theirs {theirs - 1}" if theirs else "name 2"]


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


@pytest.mark.parametrize("moment", ["away", "back"])
@pytest.mark.parametrize("followed", [False, True])
def test_a_fact_that_was_put_stays_though_the_location_goes_away_after_it(objects, monkeypatch, moment, followed):
    objects.commit("a", [{"id": 1, "name": "x"}])
    late = objects.defined(objects.definition)
    log, known = late.index.log, late.index.head()
    holds, gone = log._holds, iter([True])

    def away(entry):
        if log.get(known.number + 1) is None or not next(gone, False):
            return holds(entry)
        if followed:
            objects.commit("b", [{"id": 1, "city": "Oslo"}])
        if moment == "away":
            monkeypatch.setattr(log, "head", lambda after=None: None)
        return False

    monkeypatch.setattr(log, "_holds", away)
    if moment == "away":
        with pytest.raises(RetriableError, match="may be committed"):
            late.commit("a", [{"id": 2, "name": "late"}], base=known, follow=False)
    else:
        assert late.commit("a", [{"id": 2, "name": "late"}], base=known, follow=False).number == known.number + 1
    assert objects.index.log.numbers() == [*range(known.number + 2 + followed)]
    objects.follow()
    assert objects.node().get(2)["name"] == "late"


@pytest.mark.parametrize("part", ["/states/a/", "/states/_edits/", "/segments/", "/log/"])
def test_nothing_counts_that_was_written_where_the_location_is_not(objects, monkeypatch, part):
    """A mount is away while a file or a fact is written, or a machine does not have it."""
    objects.commit("a", [{"id": 1, "name": "x"}, {"id": 2, "name": "y"}])
    objects.node().edit(1, note="mine")
    late, lost = objects.defined(objects.definition), []
    plain = late.index.store.put_if_absent

    def put_if_absent(name, data):
        if part in name and not lost:
            lost.append(name)
            return True
        return plain(name, data)

    monkeypatch.setattr(late.index.store, "put_if_absent", put_if_absent)

    def write():
        late.flush()
        late.commit("a", [{"id": 2, "name": "z"}])

    if part != "/log/":  # a fact that is not there is put again
        with pytest.raises(RetriableError, match="that were written are not below"):
            write()
    write()
    assert lost
    node = objects.node()
    assert (node.get(2)["name"], node.get(1)["note"]) == ("z", "mine")
    assert verify(objects.index).is_equal
