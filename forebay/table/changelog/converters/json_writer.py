# SPDX-License-Identifier: Apache-2.0
"""Writes rows as JSON texts that forebay's JSON reader, and Spark's `from_json`, read back as the same values."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.table.changelog.converters.change_events import children
from forebay.table.changelog.shape import COLUMNS


def payload_names(schema: pa.Schema) -> list[str]:
    """Return the payload columns of a changelog: all except its own, such as `_change_type`."""
    return [name for name in schema.names if name not in COLUMNS]


def json_values(array: pa.Array) -> list[Any]:
    """Return the values of an array as Python values that the `json` module writes.

    Decimals, times and special floating-point numbers become strings, binary becomes Base64, maps become objects.
    """
    kind = array.type
    if isinstance(kind, pa.StructType):
        columns = [json_values(column) for column in children(array)]
        names = [field.name for field in kind]
        rows = zip(*columns, strict=True) if columns else iter([()] * len(array))
        made = [dict(zip(names, row, strict=True)) for row in rows]
        return _masked(made, array)
    if isinstance(array, (pa.ListArray, pa.MapArray)):
        return _lists(array)
    if pa.types.is_binary(kind):
        return [None if value is None else b64encode(value).decode() for value in array.to_pylist()]
    if pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
        return array.cast(pa.string()).to_pylist()
    values: list[Any] = array.to_pylist()
    if pa.types.is_floating(kind):
        return [value if value is None or math.isfinite(value) else _special(value) for value in values]
    return values


def json_objects(columns: dict[str, pa.Array]) -> list[dict[str, Any]]:
    """Return each row as a dict that the `json` module writes."""
    lists = [json_values(column) for column in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]


def json_texts(columns: dict[str, pa.Array], there: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Return each row as the text of a JSON object; NULL for rows where `there` is False."""
    rows = json_objects(columns)
    kept: Sequence[bool] = [True] * len(rows) if there is None else there.tolist()
    return pa.array([dump(row) if keep else None for row, keep in zip(rows, kept, strict=True)], pa.string())


def dump(value: object) -> str:
    """Return the compact JSON text of a value from `json_values`."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _lists(array: pa.ListArray | pa.MapArray) -> list[Any]:
    offsets = array.offsets.to_pylist()
    first, last = offsets[0], offsets[-1]
    if isinstance(array, pa.MapArray):
        keys = json_values(array.keys.slice(first, last - first))
        values = json_values(array.items.slice(first, last - first))
        made: list[Any] = [
            dict(zip(keys[a - first : b - first], values[a - first : b - first], strict=True))
            for a, b in pairwise(offsets)
        ]
    else:
        values = json_values(array.values.slice(first, last - first))
        made = [values[a - first : b - first] for a, b in pairwise(offsets)]
    return _masked(made, array)


def _masked(values: list[Any], array: pa.Array) -> list[Any]:
    return [one if there else None for one, there in zip(values, array.is_valid().to_pylist(), strict=True)]


def _special(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
