# SPDX-License-Identifier: Apache-2.0
"""Parquet footers that contradict the data, and files with encrypted columns."""

from __future__ import annotations

import base64
import json
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay
from forebay.errors import ConfigurationError, DataError
from forebay.sources.files.file_index import list_files
from forebay.sources.files.parquet_footers import RowGroups
from forebay.sources.files.source import FileSource
from forebay.stores.stored_file import StoredFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# -- footers that lie

Footer = dict[tuple[int, ...], int]
"""The integers of a footer: field numbers and list indexes → byte in the file."""

ROWS = (3,)


def group_rows(group: int) -> tuple[int, ...]:
    return (4, group, 3)


def values(group: int, column: int) -> tuple[int, ...]:
    return (4, group, 1, column, 3, 5)


TABLE = pa.table({"a": range(6), "s": [None, *"bcdef"], "l": [[i, i] for i in range(6)]})


class Scan:
    """Walks over Thrift's compact protocol, as far as Parquet footers use it."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = len(data) - 8 - struct.unpack("<I", data[-8:-4])[0]
        self.places: Footer = {}
        self._struct(())

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def _struct(self, path: tuple[int, ...]) -> None:
        field = 0
        while head := self._data[self._at]:
            self._at += 1
            field = field + (head >> 4) if head >> 4 else self._varint() >> 1
            self._value(head & 15, (*path, field))
        self._at += 1

    def _value(self, kind: int, path: tuple[int, ...]) -> None:
        if kind == 3:
            self._at += 1
        elif kind in (4, 5, 6):
            self.places[path] = self._at
            self._varint()
        elif kind == 7:
            self._at += 8
        elif kind == 8:
            size = self._varint()
            self._at += size
        elif kind == 9:
            head = self._data[self._at]
            self._at += 1
            for place in range(self._varint() if head >> 4 == 15 else head >> 4):
                self._value(head & 15, (*path, place))
        elif kind == 12:
            self._struct(path)


def lie(path: Path, changes: Footer, rows_per_group: int = 6) -> str:
    """Write the table, and replace numbers in its footer."""
    pq.write_table(TABLE, path, row_group_size=rows_per_group)
    data = bytearray(path.read_bytes())
    places = Scan(bytes(data)).places
    for field, value in changes.items():
        assert data[places[field]] < 128
        data[places[field]] = (value << 1) if value >= 0 else (-value << 1) - 1  # zigzag
    path.write_bytes(data)
    return str(path)


def rows_of(source: FileSource) -> list[Any]:
    return [row for batch in forebay.run(source) for row in batch.to_pylist()]


@pytest.mark.parametrize("rows", [0, 3, 9, -1])
@pytest.mark.parametrize("rows_per_group", [6, 4])
def test_the_rows_of_the_row_groups_count_not_those_of_the_footer(
    tmp_path: Path, rows: int, rows_per_group: int
) -> None:
    path = lie(tmp_path / "f.parquet", {ROWS: rows}, rows_per_group)
    assert rows_of(FileSource(path=path)) == TABLE.to_pylist()
    assert len(rows_of(FileSource(path=path, max_partition_bytes=1))) == 6
    groups = RowGroups.of(StoredFile(list_files([path]).files[0]))
    assert groups.starts == ((0, 6) if rows_per_group == 6 else (0, 4, 6))
    assert groups.before[-1] == Path(path).stat().st_size


LIES: dict[str, Footer] = {
    "a row group with less rows than its columns": {group_rows(0): 3},
    "the same, and the file agrees with the row group": {group_rows(0): 3, ROWS: 3},
    "a row group with more rows": {group_rows(0): 9},
    "the same, and the file agrees": {group_rows(0): 9, ROWS: 9},
    "a row group without rows": {group_rows(0): 0},
    "the same, and the file agrees again": {group_rows(0): 0, ROWS: 0},
    "less than no rows": {group_rows(0): -1},
    "a column with less values": {values(0, 0): 3},
    "a column with more values": {values(0, 1): 9},
    "a column without values": {values(0, 0): 0},
    "a list column with less values than rows": {values(0, 2): 3},
    "more rows and values than there are": {group_rows(0): 9, values(0, 0): 9, values(0, 1): 9, ROWS: 9},
}


@pytest.mark.parametrize("changes", LIES.values(), ids=LIES)
def test_row_groups_that_contradict_their_columns_are_refused_or_skipped_as_damage(
    tmp_path: Path, changes: Footer
) -> None:
    path = lie(tmp_path / "f.parquet", changes)
    with pytest.raises(DataError, match=r"the footer of .*f\.parquet is wrong") as raised:
        rows_of(FileSource(path=path))
    assert "ignoreCorruptFiles" in (raised.value.advice or "")
    assert len(rows_of(FileSource(path=path, ignore_corrupt_files=True))) in (0, 6)


@pytest.mark.parametrize("changes", [{group_rows(0): 3}, {group_rows(1): 4}, {group_rows(0): 3, group_rows(1): 3}])
def test_one_of_two_row_groups_contradicts_its_columns(tmp_path: Path, changes: Footer) -> None:
    path = lie(tmp_path / "f.parquet", changes, rows_per_group=4)
    with pytest.raises(DataError, match=r"row group [01] has \d rows and \d values of column 'a'"):
        rows_of(FileSource(path=path))


def test_a_column_that_is_not_read_may_contradict_its_row_group(tmp_path: Path) -> None:
    path = lie(tmp_path / "f.parquet", {values(0, 1): 3})
    assert rows_of(FileSource(path=path).with_schema(pa.schema([("a", pa.int64())]))) == [{"a": a} for a in range(6)]


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_spark_too_counts_the_rows_of_row_groups(spark_utc: SparkSession, tmp_path: Path) -> None:
    paths = [lie(tmp_path / f"{rows}.parquet", {ROWS: rows}) for rows in (0, 3, 9)]
    assert [spark_utc.read.parquet(path).select("a").collect() for path in paths] == [[(a,) for a in range(6)]] * 3


# -- values that do not fit the schema


@pytest.mark.parametrize("ignore", [False, True])
@pytest.mark.parametrize(
    ("stored", "value", "wanted"),
    [
        (pa.int32(), 300, pa.int8()),
        (pa.uint8(), 200, pa.int8()),
        (pa.uint16(), 65_535, pa.int16()),
        (pa.int16(), 300, pa.int8()),
        (pa.timestamp("ms", "UTC"), 2**62, pa.timestamp("us", "UTC")),
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_is_an_error_of_the_schema_and_no_damage(
    tmp_path: Path, stored: pa.DataType, value: int, wanted: pa.DataType, ignore: bool
) -> None:
    raw = pa.int64() if isinstance(stored, pa.TimestampType) else stored
    inside = pa.array([1, value], raw).cast(stored)
    pq.write_table(
        pa.table({"c": inside, "l": pa.array([[each] for each in inside], pa.list_(stored))}), tmp_path / "f"
    )
    for field in (pa.field("c", wanted), pa.field("l", pa.list_(wanted))):
        source = FileSource(path=str(tmp_path / "f"), file_format="parquet", ignore_corrupt_files=ignore)
        with pytest.raises(
            DataError, match=f"column '{field.name}' of .* does not fit into {re.escape(str(field.type))}"
        ) as raised:
            rows_of(source.with_schema(pa.schema([field])))
        assert raised.value.option == "schema"
        assert "wider type" in (raised.value.advice or "")


# -- encrypted columns

READ = """
import json, sys
import forebay
from forebay.errors import ConfigurationError
from forebay.sources.files.parquet_footers import RowGroups
from forebay.sources.files.source import FileSource
from forebay.sources.files.file_index import list_files
from forebay.stores.stored_file import StoredFile

path, names = sys.argv[1], sys.argv[2].split(",")
print(json.dumps(RowGroups.of(StoredFile(list_files([path]).files[0])).starts))
for columns, ignore in ((names, False), (None, False), (None, True)):
    try:
        source = FileSource(path=path, max_partition_bytes=100, ignore_corrupt_files=ignore)
        schema = source.schema()
        if columns:
            source = source.with_columns(tuple(columns))
        print(json.dumps([row for batch in forebay.run(source) for row in batch.to_pylist()]))
    except ConfigurationError as error:
        print(error.message)
"""


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files with an encrypted column, at the top and inside a struct, and one with an encrypted footer."""
    encryption = pytest.importorskip("pyarrow.parquet.encryption")

    class Kms(encryption.KmsClient):  # type: ignore[misc, name-defined]
        def wrap_key(self, key: bytes, _name: str) -> bytes:
            return base64.b64encode(key)

        def unwrap_key(self, key: bytes, _name: str) -> bytes:
            return base64.b64decode(key)

    table = pa.table(
        {"a": range(6), "secret": list("uvwxyz"), "n": [{"x": i, "y": i} for i in range(6)], "z": range(6)}
    )
    directory = tmp_path_factory.mktemp("encrypted")
    factory = encryption.CryptoFactory(lambda _: Kms())
    for name, column, plain in (("top", "secret", True), ("inside", "n.x", True), ("footer", "secret", False)):
        configuration = encryption.EncryptionConfiguration(
            footer_key="footer", column_keys={"column": [column]}, plaintext_footer=plain
        )
        properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), configuration)
        with pq.ParquetWriter(directory / f"{name}.parquet", table.schema, encryption_properties=properties) as writer:
            writer.write_table(table, row_group_size=3)
    return directory


def lines_of(path: Path, names: str) -> list[str]:
    """What a process prints of these columns and, twice, of all of them.

    It is a separate one, because Arrow ends one that asks for the metadata of an encrypted column.
    """
    command = [sys.executable, "-P", "-c", READ, str(path), names]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(("name", "clear", "hidden"), [("top", "a,z", "secret"), ("inside", "a,secret", "n.x")])
def test_clear_columns_are_read_and_encrypted_ones_named(encrypted: Path, name: str, clear: str, hidden: str) -> None:
    path = encrypted / f"{name}.parquet"
    starts, rows, *messages = lines_of(path, clear)
    assert json.loads(starts) == [0, 3, 6]
    assert [row["a"] for row in json.loads(rows)] == list(range(6))
    assert len(messages) == 2
    for message in messages:
        assert f"column '{hidden}' of {path} is encrypted" in message


def test_a_file_with_an_encrypted_footer_is_not_taken_for_a_damaged_one(encrypted: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"footer\.parquet is a Parquet file with an encrypted footer"):
        FileSource(path=str(encrypted / "footer.parquet"), ignore_corrupt_files=True).schema()
