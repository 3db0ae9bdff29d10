# SPDX-License-Identifier: Apache-2.0
"""Infers the common type ("kind") of a block's records with Arrow, if Arrow infers the same type as Spark."""

from __future__ import annotations

import re
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from forebay.formats.json.arrow import NotSafe, parsed, regular_lines
from forebay.formats.json.inference.kinds import DOUBLE, LONG, NULL, STRING, Kind, ListOf, Simple, Struct
from forebay.formats.json.options import JsonOptions

_NAME = re.compile(rb'"([^"\\]*)"[ \t]*:')
_SAMPLES, _MIN_STEP = 256, 256
_SATURATED = 8
_CELLS_PER_BYTE = 5  # cells that Arrow fills in the time that it takes to read one byte record by record
_TWO_TO_63 = float(1 << 63)
_PRIMITIVES = {"bool": Simple.BOOLEAN, "int64": LONG, "double": DOUBLE}
_PARSE = arrow_json.ParseOptions(newlines_in_values=False, unexpected_field_behavior="infer")


def types_by_arrow(data: bytes | bytearray, options: JsonOptions) -> Kind | None:
    """Return the kind that covers the records of a block; None if Arrow may infer another kind than Spark."""
    if options.infer_timestamp or options.prefers_decimal:
        return None
    count = regular_lines(data)
    if count is None or _has_too_many_names(data):
        return None
    try:
        table = parsed(data, _PARSE)
        if table.num_rows != count:
            return None
        columns = zip(table.column_names, table.columns, strict=True)
        return Struct.of([(name, _kind(column.combine_chunks(), options)) for name, column in columns])
    except (NotSafe, RecursionError):
        return None


def _has_too_many_names(data: bytes | bytearray) -> bool:
    """Return whether the records have so many different names that it is faster to read them one by one.

    For each object, Arrow fills a cell for every name of all objects. There are few names if half of a sample of the
    records has nearly all names of the sample.
    """
    step = max(_MIN_STEP, len(data) // _SAMPLES)
    found = [_NAME.search(data, at, at + step) for at in range(0, len(data), step)]
    names = [name[1] for name in found if name is not None]
    few, many = len(set(names[::2])), len(set(names))
    if _SATURATED * (many - few) <= many:
        return False
    return data.count(b"{") * len(set(_NAME.findall(data))) > _CELLS_PER_BYTE * len(data)


def _kind(array: pa.Array | pa.ChunkedArray, options: JsonOptions) -> Kind:
    if isinstance(array, pa.StructArray):
        fields = list(cast("pa.StructType", array.type))
        return Struct.of([(field.name, _kind(array.field(index), options)) for index, field in enumerate(fields)])
    if isinstance(array, pa.ListArray):
        return ListOf(_kind(array.values, options))
    types, data_type = pa.types, array.type
    if types.is_null(data_type):
        return NULL
    if types.is_timestamp(data_type):
        return STRING
    if types.is_string(data_type):
        return STRING if pc.any(pc.greater(pc.binary_length(array), 0)).as_py() else NULL
    if options.primitives_as_string:
        return STRING
    if types.is_float64(data_type):
        # Spark reads whole numbers beyond 64 bits as decimals, Arrow as doubles.
        most = pc.max(pc.abs(array)).as_py()
        if most is not None and not most < _TWO_TO_63:
            raise NotSafe
    return _PRIMITIVES[str(data_type)]
