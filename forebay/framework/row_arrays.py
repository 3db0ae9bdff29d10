# SPDX-License-Identifier: Apache-2.0
"""From dicts and tuples to one record batch of the schema, or an error with column, row and value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from forebay.errors import ContractError, DataError
from forebay.framework.fitting import ConversionError, first_bad, forbids_nulls, refuse_nulls

Row = Mapping[str, object] | tuple[object, ...]


def to_record_batch(rows: Sequence[Row], schema: pa.Schema, where: Callable[[int], dict[str, str]]) -> pa.RecordBatch:
    """Turn dicts or tuples into one record batch.

    Args:
        rows: At least one row, dicts or tuples. A key that is not in the schema is left out, a missing one is null;
            the same in dicts inside them.
        schema: The schema to fit.
        where: Gives the labels of an error for a row's index.

    Raises:
        DataError: A value does not fit its column, has none of the keys of its struct, or is null where the schema
            allows none.
        ContractError: A row shares no column with the schema, or a tuple has another length.
    """
    arrays: list[pa.Array] = []
    for index, row in enumerate(rows):
        _check_shape(row, schema, index, where)
    for number, field in enumerate(schema):
        values = [row[number] if isinstance(row, tuple) else row.get(field.name) for row in rows]
        try:
            array = pa.array(values, type=field.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, ValueError) as error:
            raise _bad_value(values, field, where, error) from error
        _check_nulls(array, field, where)
        _check_keys(array, values, field, where)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _check_shape(row: object, schema: pa.Schema, index: int, where: Callable[[int], dict[str, str]]) -> None:
    if isinstance(row, tuple):
        if len(row) == len(schema):
            return
        problem = f"a tuple of {len(row)} values came for {len(schema)} columns"
    elif isinstance(row, Mapping):
        if not row or not schema.names or any(name in row for name in schema.names):
            return
        problem = f"a row has none of the columns {schema.names}, only {list(row)[:10]}"
    else:
        problem = f"a {type(row).__name__} came as a row"
    raise ContractError(
        problem, **where(index), rule="SR-2", advice="yield dicts by column name or tuples in schema order"
    )


def _check_nulls(array: pa.Array, field: pa.Field, where: Callable[[int], dict[str, str]]) -> None:
    if field.nullable and not forbids_nulls(field.type):
        return
    try:
        refuse_nulls(array, field)
    except ConversionError as error:
        raise DataError(
            f"column {field.name!r} must not be null"
            if array.null_count and not field.nullable
            else f"column {field.name!r} is {field.type}: {error}",
            **where(first_bad(array, lambda part: refuse_nulls(part, field))),
            advice="fill it in read(), or make the field nullable in schema()",
        ) from error


def _check_keys(
    array: pa.Array, values: Sequence[object], field: pa.Field, where: Callable[[int], dict[str, str]]
) -> None:
    """Refuse a dict that has none of the keys of its struct, as a row with none of the columns is refused.

    Only where a struct came out with nothing but nulls are the values themselves looked at.
    """
    if not kinds.is_nested(field.type) or not _has_hollow(array):
        return
    for index, value in enumerate(values):
        stranger = _stranger(value, field.type)
        if stranger is not None:
            found, kind = stranger
            raise DataError(
                f"column {field.name!r} has a dict with none of the keys of {kind}, only {list(found)[:10]}",
                **where(index),
                advice="name the keys as schema() does, or give None",
            )


def _has_hollow(array: pa.Array) -> bool:
    """Whether somewhere in the array there is a struct in which every field is null."""
    present = array.drop_null() if array.null_count else array
    if not len(present):
        return False
    if isinstance(present, pa.StructArray):
        children = present.flatten()
        if children and all(child.null_count for child in children):
            empty = children[0].is_null()
            for child in children[1:]:
                empty = pc.and_(empty, child.is_null())
            if empty.true_count:
                return True
        return any(_has_hollow(child) for child in children)
    if isinstance(present, pa.MapArray):
        return _has_hollow(present.items)
    if isinstance(present, (pa.ListArray, pa.LargeListArray, pa.FixedSizeListArray)):
        return _has_hollow(present.flatten())
    return False


def _stranger(value: object, kind: pa.DataType) -> tuple[Mapping[object, object], pa.DataType] | None:
    """Return the first dict without any key of its struct, and that struct; None if there is none."""
    if isinstance(kind, pa.StructType):
        if not isinstance(value, Mapping) or not value:
            return None
        fields = [kind.field(index) for index in range(kind.num_fields)]
        # Arrow takes the keys as bytes too.
        inside = [value.get(field.name, value.get(field.name.encode())) for field in fields]
        if not any(field.name in value or field.name.encode() in value for field in fields):
            return value, kind
        pairs = [(one, field.type) for one, field in zip(inside, fields, strict=True)]
    elif isinstance(kind, pa.MapType) and isinstance(value, Iterable):
        entries = value.items() if isinstance(value, Mapping) else value
        pairs = [(item, kind.item_type) for _, item in entries]
    elif isinstance(kind, (pa.ListType, pa.LargeListType, pa.FixedSizeListType)) and isinstance(value, Iterable):
        pairs = [(item, kind.value_type) for item in value]
    else:
        return None
    return next((found for one, inner in pairs if (found := _stranger(one, inner)) is not None), None)


def _bad_value(
    values: list[object], field: pa.Field, where: Callable[[int], dict[str, str]], error: Exception
) -> DataError:
    for index, value in enumerate(values):
        try:
            pa.array([value], type=field.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, ValueError) as cause:
            return DataError(
                f"column {field.name!r} is {field.type}, but got {value!r:.100} ({type(value).__name__}): {cause}",
                **where(index),
                advice="convert it in read(), or change the type in schema()",
            )
    return DataError(f"column {field.name!r} ({field.type}): {error}", **where(0), advice="convert it in read()")
