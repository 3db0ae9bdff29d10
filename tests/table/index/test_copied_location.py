# SPDX-License-Identifier: Apache-2.0
"""Locations that were restored from a copy that was made while others wrote: its parts are of different moments."""

from __future__ import annotations

import shutil

import pytest

from forebay.table.index.gc import collect
from forebay.table.index.verify import verify


@pytest.fixture
def copied(objects, tmp_path):
    """A location whose index has one more transaction than its log."""
    objects.commit("a", [{"id": 1, "name": "x"}])
    place = tmp_path / "copy"
    shutil.copytree(f"{objects.location}/O/log", place / "O" / "log")
    objects.commit("a", [{"id": 3, "name": "lost"}])
    for each in ("pipelines", "states"):
        shutil.copytree(f"{objects.location}/O/{each}", place / "O" / each)
    made = objects.defined(objects.definition)
    return type(made)(place, tmp_path / "cache", objects.definition)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("commits", [0, 1, 3])
def test_an_index_that_is_not_of_its_log_is_built_again(copied, full, commits):
    for number in range(commits):
        copied.commit("a", [{"id": 4 + number, "name": "new"}], follow=False)
    version = copied.follow(full=full)
    assert version.decision == "FULL" and version.data == copied.index.head().number
    assert copied.follow() == version
    assert [row["id"] for row in copied.node().objects.fetch().rows] == [1, *range(4, 4 + commits)]
    assert verify(copied.index).is_equal


def test_a_build_of_a_copy_keeps_its_files_though_others_collect(copied, monkeypatch):
    plain = copied.index.put_version

    def put_version(version):
        collect(copied.index, keep=1, versions=1)
        return plain(version)

    monkeypatch.setattr(copied.index, "put_version", put_version)
    copied.follow()
    assert [row["id"] for row in copied.node().objects.fetch().rows] == [1]


def test_a_collection_keeps_edits_that_the_log_of_a_copy_does_not_have(objects, tmp_path):
    objects.commit("a", [{"id": 1, "name": "x"}])
    objects.node().edit(1, note="mine")
    place = tmp_path / "copy"
    for each in ("edits", "log"):
        shutil.copytree(f"{objects.location}/O/{each}", place / "O" / each)
    objects.flush()
    for each in ("pipelines", "states"):
        shutil.copytree(f"{objects.location}/O/{each}", place / "O" / each)
    made = type(objects)(place, tmp_path / "cache", objects.definition)
    collect(made.index, keep=1, versions=1)
    made.follow()
    assert made.node().get(1)["note"] == "mine"
    made.flush()
    assert made.node().get(1)["note"] == "mine" and verify(made.index).is_equal
