# SPDX-License-Identifier: Apache-2.0
"""Which Arrow types Spark has, and which of the others stand for one of these."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.types as kinds

from forebay.framework.arrow.casting import LISTS, ConversionError

_STANDS_FOR = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.string_view(): pa.string(),
    pa.large_string(): pa.string(),
    pa.binary_view(): pa.binary(),
    pa.large_binary(): pa.binary(),
}


def normal_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that stands for `kind` in Spark, nested ones included.

    Raises:
        ConversionError: There is none.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return normal_type(kind.storage_type)
    if isinstance(kind, pa.DictionaryType):
        return normal_type(kind.value_type)
    if isinstance(kind, pa.StructType):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        twice = [name for name, count in Counter(field.name for field in fields).items() if count > 1]
        if twice:
            raise ConversionError(f"a struct has the field {twice[0]!r} twice")
        return pa.struct([_normal_field(field) for field in fields])
    if isinstance(kind, pa.MapType):
        return pa.map_(normal_type(kind.key_type), _normal_field(kind.item_field))
    if isinstance(kind, LISTS):
        return pa.list_(_normal_field(kind.value_field))
    return _normal_leaf(kind)


def relaxed(kind: pa.DataType) -> pa.DataType:
    """Return the type that stands for `kind` in Spark, with nulls allowed everywhere, to compare types by.

    Raises:
        ConversionError: There is none.
    """
    normal = normal_type(kind)
    if isinstance(normal, pa.StructType):
        fields = [normal.field(index) for index in range(normal.num_fields)]
        return pa.struct([pa.field(field.name, relaxed(field.type)) for field in fields])
    if isinstance(normal, pa.MapType):
        return pa.map_(relaxed(normal.key_type), relaxed(normal.item_type))
    if isinstance(normal, pa.ListType):
        return pa.list_(relaxed(normal.value_type))
    return normal


def _normal_leaf(kind: pa.DataType) -> pa.DataType:
    if kind in _STANDS_FOR:
        return _STANDS_FOR[kind]
    if isinstance(kind, pa.FixedSizeBinaryType) and not kinds.is_decimal(kind):
        return pa.binary()
    if isinstance(kind, pa.TimestampType):
        return pa.timestamp("us", tz=None if kind.tz is None else "UTC")
    if kinds.is_time(kind):
        return pa.time64("ns")
    if kinds.is_duration(kind):
        return pa.duration("us")
    if kinds.is_decimal(kind):
        if kind.precision > 38 or not 0 <= kind.scale <= kind.precision:
            raise ConversionError(f"{kind} has more than 38 digits, or a scale outside them")
        return pa.decimal128(kind.precision, kind.scale)
    if kinds.is_nested(kind) or kinds.is_interval(kind) or kinds.is_run_end_encoded(kind):
        raise ConversionError(f"there is no Spark type for {kind}")
    return kind


def _normal_field(field: pa.Field) -> pa.Field:
    return field.with_type(normal_type(field.type)).remove_metadata()
