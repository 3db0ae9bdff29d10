# SPDX-License-Identifier: Apache-2.0
"""Filters bound to the types of their columns, and evaluated on Arrow columns as Spark does."""

from __future__ import annotations

import decimal
import math
from collections.abc import Mapping
from typing import Final, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import ConfigurationError
from forebay.formats.filters import (
    Both,
    Compare,
    Constant,
    DateLiteral,
    Expression,
    IsNull,
    Leaf,
    Not,
    TimestampLiteral,
    Value,
    moment_text,
    transformed,
)
from forebay.formats.values.dates import Zone, parse_date, parse_timestamp, parse_timestamp_ntz

# -- Binds a filter to the types of its columns: each literal becomes a value of its column's type, as in Spark.


_INTEGERS: Final[Mapping[pa.DataType, int]] = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}


def bind(expression: Expression, schema: pa.Schema, zone: Zone, option: str) -> Expression:
    """Return the filter with column names as in the schema, and with literals of the columns' types.

    Args:
        expression: The result of `parse_filter`.
        schema: The columns. Names are compared without case, as in Spark; an exact match has precedence.
        zone: The time zone of timestamps that have none.
        option: The name of the option, for errors.

    Raises:
        ConfigurationError: A column does not exist or is ambiguous, or a literal cannot be compared with it.
    """
    return transformed(expression, lambda leaf: _bound(leaf, _field(leaf.column, schema, option), zone, option))


def _field(name: str, schema: pa.Schema, option: str) -> pa.Field:
    fields = [field for field in schema if field.name == name] or [
        field for field in schema if field.name.lower() == name.lower()
    ]
    if len(fields) == 1:
        return fields[0]
    raise ConfigurationError(
        f"{option} names the column {name!r}, which {'is ambiguous' if fields else 'does not exist'}",
        option=option,
        advice=f"use one of the columns {', '.join(schema.names)}"
        if schema.names
        else f"remove {option}, because there is no column to filter by",
    )


def _bound(leaf: Leaf, field: pa.Field, zone: Zone, option: str) -> Leaf:
    if isinstance(leaf, IsNull):
        return IsNull(field.name)
    if isinstance(leaf, Constant):
        return leaf
    kind, literal = field.type, leaf.literal
    value: Value | None = None
    if isinstance(literal, decimal.Decimal) and (kind in _INTEGERS or pa.types.is_decimal(kind)):
        return _on_grid(Compare(field.name, leaf.operator, literal), literal, kind)
    if pa.types.is_floating(kind) and isinstance(literal, decimal.Decimal | float):
        value = float(literal)
    elif (pa.types.is_boolean(kind) and isinstance(literal, bool)) or (
        pa.types.is_string(kind) and isinstance(literal, str)
    ):
        value = literal
    elif pa.types.is_date32(kind) and isinstance(literal, str | DateLiteral):
        value = parse_date(literal if isinstance(literal, str) else literal.text)
    elif isinstance(kind, pa.TimestampType) and isinstance(literal, str | DateLiteral | TimestampLiteral):
        value = _micros(literal, kind, zone)
    if value is None:
        _refuse(leaf, field, option)
    return Compare(field.name, leaf.operator, value)


def _micros(literal: str | DateLiteral | TimestampLiteral, kind: pa.TimestampType, zone: Zone) -> int | None:
    text = literal if isinstance(literal, str) else literal.text
    if isinstance(literal, DateLiteral) and parse_date(text) is None:
        return None
    return parse_timestamp_ntz(text) if kind.tz is None else parse_timestamp(text, zone, time_alone=False)


def _on_grid(leaf: Compare, literal: decimal.Decimal, kind: pa.DataType) -> Leaf:
    """Return the comparison with the literal as a value of the column's type, an integer or a decimal.

    If the type does not have the literal's value, compare with the next value instead, or return a constant outcome.
    """
    if isinstance(kind, pa.Decimal128Type):
        most = decimal.Decimal(10) ** kind.precision - 1
        least, scale = -most, kind.scale
    else:
        bits = _INTEGERS[kind]
        least, most, scale = decimal.Decimal(-(2 ** (bits - 1))), decimal.Decimal(2 ** (bits - 1) - 1), 0
    with decimal.localcontext(prec=1000):
        scaled = literal.scaleb(scale)
        below, above = math.floor(scaled), math.ceil(scaled)
        if leaf.operator == "=":
            if below != above or not least <= below <= most:
                return Constant(leaf.column, outcome=False)
            unit = below
        else:
            # x < 1.5 is x <= 1, and x >= 1.5 is x >= 2. For a whole number, both bounds are the number itself.
            smaller = "<" in leaf.operator
            unit = below if smaller else above
            if below != above:
                leaf = Compare(leaf.column, "<=" if smaller else ">=", literal)
            if not least <= unit <= most:
                return Constant(leaf.column, outcome=(unit > most) == smaller)
        if isinstance(kind, pa.Decimal128Type):
            return Compare(leaf.column, leaf.operator, decimal.Decimal(unit).scaleb(-scale))
        return Compare(leaf.column, leaf.operator, unit)


def _refuse(leaf: Compare, field: pa.Field, option: str) -> NoReturn:
    literal = moment_text(leaf.literal)
    hints = {
        pa.types.is_string(field.type): f"write the literal in quotes: '{literal}'",
        field.type in _INTEGERS or pa.types.is_decimal(field.type): "write a number without quotes and exponent",
        pa.types.is_floating(field.type): "write a number without quotes",
        pa.types.is_boolean(field.type): "write TRUE or FALSE",
        pa.types.is_date32(field.type): "write DATE 'yyyy-MM-dd'",
        pa.types.is_timestamp(field.type): "write TIMESTAMP 'yyyy-MM-dd HH:mm:ss'",
    }
    raise ConfigurationError(
        f"{option} cannot compare the column {field.name!r} of type {field.type} with {literal}",
        option=option,
        advice=hints.get(True, "use where() on the result: columns of this type cannot be filtered by an option"),
    )


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
        compared = _FUNCTIONS[leaf.operator](wide, pa.scalar(leaf.literal, pa.float64()))
        # In Spark NaN is greater than every number.
        return pc.or_(compared, pc.is_nan(wide)) if ">" in leaf.operator else compared
    if pa.types.is_timestamp(kind):
        return _FUNCTIONS[leaf.operator](column, pa.scalar(leaf.literal, pa.timestamp("us", kind.tz)))
    return _FUNCTIONS[leaf.operator](column, pa.scalar(leaf.literal, kind))
