# SPDX-License-Identifier: Apache-2.0
"""Builds Arrow columns of the values that the record readers give."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pyarrow as pa


def column(values: list[Any], data_type: pa.DataType) -> pa.Array:
    """The array of a column's values.

    Strings come as bytes, dates as days, timestamps as microseconds, structs as lists of their fields' values, maps as
    lists of pairs.
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
        # As bytes, which they are already.
        return pa.array(values, pa.binary()).view(data_type)
    if types.is_date32(data_type):
        return pa.array(values, pa.int32()).view(data_type)
    if types.is_timestamp(data_type):
        return pa.array(values, pa.int64()).view(data_type)
    return pa.array(values, data_type)


def _offsets(values: list[Any]) -> pa.Array:
    """Where each list begins; a null instead marks a null."""
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
