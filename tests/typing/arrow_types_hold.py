# SPDX-License-Identifier: Apache-2.0
"""Arrow code as this project writes it: mypy accepts all of it. Checked with the rest by `make lint`, never run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_type

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq


def schema() -> pa.Schema:
    """The spellings of a schema that authors use."""
    assert_type(pa.schema({"n": pa.int64(), "s": pa.string(), "t": pa.timestamp("us", tz="UTC")}), pa.Schema)
    return pa.schema([("n", pa.int64()), pa.field("s", pa.string(), nullable=False)], metadata={"k": "v"})


def columns(batch: pa.RecordBatch, table: pa.Table) -> pa.RecordBatch:
    """A column of a record batch is one array, a column of a table is many."""
    assert_type(batch.column("n"), pa.Array)
    assert_type(table.column(0), pa.ChunkedArray)
    assert_type(pc.equal(batch["n"], 1), pa.BooleanArray)
    assert_type(pc.max(table["n"]), pa.Scalar)
    assert_type(batch.slice(1, 2), pa.RecordBatch)
    assert_type(pa.concat_batches([batch, batch]), pa.RecordBatch)
    return batch.filter(pc.greater(batch["n"], 0)).select(["n"])


def narrowed(data_type: pa.DataType) -> pa.DataType | None:
    """A predicate of `pa.types` narrows the type."""
    if pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
        return data_type.value_type
    if pa.types.is_struct(data_type):
        return data_type.field("x").type
    if pa.types.is_timestamp(data_type):
        assert_type(data_type.tz, str | None)
    return None


def read(data: bytes, path: str) -> Iterator[pa.RecordBatch]:
    """Readers take bytes in memory and files, and give record batches."""
    options = pa_csv.ConvertOptions(column_types=schema(), timestamp_parsers=[pa_csv.ISO8601, "%Y"])
    yield from pa_csv.open_csv(pa.BufferReader(data), convert_options=options)
    with pq.ParquetFile(path) as file:
        assert_type(file.metadata.row_group(0).total_byte_size, int)
        yield from file.iter_batches(row_groups=[0], columns=["n"])
