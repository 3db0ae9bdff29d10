# SPDX-License-Identifier: Apache-2.0
"""Reads the statistics of the columns in each stripe of an ORC file.

The messages are `Metadata`, `StripeStatistics` and `ColumnStatistics` of orc_proto.proto.
"""

from __future__ import annotations

import decimal
import math
import struct
from collections.abc import Iterable
from typing import BinaryIO, Final

import pyarrow as pa

from forebay.formats.compression.byte_streams import read_fully
from forebay.formats.filters import Statistics, Value
from forebay.formats.orc import footer
from forebay.formats.orc.footer import Node, Stripe, Tail, TypeKind
from forebay.formats.units import Malformed
from forebay.formats.values.rebase import FIRST_COMMON_DAY

_HIVE_8732: Final = 1
"""The first writer version whose statistics of strings are right."""
_VALUE_BYTES: Final = 8
"""About the bytes of a value, beside those of a text."""
_DAY_US: Final = 86_400_000_000
_ZONES_US: Final = 2 * _DAY_US
"""More than the difference between any two time zones, in microseconds."""
_WIDTHS: Final = {TypeKind.BYTE: 8, TypeKind.SHORT: 16, TypeKind.INT: 32, TypeKind.LONG: 64}
_FLOATS: Final = {TypeKind.FLOAT: (pa.float32(), pa.float64()), TypeKind.DOUBLE: (pa.float64(),)}

_Range = tuple[Value | None, Value | None]
_UNKNOWN: Final[_Range] = (None, None)


def read_statistics(raw: BinaryIO, tail: Tail) -> list[list[bytes]]:
    """Return the statistics of each stripe, one message for each type of the file; raise Malformed if damaged."""
    if tail.writer_version < _HIVE_8732:
        return []
    offset, size = tail.statistics
    raw.seek(offset)
    fields = footer.parse_message(footer.decompress(read_fully(raw.read, size), tail.codec, tail.block))
    return [footer.messages_of(footer.parse_message(message), 1) for message in footer.messages_of(fields, 1)]


def column_statistics(
    messages: list[bytes], node: Node, target: pa.DataType, stripe: Stripe, tail: Tail
) -> Statistics | None:
    """Return the statistics of a column in a stripe; None if they are missing, damaged, or contradict themselves.

    Args:
        messages: The statistics of the stripe.
        node: The type of the column in the file.
        target: The type of the column in the schema.
        stripe: The stripe.
        tail: The tail of the file.
    """
    if node.id >= len(messages) or node.kind in (TypeKind.STRUCT, TypeKind.LIST, TypeKind.MAP):
        return None
    try:
        fields = footer.parse_message(messages[node.id])
        if 1 not in fields:
            return None
        nulls = stripe.rows - footer.number_of(fields, 1)
        if nulls < 0 or (nulls and not footer.number_of(fields, 10, 1)):
            return None
        least, greatest = _range(fields, node, target, tail)
    except (Malformed, ValueError, ArithmeticError, struct.error):
        return None
    # A value that does not fit into `target` is read as null, or is an error.
    known = nulls if _keeps_nulls(node, target) else None
    return Statistics(stripe.rows, known, least, greatest, nan=pa.types.is_floating(target))


def bytes_per_row(tail: Tail, nodes: Iterable[Node]) -> float | None:
    """Return the average size of the values of some types in a row, when they are decoded; None if it is unknown."""
    total = 0
    try:
        for node in nodes:
            fields = footer.parse_message(tail.columns[node.id])
            total += _VALUE_BYTES * footer.number_of(fields, 1)
            if node.kind in footer.TEXTS or node.kind is TypeKind.BINARY:
                binary = node.kind is TypeKind.BINARY
                total += _signed(_message(fields, 8 if binary else 4), 1 if binary else 3) or 0
    except (Malformed, IndexError):
        return None
    return total / max(1, tail.starts[-1])


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


def _range(fields: footer.Fields, node: Node, target: pa.DataType, tail: Tail) -> _Range:
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


def _message(fields: footer.Fields, field: int) -> footer.Fields:
    messages = footer.messages_of(fields, field)
    return footer.parse_message(messages[-1]) if messages else {}


def _both(fields: footer.Fields, first: int) -> tuple[int | None, int | None]:
    """Return the signed numbers of two fields: of the field number `first`, and of the next one."""
    least, greatest = (_signed(fields, number) for number in (first, first + 1))
    return least, greatest


def _signed(fields: footer.Fields, number: int) -> int | None:
    if number not in fields:
        return None
    zigzag = footer.number_of(fields, number)
    return (zigzag >> 1) ^ -(zigzag & 1)


def _doubles(fields: footer.Fields) -> _Range:
    bounds = [struct.unpack("<d", part)[0] if part else None for part in (_last(fields, 1), _last(fields, 2))]
    # If the first value is NaN, some writers store NaN as both minimum and maximum.
    return _UNKNOWN if any(bound is None or math.isnan(bound) for bound in bounds) else (bounds[0], bounds[1])


def _last(fields: footer.Fields, number: int) -> bytes | None:
    messages = footer.messages_of(fields, number)
    return messages[-1] if messages else None


def _text(fields: footer.Fields, exact: int, bound: int) -> str | None:
    """Return a minimum or maximum, or the bound that writers store in place of a long one."""
    text = footer.text_of(fields, exact)
    return footer.text_of(fields, bound) if text is None else text


def _booleans(fields: footer.Fields) -> _Range:
    counts = footer.numbers_of(_message(fields, 5), 1)
    if not counts:
        return _UNKNOWN
    values = footer.number_of(fields, 1)
    return counts[0] == values, counts[0] > 0


def _decimal(fields: footer.Fields, number: int) -> decimal.Decimal | None:
    text = footer.text_of(fields, number)
    return None if not text else decimal.Decimal(text)


def _times(fields: footer.Fields, tail: Tail) -> _Range:
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
