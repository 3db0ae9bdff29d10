# SPDX-License-Identifier: Apache-2.0
"""Which Arrow types may become which others without a guess, and the casts between them.

`Casting` holds the record batches of an author's `read()` to it, and Spark's host whatever leaves for Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from forebay.errors import ContractError, DataError

LISTS: Final = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)
"""The types of lists that are read into one another."""
LIST_ARRAYS: Final = (pa.ListArray, pa.LargeListArray, pa.FixedSizeListArray)
"""Their arrays."""


class ConversionError(Exception):
    """A type has no counterpart, or a value does not fit its type; the text says why."""


def fits(have: pa.DataType, want: pa.DataType) -> bool:
    """Whether values of one type may become the other without a guess; single values may still not fit.

    Text is never parsed, numbers never become text, and nothing loses digits: such a difference is a mistake of the
    connector, and converting would hide it.
    """
    if have == want or kinds.is_null(have):
        return True
    if isinstance(have, pa.BaseExtensionType) or isinstance(want, pa.BaseExtensionType):
        return fits(_plain(have), _plain(want))
    if isinstance(have, pa.DictionaryType) or isinstance(want, pa.DictionaryType):
        return fits(_plain(have), _plain(want))
    if isinstance(want, pa.StructType):
        return isinstance(have, pa.StructType) and _structs_fit(have, want)
    if isinstance(want, pa.MapType):
        return (
            isinstance(have, pa.MapType) and fits(have.key_type, want.key_type) and fits(have.item_type, want.item_type)
        )
    if isinstance(want, LISTS):
        return isinstance(have, LISTS) and fits(have.value_type, want.value_type)
    if kinds.is_nested(have):
        return False
    return _leaves_fit(have, want)


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values: what an extension type stores, what a dictionary stands for."""
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    return kind.value_type if isinstance(kind, pa.DictionaryType) else kind


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
    if kinds.is_decimal(have) and kinds.is_decimal32(want):
        return have.bit_width == want.bit_width  # Arrow would not check what does not fit
    families = (kinds.is_decimal, is_text, is_bytes, kinds.is_date, kinds.is_time, kinds.is_duration)
    return any(family(have) and family(want) for family in families)


def is_text(kind: pa.DataType) -> bool:
    """Whether it is one of the types of text."""
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Whether it is one of the types of bytes."""
    if kinds.is_fixed_size_binary(kind) or kinds.is_binary(kind):
        return True
    return bool(kinds.is_large_binary(kind) or kinds.is_binary_view(kind))


def convert(array: pa.Array, want: pa.DataType, *, truncate_time: bool = False) -> pa.Array:
    """Return the array as `want`, for which `fits` must hold.

    Args:
        array: What to convert.
        want: The type it shall have.
        truncate_time: Drop what is finer than the unit of time in `want`; otherwise that does not fit.

    Raises:
        ConversionError: A value does not fit: too big, or null where no null is allowed.
    """
    if array.type == want:
        return array
    while isinstance(array, pa.ExtensionArray):
        array = array.storage
    if array.type != want:
        try:
            array = pc.cast(array, options=pc.CastOptions(want, allow_time_truncate=truncate_time))
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
    elif isinstance(present, LIST_ARRAYS) and isinstance(field.type, LISTS):
        refuse_nulls(present.flatten(), field.type.value_field)


def forbids_nulls(kind: pa.DataType) -> bool:
    """Whether a nested type has a field that must not be null."""
    if isinstance(kind, pa.StructType):
        fields = [kind.field(index) for index in range(kind.num_fields)]
    elif isinstance(kind, pa.MapType):
        fields = [kind.item_field]
    elif isinstance(kind, LISTS):
        fields = [kind.value_field]
    else:
        return False
    return any(not field.nullable or forbids_nulls(field.type) for field in fields)


def first_bad(array: pa.Array, check: Callable[[pa.Array], object]) -> int:
    """Return the index of the first value for which `check` raises a `ConversionError`, if one does; by halving."""
    start, stop = 0, len(array)
    while stop - start > 1:
        middle = (start + stop) // 2
        try:
            check(array.slice(start, middle - start))
        except ConversionError:
            stop = middle
        else:
            start = middle
    return start


@dataclass(frozen=True, slots=True)
class _Column:
    """How one column of the schema comes from a batch."""

    index: int
    cast: bool
    check: bool


class Casting:
    """Makes the record batches that an author yields those of the schema. One per read of a split.

    What to do is decided once for every schema that comes; a batch that has the schema passes through untouched. Not
    thread-safe: the packer is guarded.

    Args:
        schema: The schema of the source.
        where: Gives the labels of an error for a row's number.
    """

    def __init__(self, schema: pa.Schema, where: Callable[[int], dict[str, str]]) -> None:
        self._schema = schema
        self._where = where
        self._known: pa.Schema | None = None
        self._columns: list[_Column] = []
        self._whole = False

    def fit(self, batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
        """Return the batch with the columns, the order and the types of the schema.

        Args:
            batch: What the author yielded; columns that the schema does not have are left out.
            first: The number of its first row, for errors.

        Raises:
            ContractError: A column is missing, is there twice, or has a type that would have to be guessed from; a
                value would lose something.
            DataError: A value is null where the schema allows none.
        """
        if self._known is None or not self._known.equals(batch.schema):
            self._columns = self._plan(batch.schema, first)
            self._known = batch.schema
            self._whole = batch.schema.equals(self._schema)
        arrays = [
            self._fitted(batch.column(column.index), column, field, first)
            for column, field in zip(self._columns, self._schema, strict=True)
        ]
        return batch if self._whole else pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _fitted(self, array: pa.Array, column: _Column, field: pa.Field, first: int) -> pa.Array:
        if column.cast:
            try:
                array = convert(array, field.type)
            except ConversionError as error:
                # Arrow casts what a slice of lists hides too; taken one by one, the rest is left behind.
                row = first_bad(array, lambda part: convert(part.take(pa.array(range(len(part)))), field.type))
                raise ContractError(
                    f"column {field.name!r} is {field.type}, but got {_shown(array, row):.100} ({array.type}): {error}",
                    **self._where(first + row),
                    rule="SR-2",
                    advice="correct it in read(), or change the type in schema()",
                ) from error
        if column.check:
            try:
                refuse_nulls(array, field)
            except ConversionError as error:
                row = first_bad(array, lambda part: refuse_nulls(part, field))
                raise DataError(
                    f"a value of the column {field.name!r} does not fit its type {field.type}: {error}",
                    **self._where(first + row),
                    advice="correct it in read(), or make the field nullable in schema()",
                ) from error
        return array

    def _plan(self, schema: pa.Schema, first: int) -> list[_Column]:
        problems = list(self._problems(schema))
        if problems:
            raise ContractError(
                "a record batch does not fit the schema: " + "; ".join(problems),
                **self._where(first),
                rule="SR-2",
                advice=f"cast it in read(), or change schema(); the columns are {self._schema.names}",
            )
        columns = []
        for field in self._schema:
            index = schema.get_field_index(field.name)
            # What a schema says of nulls nobody enforces, so it is always checked.
            check = not field.nullable or forbids_nulls(field.type)
            columns.append(_Column(index, schema.field(index).type != field.type, check))
        return columns

    def _problems(self, schema: pa.Schema) -> Iterator[str]:
        counts = Counter(schema.names)
        for field in self._schema:
            if counts[field.name] != 1:
                yield f"the column {field.name!r} is {'there twice' if counts[field.name] else 'missing'}"
            elif not fits(have := schema.field(field.name).type, field.type):
                yield f"the column {field.name!r} is {have}, not {field.type}"


def _shown(array: pa.Array, row: int) -> str:
    try:
        return str(array[row].as_py())
    except (ValueError, OverflowError):  # Python has no nanoseconds, and no years beyond 9999
        return " ".join(str(array.slice(row, 1)).split())
