# SPDX-License-Identifier: Apache-2.0
"""Columns that only later files of a stream have: without `schemaEvolution`, and with `addNewColumns`."""

from __future__ import annotations

import gzip
import importlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay.errors import ConfigurationError, DataError
from forebay.sources.files import FileSource
from forebay.testkit.kills import MicroBatchFiles

orc = importlib.import_module("pyarrow.orc")

Put = Callable[..., Path]
Begin = Callable[..., Any]
Row = dict[str, Any]

OLD: list[Row] = [{"a": "1", "b": "x"}, {"a": "2", "b": "y"}]
NEW: list[Row] = [{"a": "3", "b": "z", "c": "new"}]
AS_READ = [("1", "x"), ("2", "y")]
FORMATS = ["avro", "csv", "json", "orc", "parquet"]


def encoded(file_format: str, rows: list[Row]) -> bytes:
    """Return a file of text columns."""
    names = list(rows[0])
    if file_format == "json":
        return "".join(json.dumps(row) + "\n" for row in rows).encode()
    if file_format == "csv":
        return "".join(",".join(line) + "\n" for line in [names, *(row.values() for row in rows)]).encode()
    sink = io.BytesIO()
    if file_format == "avro":
        fields = [{"name": name, "type": ["null", "string"]} for name in names]
        fastavro.writer(sink, {"type": "record", "name": "r", "fields": fields}, rows)
    else:
        (pq.write_table if file_format == "parquet" else orc.write_table)(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


def options_of(file_format: str, **more: Any) -> dict[str, Any]:
    header = {"header": "true"} if file_format == "csv" else {}
    return {"schema": None, "file_format": file_format, "format_options": {**header, **more.pop("format", {})}, **more}


@pytest.mark.parametrize("file_format", FORMATS)
def test_by_default_new_columns_are_not_read(put: Put, stream: Begin, file_format: str) -> None:
    put("1", encoded(file_format, OLD))
    query = stream(**options_of(file_format))
    assert query.trigger() == AS_READ
    put("2", encoded(file_format, NEW), at=1)
    assert query.trigger() == [("3", "z")]
    query.restart()
    put("3", encoded(file_format, OLD), at=2)
    if file_format == "json":
        with pytest.raises(ConfigurationError, match="inferred schema has changed"):
            query.trigger()
    else:
        assert query.trigger() == AS_READ


@pytest.mark.parametrize("mode", ["FAILFAST", "DROPMALFORMED"])
def test_by_default_csv_rows_with_a_new_column_are_malformed(put: Put, stream: Begin, mode: str) -> None:
    put("1", encoded("csv", OLD))
    query = stream(**options_of("csv", format={"mode": mode}))
    assert query.trigger() == AS_READ
    put("2", encoded("csv", NEW), at=1)
    if mode == "FAILFAST":
        with pytest.raises(DataError):
            query.trigger()
    else:
        assert query.trigger() == []


@pytest.mark.parametrize("file_format", ["avro", "csv", "parquet"])
def test_by_default_a_new_first_file_changes_the_schema(put: Put, stream: Begin, file_format: str) -> None:
    put("1", encoded(file_format, OLD))
    query = stream(**options_of(file_format))
    assert query.trigger() == AS_READ
    put("0", encoded(file_format, NEW), at=1)
    query.restart()
    with pytest.raises(ConfigurationError, match="inferred schema has changed"):
        query.trigger()


def test_the_column_of_malformed_json_is_a_new_column(put: Put, stream: Begin) -> None:
    put("1", '{"a": 1}')
    query = stream(**options_of("json", schema_evolution="addNewColumns"))
    assert query.trigger() == [(1,)]
    put("2", '{"a": 2}\nnonsense\n', at=1)
    with pytest.raises(DataError, match="'_corrupt_record'"):
        query.trigger()
    query.restart()
    assert query.trigger() == [(None, 2), ("nonsense", None)]


@pytest.mark.parametrize("file_format", [*FORMATS, "csv with types"])
def test_a_new_column_ends_the_query_and_is_there_after_a_restart(put: Put, stream: Begin, file_format: str) -> None:
    file_format, _, types = file_format.partition(" with ")
    infer = {"inferSchema": "true"} if types else {}
    put("1", encoded(file_format, OLD))
    query = stream(**options_of(file_format, schema_evolution="addNewColumns", format=infer))
    first = [(int(a), b) if types else (a, b) for a, b in AS_READ]
    assert query.trigger() == first
    put("2", encoded(file_format, OLD), at=1)
    new = put("3", encoded(file_format, NEW), at=2)
    end = query.plan()
    with pytest.raises(DataError, match="new columns, which are not in the schema of this query: 'c'\n") as raised:
        query.read(end)
    assert (raised.value.split, raised.value.option) == (str(new), "schemaEvolution")
    assert "restart the query from load()" in str(raised.value.advice)
    query.restart()
    last = (3 if types else "3", "z", "new")
    assert sorted(query.read(end)) == sorted([*((*row, None) for row in first), last])
    query.offset = end
    query.planner.commit(end)
    assert query.trigger() is None
    query.restart()
    assert query.trigger() is None


@pytest.mark.parametrize("file_format", FORMATS)
def test_a_new_query_reads_the_columns_of_all_files(put: Put, stream: Begin, file_format: str) -> None:
    put("1", encoded(file_format, OLD))
    put("2", encoded(file_format, NEW), at=1)
    query = stream(**options_of(file_format, schema_evolution="addNewColumns"))
    assert query.trigger() == [*((*row, None) for row in AS_READ), ("3", "z", "new")]


def test_an_older_query_may_begin_to_add_columns_and_end_it(put: Put, stream: Begin) -> None:
    put("1", '{"a": {"x": 1, "z": "t"}}')
    query = stream(**options_of("json"))
    assert query.trigger() == [({"x": 1, "z": "t"},)]
    query.restart(schema_evolution="addNewColumns")
    put("2", '{"a": {"x": 2, "y": [{"k": 1}], "z": "u"}}', at=1)
    end = query.plan()
    with pytest.raises(DataError, match=r"'a\.y'\n"):
        query.read(end)
    query.restart()
    assert query.trigger() == [({"x": 2, "y": [{"k": 1}], "z": "u"},)]
    put("3", '{"a": {"x": 3, "y": [{"k": 1, "l": 2}], "z": "u"}}', at=2)
    with pytest.raises(DataError, match=r"'a\.y\.element\.l'\n"):
        query.trigger()
    query.restart()
    assert query.trigger() == [({"x": 3, "y": [{"k": 1, "l": 2}], "z": "u"},)]
    query.restart(schema_evolution="none")
    put("4", '{"a": {"x": 4}}', at=3)
    assert query.trigger() == [({"x": 4, "y": None, "z": None},)]


def test_a_column_whose_type_changes_is_still_an_error(put: Put, stream: Begin) -> None:
    put("1", '{"a": 1}')
    query = stream(**options_of("json", schema_evolution="addNewColumns"))
    assert query.trigger() == [(1,)]
    put("2", '{"a": "text", "b": 1}', at=1)
    query.restart()
    with pytest.raises(ConfigurationError, match="inferred schema has changed"):
        query.trigger()


def test_a_missing_column_is_still_an_error(put: Put, stream: Begin, inbox: Path) -> None:
    put("1", encoded("json", NEW))
    query = stream(**options_of("json", schema_evolution="addNewColumns"))
    assert query.trigger() == [("3", "z", "new")]
    put("2", encoded("json", OLD), at=1)
    (inbox / "1").unlink()
    query.restart()
    with pytest.raises(ConfigurationError, match="inferred schema has changed"):
        query.trigger()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"file_format": "json", "schema": pa.schema([("a", pa.string())])}, "but a schema is given"),
        ({"file_format": "text", "schema": None}, "the columns of text files are fixed"),
        (
            options_of(
                "avro", format={"avroSchema": '{"type":"record","name":"r","fields":[{"name":"a","type":"int"}]}'}
            ),
            "the columns of avro files are fixed",
        ),
    ],
)
def test_a_fixed_schema_is_refused(put: Put, stream: Begin, options: dict[str, Any], words: str) -> None:
    put("1", encoded("json", OLD))
    with pytest.raises(ConfigurationError, match=words) as raised:
        stream(**options, schema_evolution="addNewColumns")
    assert raised.value.option == "schemaEvolution"


def test_new_columns_of_csv_come_last(put: Put, inbox: Path) -> None:
    put("1", encoded("csv", OLD))
    put("2", "a,new,b\n1,2,3\n")
    source = FileSource(
        path=str(inbox), file_format="csv", format_options={"header": True}, schema_evolution="addNewColumns"
    )
    with pytest.raises(ConfigurationError, match="has the columns a, b, and .* has a, new, b: .* come last"):
        source.schema()


@pytest.mark.parametrize(
    ("name", "value"), [("mode", "DROPMALFORMED"), ("mode", "FAILFAST"), ("enforceSchema", "false")]
)
def test_options_of_csv_that_refuse_short_records(put: Put, inbox: Path, name: str, value: str) -> None:
    put("1", encoded("csv", OLD))
    source = FileSource(
        path=str(inbox),
        file_format="csv",
        format_options={"header": "true", name: value},
        schema_evolution="addNewColumns",
    )
    with pytest.raises(ConfigurationError, match="mode=PERMISSIVE and enforceSchema=true") as raised:
        source.schema()
    assert raised.value.option == name


def test_rows_before_the_damage_are_kept(put: Put, stream: Begin) -> None:
    put("1", encoded("json", OLD))
    query = stream(**options_of("json", schema_evolution="addNewColumns", ignore_corrupt_files=True))
    assert query.trigger() == AS_READ
    lines = b"".join(b'{"a": "%d", "b": "x"}\n' % number for number in range(300_000))
    put("2.gz", gzip.compress(lines)[:-100], at=1)
    rows = query.trigger()
    assert len(rows) > 100_000


@pytest.mark.soak
def test_selected_columns_leave_new_ones_out(put: Put, inbox: Path, tmp_path: Path, spark: Any) -> None:
    options = {"fileFormat": "json", "columns": "b", "schemaEvolution": "addNewColumns"}
    sink = MicroBatchFiles(tmp_path / "rows")

    def started() -> Any:
        put("1", encoded("json", OLD))
        frame = spark.readStream.format("forebay_files").options(**options).load(str(inbox))
        put("2", encoded("json", NEW), at=1)
        writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint"))
        return writer.trigger(availableNow=True).start()

    started().awaitTermination()
    assert sink.rows() == ['["x"]', '["y"]', '["z"]']
