# SPDX-License-Identifier: Apache-2.0
"""An archive keeps all versions, and one copy of each."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

NOON = 1_700_000_000
"""The time of files that `put` writes, in seconds since 1970."""
Put = Callable[..., Path]
Begin = Callable[..., Any]


def archived(root: Path) -> dict[str, str]:
    return {each.name: each.read_text() for each in root.rglob("*") if each.is_file()}


def test_nothing_that_was_archived_is_overwritten(put: Put, stream: Begin, tmp_path: Path) -> None:
    """Nor by versions of the same time, from `touch -d` or a coarse clock."""
    archive = tmp_path / "archive"
    query = stream(clean_source="archive", source_archive_dir=str(archive), on_changed_file="reread")
    for text, at in (("1\n", 1.0), ("two\n", 2.0), ("three\n", 2.0), ("fourth\n", 2.0)):
        put("a.txt", text, at=at)
        assert query.drain() == [[text.strip()]]
    second = f"a.txt.{(NOON + 2) * 10**9}"
    assert archived(archive) == {
        "a.txt": "1\n",
        second: "two\n",
        f"{second}.1": "three\n",
        f"{second}.2": "fourth\n",
    }


def test_a_kill_between_copying_and_deleting_leaves_one_copy(
    put: Put, stream: Begin, tmp_path: Path, inbox: Path
) -> None:
    archive = tmp_path / "archive"
    query = stream(clean_source="archive", source_archive_dir=str(archive))
    path = put("a.txt", "1\n")
    assert query.trigger(commit=False) == [("1",)]
    copy = Path(f"{archive}{path}")
    copy.parent.mkdir(parents=True)
    shutil.copy2(path, copy)
    query.planner.commit(query.offset)
    assert archived(archive) == {"a.txt": "1\n"}
    assert list(inbox.iterdir()) == []


def test_a_similar_file_in_the_archive_is_no_copy(put: Put, stream: Begin, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    query = stream(clean_source="archive", source_archive_dir=str(archive))
    path = put("a.txt", "1\n")
    assert query.trigger(commit=False) == [("1",)]
    other = Path(f"{archive}{path}")
    other.parent.mkdir(parents=True)
    other.write_text("2\n")
    os.utime(other, ns=(0, path.stat().st_mtime_ns))
    query.planner.commit(query.offset)
    assert archived(archive) == {"a.txt": "2\n", f"a.txt.{NOON * 10**9}": "1\n"}


def test_an_archive_that_is_the_inbox_under_another_path_loses_nothing(put: Put, stream: Begin, tmp_path: Path) -> None:
    """If a disk is mounted twice, the file in the archive is no copy, but the file itself."""
    archive = tmp_path / "archive"
    query = stream(clean_source="archive", source_archive_dir=str(archive))
    path = put("a.txt", "1\n")
    assert query.trigger(commit=False) == [("1",)]
    same = Path(f"{archive}{path}")
    same.parent.mkdir(parents=True)
    same.hardlink_to(path)
    query.planner.commit(query.offset)
    assert archived(archive) == {"a.txt": "1\n", f"a.txt.{NOON * 10**9}": "1\n"}


def test_a_store_that_copies_and_does_not_delete_is_filled_with_no_copies(
    stream: Begin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each start cleans again."""
    store = pytest.importorskip("fsspec").filesystem("memory")
    store.pipe_file("/kept/a.txt", b"1\n")
    query = stream("memory://kept", clean_source="archive", source_archive_dir="memory://kept-archive")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("no deleting here")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        for name in ("rm", "_rm", "rm_file"):
            patch.setattr(type(store), name, refuse)
        assert query.drain() == [["1"]]
        for _ in range(3):
            query.restart()
            assert query.drain() == []
    assert "no deleting here" in caplog.text
    assert store.find("/kept-archive") == ["/kept-archive/kept/a.txt"]
    query.restart()
    assert query.drain() == []
    assert store.find("/kept") == []
    assert store.find("/kept-archive") == ["/kept-archive/kept/a.txt"]
    store.rm("/kept-archive", recursive=True)


def test_versions_of_an_object_are_archived_side_by_side(stream: Begin) -> None:
    store = pytest.importorskip("fsspec").filesystem("memory")
    query = stream(
        "memory://twice/*",
        clean_source="archive",
        source_archive_dir="memory://twice-archive",
        on_changed_file="reread",
    )
    for text in (b"1\n", b"2\n", b"1\n"):
        store.pipe_file("/twice/a.txt", text)
        assert query.drain() == [[text.decode().strip()]]
    names = store.find("/twice-archive")
    assert [store.cat_file(each) for each in names] == [b"1\n", b"2\n", b"1\n"]
    store.rm("/twice-archive", recursive=True)


def test_an_archive_is_the_one_its_path_leads_to(put: Put, stream: Begin, tmp_path: Path, inbox: Path) -> None:
    put("a.txt", "1\n")
    query = stream(f"{inbox}/../in", clean_source="archive", source_archive_dir=f"{inbox}/not_there/../../archive")
    assert query.drain() == [["1"]]
    assert list(inbox.iterdir()) == []
    assert Path(f"{tmp_path}/archive{inbox}/a.txt").read_text() == "1\n"
