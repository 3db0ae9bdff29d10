# SPDX-License-Identifier: Apache-2.0
"""Runs a function on the record batches of a DataFrame, also if column names have dots or backticks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class _Named:
    """Restores the column names of record batches before `function` gets them. Spark pickles it to the workers."""

    function: BatchFunction
    names: Sequence[str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.function(batch.rename_columns(self.names) for batch in batches)


def map_in_arrow(df: DataFrame, function: BatchFunction, schema: StructType) -> DataFrame:
    """Run `df.mapInArrow(function, schema)`. Unlike Spark's method, it accepts column names with dots or backticks."""
    names = df.columns
    if not any(mark in name for name in names for mark in ".`"):
        return df.mapInArrow(function, schema)
    numbered = df.toDF(*(f"c{place}" for place in range(len(names))))
    return numbered.mapInArrow(_Named(function, names), schema)
