# SPDX-License-Identifier: Apache-2.0
"""Deleting the file that was read and no other: without hard links, after kills, and beside other processes."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.sources.files.listing import is_hidden
from forebay.stores import local as safe_delete
from forebay.stores.file_status import FileStatus
from forebay.stores.local import LocalStore


def status(path: Path) -> FileStatus:
    found = path.stat()
    return FileStatus(str(path), found.st_size, found.st_mtime_ns)


def names(directory: Path) -> list[str]:
    return sorted(each.name for each in directory.iterdir())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.csv.gz"
    path.write_text("old")
    os.utime(path, (1, 1))
    return path


@pytest.fixture(params=["links", "no links"])
def _with_or_without_links(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "no links":

        def refuse(*_: str, **__: bool) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(safe_delete, "_link", refuse)


def no_use(path: str) -> None:
    raise AssertionError(f"{path} is not what was read")


@pytest.mark.usefixtures("_with_or_without_links")
def test_a_newer_file_is_restored(file: Path) -> None:
    then = status(file)
    file.write_text("newer")
    assert safe_delete.take_if_unchanged(then, no_use) is False
    assert file.read_text() == "newer"
    assert names(file.parent) == ["a.csv.gz"]
    file.unlink()
    assert safe_delete.take_if_unchanged(then, no_use) is False
    file.mkdir()
    assert safe_delete.take_if_unchanged(then, no_use) is False
    assert names(file.parent) == ["a.csv.gz"]


@pytest.mark.usefixtures("_with_or_without_links")
def test_the_file_is_hidden_during_the_action_and_restored_if_it_fails(file: Path) -> None:
    def fail(hidden: str) -> None:
        assert is_hidden(Path(hidden).name)
        assert names(file.parent) == [Path(hidden).name]
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        safe_delete.take_if_unchanged(status(file), fail)
    assert names(file.parent) == ["a.csv.gz"]
    assert file.read_text() == "old"


@pytest.mark.usefixtures("_with_or_without_links")
def test_a_newer_file_is_not_replaced(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_hidden: str) -> None:
        file.write_text("newer")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"), caplog.at_level(logging.WARNING):
        safe_delete.take_if_unchanged(status(file), fail)
    assert file.read_text() == "newer"
    (hidden,) = [name for name in names(file.parent) if is_hidden(name)]
    assert hidden in caplog.text
    safe_delete.restore_hidden(str(file.parent), lambda _: False)  # the next process does not know that it was read
    (other,) = [name for name in names(file.parent) if name != file.name]
    assert other.startswith("a-")
    assert other.endswith(".csv.gz")
    assert (file.parent / other).read_text() == "old"


@pytest.mark.usefixtures("_with_or_without_links")
def test_the_file_that_was_read_goes(file: Path, tmp_path: Path) -> None:
    store, then = LocalStore(), status(file)
    assert store.move(then, str(tmp_path / "x" / "b")) is True
    assert (tmp_path / "x" / "b").read_text() == "old"
    then = status(tmp_path / "x" / "b")
    file.write_text("another")
    assert store.delete(then) is True
    assert store.delete(then) is False
    assert names(tmp_path / "x") == []
    assert names(tmp_path) == ["a.csv.gz", "x"]


@pytest.mark.usefixtures("_with_or_without_links")
def test_a_hidden_file_is_restored(file: Path, tmp_path: Path) -> None:
    then = status(file)
    file.rename(safe_delete._hidden(str(file)))
    offered: list[FileStatus] = []
    safe_delete.restore_hidden(str(tmp_path), lambda each: bool(offered.append(each)))
    assert offered == [then]
    assert status(file) == then
    assert names(tmp_path) == ["a.csv.gz"]
    safe_delete.restore_hidden(str(tmp_path / "nowhere"), lambda _: False)


def test_a_kill_between_two_names_leaves_one(file: Path, tmp_path: Path) -> None:
    os.link(file, safe_delete._hidden(str(file)))
    safe_delete.restore_hidden(str(tmp_path), lambda _: False)
    assert names(tmp_path) == ["a.csv.gz"]


@pytest.mark.parametrize("take", ["delete", "move"])
def test_another_cleaner_of_the_same_directory_does_no_harm(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, take: str
) -> None:
    """It has just started, and restores the hidden file."""
    store, then = LocalStore(), status(file)
    plain: Callable[[str, str], FileStatus] = safe_delete._status

    def meanwhile(path: str, hidden: str) -> FileStatus:
        monkeypatch.setattr(safe_delete, "_status", plain)
        safe_delete.restore_hidden(str(tmp_path), lambda _: True)
        return plain(path, hidden)

    monkeypatch.setattr(safe_delete, "_status", meanwhile)
    target = tmp_path / "archive" / "a"
    taken = store.delete(then) if take == "delete" else store.move(then, str(target))
    assert taken is False
    assert file.read_text() == "old"


def test_a_link_is_deleted_instead_of_its_target(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "b.csv"
    link.symlink_to(file.name)
    then = status(link)
    assert safe_delete.take_if_unchanged(FileStatus(then.path, 1, 1), no_use) is False
    assert link.is_symlink()
    assert LocalStore().delete(then) is True
    assert names(tmp_path) == ["a.csv.gz"]


@pytest.mark.usefixtures("_with_or_without_links")
def test_only_a_broken_link_is_removed(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = tmp_path / "b.csv"
    link.symlink_to("nowhere")
    assert safe_delete.remove_broken_link(str(file)) is False
    assert safe_delete.remove_broken_link(str(tmp_path / "c.csv")) is False
    assert safe_delete.remove_broken_link(str(link)) is True
    link.symlink_to(file.name)
    assert safe_delete.remove_broken_link(str(link)) is False
    assert names(tmp_path) == ["a.csv.gz", "b.csv"]
    link.unlink()
    link.symlink_to("nowhere")
    plain = safe_delete._hidden

    def meanwhile(path: str) -> str:
        link.unlink()
        link.write_text("newer")
        return plain(path)

    monkeypatch.setattr(safe_delete, "_hidden", meanwhile)
    assert safe_delete.remove_broken_link(str(link)) is False
    assert link.read_text() == "newer"
    assert names(tmp_path) == ["a.csv.gz", "b.csv"]
