# SPDX-License-Identifier: Apache-2.0
"""Edits between whose calls of the store others fold and collect, and processes that were paused come back."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace

import pytest

from forebay.errors import RetriableError
from forebay.table.index.gc import collect

ROWS = [{"id": number, "name": f"name {number}"} for number in range(6)]


def folded(objects):
    objects.flush()
    collect(objects.index, keep=1, versions=1)


def edited_and_folded(objects):
    with objects.node() as other:
        other.edit(2, name="theirs")
    folded(objects)


def much_later(objects):
    with objects.node() as other:
        other.edit(2, name="theirs")
    objects.flush()
    for number in range(3):
        objects.commit("a", [{"id": 5, "name": f"changed {number}"}])
    collect(objects.index, keep=1, versions=1)


@pytest.mark.parametrize("meanwhile", [folded, edited_and_folded, much_later])
@pytest.mark.parametrize("pending", [0, 2])
@pytest.mark.parametrize("call", range(1, 14))
def test_an_edit_counts_once_whatever_is_folded_and_collected_meanwhile(objects, interrupted, meanwhile, pending, call):
    objects.commit("a", ROWS)
    node = objects.node()
    for number in range(pending):
        node.edit(number + 3, name="before")
    armed = interrupted(node._index, lambda: meanwhile(objects), call)
    try:
        offset = node.edit(1, name="mine")
    except RetriableError as error:  # documented: after so long only this is known
        if meanwhile is not much_later or "nothing says any more whether it was applied" not in str(error):
            raise
        return
    finally:
        armed.clear()
    newer = objects.node()
    assert node.get(1)["name"] == newer.get(1, at_least=offset)["name"] == "mine"
    node.refresh()
    objects.flush()
    newer.refresh()
    assert objects.rows(node, "name") == objects.rows(newer, "name")
    assert [name for (name,) in objects.rows(newer, "name")].count("mine") == 1


def test_a_fact_that_is_collected_while_it_is_read_is_not_taken_for_the_newest(objects, interrupted):
    """An editor that was paused puts an offset that was folded, and asks the log while that is collected."""
    objects.commit("a", ROWS)
    editor, other, collector = objects.node(), objects.node(), objects.defined(objects.definition)
    number = objects.index.head().number
    deletes, goes_on = threading.Event(), threading.Event()

    def about_to_delete():
        deletes.set()
        assert goes_on.wait(20)

    interrupted(collector.index, about_to_delete, method="delete")
    collecting = threading.Thread(target=lambda: collect(collector.index, keep=1, versions=1))

    def ended():
        goes_on.set()
        collecting.join()

    def meanwhile():
        other.edit(1, note="theirs")
        for _ in range(3):
            objects.commit("a", ROWS[:1], follow=False)
        objects.follow()
        objects.flush()
        collect(objects.index, keep=100)
        collecting.start()
        assert deletes.wait(20)
        interrupted(editor._index, ended, method="get", file=f"log/{number + 2:012d}.json")

    interrupted(editor._index, meanwhile, method="put_if_absent")
    assert editor.edit(2, note="mine") == 2
    newer = objects.node()
    assert (newer.get(1)["note"], newer.get(2)["note"]) == ("theirs", "mine")


@pytest.mark.parametrize("many", [3, 105])
def test_an_idle_node_edits_after_much_was_folded_and_collected(objects, many):
    objects.commit("a", ROWS)
    node, other = objects.node(), objects.node()
    other.edit(2, note="theirs")
    objects.flush()
    for number in range(many):
        objects.commit("a", [{"id": 4, "name": f"x{number}"}], follow=False)
    objects.follow()
    collect(objects.index, **({} if many > 100 else {"keep": 1, "versions": 1}))
    assert node.edit(1, note="mine") == 2
    newer = objects.node()
    assert [newer.get(number)["note"] for number in (1, 2)] == ["mine", "theirs"]


@pytest.mark.parametrize("meanwhile", [folded, edited_and_folded, much_later])
@pytest.mark.parametrize("call", range(1, 14))
def test_a_refresh_has_each_edit_that_was_acknowledged_before(objects, interrupted, meanwhile, call):
    objects.commit("a", ROWS)
    node, other = objects.node(), objects.node()
    other.edit(1, note="theirs")
    armed = interrupted(node._index, lambda: meanwhile(objects), call)
    node.refresh()
    armed.clear()
    assert node.get(1)["note"] == "theirs"


def test_a_number_of_the_log_that_is_put_again_while_it_is_listed_is_not_the_newest(objects, interrupted):
    objects.commit("a", ROWS)
    objects.commit("a", [{"id": 0, "name": "x"}])
    store, name = objects.index.store, objects.index.log.name(2)
    fact, reader = store.get(name), objects.defined(objects.definition)

    def meanwhile():
        for number in range(3):
            objects.commit("a", [{"id": 1, "name": f"x{number}"}])
        collect(objects.index, keep=1, versions=1)
        assert store.put_if_absent(name, fact)

    interrupted(reader.index, meanwhile, method="get", file="/000000000002.json")
    assert reader.index.head().number == 5


def test_a_transaction_over_a_number_that_is_put_again_is_made_anew(objects, interrupted):
    """Two writers are paused: the one puts the number before that of the other, long after both were collected."""
    objects.commit("a", ROWS)
    store, number = objects.index.store, objects.index.head().number + 1
    late = objects.defined(objects.definition)
    objects.commit("a", [{"id": 0, "name": "real"}])
    name = objects.index.log.name(number)
    zombie = replace(objects.index.log.get(number), attempt="f" * 32)

    def meanwhile():
        for count in range(4):
            objects.commit("a", [{"id": 1, "name": f"x{count}"}])
        collect(objects.index, keep=1, versions=1)
        assert store.put_if_absent(name, zombie.to_bytes())

    interrupted(late.index, meanwhile, method="put_if_absent", file=f"log/{number + 1:012d}.json")
    committed = late.commit("b", [{"id": 3, "city": "late"}])
    assert committed.number == objects.index.head().number > number + 4
    assert objects.index.log.get(number + 1) is None
    assert objects.node().get(3)["city"] == "late"


class KilledError(Exception):
    pass


def test_a_version_whose_number_a_paused_follower_puts_again_is_not_taken_for_the_known_one(objects, interrupted):
    """It is killed before it withdraws it."""
    objects.commit("a", ROWS)
    node, names = objects.node(), (f"x{number}" for number in itertools.count())

    def changed():
        objects.commit("a", [{"id": 0, "name": next(names)}], follow=False)

    changed()
    paused = objects.defined(objects.definition)

    def killed():
        raise KilledError

    def meanwhile():
        objects.follow()
        assert node.refresh().number == 2
        with objects.node() as other:
            other.edit(1, note="theirs")
        objects.flush()
        for _ in range(3):
            changed()
            objects.follow()
        collect(objects.index, versions=1)
        interrupted(paused.index, killed, method="get", file="/000000000001.json")

    interrupted(paused.index, meanwhile, method="put_if_absent", file="/000000000002.json")
    with pytest.raises(KilledError):
        paused.follow()
    pipeline = objects.index.head().serving
    assert objects.index.versions(pipeline)[-2:] == [2, 6]
    assert node.refresh().number == 6
    assert node.get(1, at_least=1)["note"] == "theirs"
    assert node.edit(2, note="mine") == 2
    assert objects.node().get(2)["note"] == "mine"


@pytest.mark.parametrize("later", [False, True])
def test_an_edit_whose_answer_is_lost_counts_once_though_it_was_folded_and_collected(objects, later, monkeypatch):
    objects.commit("a", ROWS)
    node, other = objects.node(), objects.node()
    store, lost = node._index.store, []
    plain = store.put_if_absent

    def put_if_absent(name, data):
        stored = plain(name, data)
        if "/edits/" not in name or lost:
            return stored
        lost.append(name)
        stored = plain(name, data)  # as a store does that repeats the request
        objects.flush()
        collect(objects.index)
        if later:
            other.edit(1, note="theirs")
        return stored

    monkeypatch.setattr(store, "put_if_absent", put_if_absent)
    assert node.edit(1, note="mine") == 1
    objects.flush()
    node.refresh()
    assert [each.get(1)["note"] for each in (node, objects.node())] == ["theirs" if later else "mine"] * 2
    assert objects.index.head().edits.offset == 1 + later
