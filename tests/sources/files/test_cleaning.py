# SPDX-License-Identifier: Apache-2.0
"""What becomes of files that a stream has read."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import ConfigurationError, RetriableError
from forebay.sources.files import FileSource
from forebay.storage import local

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
    with pytest.raises(ConfigurationError, match="lies where") as raised:
        FileSource(path=path, file_format="text", clean_source="archive", source_archive_dir=archive)
    assert raised.value.option == "sourceArchiveDir"


def test_an_archive_must_be_named_and_in_the_same_store() -> None:
    with pytest.raises(ConfigurationError, match="not said where"):
        FileSource(path="/data", file_format="text", clean_source="archive")
    with pytest.raises(ConfigurationError, match="different stores"):
        FileSource(path="s3://data/x", file_format="text", clean_source="archive", source_archive_dir="/archive")
    FileSource(path="/data/in*", file_format="text", clean_source="archive", source_archive_dir="/data/archive")


def test_a_file_that_changed_after_it_was_read_is_not_cleaned(put: Put, stream: Begin) -> None:
    path = put("a.txt")
    query = stream(clean_source="delete", on_changed_file="ignore")
    query.trigger(commit=False)
    put("a.txt", "newer\n", at=9)
    query.planner.commit(query.offset)
    assert path.read_text() == "newer\n"


def test_what_was_read_before_it_was_asked_for_stays(put: Put, stream: Begin) -> None:
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

    def fail(_self: object, path: str) -> None:
        raise RetriableError(f"no answer for {path}")

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
        if self == path:
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


@pytest.mark.parametrize("told", [{}, {"file_format": None}, {"base_path": "memory://emptied"}])
def test_a_store_without_directories_that_was_emptied_is_empty_and_no_error(
    stream: Begin, told: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """There a directory is gone with its last file; with a schema of the user's nothing has to be there."""
    store = pytest.importorskip("fsspec").filesystem("memory")
    store.pipe_file("/emptied/a.txt", b"1\n")
    query = stream("memory://emptied", clean_source="delete", **told)
    query.planner.prepare_available_now()
    assert query.drain() == [["1"]]
    assert not store.exists("/emptied")
    for _ in range(2):
        query.restart()
        query.planner.prepare_available_now()
        caplog.clear()
        assert query.drain() == []
        assert caplog.text.count("there is nothing below memory://emptied now") == 1
    query.restart()
    assert query.trigger(limited=False) is None
    store.pipe_file("/emptied/b.txt", b"2\n")
    query.restart()
    query.planner.prepare_available_now()
    assert query.drain() == [["2"]]
    with pytest.raises(ConfigurationError, match="path does not exist"):
        stream("memory://emptied").drain()
