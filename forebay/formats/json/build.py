# SPDX-License-Identifier: Apache-2.0
"""Builds Arrow columns and record batches from the values that the record readers return."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pyarrow as pa


class BatchBuilder:
    """Collects the rows of a block as record batches and as lists of values, and returns them as one batch."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._batches: list[pa.RecordBatch] = []
        self._count = 0
        self.rows: list[list[Any]] = []
        """The rows after the last record batch, as lists of values."""
        self.malformed: dict[int, bytes] = {}
        """Maps the number of each row that comes from a malformed record to the text of the record."""

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Append the rows of a record batch."""
        self._flush()
        self._batches.append(batch)
        self._count += batch.num_rows

    def add_malformed(self, rows: list[list[Any]], text: bytes) -> None:
        """Append the rows of a malformed record. `text` is the text of the record."""
        start = self._count + len(self.rows)
        self.malformed.update(dict.fromkeys(range(start, start + len(rows)), text))
        self.rows += rows

    def batch(self) -> pa.RecordBatch:
        """Return all rows as one record batch."""
        self._flush()
        if len(self._batches) == 1:
            return self._batches[0]
        columns = [pa.concat_arrays(parts) for parts in zip(*(batch.columns for batch in self._batches), strict=True)]
        return batch_of(columns, self._schema, self._count)

    def _flush(self) -> None:
        if self.rows:
            columns = [column([row[place] for row in self.rows], item.type) for place, item in enumerate(self._schema)]
            self._batches.append(batch_of(columns, self._schema, len(self.rows)))
            self._count += len(self.rows)
            self.rows = []


def batch_of(columns: list[pa.Array], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """Return a record batch of `columns`; without them, an empty batch of `schema`, or `rows` rows without columns."""
    if columns:
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    if len(schema):
        return pa.RecordBatch.from_arrays([pa.nulls(0, item.type) for item in schema], schema=schema)
    return pa.RecordBatch.from_arrays([pa.nulls(rows)], names=[""]).select([])


def column(values: list[Any], data_type: pa.DataType) -> pa.Array:
    """Return an Arrow array of the values of a column.

    The values have these forms: strings are bytes, dates are days since 1970, timestamps are microseconds since 1970,
    structs are lists of their fields' values, and maps are lists of pairs.
    """
    types = pa.types
    if isinstance(data_type, pa.StructType):
        return _structs(values, data_type)
    if isinstance(data_type, pa.ListType):
        items = [item for value in values if value is not None for item in value]
        inside = column(items, data_type.value_type)
        return pa.ListArray.from_arrays(_offsets(values), inside, type=data_type)
    if isinstance(data_type, pa.MapType):
        pairs = [pair for value in values if value is not None for pair in value]
        keys = column([key for key, _ in pairs], data_type.key_type)
        inside = column([item for _, item in pairs], data_type.item_type)
        return pa.MapArray.from_arrays(_offsets(values), keys, inside, type=data_type)
    if types.is_string(data_type):
        return pa.array(values, pa.binary()).view(data_type)
    if types.is_date32(data_type):
        return pa.array(values, pa.int32()).view(data_type)
    if types.is_timestamp(data_type):
        return pa.array(values, pa.int64()).view(data_type)
    return pa.array(values, data_type)


def _offsets(values: list[Any]) -> pa.Array:
    """Return the offsets that an Arrow list array of these lists needs. The offset of a null list is null."""
    starts = accumulate((len(value) if value is not None else 0 for value in values), initial=0)
    known: list[Any] = [*values, ()]
    return pa.array([None if value is None else start for value, start in zip(known, starts, strict=True)], pa.int32())


def _structs(values: list[Any], data_type: pa.StructType) -> pa.Array:
    mask = pa.array([value is None for value in values], pa.bool_())
    if not data_type.num_fields:
        return pa.array([None if value is None else {} for value in values], data_type)
    inside = [
        column([None if value is None else value[place] for value in values], field.type)
        for place, field in enumerate(data_type)
    ]
    return pa.StructArray.from_arrays(inside, fields=list(data_type), mask=mask)
