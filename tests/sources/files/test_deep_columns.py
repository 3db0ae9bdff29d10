# SPDX-License-Identifier: Apache-2.0
"""Columns that are nested too deeply for Arrow or Python: an error names them, and the other columns are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import orc

import forebay
from forebay.errors import ConfigurationError
from forebay.sources.files.source import FileSource


def write(path: Path, kind: str, levels: int) -> str:
    """Write the row `id` 7 and a column `c` of so many lists or objects."""
    file = path / f"a.{'orc' if kind == 'orc' else 'json'}"
    if kind == "orc":
        data_type: pa.DataType = pa.int32()
        value: Any = 1
        for _ in range(levels):
            data_type, value = pa.list_(data_type), [value]
        orc.write_table(pa.table({"id": pa.array([7], pa.int32()), "c": pa.array([value], data_type)}), file)
    else:
        before, after = ("[", "]") if kind == "list" else ('{"a":', "}")
        file.write_text('{"id":7,"c":' + before * levels + "1" + after * levels + "}\n")
    return str(file)


DEPTHS = [
    *((kind, levels) for kind in ("list", "object") for levels in (62, 63, 150, 199, 200, 330, 400, 900)),
    *(("orc", levels) for levels in (63, 200)),
    # Seconds of CPU: Arrow's ORC reader takes the square of the depth.
    *(pytest.param("orc", levels, marks=pytest.mark.soak) for levels in (62, 150, 199, 201, 206)),
]


@pytest.mark.soak(but=["list-63", "list-200", "list-900", "object-200", "object-900", "orc-200"])
@pytest.mark.parametrize(("kind", "levels"), DEPTHS)
def test_a_column_is_read_or_refused_by_its_name(tmp_path: Path, kind: str, levels: int) -> None:
    source = FileSource(path=write(tmp_path, kind, levels))
    if levels < 200:
        assert forebay.run(source).to_table().column_names == (["id", "c"] if kind == "orc" else ["c", "id"])
    else:
        with pytest.raises(ConfigurationError, match="column 'c' ") as caught:
            forebay.run(source).to_table()
        assert "as string" in (caught.value.advice or "")
    ids = source.with_schema(pa.schema([("id", pa.int32())]))
    assert forebay.run(ids).to_table().to_pylist() == [{"id": 7}]
    if kind != "orc":
        texts = source.with_schema(pa.schema([("c", pa.string())]))
        (row,) = forebay.run(texts).to_table().to_pylist()
        assert len(row["c"]) > levels


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["list", "object", "orc"])
def test_on_spark_the_limit_is_that_of_arrow(spark: Any, tmp_path: Path, kind: str) -> None:
    for levels in (62, 63, 120):  # at about 200, the stack of Spark's own parser ends with some options of the JVM
        reader = spark.read.format("forebay_files")
        path = write(tmp_path, kind, levels)
        if levels == 62:
            (row,) = reader.load(path).collect()
            assert row.id == 7
            continue
        given = (
            "struct<a:" * levels + "int" + ">" * levels
            if kind == "object"
            else "array<" * levels + "int" + ">" * levels
        )
        for schema in (None, f"id int, c {given}"):
            with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's own classes, by phase
                (reader if schema is None else reader.schema(schema)).load(path).collect()
            error = forebay.unwrap(caught.value)
            assert isinstance(error, ConfigurationError)
            assert "the column 'c' is nested" in str(error)
            assert "as string" in str(error.advice)
        assert reader.schema("id int").load(path).collect() == [(7,)]
