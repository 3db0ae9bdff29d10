# SPDX-License-Identifier: Apache-2.0
"""Small files that are parsed together: the rows, positions and errors of files that are read alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay.errors import DataError
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.split_reader import Fetched
from forebay.framework.tasks.assign_tasks import plan_bounded
from forebay.sources.files import FileSource, small_files
from forebay.sources.files.split import FileSplit
from forebay.sources.files.split_reader import FileSplitReader

LINES = pa.schema([("value", pa.string())])
RECORDS = pa.schema([("a", pa.int64()), ("b", pa.string()), ("_corrupt_record", pa.string())])

# Bytes that end, hide or multiply records.
PIECES = {
    "text": [b"a", b"\n", b"\r", b"\r\n", b"\xef\xbb\xbf", b"\xff", b" ", b"\x00", "é\u2028".encode()],
    "json": [
        b'{"a": 1, "b": "x"}\n', b'{"a": 2, "b": "y"}\n', b'{"b": "z"}', b'[{"a": 3}, {"a": 4}]\n', b"\n", b" \t",
        b"\r\n", b"{", b'"', b"x\n", b"\xef\xbb\xbf", b'{"a": "no"}\n', b"\xff", b'{"a": 5} {"a": 6}\n', b"\x00",
    ],
    "csv": [
        b"a,b\n", b"1,x\n", b'2,"y', b'"\n', b"\n", b"\r\n", b"\r", b" ", b",", b"\xef\xbb\xbf", b"no,z\n", b"3",
        b"\xff", b"#", b"1,2,3,4\n", b"\\",
    ],
}  # fmt: skip
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "text": [{}, {"lineSep": "a"}],
    "json": [{}, {"mode": "DROPMALFORMED"}, {"mode": "FAILFAST"}],
    "csv": [{}, {"header": True}, {"header": True, "mode": "DROPMALFORMED"}, {"mode": "FAILFAST"}, {"comment": "#"}],
}


def read(source: FileSource, options: HostOptions | None = None) -> tuple[dict[str, list[Any]], str]:
    """Return the rows of each file, and the error that ended the read."""
    reader = FileSplitReader(source, options)
    paths = sorted(file.path for file in source.list().files)
    splits = {file.path: FileSplit.of(file, ()) for file in source.list().files}
    reader.add_splits([splits[path] for path in paths])
    rows: dict[str, list[Any]] = {}
    left = set(paths)
    try:
        while left:
            for part in reader.fetch():
                found = rows.setdefault(part.split_id, [])
                if part.batch is not None:
                    found.extend(tuple(row.values()) for row in part.batch.to_pylist())
                if part.finished:
                    left.remove(part.split_id)
    except DataError as error:
        return rows, f"{error.message} {error.split} {error.position}"
    finally:
        reader.close()
    return rows, ""


def together_and_alone(
    monkeypatch: pytest.MonkeyPatch, source: FileSource, options: HostOptions | None = None
) -> tuple[Any, Any]:
    together = read(source, options)
    with monkeypatch.context() as patch:
        patch.setattr(small_files, "SMALL_BYTES", -1)
        return together, read(source, options)


def written(directory: Path, contents: Sequence[bytes], suffix: str) -> Path:
    for number, content in enumerate(contents):
        (directory / f"{number:03}.{suffix}").write_bytes(content)
    return directory


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of files of each joint read."""
    counts = []
    parsed = small_files.JoinedFiles._parsed

    def counting(self: Any, files: Any, *others: Any) -> Any:
        found = parsed(self, files, *others)
        if found[0] is not None:
            counts.append(len(files))
        return found

    monkeypatch.setattr(small_files.JoinedFiles, "_parsed", counting)
    return counts


@pytest.mark.soak("100-json")
@pytest.mark.parametrize("kind", PIECES)
@pytest.mark.parametrize("seeds", [range(100), pytest.param(range(100, 4_000), marks=pytest.mark.soak)], ids=len)
def test_hostile_files_have_the_same_rows(
    kind: str, seeds: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: list[int]
) -> None:
    for seed in seeds:
        rng = random.Random(f"{kind} {seed}")
        options = rng.choice(OPTIONS[kind])
        tame = rng.random() < 0.5
        pieces = PIECES[kind][:2] if tame else PIECES[kind]
        head = b"a,b\n" if options.get("header") and rng.random() < 0.8 else b""
        contents = [head + b"".join(rng.choices(pieces, k=rng.randrange(6))) for _ in range(rng.randrange(2, 6))]
        directory = tmp_path / str(seed)
        directory.mkdir()
        schema = LINES if kind == "text" else RECORDS
        source = FileSource(path=str(written(directory, contents, kind)), file_format=kind, format_options=options)
        together, alone = together_and_alone(monkeypatch, source.with_schema(schema))
        # An error may come before the rows of the files before it are handed out.
        assert together == alone, (seed, options, contents)
    assert len(counted) > len(seeds) // 10, "hardly any files were read together"


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_files_with_a_header_are_read_together(
    end: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: list[int]
) -> None:
    contents = [b"a,b" + end + b"%d,x" % number + end for number in range(40)]
    path = written(tmp_path, contents, "csv")
    source = FileSource(path=str(path), format_options={"header": True}).with_schema(RECORDS)
    (rows, error), alone = together_and_alone(monkeypatch, source)
    assert (rows, error) == alone
    assert [row for found in rows.values() for row in found] == [(number, "x", None) for number in range(40)]
    assert counted == [32, 8]


def test_partition_values_and_metadata_are_those_of_each_file(tmp_path: Path, counted: list[int]) -> None:
    for number in range(4):
        directory = tmp_path / f"day={number // 2}"
        directory.mkdir(exist_ok=True)
        (directory / f"{number}.json").write_bytes(b'{"a": %d}\n' % number * max(1, number))
    source = FileSource(path=str(tmp_path), include_metadata=True, row_filter="a <> 3")
    source = source.with_schema(source.schema())
    reader = FileSplitReader(source)
    (splits,) = plan_bounded(source, HostOptions(num_partitions=1))
    reader.add_splits(splits)
    parts: list[Fetched] = []
    while sum(part.finished for part in parts) < len(splits):
        parts.extend(reader.fetch())
    rows = [row for part in parts if part.batch is not None for row in part.batch.to_pylist()]
    assert [(row["a"], row["day"], row["_metadata"]["file_name"]) for row in rows] == [
        (0, 0, "0.json"), (1, 0, "1.json"), (2, 1, "2.json"), (2, 1, "2.json")
    ]  # fmt: skip
    assert counted == [4]


def test_limits_of_a_record_batch_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = FileSource(path=str(written(tmp_path, [b"a\nb\nc\n"] * 4, "txt"))).with_schema(LINES)
    options = HostOptions(max_rows_per_batch=2)
    together, alone = together_and_alone(monkeypatch, source, options)
    assert together == alone


def test_the_error_names_the_file_and_the_rows_before_it_are_delivered(tmp_path: Path) -> None:
    path = written(tmp_path, [b'{"a": 1}\n', b'{"a": 2}\n', b"no\n", b'{"a": 4}\n'], "json")
    rows, error = read(FileSource(path=str(path), format_options={"mode": "FAILFAST"}).with_schema(RECORDS))
    assert list(rows.values()) == [[(1, None, None)], [(2, None, None)]]
    assert "002.json" in error


def test_a_file_that_changed_or_is_gone_is_named(tmp_path: Path, counted: list[int]) -> None:
    source = FileSource(path=str(written(tmp_path, [b"a\n"] * 4, "txt"))).with_schema(LINES)
    index = source.list()
    for fault, found in (("changed", "has changed"), ("gone", "no longer exists")):
        counted.clear()
        reader = FileSplitReader(source)
        reader.add_splits([FileSplit.of(file, ()) for file in sorted(index.files, key=lambda file: file.path)])
        if fault == "changed":
            (tmp_path / "002.txt").write_bytes(b"longer\n")
        else:
            (tmp_path / "002.txt").unlink()
        parts = list(reader.fetch())
        with pytest.raises(DataError, match=found) as raised:
            parts.extend(reader.fetch())
        assert "002.txt" in str(raised.value)
        assert [Path(part.split_id).name for part in parts if part.finished] == ["000.txt", "001.txt"]
        assert counted == [2]
