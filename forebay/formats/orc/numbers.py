# SPDX-License-Identifier: Apache-2.0
"""Converts numbers to other types as ORC's Java reader does: a value that does not fit becomes null."""

from __future__ import annotations

from decimal import Decimal
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from forebay.formats.orc.wire import Malformed
from forebay.formats.values.decimals import exceeds_precision


def narrowed(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Convert integers or booleans to integers of another width; a value that does not fit becomes null."""
    if pa.types.is_boolean(array.type) or array.type.bit_width <= target.bit_width:
        return array.cast(target)
    most = (1 << (target.bit_width - 1)) - 1
    fits = pc.and_(pc.greater_equal(array, -most - 1), pc.less_equal(array, most))
    return pc.if_else(fits, array, pa.scalar(None, array.type)).cast(target)


def truncated(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Convert floating-point numbers to integers without the fraction; a value that does not fit becomes null."""
    values = array.cast(pa.float64())
    # A double can represent -2^63, but not 2^63 - 1.
    fits = pc.and_(pc.greater_equal(values, -(2.0**63)), pc.less(values, 2.0**63))
    whole = pc.if_else(fits, pc.trunc(values), pa.scalar(None, pa.float64())).cast(pa.int64(), safe=False)
    return narrowed(whole, target)


def check_precision(array: pa.Array) -> pa.Array:
    """Return the decimals unchanged.

    Raises:
        Malformed: A decimal has more digits than its type allows.
    """
    if exceeds_precision(array):
        raise Malformed(f"a decimal does not fit into {array.type}")
    return array


def rescaled(array: pa.Array, target: pa.Decimal128Type) -> pa.Array:
    """Convert decimals to another precision and scale, rounded half up; a value that does not fit becomes null."""
    stored = cast("pa.Decimal128Type", array.type)
    digits = target.precision - target.scale
    # Rounding may add a digit.
    wide = pa.decimal256(max(stored.precision, digits + stored.scale) + 1, stored.scale)
    values = array.cast(wide)
    if target.scale < stored.scale:
        values = pc.round(values, target.scale, "half_towards_infinity")
    fits = pc.less(pc.abs(values), pa.scalar(Decimal(10) ** digits, wide))
    return pc.if_else(fits, values, pa.scalar(None, wide)).cast(pa.decimal256(76, target.scale)).cast(target)


def number_texts(array: pa.Array) -> pa.Array:
    """Convert integers or booleans to strings; booleans become TRUE and FALSE."""
    if pa.types.is_boolean(array.type):
        return pc.if_else(array, "TRUE", "FALSE")
    return array.cast(pa.string())
