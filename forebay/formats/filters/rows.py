# SPDX-License-Identifier: Apache-2.0
"""Evaluates a bound filter on Arrow columns, with Spark's rules for nulls and NaN."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from forebay.formats.filters.expressions import Both, Compare, Constant, Expression, IsNull, Leaf, Not

_FUNCTIONS: Final = {"=": pc.equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal}


def matching(batch: pa.RecordBatch, expression: Expression) -> pa.RecordBatch:
    """Return the rows for which a bound filter is true. Rows for which it is null are dropped, as by SQL's WHERE."""
    return batch.filter(mask(batch, expression))


def mask(batch: pa.RecordBatch, expression: Expression) -> pa.Array:
    """Return the outcome of a bound filter for each row, as an array of booleans with nulls."""
    if isinstance(expression, Not):
        return pc.invert(mask(batch, expression.inner))
    if isinstance(expression, Both):
        joined = pc.and_kleene if expression.operator == "AND" else pc.or_kleene
        return joined(mask(batch, expression.left), mask(batch, expression.right))
    return _outcome(batch.column(expression.column), expression)


def _outcome(column: pa.Array, leaf: Leaf) -> pa.Array:
    if isinstance(leaf, IsNull):
        return pc.is_null(column)
    if isinstance(leaf, Constant):
        return pc.if_else(pc.is_valid(column), leaf.outcome, pa.scalar(None, pa.bool_()))
    return _compared(column, leaf)


def _compared(column: pa.Array, leaf: Compare) -> pa.Array:
    kind = column.type
    if pa.types.is_floating(kind):
        wide = column.cast(pa.float64())
        found = _FUNCTIONS[leaf.operator](wide, pa.scalar(leaf.literal, pa.float64()))
        # In Spark NaN is greater than every number.
        return pc.or_(found, pc.is_nan(wide)) if ">" in leaf.operator else found
    if pa.types.is_timestamp(kind):
        return _FUNCTIONS[leaf.operator](column, pa.scalar(leaf.literal, pa.timestamp("us", kind.tz)))
    return _FUNCTIONS[leaf.operator](column, pa.scalar(leaf.literal, kind))
