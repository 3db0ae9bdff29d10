# SPDX-License-Identifier: Apache-2.0
"""Arrow columns of objects: their types, the checked cast to the type of a property, and their values for SQLite."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import DataError
from forebay.table.changelog.operators.events import equal_rows
from forebay.table.index.types import INTEGERS, NAN, SMALL_DECIMAL, SparkType

_SIMPLE: Final = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}

_INTEGERS: Final = {"boolean": pa.int8(), "date": pa.int32(), "timestamp": pa.int64(), "timestamp_ntz": pa.int64()}
"""The integers as which SQLite stores other types."""

_DAYS: Final = (-719_162, 2_932_896)
_MICROSECONDS: Final = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""The first and the last time of the years 1 to 9999."""


_PLAIN: Final = 6
"""Places up to which Arrow writes decimals without an exponent."""

_CORRECT: Final = (
    "let the stream bring the corrected row, or commit it as funnel.commit(datasource, rows, kind='update'), which "
    "takes the datasource over from a stream with adopt=True; or give the property another type with Funnel.replace"
)


def arrow_type(kind: SparkType) -> pa.DataType:
    """Return the Arrow type of a type of Spark."""
    match kind.name:
        case "decimal":
            return pa.decimal128(kind.precision, kind.scale)
        case "array":
            return pa.list_(arrow_type(kind.fields[0][1]))
        case "map":
            return pa.map_(arrow_type(kind.fields[0][1]), arrow_type(kind.fields[1][1]))
        case "struct":
            return pa.struct([pa.field(name, arrow_type(inner)) for name, inner in kind.fields])
    return _SIMPLE[kind.name]


_MISFIT: Final = (pa.ArrowInvalid, pa.ArrowNotImplementedError)
"""What `_cast` raises for a value that has no equal one of the type."""


def cast_column(column: pa.Array, kind: SparkType, shown: Callable[[int], str]) -> pa.Array:
    """Return a column with the type of a property.

    Args:
        column: The column, with the type of the datasource.
        kind: The type of the property.
        shown: Returns the row with an index as text, for the error.

    Raises:
        DataError: A value has no equal value of the type.
    """
    target = arrow_type(kind)
    if is_far(column):
        raise DataError(
            f"the time of {shown(first_bad(column, is_far))} is before the year 1 or after the year 9999, which Python "
            "cannot show",
            advice=_CORRECT,
        )
    if column.type == target:
        return column
    try:
        return _cast(column, target)
    except _MISFIT as error:
        place = first_bad(column, lambda part: _misfit(part, target) is not None)
        why = _misfit(_part(column, place, place + 1), target)  # that of the column may be of another row
        raise DataError(
            f"the value {column[place].as_py()!r:.200} of {shown(place)} cannot be {kind.text}: {why}",
            advice=_CORRECT,
        ) from error


def shown_row(datasource: str, column: str, keys: Mapping[str, pa.Array]) -> Callable[[int], str]:
    """Return a function that names the column of a row by the index of the row, for the errors of `cast_column`.

    Args:
        datasource: The datasource.
        column: The column, as states name it.
        keys: The key columns of the rows.
    """

    def shown(place: int) -> str:
        key = ", ".join(f"{name}={values[place].as_py()!r}" for name, values in keys.items())
        return f"the column {column[2:]!r} of the datasource {datasource!r} in the row ({key})"

    return shown


def python_value(value: pa.Scalar) -> Any:  # noqa: ANN401 - of any type
    """Return a value of a row as Python's; a text in its place, if Python has no such time, or it is not UTF-8."""
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        return "(a value that Python cannot show)"


def _cast(column: pa.Array, target: pa.DataType) -> pa.Array:
    if column.null_count == len(column):
        return pa.nulls(len(column), target)
    refuse_other_meaning(column.type, target)
    made = _converted(column, target)
    if pa.types.is_float32(target):
        made_exact, exact = (each.cast(pa.float64()) for each in (made, column))
    elif pa.types.is_string(column.type) or pa.types.is_string(target):  # of one number there are several texts
        return made
    else:
        made_exact, exact = _converted(made, column.type), column
    if not equal_rows([made_exact], [exact]).all():
        raise pa.ArrowInvalid("it would lose digits, or a part")
    return made


def _converted(column: pa.Array, target: pa.DataType) -> pa.Array:
    if (
        pa.types.is_integer(target)
        and pa.types.is_string(column.type)
        and pc.any(pc.match_substring_regex(column, "^[-+]?0[xX]")).as_py()
    ):
        raise pa.ArrowInvalid("it is hexadecimal")
    if pa.types.is_decimal(target) and pa.types.is_integer(column.type):
        column = column.cast(pa.decimal128(38, 0))
    return column.cast(target)


def refuse_other_meaning(source: pa.DataType, target: pa.DataType) -> None:
    """Refuse what Arrow casts, though it then means something else, or has a text that Spark does not write.

    Raises:
        pa.ArrowNotImplementedError: The types are such ones.
    """
    if isinstance(source, pa.StructType) and isinstance(target, pa.StructType):
        names = [{each.name for each in kind} for kind in (source, target)]
        pairs = [(source.field(name).type, target.field(name).type) for name in names[0] & names[1]]
        refused = names[0] != names[1]
    elif isinstance(source, pa.MapType) and isinstance(target, pa.MapType):
        pairs, refused = [(source.key_type, target.key_type), (source.item_type, target.item_type)], False
    elif isinstance(source, pa.ListType) and isinstance(target, pa.ListType):
        pairs, refused = [(source.value_type, target.value_type)], False
    else:
        # What is a time of day or a date in one zone is another one in the next.
        pairs, times = [], [(pa.types.is_temporal(kind), _has_zone(kind)) for kind in (source, target)]
        if pa.types.is_string(target):
            small = pa.types.is_decimal(source) and source.scale > _PLAIN
            refused = small or pa.types.is_timestamp(source) or pa.types.is_floating(source)
        elif pa.types.is_string(source) or pa.types.is_binary(source):
            refused = pa.types.is_timestamp(target) or pa.types.is_floating(target)
        else:
            refused = times[0] != times[1]
    if refused:
        raise pa.ArrowNotImplementedError(f"cast {source} in the DataFrame")
    for source_part, target_part in pairs:
        refuse_other_meaning(source_part, target_part)


def _has_zone(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) and kind.tz is not None


def _misfit(column: pa.Array, target: pa.DataType) -> Exception | None:
    """Return why a column has no equal values of a type; None if it has."""
    try:
        _cast(column, target)
    except _MISFIT as error:
        return error
    return None


def first_bad(column: pa.Array, is_bad: Callable[[pa.Array], bool]) -> int:
    """Return the index of the first bad value of a column that has one."""
    return bisect_left(range(1, len(column)), True, key=lambda size: is_bad(_part(column, 0, size)))


def is_invalid(values: pa.Array | pa.RecordBatch) -> bool:
    """Return whether values break the rules of Arrow. Of values of Spark, texts that are not UTF-8 do."""
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        return True
    return False


def _part(column: pa.Array, low: int, high: int) -> pa.Array:
    """Return a part of a column. A slice of nested values would have the children of all."""
    return pa.concat_arrays([column.slice(low, high - low)])


def is_far(column: pa.Array) -> bool:
    """Return whether a column has a time before the year 1 or after the year 9999, which Python cannot show."""
    kind = column.type
    if isinstance(column, pa.StructArray):
        return any(is_far(part) for part in column.flatten())
    if isinstance(column, pa.MapArray):
        offsets = column.offsets.to_pylist()
        first, size = offsets[0], offsets[-1] - offsets[0]
        return is_far(column.keys.slice(first, size)) or is_far(column.items.slice(first, size))
    if isinstance(column, pa.ListArray):
        return is_far(column.flatten())
    if not isinstance(kind, pa.TimestampType) and kind != pa.date32():
        return False
    least, most = _DAYS if kind == pa.date32() else _MICROSECONDS
    times = column.cast(pa.int32() if kind == pa.date32() else pa.int64())
    first, last = pc.min_max(times).as_py().values()
    return first is not None and not least <= first <= last <= most


def sqlite_values(column: pa.Array, kind: SparkType) -> list[Any]:
    """Return the values of a column, which has the Arrow type of `kind`, as SQLite stores them."""
    if kind.name in ("string", "binary") or kind.name in INTEGERS:
        values: list[Any] = column.to_pylist()
        return values
    if kind.name in ("float", "double"):
        return [None if value is None else NAN if value != value else value + 0.0 for value in column.to_pylist()]  # noqa: PLR0124 - NaN
    if kind.name in _INTEGERS:
        return column.cast(_INTEGERS[kind.name]).to_pylist()
    if kind.name == "decimal" and kind.precision <= SMALL_DECIMAL:
        unscaled = column.view(pa.decimal128(SMALL_DECIMAL, 0)).cast(pa.int64())
        return unscaled.to_pylist() if unscaled.null_count else unscaled.to_numpy().tolist()
    return [kind.encode(value) for value in column.to_pylist()]
