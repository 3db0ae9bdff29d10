# SPDX-License-Identifier: Apache-2.0
"""Schemas that users give for files: refused ones, and headers that differ from the schema."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay
from forebay.errors import ConfigurationError, unwrap
from forebay.sources.files.source import FileSource

VARIANT = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={"variant": "true"}),
    ]
)
TWICE = {
    "names that differ in case": pa.schema([("a", pa.int32()), ("A", pa.string())]),
    "names that are equal": pa.schema([("a", pa.int32()), ("a", pa.string())]),
    "inside a struct": pa.schema([("s", pa.struct([("a", pa.int32()), ("A", pa.int32())]))]),
    "inside a map": pa.schema([("m", pa.map_(pa.string(), pa.struct([("x", pa.int32()), ("X", pa.int32())])))]),
    "inside a list": pa.schema([("l", pa.list_(pa.struct([("x", pa.int32()), ("X", pa.int32())])))]),
}


@pytest.mark.parametrize("file_format", ["csv", "json", "parquet"])
@pytest.mark.parametrize("schema", TWICE.values(), ids=TWICE)
def test_a_schema_with_two_columns_of_one_name_is_refused(file_format: str, schema: pa.Schema) -> None:
    with pytest.raises(ConfigurationError, match="two columns have the same name") as raised:
        FileSource(path="/nowhere", file_format=file_format).with_schema(schema)
    assert raised.value.option == "schema"


def test_parquet_may_tell_apart_names_that_differ_in_case(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int32()), ("A", pa.string())])
    pq.write_table(pa.table({"a": pa.array([1], pa.int32()), "A": ["x"]}), tmp_path / "f.parquet")
    source = FileSource(path=str(tmp_path), format_options={"caseSensitive": True})
    assert [batch.to_pylist() for batch in forebay.run(source.with_schema(schema))] == [[{"a": 1, "A": "x"}]]
    twice = pa.schema([("a", pa.int32()), ("a", pa.string())])
    with pytest.raises(ConfigurationError, match="two columns have the same name: 'a' and 'a'"):
        source.with_schema(twice)


@pytest.mark.parametrize("file_format", ["csv", "json", "parquet"])
@pytest.mark.parametrize(
    ("schema", "path"),
    [
        (pa.schema([("a", pa.int32()), ("v", VARIANT)]), "v"),
        (pa.schema([("s", pa.struct([("v", VARIANT)]))]), "s.v"),
        (pa.schema([("l", pa.list_(VARIANT))]), "l.element"),
    ],
)
def test_variant_is_refused_by_name(file_format: str, schema: pa.Schema, path: str) -> None:
    with pytest.raises(ConfigurationError, match=r"the column '[a-z.]+' is VARIANT") as raised:
        FileSource(path="/nowhere", file_format=file_format).with_schema(schema)
    assert raised.value.message.startswith(f"the column '{path.split('.', maxsplit=1)[0]}")
    assert "parse_json" in (raised.value.advice or "")


@pytest.mark.parametrize("ddl", ["v variant", "s struct<v: variant>", "a int, A string"])
@pytest.mark.parametrize("file_format", ["json", "parquet"])
def test_spark_gets_the_error_before_anything_is_read(spark: Any, tmp_path: Path, file_format: str, ddl: str) -> None:
    reader = spark.read.format("forebay_files").option("fileFormat", file_format).schema(ddl)
    with pytest.raises(Exception, match="VARIANT|two columns have the same name") as raised:
        reader.load("/nowhere").collect()
    assert isinstance(unwrap(raised.value), ConfigurationError)
    if "A" in ddl:
        with pytest.raises(Exception, match="COLUMN_ALREADY_EXISTS"):
            spark.read.format(file_format).schema(ddl).load(str(tmp_path)).explain()


def test_headers_that_differ_give_the_names_of_the_first_file_and_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "b.csv").write_text("p,q\n3,4\n5,6\n")
    source = FileSource(path=str(tmp_path), format_options={"header": True})
    assert source.schema().names == ["x", "y"]
    with caplog.at_level(logging.WARNING):
        rows = [row for batch in forebay.run(source) for row in batch.to_pylist()]
    assert rows == [{"x": "1", "y": "2"}, {"x": "3", "y": "4"}, {"x": "5", "y": "6"}]
    assert "b.csv has the column 'p' in its header where the schema has 'x'; columns match by position" in caplog.text
    strict = FileSource(path=str(tmp_path), format_options={"header": True, "enforceSchema": False})
    with pytest.raises(ConfigurationError, match=r"b\.csv has the column 'p'"):
        list(forebay.run(strict))
