# SPDX-License-Identifier: Apache-2.0
"""Wrong Arrow code: mypy must refuse each marked line and no other, or `mypy --strict` proves nothing about Arrow.

A mark whose error is gone is an error itself (`warn_unused_ignores`).
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq


def wrong(batch: pa.RecordBatch, table: pa.Table, array: pa.Array) -> pa.RecordBatch:
    number: int = pa.schema({"n": pa.int64()})  # type: ignore[assignment]
    batch.no_such_method()  # type: ignore[attr-defined]
    pa.no_such_function()  # type: ignore[attr-defined]
    pc.no_such_kernel(array)  # type: ignore[attr-defined]
    other: pa.RecordBatch = table  # type: ignore[assignment]
    one: pa.Array = table.column("n")  # type: ignore[assignment]
    text: str = array.nbytes  # type: ignore[assignment]
    values = array.values  # type: ignore[attr-defined]
    pa.RecordBatch.from_arrays(table, schema=batch.schema)  # type: ignore[arg-type]
    pa_csv.ReadOptions(block_sizes=1)  # type: ignore[call-arg]
    batch.slice("1")  # type: ignore[arg-type]
    pq.ParquetFile("x").read_row_group("0")  # type: ignore[arg-type]
    right: int = batch.num_rows
    return table  # type: ignore[return-value]
