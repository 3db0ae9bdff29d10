# SPDX-License-Identifier: Apache-2.0
"""Converts the dicts and tuples that a connector yields to record batches; errors name column, row and value."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import cast

import pyarrow as pa

from forebay.errors import ContractError, DataError
from forebay.framework.arrow.casting import ConversionError, first_failing, forbids_nulls, refuse_nulls
from forebay.framework.arrow.python_values import (
    ARROW_ERRORS,
    CONVERT,
    STRANGE_KEY_ADVICE,
    UnfitValueError,
    ValueCheck,
    strange_key,
    value_check,
)

Row = Mapping[str, object] | tuple[object, ...]


class RowConverter:
    """Converts dicts and tuples to record batches of a schema. One per read of a split; not thread-safe.

    `labels` takes a row number and returns the labels (source, split, position) of an error about this row. With
    `extra_keys`, keys of dicts that are not in the schema are dropped, unless a dict has only such keys.
    """

    def __init__(self, schema: pa.Schema, labels: Callable[[int], dict[str, str]], *, extra_keys: bool) -> None:
        self._schema = schema
        self._names = schema.names
        self._known = frozenset(schema.names)
        self._labels = labels
        self._extra_keys = extra_keys
        self._most = sys.maxsize if extra_keys else len(schema)
        self._values = _getter(schema.names)
        self._checks = [value_check(field.name, field.type, extra_keys=extra_keys) for field in schema]
        self._partial = 0
        self._given: set[object] = set()

    def take(self, row: object, number: int) -> tuple[object, ...]:
        """Return the values of a row in schema order; a missing key gives None. The caller may then reuse the dict.

        `number` is the row number, for errors.

        Raises:
            ContractError: The row has an unknown key, is a tuple of another length, or is neither a dict nor a tuple.
        """
        if type(row) is dict:  # a defaultdict would create missing keys
            try:
                values = self._values(row)
            except KeyError:
                return self._take_partial(row, number)
            return values if len(row) <= self._most else self._take_partial(row, number)
        if isinstance(row, tuple):
            if len(row) != len(self._names):
                problem = f"read() yielded a tuple of {len(row)} values, but schema() has {len(self._names)} columns"
                raise self._broken(problem, number)
            return row
        if isinstance(row, Mapping):
            return self._take_partial(row, number)
        raise self._broken(f"read() yielded a row that is a {type(row).__name__}", number)

    def record_batch(self, rows: Sequence[tuple[object, ...]], first: int) -> pa.RecordBatch:
        """Convert one or more results of `take` to one record batch; `first` is the first row's number, for errors.

        Raises:
            ContractError: A value does not fit its column, or a column has more than 2 GiB.
            DataError: A value is null in a field that is not nullable.
        """
        arrays = [
            self._array(field, check, list(map(itemgetter(number), rows)), first)
            for number, (field, check) in enumerate(zip(self._schema, self._checks, strict=True))
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def never_given(self, rows: int) -> list[str]:
        """Return the columns, and the struct fields inside them, whose keys were missing from every row.

        `rows` is the number of rows read so far. A tuple counts as a row with all keys.
        """
        columns = [name for name in self._names if name not in self._given] if rows and self._partial == rows else []
        return columns + [path for check in self._checks if check.path not in columns for path in check.missing()]

    def _take_partial(self, row: Mapping[str, object], number: int) -> tuple[object, ...]:
        """Return the values of a dict that has missing or unknown keys."""
        unknown = [key for key in row if key not in self._known]
        if row and len(unknown) == len(row) and self._names:
            raise self._broken(
                f"read() yielded a row with none of the columns {self._names}, only the keys {unknown[:10]}", number
            )
        if unknown and not self._extra_keys:
            raise self._broken(
                f"read() yielded a row with a key that is not a column: {strange_key(unknown[0], self._names)}",
                number,
                advice=STRANGE_KEY_ADVICE,
            )
        self._partial += 1
        self._given.update(row)
        return tuple(map(row.get, self._names))

    def _array(self, field: pa.Field, check: ValueCheck, values: Sequence[object], first: int) -> pa.Array:
        try:
            # Arrow returns several chunks if one cannot hold the values.
            array = cast("pa.Array | pa.ChunkedArray", pa.array(values, type=field.type))
            check.check(values)
        except pa.ArrowCapacityError as error:
            raise self._too_large(values, field, first) from error
        except (UnfitValueError, *ARROW_ERRORS) as error:
            raise self._unfit(values, field, check, first, error) from error
        if isinstance(array, pa.ChunkedArray):
            raise self._too_large(values, field, first)
        self._check_nulls(array, field, first)
        return array

    def _too_large(self, values: Sequence[object], field: pa.Field, first: int) -> ContractError:
        return self._broken(
            f"the column {field.name!r} of {len(values)} rows has more than 2 GiB, which no record batch can hold",
            first,
            advice="yield Batch objects with fewer rows; for plain rows, lower the option maxRowsPerBatch",
        )

    def _check_nulls(self, array: pa.Array, field: pa.Field, first: int) -> None:
        if field.nullable and not forbids_nulls(field.type):
            return
        try:
            refuse_nulls(array, field)
        except ConversionError as error:
            raise DataError(
                f"column {field.name!r} must not be null, but this row has a null"
                if array.null_count and not field.nullable
                else f"column {field.name!r} is {field.type}: {error}",
                **self._labels(first + first_failing(array, lambda part: refuse_nulls(part, field))),
                advice="give a value in read(), or make the field nullable in schema()",
            ) from error

    def _unfit(
        self, values: Sequence[object], field: pa.Field, check: ValueCheck, first: int, error: Exception
    ) -> ContractError:
        """Return the error about the first value that Arrow or `check` refuses; `error` is the error of the column."""
        for index, value in enumerate(values):
            try:
                check.check([value], convert=True)
                pa.array([value], type=field.type)
            except UnfitValueError as found:
                return self._broken(str(found), first + index, advice=found.advice)
            except ARROW_ERRORS as cause:
                refused = UnfitValueError(field.name, field.type, value, str(cause))
                return self._broken(str(refused), first + index, advice=refused.advice)
        return self._broken(
            f"the column {field.name!r} cannot be converted to {field.type}: {error}", first, advice=CONVERT
        )

    def _broken(self, problem: str, number: int, *, advice: str = "") -> ContractError:
        advice = advice or "yield dicts by column name or tuples in schema order"
        return ContractError(problem, **self._labels(number), rule="SR-2", advice=advice)


def _getter(names: Sequence[str]) -> Callable[[Mapping[str, object]], tuple[object, ...]]:
    """Return a function that gets the values of `names` from a dict; it raises KeyError for a missing key."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda row: tuple([row[name] for name in names])  # with one name, itemgetter returns no tuple
