# SPDX-License-Identifier: Apache-2.0
"""Remote files, and directories of many files."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import tarfile
import time
import uuid
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay.errors import DataError
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.tasks.assign_tasks import plan_bounded
from forebay.options import Secret
from forebay.sources.files import FileSource
from forebay.sources.files.split_reader import FileSplitReader
from forebay.stores.stored_file import StoredFile

fsspec = pytest.importorskip("fsspec")

Write = Callable[..., str]
Row = tuple[int, str | None]
ROWS: list[Row] = [(number, f"value {number}") for number in range(500)]


def uploaded(directory: str) -> tuple[Any, str]:
    """Copies a directory into the in-memory store of fsspec, which stands for remote ones."""
    fs = fsspec.filesystem("memory")
    url = f"memory://{uuid.uuid4().hex[:8]}"
    for path in Path(directory).rglob("*"):
        if path.is_file():
            fs.pipe(f"{url}/{path.relative_to(directory)}", path.read_bytes())
    return fs, url


def test_a_remote_table_is_the_local_one(kind: Any, write: Write) -> None:
    names = {f"p={number}/f %2F{kind.suffix}": ROWS[: 100 * number] for number in (1, 2, 5)}
    local = write(kind.name, names)
    fs, url = uploaded(local)
    for options in ({}, {"path_glob_filter": "f*"}, {"recursive_file_lookup": True}):
        tables = [
            forebay.run(
                FileSource(
                    path=path,
                    file_format=kind.name,
                    format_options=kind.options,
                    storage={"skip_instance_cache": Secret("true")} if path == url else {},
                    **options,
                )
            ).to_table()
            for path in (local, url)
        ]
        assert tables[0].num_rows == 800
        assert tables[0].schema == tables[1].schema
        assert sorted(map(repr, tables[0].to_pylist())) == sorted(map(repr, tables[1].to_pylist()))
    fs.rm(url, recursive=True)


def test_remote_files_are_sliced_and_named_in_metadata(kind: Any, write: Write) -> None:
    fs, url = uploaded(write(kind.name, {"f" + kind.suffix: ROWS}))
    source = FileSource(
        path=url, file_format=kind.name, format_options=kind.options, include_metadata=True, max_partition_bytes=1000
    )
    source = source.with_schema(source.schema())
    tasks = plan_bounded(source, HostOptions(num_partitions=4))
    assert len(tasks) == 4
    assert sum(len(slices) for slices in tasks) > 4
    found = []
    for slices in pickle.loads(pickle.dumps(tasks)):
        for one in slices:
            reader = FileSplitReader(source)
            reader.add_splits([one])
            finished = False
            while not finished:
                (part,) = reader.fetch()
                finished = part.finished
                found += [] if part.batch is None else part.batch.to_pylist()
    assert len(found) == len(ROWS)
    assert {row["_metadata"]["file_path"] for row in found} == {f"{url}/f{kind.suffix}"}
    assert sum(
        {row["_metadata"]["file_block_start"]: row["_metadata"]["file_block_length"] for row in found}.values()
    ) == fs.size(f"{url}/f{kind.suffix}")
    fs.rm(url, recursive=True)


def test_a_remote_file_that_changes_is_named(kind: Any, write: Write) -> None:
    fs, url = uploaded(write(kind.name, {"f" + kind.suffix: ROWS}))
    source = FileSource(path=url, file_format=kind.name, format_options=kind.options)
    source = source.with_schema(source.schema())
    (task,) = plan_bounded(source, HostOptions(num_partitions=1))
    data = fs.cat_file(f"{url}/f{kind.suffix}")
    for change in (lambda: fs.pipe(f"{url}/f{kind.suffix}", data + b"\n"), lambda: fs.rm(f"{url}/f{kind.suffix}")):
        change()
        reader = FileSplitReader(source)
        reader.add_splits(task)
        with pytest.raises(DataError) as raised:
            reader.fetch()
        assert raised.value.split == f"{url}/f{kind.suffix}"
        assert "has changed" in raised.value.message or "no longer exists" in raised.value.message


def test_planning_2000_files_opens_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    for day in range(20):
        directory = tmp_path / f"day={day}"
        directory.mkdir()
        for number in range(100):
            (directory / f"{number}.jsonl.gz").write_bytes(gzip.compress(json.dumps({"n": number}).encode()))
    source = FileSource(path=str(tmp_path), file_format="json")
    source = source.with_schema(pa.schema([("n", pa.int64()), ("day", pa.int32())]))

    def refused(self: StoredFile) -> None:
        raise AssertionError(f"opened {self.path}")

    started = time.perf_counter()
    with monkeypatch.context() as patched:
        patched.setattr(StoredFile, "open", refused)
        tasks = plan_bounded(source, HostOptions(num_partitions=8))
    record_property("report", f"2,000 files planned in {time.perf_counter() - started:.2f} s")
    assert len(tasks) == 8
    assert sum(len(slices) for slices in tasks) == 2000
    assert {len(slices) for slices in tasks} == {250}
    assert len(pickle.dumps(tasks)) < 1 << 20


@pytest.mark.parametrize("kind_of_archive", ["zip", "tar"])
def test_files_inside_an_archive_are_read_by_their_own_names(tmp_path: Path, kind_of_archive: str) -> None:
    inside = {"a.csv": b"1,x\n", "b.CSV": b"2,y\n", "c.csv.GZ": gzip.compress(b"3,z\n")}
    archive = tmp_path / f"p.{kind_of_archive}"
    if kind_of_archive == "zip":
        with zipfile.ZipFile(archive, "w") as packed:
            for name, data in inside.items():
                packed.writestr(f"d/{name}", data)
    else:
        with tarfile.open(archive, "w") as packed_tar:
            for name, data in inside.items():
                member = tarfile.TarInfo(f"d/{name}")
                member.size = len(data)
                packed_tar.addfile(member, io.BytesIO(data))
    schema = pa.schema([("k", pa.int64()), ("v", pa.string())])
    rows = [{"k": number, "v": v} for number, v in enumerate("xyz", 1)]
    for path in (f"{kind_of_archive}://d::file://{archive}", f"{kind_of_archive}://d/*.*::{archive}"):
        table = forebay.run(FileSource(path=path).with_schema(schema)).to_table()
        assert sorted(table.to_pylist(), key=lambda row: row["k"]) == rows
