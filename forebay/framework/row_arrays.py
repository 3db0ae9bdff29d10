# SPDX-License-Identifier: Apache-2.0
"""From dicts and tuples to one record batch of the schema, or an error with column, row and value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from forebay.errors import ContractError, DataError
from forebay.framework.fitting import LIST_ARRAYS, LISTS, ConversionError, first_bad, forbids_nulls, refuse_nulls

Row = Mapping[str, object] | tuple[object, ...]


class RowTaker:
    """Takes the values out of a row as it is yielded: the author may fill the same dict again for the next one.

    Args:
        schema: The schema of the source.
        where: Gives the labels of an error for a row's number.
    """

    def __init__(self, schema: pa.Schema, where: Callable[[int], dict[str, str]]) -> None:
        self._names = schema.names
        self._where = where
        # With one name it would give no tuple.
        self._all = itemgetter(*schema.names) if len(schema) > 1 else None

    def take(self, row: object, number: int) -> tuple[object, ...]:
        """Return the values in schema order. A key that is not in the schema is left out, a missing one is null.

        Args:
            row: What the author yielded as a row.
            number: Its number, for errors.

        Raises:
            ContractError: A dict shares no column with the schema, a tuple has another length, or it is neither.
        """
        if type(row) is dict and self._all is not None:  # a defaultdict would make what is missing
            try:
                values: tuple[object, ...] = self._all(row)
            except KeyError:
                pass  # what is missing is null, if anything is there
            else:
                return values
        if isinstance(row, tuple):
            if len(row) == len(self._names):
                return row
            problem = f"a tuple of {len(row)} values came for {len(self._names)} columns"
        elif isinstance(row, Mapping):
            if not row or not self._names or any(name in row for name in self._names):
                return tuple(map(row.get, self._names))
            problem = f"a row has none of the columns {self._names}, only {list(row)[:10]}"
        else:
            problem = f"a {type(row).__name__} came as a row"
        raise ContractError(
            problem,
            **self._where(number),
            rule="SR-2",
            advice="yield dicts by column name or tuples in schema order",
        )


def to_record_batch(
    rows: Sequence[tuple[object, ...]], schema: pa.Schema, where: Callable[[int], dict[str, str]]
) -> pa.RecordBatch:
    """Turn the values of rows into one record batch.

    Args:
        rows: At least one row, as a `RowTaker` took it.
        schema: The schema to fit. In dicts inside a column a key that is not in the schema is left out, a missing one
            is null.
        where: Gives the labels of an error for a row's index.

    Raises:
        DataError: A value does not fit its column, has none of the keys of its struct, or is null where the schema
            allows none.
        ContractError: A column is more than an array can hold.
    """
    arrays: list[pa.Array] = []
    for number, field in enumerate(schema):
        values = [row[number] for row in rows]
        try:
            # Arrow makes several chunks of what is too much for one.
            array = cast("pa.Array | pa.ChunkedArray", pa.array(values, type=field.type))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, ValueError) as error:
            raise _bad_value(values, field, where, error) from error
        except pa.ArrowCapacityError as error:
            raise _too_much(rows, field, where) from error
        if isinstance(array, pa.ChunkedArray):
            raise _too_much(rows, field, where)
        _check_nulls(array, field, where)
        _check_keys(array, values, field, where)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _too_much(rows: Sequence[object], field: pa.Field, where: Callable[[int], dict[str, str]]) -> ContractError:
    return ContractError(
        f"the column {field.name!r} of {len(rows)} rows has more than 2 GiB, which no record batch can hold",
        **where(0),
        rule="SR-2",
        advice="yield smaller Batches; for plain rows lower maxRowsPerBatch",
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
    if isinstance(present, LIST_ARRAYS):
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
    elif isinstance(kind, LISTS) and isinstance(value, Iterable):
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
