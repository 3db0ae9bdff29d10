# SPDX-License-Identifier: Apache-2.0
"""Finds the stripes of an ORC file that may have rows which match a filter, from the statistics of the stripes.

The messages are `Metadata`, `StripeStatistics` and `ColumnStatistics` of orc_proto.proto.
"""

from __future__ import annotations

import decimal
import math
import struct
from collections.abc import Mapping
from typing import BinaryIO, Final

import pyarrow as pa

from forebay.formats.compression.byte_streams import read_fully
from forebay.formats.filters import ANY, Expression, Leaf, Outcomes, Statistics, Value, may_be_true, outcomes
from forebay.formats.orc import metadata
from forebay.formats.orc.convert import PickedColumn
from forebay.formats.orc.metadata import Malformed, Node, Stripe, Tail, TypeKind, decompress
from forebay.formats.values.rebase import FIRST_COMMON_DAY

_HIVE_8732: Final = 1
"""The first writer version whose statistics of strings are right."""
_DAY_US: Final = 86_400_000_000
_ZONES_US: Final = 2 * _DAY_US
"""More than the difference between any two time zones, in microseconds."""
_WIDTHS: Final = {TypeKind.BYTE: 8, TypeKind.SHORT: 16, TypeKind.INT: 32, TypeKind.LONG: 64}
_FLOATS: Final = {TypeKind.FLOAT: (pa.float32(), pa.float64()), TypeKind.DOUBLE: (pa.float64(),)}

_Range = tuple[Value | None, Value | None]
_UNKNOWN: Final[_Range] = (None, None)


def matching_stripes(
    raw: BinaryIO, tail: Tail, expression: Expression, columns: Mapping[str, tuple[PickedColumn, pa.DataType]]
) -> list[bool]:
    """Return for each stripe whether some of its rows may match the filter.

    Args:
        raw: The open file.
        tail: The tail of the file.
        expression: A bound filter.
        columns: The filter's columns by name, each with its data in the file and its type in the schema. Columns that
            are not stored in files are missing.
    """
    try:
        parts = _statistics(raw, tail)
    except Malformed:  # reading the rows shows whether the file is damaged
        parts = []

    def possible(leaf: Leaf, stripe: Stripe) -> Outcomes:
        column = columns.get(leaf.column)
        if column is None:
            return ANY
        item, target = column
        if item.pick is None:
            return outcomes(leaf, Statistics(stripe.rows, stripe.rows))
        if stripe.number >= len(parts):
            return ANY
        try:
            statistics = _column(parts[stripe.number], item.pick.source, target, stripe, tail)
        except (Malformed, ValueError, ArithmeticError, struct.error):
            return ANY
        return ANY if statistics is None else outcomes(leaf, statistics)

    def may_match(stripe: Stripe) -> bool:
        return may_be_true(expression, lambda leaf: possible(leaf, stripe))

    return [may_match(stripe) for stripe in tail.stripes]


def _statistics(raw: BinaryIO, tail: Tail) -> list[list[bytes]]:
    """Return the statistics of each stripe, one message for each type of the file."""
    if tail.writer_version < _HIVE_8732:
        return []
    offset, size = tail.statistics
    raw.seek(offset)
    fields = metadata.parse_message(decompress(read_fully(raw.read, size), tail.codec, tail.block))
    return [metadata.messages_of(metadata.parse_message(part), 1) for part in metadata.messages_of(fields, 1)]


def _column(parts: list[bytes], node: Node, target: pa.DataType, stripe: Stripe, tail: Tail) -> Statistics | None:
    """Return the statistics of a column in a stripe; None if they are missing or contradict themselves."""
    if node.id >= len(parts) or node.kind in (TypeKind.STRUCT, TypeKind.LIST, TypeKind.MAP, TypeKind.UNION):
        return None
    fields = metadata.parse_message(parts[node.id])
    if 1 not in fields:
        return None
    nulls = stripe.rows - metadata.number_of(fields, 1)
    if nulls < 0 or (nulls and not metadata.number_of(fields, 10, 1)):
        return None
    least, greatest = _range(fields, node, target, tail)
    # A value that does not fit into `target` is read as null, or is an error.
    known = nulls if _keeps_nulls(node, target) else None
    return Statistics(stripe.rows, known, least, greatest, nan=pa.types.is_floating(target))


def _keeps_nulls(node: Node, target: pa.DataType) -> bool:
    """Return whether reading `node` as `target` turns no value into null."""
    match node.kind:
        case TypeKind.DECIMAL:
            return False
        case TypeKind.BOOLEAN:
            return pa.types.is_boolean(target)
        case TypeKind.FLOAT | TypeKind.DOUBLE:
            return pa.types.is_floating(target)
        case kind if kind in _WIDTHS:
            return _holds(target, kind)
    return True  # texts, bytes, dates and times


def _holds(target: pa.DataType, kind: TypeKind) -> bool:
    """Return whether a type is an integer type that holds every value of an integer kind."""
    return pa.types.is_signed_integer(target) and target.bit_width >= _WIDTHS[kind]


def _range(fields: metadata.Fields, node: Node, target: pa.DataType, tail: Tail) -> _Range:
    """Return the least and the greatest value, in the form of bound literals (`Value`)."""
    kind = node.kind
    if kind in _WIDTHS and _holds(target, kind):
        return _both(_message(fields, 2), 1)
    if target in _FLOATS.get(kind, ()):
        return _doubles(_message(fields, 3))
    if kind is TypeKind.STRING and pa.types.is_string(target):
        message = _message(fields, 4)
        return _text(message, 1, 4), _text(message, 2, 5)
    if kind is TypeKind.BOOLEAN and pa.types.is_boolean(target):
        return _booleans(fields)
    if kind is TypeKind.DECIMAL and target == pa.decimal128(node.precision, node.scale):
        message = _message(fields, 6)
        return _decimal(message, 1), _decimal(message, 2)
    if kind is TypeKind.DATE and pa.types.is_date32(target):
        return _common(_both(_message(fields, 7), 1), 1, tail)
    if kind in (TypeKind.TIMESTAMP, TypeKind.TIMESTAMP_INSTANT) and pa.types.is_timestamp(target):
        return _times(_message(fields, 9), tail)
    return _UNKNOWN


def _message(fields: metadata.Fields, field: int) -> metadata.Fields:
    messages = metadata.messages_of(fields, field)
    return metadata.parse_message(messages[-1]) if messages else {}


def _both(fields: metadata.Fields, first: int) -> tuple[int | None, int | None]:
    """Return the signed numbers of two fields: of the field number `first`, and of the next one."""
    least, greatest = (_signed(fields, number) for number in (first, first + 1))
    return least, greatest


def _signed(fields: metadata.Fields, number: int) -> int | None:
    if number not in fields:
        return None
    zigzag = metadata.number_of(fields, number)
    return (zigzag >> 1) ^ -(zigzag & 1)


def _doubles(fields: metadata.Fields) -> _Range:
    bounds = [struct.unpack("<d", part)[0] if part else None for part in (_last(fields, 1), _last(fields, 2))]
    # If the first value is NaN, some writers store NaN as both minimum and maximum.
    return _UNKNOWN if any(bound is None or math.isnan(bound) for bound in bounds) else (bounds[0], bounds[1])


def _last(fields: metadata.Fields, number: int) -> bytes | None:
    messages = metadata.messages_of(fields, number)
    return messages[-1] if messages else None


def _text(fields: metadata.Fields, exact: int, bound: int) -> str | None:
    """Return a minimum or maximum, or the bound that writers store in place of a long one."""
    text = metadata.text_of(fields, exact)
    return metadata.text_of(fields, bound) if text is None else text


def _booleans(fields: metadata.Fields) -> _Range:
    counts = metadata.numbers_of(_message(fields, 5), 1)
    if not counts:
        return _UNKNOWN
    values = metadata.number_of(fields, 1)
    return counts[0] == values, counts[0] > 0


def _decimal(fields: metadata.Fields, number: int) -> decimal.Decimal | None:
    text = metadata.text_of(fields, number)
    return None if not text else decimal.Decimal(text)


def _times(fields: metadata.Fields, tail: Tail) -> _Range:
    """Return a range in microseconds that holds in any time zone; the statistics are wall-clock times in ms."""
    least, greatest = _both(fields, 3)
    if least is None or greatest is None:
        return _UNKNOWN
    return _common((least * 1000 - _ZONES_US, (greatest + 1) * 1000 + _ZONES_US), _DAY_US, tail)


def _common(bounds: tuple[int | None, int | None], day: int, tail: Tail) -> _Range:
    """Return a range of dates or times; an unknown range if reading converts some of them to the new calendar.

    `day` is the length of a day in the unit of the range.
    """
    least, greatest = bounds
    if least is None or greatest is None or (not tail.proleptic and least < FIRST_COMMON_DAY * day):
        return _UNKNOWN
    return least, greatest
