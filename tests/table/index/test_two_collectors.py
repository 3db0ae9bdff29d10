# SPDX-License-Identifier: Apache-2.0
"""A collector between whose calls of the store others put facts, and collect with less to keep."""

from __future__ import annotations

import pytest

from forebay.table.index import gc, log
from forebay.table.index.gc import collect, files_of


@pytest.fixture
def _kept(monkeypatch):
    """Attempts may commit for three facts instead of a hundred."""
    monkeypatch.setattr(gc, "KEPT", 3)
    monkeypatch.setattr(log, "KEPT", 3)


def changed(objects, count):
    for number in range(count):
        objects.commit("a", [{"id": 1, "name": f"name {number}"}])


@pytest.mark.usefixtures("_kept")
@pytest.mark.parametrize("call", range(1, 31))
def test_two_collectors_delete_nothing_that_is_needed(objects, interrupted, call):
    objects.commit("b", [{"id": 0, "city": "Oslo"}])
    objects.node().edit(0, note="mine")
    objects.flush()
    changed(objects, 6)
    slow = objects.defined(objects.definition)

    def meanwhile():
        changed(objects, 2)
        collect(objects.index, keep=1, versions=1)

    armed = interrupted(slow.index, meanwhile, call)
    collect(slow.index, keep=4, versions=3)
    assert not armed, "it has fewer calls"
    head = objects.index.head()
    version = objects.index.newest_version(head.serving)
    needed = [*files_of(head), *(segment.name for segment in version.segments)]
    assert [name for name in needed if objects.index.store.get(name) is None] == []
    objects.commit("b", [{"id": 1, "city": "Bergen"}])
    objects.follow(full=True)
    row = objects.node().get(0)
    assert (row["city"], row["note"]) == ("Oslo", "mine")
