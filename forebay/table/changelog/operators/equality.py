# SPDX-License-Identifier: Apache-2.0
"""Compares rows exactly, as Spark's `<=>` does: NULL equals NULL, NaN equals NaN, 0.0 equals -0.0."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Bools = npt.NDArray[np.bool_]


def equal_rows(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> Bools:
    """Return for each index whether the two rows are equal in all columns. Both sides have equal types and lengths."""
    result = np.ones(len(left[0]) if left else 0, np.bool_)
    for one, other in zip(left, right, strict=True):
        result &= _equal(one, other)
    return result


def _equal(left: pa.Array, right: pa.Array) -> Bools:
    same: Bools
    if isinstance(left, pa.StructArray) and isinstance(right, pa.StructArray):
        same = _bools(left.is_null()) == _bools(right.is_null())
        return same & equal_rows(left.flatten(), right.flatten()) if left.type.num_fields else same
    if pa.types.is_nested(left.type):
        pairs = zip(row_keys([left]), row_keys([right]), strict=True)
        return np.fromiter((one == other for one, other in pairs), np.bool_, len(left))
    if pa.types.is_null(left.type):
        return np.ones(len(left), np.bool_)
    same = _bools(pc.fill_null(pc.equal(left, right), fill_value=False))
    if left.null_count and right.null_count:
        same |= _bools(left.is_null()) & _bools(right.is_null())
    if pa.types.is_floating(left.type):
        same |= _bools(pc.fill_null(pc.is_nan(left), fill_value=False)) & _bools(
            pc.fill_null(pc.is_nan(right), fill_value=False)
        )
    return same


def row_keys(columns: Sequence[pa.Array]) -> list[Hashable]:
    """Return each row as a hashable value: equal if and only if the rows are. Slow: for few rows or nested columns."""
    return [
        tuple(_key(value) for value in row) for row in zip(*(column.to_pylist() for column in columns), strict=True)
    ]


def _key(value: object) -> Hashable:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0  # -0.0 + 0.0 is 0.0
    if isinstance(value, dict):
        return tuple((name, _key(inner)) for name, inner in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(_key(inner) for inner in value)
    other: Hashable = value
    return other


def _bools(array: pa.Array) -> Bools:
    values: Bools = array.to_numpy(zero_copy_only=False)
    return values
