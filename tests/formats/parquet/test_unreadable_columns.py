# SPDX-License-Identifier: Apache-2.0
"""What Arrow cannot read of healthy files is refused by name, never taken for damage."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay
from forebay.errors import ConfigurationError
from forebay.sources.files.source import FileSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IDS = pa.schema([("id", pa.int32()), ("name", pa.string())])
MAP = "optional group c (MAP) {{ {} }}"
MAP_OF_PAIRS = MAP.format("repeated group key_value { optional binary key (STRING); optional int32 value; }")


def interval(group: Any, raw: Callable[[bytes], Any]) -> None:
    group.append("c", raw(b"\1\0\0\0\2\0\0\0\3\0\0\0"))


def wide_decimal(size: int) -> Callable[[Any, Callable[[bytes], Any]], None]:
    return lambda group, raw: group.append("c", raw((12345).to_bytes(size, "big")))


def nothing(group: Any, raw: Callable[[bytes], Any]) -> None:
    pass


def pair(group: Any, raw: Callable[[bytes], Any]) -> None:
    group.addGroup("c").addGroup("key_value").append("key", "k").append("value", 5)


BINARY, DECIMAL = pa.binary(), pa.decimal128(38, 2)
COLUMNS: dict[str, tuple[str, Callable[..., None], pa.DataType]] = {
    "an interval": ("optional fixed_len_byte_array(12) c (INTERVAL);", interval, BINARY),
    "a required interval": ("required fixed_len_byte_array(12) c (INTERVAL);", interval, BINARY),
    "a decimal of 17 bytes": ("optional fixed_len_byte_array(17) c (DECIMAL(38,2));", wide_decimal(17), DECIMAL),
    "a decimal of 32 bytes": ("optional fixed_len_byte_array(32) c (DECIMAL(38,2));", wide_decimal(32), DECIMAL),
    "a decimal of many bytes": ("optional binary c (DECIMAL(38,2));", wide_decimal(20), DECIMAL),
}
"""Columns that Arrow does not read. It reads the others of the file."""
SHAPES: dict[str, tuple[str, Callable[..., None], pa.DataType]] = {
    "a map with an optional key": (MAP_OF_PAIRS, pair, pa.map_("string", "int32")),
    "a map in a list": (
        f"optional group c (LIST) {{ repeated group list {{ {MAP_OF_PAIRS} }} }}",
        nothing,
        pa.list_(pa.map_("string", "int32")),
    ),
    "a list of one plain child": ("optional group c (LIST) { optional int32 element; }", nothing, pa.list_(pa.int32())),
    "a list of two children": (
        "optional group c (LIST) { repeated int32 a; repeated int32 b; }",
        nothing,
        pa.list_(pa.int32()),
    ),
    "a map of three fields": (
        MAP.format("repeated group key_value { required int32 key; optional int32 value; optional int32 more; }"),
        nothing,
        pa.map_("int32", "int32"),
    ),
    "a map that is not repeated": (
        MAP.format("optional group key_value { required int32 key; optional int32 value; }"),
        nothing,
        pa.map_("int32", "int32"),
    ),
    "a repeated list": (
        "repeated group c (LIST) { repeated group list { optional int32 element; } }",
        nothing,
        pa.list_(pa.list_(pa.int32())),
    ),
}
"""Columns that Arrow cannot express. It reads nothing of the file."""


def write(spark: SparkSession, path: Path, column: str, fill: Callable[..., None]) -> None:
    """Write a row with parquet-java, which writes what pyarrow cannot."""
    java: Any = spark._jvm
    parquet, place = java.org.apache.parquet, java.org.apache.hadoop.fs.Path(str(path))
    schema = f"message m {{ required int32 id; {column} optional binary name (STRING); }}"
    kind = parquet.schema.MessageTypeParser.parseMessageType(schema)
    writer = parquet.hadoop.example.ExampleParquetWriter.builder(place).withType(kind).build()
    group = parquet.example.data.simple.SimpleGroupFactory(kind).newGroup()
    group.append("id", 1)
    fill(group, lambda data: parquet.io.api.Binary.fromConstantByteArray(bytearray(data)))
    group.append("name", "x")
    writer.write(group)
    writer.close()


@pytest.mark.soak(but=["an interval", "a decimal of 32 bytes"])
@pytest.mark.parametrize(("column", "fill", "kind"), COLUMNS.values(), ids=COLUMNS)
def test_only_the_column_itself_is_refused_and_by_its_name(
    spark_utc: SparkSession, tmp_path: Path, column: str, fill: Callable[..., None], kind: pa.DataType
) -> None:
    file = tmp_path / "a.parquet"
    write(spark_utc, file, column, fill)
    for source in (FileSource(path=str(file)), FileSource(path=str(file), ignore_corrupt_files=True)):
        assert forebay.run(source.with_schema(IDS)).to_table().to_pylist() == [{"id": 1, "name": "x"}]
        for asked in (source, source.with_schema(IDS.append(pa.field("c", kind)))):
            with pytest.raises(ConfigurationError, match=rf"column 'c(\..*)?' .*{file}") as caught:
                forebay.run(asked).to_table()
            assert "leaves this column out" in (caught.value.advice or "")
    theirs = spark_utc.read.schema("id int, name string").parquet(str(file)).toArrow()
    assert theirs.to_pylist() == [{"id": 1, "name": "x"}]


@pytest.mark.soak(but=["a list of two children", "a repeated list"])
@pytest.mark.parametrize(("column", "fill", "kind"), SHAPES.values(), ids=SHAPES)
def test_a_file_with_a_column_that_arrow_cannot_express_is_refused(
    spark_utc: SparkSession, tmp_path: Path, column: str, fill: Callable[..., None], kind: pa.DataType
) -> None:
    file = tmp_path / "a.parquet"
    write(spark_utc, file, column, fill)
    source = FileSource(path=str(file), ignore_corrupt_files=True)
    for schema in (None, IDS, IDS.append(pa.field("c", kind))):
        with pytest.raises(ConfigurationError, match=rf"{file} has a column that Arrow cannot express") as caught:
            forebay.run(source if schema is None else source.with_schema(schema)).to_table()
        assert "spark.read.format('parquet')" in (caught.value.advice or "")


def test_a_filter_does_not_take_intervals_for_nulls(spark_utc: SparkSession, tmp_path: Path) -> None:
    write(spark_utc, tmp_path / "a.parquet", *COLUMNS["an interval"][:2])
    for condition in ("c IS NULL", "c IS NOT NULL"):
        source = FileSource(path=str(tmp_path / "a.parquet"), row_filter=condition)
        with pytest.raises(ConfigurationError, match="column 'c'"):
            forebay.run(source.with_schema(IDS.append(pa.field("c", pa.binary())))).to_table()


@pytest.mark.parametrize("levels", [49, 50, 120])
def test_lists_too_deep_for_arrow_are_refused(tmp_path: Path, levels: int) -> None:
    kind: pa.DataType = pa.int32()
    value: Any = 1
    for _ in range(levels):
        kind, value = pa.list_(kind), [value]
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"c": pa.array([value], kind), "id": [7]}), file, use_dictionary=["id"])
    source = FileSource(path=str(file))
    if levels < 50:
        assert forebay.run(source).to_table()["c"].to_pylist() == [value]
    else:
        with pytest.raises(ConfigurationError, match=f"{file} has a column that Arrow cannot express"):
            forebay.run(source).to_table()


NARROW = decimal.Decimal("1.50")


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.list_view(pa.int32()), [[1, 2], None, [], [3]]),
        (pa.large_list_view(pa.int32()), [[1, 2], None, [], [3]]),
        (pa.list_view(pa.list_view(pa.string())), [[["a", None], []], None, [None, ["b"]]]),
        (pa.struct([("l", pa.list_view(pa.int32()))]), [{"l": [1]}, {"l": None}, None]),
        (pa.map_(pa.string(), pa.list_view(pa.int32())), [[("k", [1, 2])], None, []]),
        (pa.decimal32(5, 2), [NARROW, None]),
        (pa.decimal64(12, 2), [NARROW, None]),
        (pa.list_(pa.decimal32(5, 2)), [[NARROW, None], None]),
        (pa.struct([("d", pa.decimal64(12, 2))]), [{"d": NARROW}, None]),
        (pa.map_(pa.string(), pa.decimal32(5, 2)), [[("k", NARROW)], None]),
    ],
    ids=str,
)
def test_types_of_the_writers_arrow_are_read_as_spark_reads_them(
    spark_utc: SparkSession, tmp_path: Path, kind: pa.DataType, values: list[Any]
) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"c": pa.array(values * 700, kind)}), file, row_group_size=900)
    table = forebay.run(FileSource(path=str(file))).to_table()
    table.validate(full=True)
    assert table["c"].to_pylist() == values * 700
    assert spark_utc.read.parquet(str(file)).toArrow()["c"].to_pylist() == values * 700
