# SPDX-License-Identifier: Apache-2.0
"""Which Arrow types Spark has, which of the others stand for one of these, and the casts between them."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds


class ConversionError(Exception):
    """A type has no counterpart in Spark, or a value does not fit its type; the text says why."""


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
    if isinstance(kind, (pa.ListType, pa.LargeListType, pa.FixedSizeListType)):
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


def fits(have: pa.DataType, want: pa.DataType) -> bool:
    """Whether values of one type may become the other without a guess; single values may still not fit.

    Text is never parsed, numbers never become text, and nothing loses digits: such a difference is a mistake of the
    connector, and converting would hide it.
    """
    if isinstance(have, pa.BaseExtensionType):
        return fits(have.storage_type, want)
    if isinstance(have, pa.DictionaryType):
        return fits(have.value_type, want)
    if have == want or kinds.is_null(have):
        return True
    if isinstance(want, pa.StructType):
        return isinstance(have, pa.StructType) and _structs_fit(have, want)
    if isinstance(want, pa.MapType):
        return (
            isinstance(have, pa.MapType) and fits(have.key_type, want.key_type) and fits(have.item_type, want.item_type)
        )
    if isinstance(want, pa.ListType):
        lists = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)
        return isinstance(have, lists) and fits(have.value_type, want.value_type)
    if kinds.is_nested(have):
        return False
    return _leaves_fit(have, want)


def _structs_fit(have: pa.StructType, want: pa.StructType) -> bool:
    names = [have.field(index).name for index in range(have.num_fields)]
    wanted = [want.field(index) for index in range(want.num_fields)]
    return sorted(names) == sorted(field.name for field in wanted) and all(
        fits(have.field(names.index(field.name)).type, field.type) for field in wanted
    )


def _leaves_fit(have: pa.DataType, want: pa.DataType) -> bool:
    if kinds.is_integer(have):
        return bool(kinds.is_integer(want) or kinds.is_decimal(want))
    if kinds.is_floating(have):
        return bool(kinds.is_floating(want) and have.bit_width <= want.bit_width)
    if isinstance(have, pa.TimestampType):
        return isinstance(want, pa.TimestampType) and (have.tz is None) == (want.tz is None)
    families = (kinds.is_decimal, _is_text, _is_bytes, kinds.is_date, kinds.is_time, kinds.is_duration)
    return any(family(have) and family(want) for family in families)


def _is_text(kind: pa.DataType) -> bool:
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    if kinds.is_fixed_size_binary(kind) or kinds.is_binary(kind):
        return True
    return bool(kinds.is_large_binary(kind) or kinds.is_binary_view(kind))


def convert(array: pa.Array, want: pa.DataType) -> pa.Array:
    """Return the array as `want`, for which `fits` must hold; parts of a microsecond are dropped.

    Raises:
        ConversionError: A value does not fit: too big, or null where no null is allowed.
    """
    while isinstance(array, pa.ExtensionArray):
        array = array.storage
    if array.type != want:
        try:
            array = pc.cast(array, options=pc.CastOptions(want, allow_time_truncate=True))
        except pa.ArrowException as error:
            raise ConversionError(str(error)) from error
    return array


def refuse_nulls(array: pa.Array, field: pa.Field) -> None:
    """Check that there is no null where the field, or one inside it, allows none.

    Raises:
        ConversionError: There is one.
    """
    if not field.nullable and array.null_count:
        raise ConversionError(f"{field.name!r} must not be null, and {array.null_count} values are")
    if not forbids_nulls(field.type):
        return
    # A null struct or list has nothing inside: whatever its children hold there does not count.
    present = array.drop_null() if array.null_count else array
    if isinstance(present, pa.StructArray):
        for index, child in enumerate(present.flatten()):
            refuse_nulls(child, present.type.field(index).with_nullable(field.type.field(index).nullable))
    elif isinstance(present, pa.MapArray) and isinstance(field.type, pa.MapType):
        # `items` are those of the whole buffer, also for a slice of it.
        first, last = present.offsets[0].as_py(), present.offsets[-1].as_py()
        refuse_nulls(present.items.slice(first, last - first), field.type.item_field)
    elif isinstance(present, pa.ListArray) and isinstance(field.type, pa.ListType):
        refuse_nulls(present.flatten(), field.type.value_field)


def forbids_nulls(kind: pa.DataType) -> bool:
    """Whether a nested type has a field that must not be null."""
    if isinstance(kind, pa.StructType):
        fields = [kind.field(index) for index in range(kind.num_fields)]
    elif isinstance(kind, pa.MapType):
        fields = [kind.item_field]
    elif isinstance(kind, pa.ListType):
        fields = [kind.value_field]
    else:
        return False
    return any(not field.nullable or forbids_nulls(field.type) for field in fields)
