# SPDX-License-Identifier: Apache-2.0
"""Safe casts between Arrow types, and what a host does to record batches by their types: it selects, checks and slices.

`Casting` casts the record batches that a connector's `read()` yields. The Spark host uses the functions too.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from forebay.errors import ConfigurationError, ContractError, DataError
from forebay.framework.source import Source

# -- Slices record batches so that none exceeds `maxRowsPerBatch` or `maxBytesPerBatch`.


def slices_within(batch: pa.RecordBatch, *, max_rows: int, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield slices of `batch` with at most `max_rows` rows and `max_bytes` bytes; none if the batch has no rows.

    A single row of more than `max_bytes` is a slice of its own. No data is copied.
    """
    if 0 < batch.num_rows <= max_rows and batch.nbytes <= max_bytes:
        yield batch
        return
    start, rows = 0, max(1, batch.num_rows * max_bytes // max(1, batch.nbytes))
    while start < batch.num_rows:
        part = batch.slice(start, max_rows)
        if part.nbytes > max_bytes:
            rows = _rows_within(part, max_bytes, rows)
            part = part.slice(0, rows)
        yield part
        start += part.num_rows


def _rows_within(batch: pa.RecordBatch, max_bytes: int, guess: int) -> int:
    """Return how many of the first rows of a batch fit, at least 1. Requires that the batch exceeds `max_bytes`.

    The search begins near `guess`, the number of the slice before, because the size of a batch takes time in proportion
    to its columns: rows of equal size take two steps.
    """
    low, high, step = 1, max(2, batch.num_rows), 1
    middle = min(max(guess, 1), high - 1)
    while high - low > 1:
        if batch.slice(0, middle).nbytes <= max_bytes:
            low, middle = middle, middle + step
        else:
            high, middle = middle, middle - step
        step *= 2
        if not low < middle < high:
            middle = (low + high) // 2
    return low


# -- The schema of a read, which is inferred only once, and the columns that the option `columns` selects.


S = TypeVar("S", bound=Source)

_RESOLVED = "_resolved_schema"  # without annotation, so not an option; pickled with the source


def resolve_schema(source: S, schema: pa.Schema) -> S:
    """Return a copy of the source that stores `schema`, the result of `source.schema()`, for this read.

    Hosts call it once per read, before all other uses of the source, so that the schema is inferred only once. The
    source's `with_inferred_schema`, or else `with_schema`, may make the copy, and store more, such as a list of files.
    """
    own = getattr(source, "with_inferred_schema", source.with_schema)(schema)
    if own is not None:
        return own
    resolved = copy.copy(source)
    object.__setattr__(resolved, _RESOLVED, schema)
    return resolved


class HasSchema(Protocol):
    """An object with a method `schema()`, such as a source."""

    def schema(self) -> pa.Schema: ...  # noqa: D102 - see Source


def resolved_schema(source: HasSchema) -> pa.Schema:
    """Return the schema that `resolve_schema` stored in the source; if there is none, `source.schema()`."""
    schema = vars(source).get(_RESOLVED)
    return schema if isinstance(schema, pa.Schema) else source.schema()


def select(names: Sequence[str], columns: Sequence[str], source: str) -> list[str]:
    """Return the column names that the option `columns` selects from `names`, in the order of the option.

    Case is ignored, unless two names differ only in case. `source` is the name of the source, for errors.

    Raises:
        ConfigurationError: A selected column does not exist or is selected twice, or no column is selected.
    """

    def refused(problem: str) -> ConfigurationError:
        advice = f"the columns are: {', '.join(names)}"
        return ConfigurationError(problem, source=source, option="columns", advice=advice)

    selected = []
    for column in columns:
        exact = [name for name in names if name == column]
        alike = exact or [name for name in names if name.casefold() == column.casefold()]
        if len(alike) != 1:
            problem = f"the column {column!r} matches several: {alike}" if alike else f"there is no column {column!r}"
            raise refused(problem)
        selected.append(alike[0])
    if not selected or len(set(selected)) != len(selected):
        raise refused("the option columns names a column twice" if selected else "the option columns names no column")
    return selected


# -- Refuses columns that are nested too deeply, before a library fails at them.


def refuse_deep(fields: Iterable[pa.Field], most: int, reason: str, source: str) -> None:
    """Raise an error that names the first column with more than `most` levels of types.

    Args:
        fields: The columns.
        most: The most levels. A column of numbers has one, a list of them two; a map counts as a list of structs.
        reason: Why there cannot be more levels; the error says it.
        source: The source, for the error.

    Raises:
        ConfigurationError: A column has more levels.
    """
    for field in fields:
        depth = _levels(field.type)
        if depth > most:
            raise ConfigurationError(
                f"the column {field.name!r} is nested {depth} levels deep, and {reason} at most {most}",
                source=source,
                option="schema",
                advice=f"leave the column out of the schema or, for JSON files, declare {field.name!r} as string: its "
                "values are then the JSON text",
            )


def _levels(data_type: pa.DataType) -> int:
    """Return the number of levels of a type. Does not recurse, because a type may have thousands."""
    most, waiting = 0, [(data_type, 1)]
    while waiting:
        nested, level = waiting.pop()
        most = max(most, level)
        if isinstance(nested, pa.MapType):
            waiting += [(nested.key_type, level + 2), (nested.item_type, level + 2)]
        else:
            waiting += [(nested.field(index).type, level + 1) for index in range(nested.num_fields)]
    return most


LISTS: Final = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)
"""List types that can be cast to one another."""
_LIST_ARRAYS: Final = (pa.ListArray, pa.LargeListArray, pa.FixedSizeListArray)


class ConversionError(Exception):
    """An Arrow type has no counterpart in Spark, or a value does not fit its target type; the text says why."""


def is_safe_cast(have: pa.DataType, want: pa.DataType) -> bool:
    """Whether values of the type `have` may be cast to `want`; `cast_array` still refuses a value that would lose data.

    Casts that parse text, turn numbers into text, or round floats are not safe: they would hide a mistake in the
    connector.
    """
    if have == want or kinds.is_null(have):
        return True
    if (plain := (_plain(have), _plain(want))) != (have, want):
        return is_safe_cast(*plain)
    if isinstance(want, pa.StructType):
        return isinstance(have, pa.StructType) and _is_safe_struct_cast(have, want)
    if isinstance(want, pa.MapType):
        return (
            isinstance(have, pa.MapType)
            and is_safe_cast(have.key_type, want.key_type)
            and is_safe_cast(have.item_type, want.item_type)
        )
    if isinstance(want, LISTS):
        return isinstance(have, LISTS) and is_safe_cast(have.value_type, want.value_type)
    return not kinds.is_nested(have) and _is_safe_leaf_cast(have, want)


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the storage type of an extension type, the value type of a dictionary type, else the type itself."""
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    return kind.value_type if isinstance(kind, pa.DictionaryType) else kind


def _is_safe_struct_cast(have: pa.StructType, want: pa.StructType) -> bool:
    names = [have.field(index).name for index in range(have.num_fields)]
    target_fields = [want.field(index) for index in range(want.num_fields)]
    return sorted(names) == sorted(field.name for field in target_fields) and all(
        is_safe_cast(have.field(names.index(field.name)).type, field.type) for field in target_fields
    )


def _is_safe_leaf_cast(have: pa.DataType, want: pa.DataType) -> bool:
    if kinds.is_integer(have):
        return bool(kinds.is_integer(want) or kinds.is_decimal(want))
    if kinds.is_floating(have):
        return bool(kinds.is_floating(want) and have.bit_width <= want.bit_width)
    if isinstance(have, pa.TimestampType):
        return isinstance(want, pa.TimestampType) and (have.tz is None) == (want.tz is None)
    if kinds.is_decimal(have) and kinds.is_decimal32(want):
        return have.bit_width == want.bit_width  # Arrow does not check values against decimal32
    families = (kinds.is_decimal, is_text, is_bytes, kinds.is_date, kinds.is_time, kinds.is_duration)
    return any(family(have) and family(want) for family in families)


def is_text(kind: pa.DataType) -> bool:
    """Whether `kind` is one of Arrow's text types (string, large_string, string_view)."""
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Whether `kind` is one of Arrow's binary types."""
    if kinds.is_fixed_size_binary(kind) or kinds.is_binary(kind):
        return True
    return bool(kinds.is_large_binary(kind) or kinds.is_binary_view(kind))


def cast_array(array: pa.Array, want: pa.DataType, *, truncate_time: bool = False) -> pa.Array:
    """Cast an array to `want`. Requires that `is_safe_cast(array.type, want)` is true.

    With `truncate_time`, digits of times below the unit of `want` are cut off. Without it, they are an error.

    Raises:
        ConversionError: A value of the array does not fit `want`.
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
    """Check that `array` has no null where `field`, or a field nested in it, is not nullable.

    Raises:
        ConversionError: There is such a null.
    """
    if not field.nullable and array.null_count:
        raise ConversionError(f"the field {field.name!r} must not be null, but has {array.null_count} nulls")
    if not forbids_nulls(field.type):
        return
    # The children of a null struct or list do not count.
    present = array.drop_null() if array.null_count else array
    if isinstance(present, pa.StructArray):
        for index, child in enumerate(present.flatten()):
            refuse_nulls(child, present.type.field(index).with_nullable(field.type.field(index).nullable))
    elif isinstance(present, pa.MapArray) and isinstance(field.type, pa.MapType):
        # `items` ignores that the array is a slice.
        first, last = present.offsets[0].as_py(), present.offsets[-1].as_py()
        refuse_nulls(present.items.slice(first, last - first), field.type.item_field)
    elif isinstance(present, _LIST_ARRAYS) and isinstance(field.type, LISTS):
        refuse_nulls(present.flatten(), field.type.value_field)


def forbids_nulls(kind: pa.DataType) -> bool:
    """Whether a type has a field, at any depth, that is not nullable."""
    fields: list[pa.Field] = []
    if isinstance(kind, pa.StructType):
        fields = [kind.field(index) for index in range(kind.num_fields)]
    elif isinstance(kind, pa.MapType):
        fields = [kind.item_field]
    elif isinstance(kind, LISTS):
        fields = [kind.value_field]
    return any(not field.nullable or forbids_nulls(field.type) for field in fields)


def first_failing(array: pa.Array, check: Callable[[pa.Array], object]) -> int:
    """Return the index of the first value for which `check` raises a `ConversionError`, found by bisection.

    `check` takes an array; it fails for a part of `array` if and only if one value of the part fails.
    """
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
class ColumnPlan:
    """How to make one target column: the index of its batch column, and whether to cast it and check it for nulls."""

    index: int
    cast: bool
    check: bool


def plan_columns(have: pa.Schema, want: pa.Schema) -> list[ColumnPlan]:
    """Return a plan for each column of `want`, for batches of the schema `have`, which must have all these columns."""
    # Nullability is always checked: Arrow does not enforce it.
    return [
        ColumnPlan(index, have.field(index).type != field.type, not field.nullable or forbids_nulls(field.type))
        for field in want
        for index in [have.get_field_index(field.name)]
    ]


def schema_problems(have: pa.Schema, want: pa.Schema) -> Iterator[str]:
    """Yield the reasons why batches of the schema `have` cannot be cast to `want`."""
    counts = Counter(have.names)
    for field in want:
        if counts[field.name] != 1:
            yield f"the column {field.name!r} {'appears more than once' if counts[field.name] else 'is missing'}"
        elif not is_safe_cast(kind := have.field(field.name).type, field.type):
            yield f"the column {field.name!r} is {kind}, not {field.type}"


class Casting:
    """Casts the record batches that an author's `read()` yields to the source's schema; not thread-safe.

    There is one for each read of a split. A batch that already has the source's schema passes unchanged. `labels` takes
    a row number and returns the labels (source, split, position) of an error about this row.
    """

    def __init__(self, schema: pa.Schema, labels: Callable[[int], dict[str, str]]) -> None:
        self._schema = schema
        self._labels = labels
        self._known: pa.Schema | None = None
        self._columns: list[ColumnPlan] = []
        self._unchanged = False

    def cast(self, batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
        """Return the batch with the columns, the order and the types of the source's schema.

        Columns that are not in the schema are dropped. `first` is the row number of the first row of the batch.

        Raises:
            ContractError: A column is missing, appears twice, or has a type without a safe cast; or a value would lose
                information.
            DataError: A value is null in a field that is not nullable.
        """
        if self._known is None or not self._known.equals(batch.schema):
            self._plan(batch.schema, first)
        arrays = [
            self._cast_column(batch.column(column.index), column, field, first)
            for column, field in zip(self._columns, self._schema, strict=True)
        ]
        return batch if self._unchanged else pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _cast_column(self, array: pa.Array, column: ColumnPlan, field: pa.Field, first: int) -> pa.Array:
        if column.cast:
            try:
                array = cast_array(array, field.type)
            except ConversionError as error:
                # Arrow also casts list values outside of a slice; `take` leaves them out.
                row = first_failing(array, lambda part: cast_array(part.take(pa.array(range(len(part)))), field.type))
                raise ContractError(
                    f"column {field.name!r} is {field.type}, but got {_shown(array, row):.100} ({array.type}): {error}",
                    **self._labels(first + row),
                    rule="SR-2",
                    advice="correct the value in read(), or change the type in schema()",
                ) from error
        if column.check:
            try:
                refuse_nulls(array, field)
            except ConversionError as error:
                row = first_failing(array, lambda part: refuse_nulls(part, field))
                raise DataError(
                    f"column {field.name!r} has a null that its type in schema() does not allow: {error}",
                    **self._labels(first + row),
                    advice="give a value in read(), or make the field nullable in schema()",
                ) from error
        return array

    def _plan(self, schema: pa.Schema, first: int) -> None:
        if problems := "; ".join(schema_problems(schema, self._schema)):
            raise ContractError(
                f"a record batch from read() does not fit the schema: {problems}",
                **self._labels(first),
                rule="SR-2",
                advice=f"cast it in read(), or change schema(), which has the columns {self._schema.names}",
            )
        self._columns = plan_columns(schema, self._schema)
        self._known = schema
        self._unchanged = schema.equals(self._schema)


def _shown(array: pa.Array, row: int) -> str:
    try:
        return str(array[row].as_py())
    except (ValueError, OverflowError):  # Python has no nanoseconds and no years after 9999
        return " ".join(str(array.slice(row, 1)).strip("[]").split())  # no brackets: with pandas there are none
