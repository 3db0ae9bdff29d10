# SPDX-License-Identifier: Apache-2.0
"""What `cleanSource` does not touch: files outside the paths of the stream, whatever a link or a checkpoint says."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hostile_names import Untouched, hostile_names

from forebay.errors import ConfigurationError, DataError, ForebayError
from forebay.sources.files import FileSource, FileSplit
from forebay.sources.files.cleaning import Cleaner, archived_path
from forebay.sources.files.file_index import list_files
from forebay.stores import remote
from forebay.stores.file_status import FileStatus
from forebay.stores.paths import is_url
from forebay.stores.store import StorageOptions

Put = Callable[..., Path]
Begin = Callable[..., Any]


@pytest.fixture
def outside(tmp_path: Path) -> Untouched:
    return Untouched(tmp_path / "outside")


def split_of(path: str) -> FileSplit:
    """Return the split that an enemy writes into a checkpoint: of a file as it is, so that it seems to be unchanged."""
    try:
        status = Path(path).stat()
        return FileSplit.of(FileStatus(path, status.st_size, status.st_mtime_ns), (), clean=True)
    except (OSError, ValueError):
        return FileSplit.of(FileStatus(path, 1, 1), (), clean=True)


@pytest.mark.parametrize("clean", ["delete", "archive"])
@pytest.mark.parametrize("pattern", ["", "/*", "/{linked,sub}"])
def test_a_linked_directory_does_not_lead_out_of_the_source(
    put: Put,
    stream: Begin,
    inbox: Path,
    tmp_path: Path,
    outside: Untouched,
    caplog: pytest.LogCaptureFixture,
    clean: str,
    pattern: str,
) -> None:
    own = [put("sub/a.txt"), put("sub/deep/b.txt")]
    (inbox / "linked").symlink_to(outside.directory)
    query = stream(
        f"{inbox}{pattern}",
        recursive_file_lookup=True,
        clean_source=clean,
        source_archive_dir=str(tmp_path / "archive"),
    )
    with caplog.at_level(logging.WARNING):
        rows = query.drain()
    assert {"victim.txt", "sub/a.txt", "sub/deep/b.txt"} <= set(rows[0]), "it is read"
    outside.check()
    assert not any(path.exists() for path in own)
    assert "a linked directory leads out of them" in caplog.text and "linked/victim.txt" in caplog.text


def test_a_source_that_is_itself_a_link_is_cleaned(put: Put, stream: Begin, inbox: Path, tmp_path: Path) -> None:
    files = [put("a.txt"), put("d/b.txt")]
    (inbox / "also").symlink_to(inbox / "d")
    (tmp_path / "link").symlink_to(inbox)
    query = stream(f"{tmp_path}/link/../link", recursive_file_lookup=True, clean_source="delete")
    assert len(query.drain()[0]) == 3
    assert not any(file.exists() for file in files)


def test_a_link_that_is_the_whole_path_is_removed_and_its_target_stays(
    put: Put, stream: Begin, tmp_path: Path, inbox: Path
) -> None:
    target = put("a.txt")
    (tmp_path / "one.txt").symlink_to(target)
    query = stream(f"{tmp_path}/one.txt", clean_source="delete")
    assert query.drain() == [["a.txt"]]
    assert target.exists() and not (tmp_path / "one.txt").is_symlink()


@pytest.mark.parametrize("clean", ["delete", "archive"])
@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.soak)])
def test_no_path_in_a_checkpoint_is_cleaned_outside_of_the_source(
    inbox: Path, put: Put, tmp_path: Path, outside: Untouched, clean: str, count: int
) -> None:
    put("keep/a.txt")
    (inbox / "linked").symlink_to(outside.directory)
    archive = tmp_path / "archive"
    cleaner = Cleaner(
        FileSource(path=f"{inbox}/keep", file_format="text", clean_source=clean, source_archive_dir=str(archive))
    )
    for number, name in enumerate(hostile_names(7, count, outside.directory)):
        path = name if number % 2 and name.startswith("/") else f"{inbox}/keep/{name}"
        if "\x00" not in path and "\ud800" not in path and not is_url(path):
            cleaner.clean([split_of(path)])
    cleaner.clean([split_of(f"{inbox}/linked/victim.txt"), split_of(f"/../..{inbox}/keep/a.txt")])
    outside.check()
    assert set(os.listdir(tmp_path)) <= {"in", "outside", "archive"}
    assert {path.name for path in archive.rglob("*") if path.is_file()} <= {"a.txt"}


@pytest.mark.parametrize(
    ("path", "cleaned"),
    [
        ("s3://b/in/a", True),
        ("s3://b/in/../a", True),  # an ordinary name in a key
        ("s3://b/inn/a", False),
        ("s3://c/in/a", False),
        ("sftp://h/in/a", True),
        ("sftp://h/in/../etc/a", False),
        ("sftp://other/in/a", False),
        ("/b/in/a", False),
    ],
)
def test_an_object_outside_of_the_paths_is_not_cleaned(path: str, cleaned: bool) -> None:
    source = FileSource(paths=["s3://b/in", "sftp://h/in/*"], file_format="text", clean_source="delete")
    assert Cleaner(source)._is_inside(path) is cleaned


@pytest.mark.parametrize("count", [300])
def test_the_archive_keeps_every_listed_file_below_itself(tmp_path: Path, outside: Untouched, count: int) -> None:
    """Names of one directory entry have no slash; a local path has no `..`."""
    for name in hostile_names(8, count, outside.directory):
        entry = name.replace("/", "_").replace("\x00", "_")
        if entry not in ("", ".", ".."):
            target = archived_path(str(tmp_path / "archive"), f"/in/{entry}")
            assert os.path.normpath(target) == target == f"{tmp_path}/archive/in/{entry}"


class Lister:
    """A remote server that lists what it likes."""

    protocol = "sftp"

    def __init__(self, name: str) -> None:
        self.name, self.kind = name, "directory"

    def invalidate_cache(self) -> None:
        pass

    def _strip_protocol(self, path: str) -> str:
        return path.removeprefix("sftp://h")

    def ls(self, path: str, *, detail: bool) -> list[dict[str, Any]]:
        return [{"name": f"{path}/{self.name}", "type": self.kind, "size": 0}]

    def info(self, path: str) -> dict[str, Any]:
        return {"name": path, "type": "directory", "size": 0}


@pytest.mark.parametrize("name", ["..", "."])
def test_a_server_that_lists_the_directory_above_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(remote, "_connect", lambda *_: Lister(name))
    with pytest.raises(ConfigurationError, match="which leads out of the directory") as caught:
        list_files(["sftp://h/in"])
    assert caught.value.advice


def test_the_log_of_a_sink_does_not_lead_into_another_store(
    memory: Callable[..., str], tmp_path: Path, outside: Untouched
) -> None:
    log = f'v1\n{{"path":"file://{outside.directory}/victim.txt","size":10,"isDir":false,"action":"add"}}\n'
    root = memory({"_spark_metadata/0": log.encode()})
    with pytest.raises(DataError, match=r"names 'file:.*victim\.txt', which is in another store") as caught:
        list_files([root])
    assert caught.value.advice


@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.soak)])
def test_every_entry_of_a_listing_is_below_its_directory(
    monkeypatch: pytest.MonkeyPatch, outside: Untouched, count: int
) -> None:
    """The names are what a server answers; whether it calls them files or directories is its choice."""
    listed = 0
    for number, name in enumerate(hostile_names(9, count, outside.directory)):
        lister = Lister(name)
        lister.kind = "file" if number % 2 else "directory"
        monkeypatch.setattr(remote, "_connect", lambda *_, lister=lister: lister)
        try:
            children = remote.RemoteStore("sftp://h/in", StorageOptions()).children("sftp://h/in", lambda _: True)
        except ConfigurationError as error:
            assert error.advice  # noqa: PT017
            continue
        assert children is not None
        for path in (*children.directories, *(file.path for file in children.files)):
            assert path.startswith("sftp://h/in/") and ".." not in path.split("/"), name
            listed += 1
    assert listed


@pytest.mark.parametrize("count", [100, pytest.param(2_000, marks=pytest.mark.soak)])
def test_the_log_of_a_sink_cleans_nothing(inbox: Path, put: Put, outside: Untouched, count: int) -> None:
    put("a.txt")
    (inbox / "_spark_metadata").mkdir()
    entries = [
        {"path": name if number % 2 else f"{inbox}/{name}", "size": 1, "isDir": False, "action": "add"}
        for number, name in enumerate(hostile_names(10, count, outside.directory))
    ]
    cleaner = Cleaner(FileSource(path=str(inbox), file_format="text", clean_source="delete"))
    for entry in entries:
        (inbox / "_spark_metadata" / "0").write_text(f"v1\n{json.dumps(entry)}")
        with suppress(ForebayError):
            cleaner.clean([split_of(file.path) for file in list_files([str(inbox)]).files])
    outside.check()
    assert (inbox / "a.txt").exists()


def test_a_link_in_the_archive_does_not_lead_out_of_it(
    put: Put, stream: Begin, inbox: Path, tmp_path: Path, outside: Untouched, caplog: pytest.LogCaptureFixture
) -> None:
    file, other = put("sub/a.txt"), put("b.txt")
    archive = tmp_path / "archive"
    above = archive / str(inbox)[1:]
    above.mkdir(parents=True)
    (above / "sub").symlink_to(outside.directory)
    (tmp_path / "also").symlink_to(archive)  # the whole archive may be behind a link
    query = stream(
        str(inbox), recursive_file_lookup=True, clean_source="archive", source_archive_dir=str(tmp_path / "also")
    )
    with caplog.at_level(logging.WARNING):
        assert sorted(query.drain()[0]) == ["b.txt", "sub/a.txt"]
    outside.check()
    assert file.exists() and not other.exists() and (above / "b.txt").exists()
    assert "leads out of the archive" in caplog.text and "sub/a.txt" in caplog.text
