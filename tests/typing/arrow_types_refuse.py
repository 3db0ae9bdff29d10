# SPDX-License-Identifier: Apache-2.0
"""Wrong Arrow code: mypy must refuse each marked line and no other, or `mypy --strict` proves nothing about Arrow.

Not part of `make lint`: `test_types.py` runs mypy on it and compares the errors with the marks.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq


def wrong(batch: pa.RecordBatch, table: pa.Table, array: pa.Array) -> pa.RecordBatch:
    number: int = pa.schema({"n": pa.int64()})  # refused: assignment
    batch.no_such_method()  # refused: attr-defined
    pa.no_such_function()  # refused: attr-defined
    pc.no_such_kernel(array)  # refused: attr-defined
    other: pa.RecordBatch = table  # refused: assignment
    one: pa.Array = table.column("n")  # refused: assignment
    text: str = array.nbytes  # refused: assignment
    values = array.values  # refused: attr-defined
    pa.RecordBatch.from_arrays(table, schema=batch.schema)  # refused: arg-type
    pa_csv.ReadOptions(block_sizes=1)  # refused: call-arg
    batch.slice("1")  # refused: arg-type
    pq.ParquetFile("x").read_row_group("0")  # refused: arg-type
    right: int = batch.num_rows
    return table  # refused: return-value
