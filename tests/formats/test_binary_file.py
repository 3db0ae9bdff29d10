# SPDX-License-Identifier: Apache-2.0
"""Binary files: a row per file, whose content is read only if it is wanted."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pytest

import forebay
from forebay.errors import ConfigurationError, DataError
from forebay.formats.binary_file import BINARY_FILE_SCHEMA, BinaryFileFormat
from forebay.sources.files import FileSource


class Closed:
    """A file that must not be opened."""

    path, size = "/data/a", 3

    def open(self) -> BinaryIO:
        raise AssertionError("opened")


def test_a_file_is_a_row(tmp_path: Path) -> None:
    (tmp_path / "sub=1").mkdir()
    path = tmp_path / "sub=1" / "a b%20é.bin"
    path.write_bytes(b"\x00\xffabc")
    (tmp_path / "sub=1" / "empty").write_bytes(b"")
    found = forebay.run(FileSource(path=str(tmp_path), file_format="binaryFile")).to_table()
    assert found.schema.names == ["path", "modificationTime", "length", "content", "sub"]
    row = found.to_pylist()[0]
    assert found.num_rows == 1
    assert (row["path"], row["length"], row["content"], row["sub"]) == (f"file:{path}", 5, b"\x00\xffabc", 1)
    assert int(row["modificationTime"].timestamp() * 1000) == path.stat().st_mtime_ns // 1_000_000


def test_content_is_not_read_if_it_is_left_out() -> None:
    batches = list(BinaryFileFormat().read(Closed(), BINARY_FILE_SCHEMA, columns=["length", "path"]))
    assert [(batch.to_pylist(), position) for batch, position in batches] == [
        ([{"length": 3, "path": "file:/data/a"}], 3)
    ]


def test_a_row_is_in_the_slice_of_the_start(tmp_path: Path) -> None:
    assert not list(BinaryFileFormat().read(Closed(), BINARY_FILE_SCHEMA, position=3))


def test_a_long_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"12345")
    source = FileSource(
        path=str(tmp_path), file_format="binaryFile", format_options={"maxRecordBytes": 4}, ignore_corrupt_files=True
    )
    with pytest.raises(DataError, match=r"long is longer than 4 bytes") as raised:
        forebay.run(source).to_table()
    assert raised.value.option == "maxRecordBytes"
    assert forebay.run(source.with_columns(("length",))).to_table().to_pylist() == [{"length": 5}]


@pytest.mark.parametrize("field", [("content", pa.string()), ("value", pa.binary())])
def test_other_columns_are_refused(tmp_path: Path, field: tuple[str, pa.DataType]) -> None:
    (tmp_path / "f").write_bytes(b"1")
    source = FileSource(path=str(tmp_path), file_format="binaryFile").with_schema(pa.schema([field]))
    with pytest.raises(ConfigurationError, match=f"no column '{field[0]}' of type"):
        forebay.run(source).to_table()
