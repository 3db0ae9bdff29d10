# SPDX-License-Identifier: Apache-2.0
"""Clean-up of files that a stream has read."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import ConfigurationError, RetriableError
from forebay.sources.files import FileSource, FileSplit, cleaning
from forebay.sources.files.cleaning import Cleaner
from forebay.stores import local
from forebay.stores import local as safe_delete
from forebay.stores import remote as fsspec_info
from forebay.stores.file_status import FileStatus
from forebay.stores.stored_file import StoredFile

Put = Callable[..., Path]
Begin = Callable[..., Any]


@pytest.mark.parametrize(
    ("path", "archive"),
    [
        ("/data/in", "/data/in"),
        ("/data/in", "/data/in/archive"),
        ("/data/in/deeper", "/data/in"),
        ("/data/*", "/data/archive"),
        ("/data/{in,out}/x", "/data/out/x/y"),
        ("/{data/a,other/b}", "/other/b/c"),
        ("/*/in", "/archive"),
    ],
)
def test_an_archive_where_the_stream_reads_is_refused(path: str, archive: str) -> None:
    with pytest.raises(ConfigurationError, match="may contain the archive") as raised:
        FileSource(path=path, file_format="text", clean_source="archive", source_archive_dir=archive)
    assert raised.value.option == "sourceArchiveDir"


@pytest.mark.parametrize(
    ("path", "archive"),
    [
        ("e", "d/../e/arch"),
        ("d/../e", "e/arch"),
        ("d/*/../../e", "e/arch"),
        ("{d/x,e/y}/..", "e/arch"),
        ("e", "to_e/arch"),
        ("to_e", "e/arch"),
        ("to_e/*", "e/arch/deep"),
        ("e", "d/to_f/../arch"),
        ("d/to_f/..", "e/arch"),
    ],
)
def test_an_archive_where_the_stream_reads_is_found_out_by_any_name(tmp_path: Path, path: str, archive: str) -> None:
    (tmp_path / "e" / "f").mkdir(parents=True)
    (tmp_path / "d" / "x").mkdir(parents=True)
    (tmp_path / "to_e").symlink_to("e")
    (tmp_path / "d" / "to_f").symlink_to(tmp_path / "e" / "f")
    with pytest.raises(ConfigurationError, match="may contain the archive"):
        FileSource(
            path=f"{tmp_path}/{path}",
            file_format="text",
            clean_source="archive",
            source_archive_dir=f"{tmp_path}/{archive}",
        )
    for elsewhere in ("d/arch", "e/../arch", "to_e/../arch"):
        there = f"{tmp_path}/{elsewhere}"
        FileSource(path=f"{tmp_path}/e", file_format="text", clean_source="archive", source_archive_dir=there)


def test_an_archive_must_be_named_and_in_the_same_store() -> None:
    with pytest.raises(ConfigurationError, match="sourceArchiveDir is not set"):
        FileSource(path="/data", file_format="text", clean_source="archive")
    with pytest.raises(ConfigurationError, match="different stores"):
        FileSource(path="s3://data/x", file_format="text", clean_source="archive", source_archive_dir="/archive")
    FileSource(path="/data/in*", file_format="text", clean_source="archive", source_archive_dir="/data/archive")


@pytest.fixture
def without_versions(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes the in-memory store report neither times nor ETags, as Databricks' store."""
    plain = fsspec_info.status

    def begin() -> None:
        monkeypatch.setattr(
            fsspec_info, "status", lambda path, info: replace(plain(path, info), modified_at=0, etag=None)
        )

    return begin


@pytest.mark.parametrize("clean", ["delete", "archive"])
def test_files_without_a_version_are_not_cleaned(
    stream: Begin, without_versions: Callable[[], None], clean: str
) -> None:
    store = pytest.importorskip("fsspec").filesystem("memory")
    store.pipe_file("/unversioned/a.txt", b"1\n")
    without_versions()
    query = stream("memory://unversioned", clean_source=clean, source_archive_dir="memory://archive")
    with pytest.raises(
        ConfigurationError, match=r"neither when 'memory://unversioned/a\.txt' was changed nor"
    ) as raised:
        query.trigger()
    assert raised.value.option == "cleanSource"
    query.restart(clean_source="off")
    assert query.drain() == [["1"]]
    assert store.find("/unversioned") == ["/unversioned/a.txt"]
    store.rm("/unversioned", recursive=True)


def test_a_file_whose_store_stops_reporting_versions_stays(
    stream: Begin, without_versions: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    store = pytest.importorskip("fsspec").filesystem("memory")
    store.pipe_file("/unversioned/a.txt", b"1\n")
    split = FileSplit.of(FileStatus("memory://unversioned/a.txt", 2, 0), (), clean=True)
    without_versions()
    with caplog.at_level(logging.WARNING):
        Cleaner(FileSource(path="memory://unversioned", file_format="text", clean_source="delete")).clean([split])
    assert "neither when" in caplog.text
    assert store.find("/unversioned") == ["/unversioned/a.txt"]
    store.rm("/unversioned", recursive=True)


def test_a_file_that_changed_after_it_was_read_is_not_cleaned(put: Put, stream: Begin) -> None:
    path = put("a.txt")
    query = stream(clean_source="delete", on_changed_file="ignore")
    query.trigger(commit=False)
    put("a.txt", "newer\n", at=9)
    query.planner.commit(query.offset)
    assert path.read_text() == "newer\n"


def test_files_read_before_clean_source_was_set_stay(put: Put, stream: Begin) -> None:
    old = put("old.txt")
    query = stream()
    query.trigger()
    query.restart(clean_source="delete")
    new = put("new.txt")
    query.trigger()
    query.restart()
    query.plan()
    assert old.exists()
    assert not new.exists()


def test_a_clean_up_that_fails_is_a_warning(
    put: Put, stream: Begin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put("a.txt")
    query = stream(clean_source="delete")

    def fail(_self: object, file: FileStatus) -> bool:
        raise RetriableError(f"no answer for {file.path}")

    monkeypatch.setattr(local.LocalStore, "delete", fail)
    with caplog.at_level(logging.WARNING):
        query.trigger()
    assert "cleanSource=delete failed for 1 files" in caplog.text


def test_an_archive_on_another_disk_is_copied_to(
    put: Put, stream: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put("a.txt")
    plain = Path.replace

    def crossing(self: Path, target: str) -> Path:
        if self.parent == path.parent:
            raise OSError(18, "Invalid cross-device link")
        return plain(self, target)

    monkeypatch.setattr(Path, "replace", crossing)
    query = stream(clean_source="archive", source_archive_dir=str(tmp_path / "archive"))
    query.trigger()
    assert not path.exists()
    assert [one.name for one in Path(f"{tmp_path}/archive{path.parent}").iterdir()] == ["a.txt"]


def test_files_in_a_store_are_deleted_and_archived(stream: Begin) -> None:
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")
    store.pipe_file("/inbox/a.txt", b"1\n")
    query = stream("memory://inbox", clean_source="archive", source_archive_dir="memory://archive")
    assert query.drain() == [["1"]]
    assert store.find("/inbox") == []
    assert store.find("/archive") == ["/archive/inbox/a.txt"]
    store.pipe_file("/inbox/b.txt", b"2\n")
    query.restart(clean_source="delete")
    assert query.drain() == [["2"]]
    assert store.find("/inbox") == []
    store.rm("/archive", recursive=True)


@pytest.mark.parametrize("options", [{}, {"file_format": None}, {"base_path": "memory://emptied"}])
def test_a_store_without_directories_that_was_emptied_is_empty_and_no_error(
    stream: Begin, options: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A directory disappears with its last file; with the user's schema no file is needed."""
    store = pytest.importorskip("fsspec").filesystem("memory")
    store.pipe_file("/emptied/a.txt", b"1\n")
    query = stream("memory://emptied", clean_source="delete", **options)
    query.planner.prepare_available_now()
    assert query.drain() == [["1"]]
    assert not store.exists("/emptied")
    for _ in range(2):
        query.restart()
        query.planner.prepare_available_now()
        caplog.clear()
        assert query.drain() == []
        assert caplog.text.count("there is no file below memory://emptied now") == 1
    query.restart()
    assert query.trigger(limited=False) is None
    store.pipe_file("/emptied/b.txt", b"2\n")
    query.restart()
    query.planner.prepare_available_now()
    assert query.drain() == [["2"]]
    with pytest.raises(ConfigurationError, match="path does not exist"):
        stream("memory://emptied").drain()


@pytest.fixture
def at_the_last_moment(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Calls a function once, after a file to be cleaned was checked and before it is removed."""

    def set_up(work: Callable[[], object]) -> None:
        plain, left = StoredFile.now, [work]

        def now(self: StoredFile) -> FileStatus | None:
            found = plain(self)
            if left:
                left.pop()()
            return found

        monkeypatch.setattr(StoredFile, "now", now)

    return set_up


@pytest.mark.parametrize("clean", ["delete", "archive"])
def test_a_file_that_is_replaced_at_the_last_moment_stays_and_is_read(
    put: Put, stream: Begin, tmp_path: Path, at_the_last_moment: Any, clean: str
) -> None:
    path = put("a.txt", "1\n")
    query = stream(clean_source=clean, source_archive_dir=str(tmp_path / "archive"), on_changed_file="reread")
    assert query.trigger(commit=False) == [("1",)]
    at_the_last_moment(lambda: put("a.txt", "newer\n", at=9))
    query.planner.commit(query.offset)
    assert [each.name for each in path.parent.iterdir()] == ["a.txt"]
    assert path.read_text() == "newer\n"
    assert query.drain() == [["newer"]]
    assert list(path.parent.iterdir()) == []


def test_of_two_that_came_meanwhile_both_are_read_and_the_first_one_is_named(
    put: Put, stream: Begin, inbox: Path, at_the_last_moment: Any, monkeypatch: Any, caplog: Any
) -> None:
    put("a.b.txt", "1\n")
    query = stream(clean_source="delete", on_changed_file="reread", path_glob_filter="a*.b.txt")
    assert query.trigger(commit=False) == [("1",)]
    at_the_last_moment(lambda: put("a.b.txt", "newer\n", at=9))
    plain = os.link

    def late(*names: str, **options: bool) -> None:
        put("a.b.txt", "newest\n", at=10)
        plain(*names, **options)

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(safe_delete, "_link", late)
        query.planner.commit(query.offset)
    other = next(each.name for each in inbox.iterdir() if each.name != "a.b.txt")
    assert "was replaced twice" in caplog.text
    assert other in caplog.text
    assert sorted(value for values in query.drain() for value in values) == ["newer", "newest"]
    assert list(inbox.iterdir()) == []


@pytest.mark.parametrize("replaced", [False, True])
def test_what_a_kill_left_half_cleaned_comes_back_at_the_next_start(
    put: Put, stream: Begin, inbox: Path, replaced: bool
) -> None:
    """The file was hidden, and not yet compared with the one that was read."""
    put("a.txt", "1\n")
    query = stream(clean_source="delete", on_changed_file="reread")
    end = query.plan()
    assert query.read(end) == [("1",)]
    query.offset = end
    if replaced:
        put("a.txt", "newer\n", at=9)
    (inbox / "a.txt").rename(safe_delete._hidden(str(inbox / "a.txt")))
    query.restart()
    assert query.drain() == ([["newer"]] if replaced else [])
    assert list(inbox.iterdir()) == []


def test_a_file_that_cannot_be_archived_keeps_its_name(
    put: Put, stream: Begin, tmp_path: Path, inbox: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    put("a.txt")
    query = stream(clean_source="archive", source_archive_dir=str(tmp_path / "archive"))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(Path, "replace", full)
        query.trigger()
    assert "No space left" in caplog.text
    assert [each.name for each in inbox.iterdir()] == ["a.txt"]
    query.restart()
    assert query.drain() == []
    assert list(inbox.iterdir()) == []


@pytest.mark.parametrize("clean", ["delete", "archive"])
@pytest.mark.parametrize("names", [("a.txt", "b.txt"), ("b.txt", "a.txt")], ids=["target first", "link first"])
def test_a_link_whose_file_was_cleaned_goes_too(
    put: Put, stream: Begin, tmp_path: Path, inbox: Path, clean: str, names: tuple[str, str]
) -> None:
    """It would be a broken link, which makes listings fail."""
    target, link = names
    put(target, "1\n")
    (inbox / link).symlink_to(target)
    query = stream(clean_source=clean, source_archive_dir=str(tmp_path / "archive"))
    assert query.drain() == [["1", "1"]]
    assert list(inbox.iterdir()) == []
    put("c.txt", "2\n")
    assert query.drain() == [["2"]]


@pytest.mark.parametrize("many", [False, True])
def test_a_kill_between_a_file_and_its_link_leaves_no_broken_link(
    put: Put, stream: Begin, inbox: Path, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    if many:
        monkeypatch.setattr(cleaning, "_MANY", 1)
    target = put("a.txt", "1\n")
    (inbox / "b.txt").symlink_to("a.txt")
    query = stream(clean_source="delete")
    assert query.trigger(commit=False) == [("1",), ("1",)]
    target.unlink()
    query.restart()
    assert query.drain() == []
    assert list(inbox.iterdir()) == []


def test_a_broken_link_that_was_not_read_is_an_error_and_stays(put: Put, stream: Begin, inbox: Path) -> None:
    put("a.txt", "1\n")
    query = stream(clean_source="delete")
    assert query.trigger() == [("1",)]
    (inbox / "c.txt").symlink_to("nowhere")
    with pytest.raises(ConfigurationError, match="broken link"):
        query.trigger()
    assert (inbox / "c.txt").is_symlink()
