# SPDX-License-Identifier: Apache-2.0
"""Runs a function on the record batches of a DataFrame, whatever the names of its columns are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class _Named:
    """Gives record batches their names back. It is pickled to the workers."""

    function: BatchFunction
    names: Sequence[str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.function(batch.rename_columns(self.names) for batch in batches)


def map_in_arrow(df: DataFrame, function: BatchFunction, schema: StructType) -> DataFrame:
    """Run `df.mapInArrow(function, schema)`, also for column names with dots or backticks, where Spark's own fails."""
    names = df.columns
    if not any(mark in name for name in names for mark in ".`"):
        return df.mapInArrow(function, schema)
    numbered = df.toDF(*(f"c{place}" for place in range(len(names))))
    return numbered.mapInArrow(_Named(function, names), schema)
