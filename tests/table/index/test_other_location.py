# SPDX-License-Identifier: Apache-2.0
"""Nodes under which a location goes away, comes back, is made anew, or is restored from an older copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from forebay.errors import ConfigurationError, FatalError, RetriableError
from forebay.index import SearchNode


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
        with pytest.raises((RetriableError, ConfigurationError), match="noth"):
            change()
    assert not away.place.exists() or not any(away.place.iterdir())  # an empty mount point stays empty
    away.come_back()
    assert [node.edit(number, name="after") for number in range(2, 5)] == [pending + 1, pending + 2, pending + 3]
    expected = ["before" if number < pending else f"name {number}" for number in range(2)] + ["after"] * 3 + ["name 5"]
    assert [row["name"] for row in objects.rows(node)] == expected
    assert [row["name"] for row in objects.rows(objects.node())] == expected
    assert objects.flush().applied
    assert [row["name"] for row in objects.rows(objects.node())] == expected


@pytest.mark.parametrize("more", [False, True])
def test_a_node_refuses_a_location_that_was_removed_and_made_anew(objects, more):
    for _ in range(3):
        commit(objects)
    node = objects.node()
    node.edit(1, name="edited")
    shutil.rmtree(objects.location)
    for number in range(6 if more else 1):
        objects.commit("a", [{"id": 1, "name": f"new {number}"}])
    with pytest.raises(FatalError, match="was removed and made anew"):
        node.refresh()
    with pytest.raises((FatalError, RetriableError), match="made anew|the edits before 2, are not below the location"):
        node.edit(1, name="x")
    assert node.get(1)["name"] == "edited"  # of the version before
    newer = objects.node()
    assert objects.rows(newer) == [{"id": 1, "name": f"new {5 if more else 0}", "note": None, "city": None}]
    assert newer.edit(1, name="y") == 1


def test_a_node_without_pending_edits_edits_no_location_that_was_made_anew(objects):
    commit(objects)
    node = objects.node()
    shutil.rmtree(objects.location)
    commit(objects)
    with pytest.raises(RetriableError, match="the log that this node follows, .* nothing was edited"):
        node.edit(1, name="x")
    assert objects.node().get(1)["name"] == "name 1"
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
    with pytest.raises(RetriableError, match="the edits before 3, are not below the location any more; nothing was"):
        node.edit(2, name="x")
    newer = objects.node()
    assert newer.edit(2, name="y") == 2
    assert [row["name"] for row in objects.rows(objects.node())] == [
        "kept",
        "name 1",
        "y",
        *map("name {}".format, (3, 4, 5)),
    ]


def test_a_transaction_that_began_in_a_log_that_is_gone_is_not_committed(objects):
    commit(objects)
    base = objects.index.head()
    shutil.rmtree(objects.location)
    commit(objects)
    stale = objects.index.log
    with pytest.raises(RetriableError, match="the log was removed and begun anew"):
        stale.append(base, lambda head: head, "a")
    assert objects.index.head().number == 1
