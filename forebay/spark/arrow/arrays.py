# SPDX-License-Identifier: Apache-2.0
"""Maps Arrow types to types that Spark supports."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.types as kinds

from forebay.framework.arrow.casting import LISTS, ConversionError

_REPLACEMENTS = {
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


def normal_type(kind: pa.DataType, *, relaxed: bool = False) -> pa.DataType:
    """Return the Arrow type that Spark uses for values of the Arrow type `kind`. Nested types are mapped too.

    With `relaxed`, the result is for comparisons: all nested fields are nullable, and the fields of lists and maps have
    Arrow's default names.

    Raises:
        ConversionError: Spark has no such type.
    """

    def normal_field(field: pa.Field) -> pa.Field:
        field = field.with_type(normal_type(field.type, relaxed=relaxed)).remove_metadata()
        return field.with_nullable(True) if relaxed else field

    if isinstance(kind, pa.BaseExtensionType):
        return normal_type(kind.storage_type, relaxed=relaxed)
    if isinstance(kind, pa.DictionaryType):
        return normal_type(kind.value_type, relaxed=relaxed)
    if isinstance(kind, pa.StructType):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        twice = [name for name, count in Counter(field.name for field in fields).items() if count > 1]
        if twice:
            raise ConversionError(f"a struct has the field {twice[0]!r} twice")
        return pa.struct(map(normal_field, fields))
    if isinstance(kind, pa.MapType):
        item = normal_field(kind.item_field)
        return pa.map_(normal_type(kind.key_type, relaxed=relaxed), item.type if relaxed else item)
    if isinstance(kind, LISTS):
        item = normal_field(kind.value_field)
        return pa.list_(item.type if relaxed else item)
    return _normal_leaf(kind)


def _normal_leaf(kind: pa.DataType) -> pa.DataType:
    if kind in _REPLACEMENTS:
        return _REPLACEMENTS[kind]
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
            raise ConversionError(f"{kind} has more than 38 digits, or a scale that is negative or above its precision")
        return pa.decimal128(kind.precision, kind.scale)
    if kinds.is_nested(kind) or kinds.is_interval(kind) or kinds.is_run_end_encoded(kind):
        raise ConversionError(f"there is no Spark type for {kind}")
    return kind
