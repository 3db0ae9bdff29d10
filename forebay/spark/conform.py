# SPDX-License-Identifier: Apache-2.0
"""Converts record batches to the schema of Spark (S9): names, order, nullability, units, no large or view types.

Spark checks only the first record batch. A later batch that differs would fail in Arrow, far from the connector.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.types as kinds
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from forebay.errors import ConfigurationError, ContractError, DataError
from forebay.framework.arrow.casting import (
    LISTS,
    ColumnPlan,
    ConversionError,
    cast_array,
    plan_columns,
    refuse_deep,
    refuse_nulls,
    schema_problems,
    slices_within,
)
from forebay.table.keys import stamped

_MOST_LEVELS = 63
"""kMaxNestingDepth of Arrow's IPC is 64, with the record batch as the first level."""


def spark_schema(schema: pa.Schema, source: str) -> StructType:
    """Return the Spark schema of a source's Arrow schema, with the key that the source stamped into it.

    Raises:
        ContractError: `schema` is not a `pyarrow.Schema`, or has no column.
        ConfigurationError: A name is not unique, or Spark does not support a type.
    """
    if not isinstance(schema, pa.Schema) or not schema.names:
        raise ContractError(
            f"schema() returned {schema!r}" if not isinstance(schema, pa.Schema) else "schema() returned no column",
            source=source,
            rule="SRC-1",
            advice="return a pyarrow.Schema with at least one field",
        )
    twice = [name for name, count in Counter(schema.names).items() if count > 1]
    if twice:
        raise ConfigurationError(
            f"the schema has the column {twice[0]!r} twice",
            source=source,
            advice="give every column a unique name: Spark finds columns by name",
        )
    check_levels(schema, source)
    fields = []
    for field in schema:
        try:
            fields.append(pa.field(field.name, normal_type(field.type), field.nullable))
        except ConversionError as error:
            raise ConfigurationError(
                f"the column {field.name!r} cannot be read by Spark: {error}",
                source=source,
                advice="cast the column in the source, or leave the column out of the option `columns`",
            ) from error
    struct = from_arrow_schema(pa.schema(fields))
    for column, field in zip(struct, schema, strict=True):
        column.metadata = stamped(field)
    return struct


def check_levels(schema: pa.Schema, source: str) -> None:
    """Raise a ConfigurationError for a column with more levels than Arrow sends to Spark."""
    refuse_deep(schema, _MOST_LEVELS, "Arrow sends to Spark", source)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark requires for `schema`, without metadata."""
    return pa.schema([field.remove_metadata() for field in to_arrow_schema(schema, timezone="UTC")])


class Conformer:
    """Converts the record batches of one task to the schema of Spark. Used on the task thread.

    The conversion is planned once for each schema; a batch that already has the target schema is not changed.

    Args:
        target: The Arrow schema that Spark expects.
        promised: The column names in the schema of the source. A batch has only these, and at least those of `target`.
        source: The format name, for errors.
        max_rows: Maximum rows of one batch.
        max_bytes: Maximum bytes of one batch, unless it is a single row.
    """

    def __init__(
        self, target: pa.Schema, promised: Sequence[str], source: str, *, max_rows: int, max_bytes: int
    ) -> None:
        self._target = target
        self._promised = frozenset(promised)
        self._source = source
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._known: pa.Schema | None = None
        self._columns: list[ColumnPlan] | None = []

    def conform(self, batch: pa.RecordBatch, *, split: str, position: object = None) -> Iterator[pa.RecordBatch]:
        """Convert a batch, and yield it cut to `max_rows` and `max_bytes`; nothing for a batch without rows.

        Raises:
            ContractError: Columns or types differ from the schema of the source.
            DataError: A value does not fit the type of its column.
        """
        if self._known is None or not self._known.equals(batch.schema, check_metadata=True):
            self._columns = self._plan(batch.schema, split)
            self._known = batch.schema
        for part in slices_within(batch, max_rows=self._max_rows, max_bytes=self._max_bytes):
            yield self._convert(part, split, position)

    def _convert(self, batch: pa.RecordBatch, split: str, position: object) -> pa.RecordBatch:
        if self._columns is None:
            return batch
        arrays = []
        for column, field in zip(self._columns, self._target, strict=True):
            array = batch.column(column.index)
            try:
                if column.cast:
                    array = cast_array(array, field.type, truncate_time=True)  # Spark has only microseconds
                if column.check:
                    refuse_nulls(array, field)
            except ConversionError as error:
                raise DataError(
                    f"a value of the column {field.name!r} does not fit its type {field.type}: {error}",
                    source=self._source,
                    split=split,
                    position=position,
                    advice="widen the type in schema(), or correct the value in the source",
                ) from error
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self._target)

    def _plan(self, schema: pa.Schema, split: str) -> list[ColumnPlan] | None:
        """Return the conversion of each column; None if the batch needs none."""
        others = Counter(name for name in schema.names if name not in self._target.names)
        extra = sorted(others.keys() - self._promised)
        problems = list(schema_problems(schema, self._target))
        problems += [f"the column {name!r} appears more than once" for name, count in others.items() if count > 1]
        problems += [f"the column {name!r} is not in schema()" for name in extra]
        if problems:
            raise ContractError(
                "a record batch differs from the schema of the source: " + "; ".join(problems),
                source=self._source,
                split=split,
                rule="SR-2",
                advice="return record batches with the names and types of schema()",
            )
        columns = plan_columns(schema, self._target)
        checks = any(column.check or column.cast for column in columns)
        # Metadata is removed: Spark ignores it, and its Arrow cannot read metadata that is not UTF-8.
        return None if self._target.equals(schema, check_metadata=True) and not checks else columns


def check_user_schema(user: pa.Schema, own: pa.Schema, source: str) -> None:
    """Check the user's schema for a source with a fixed schema: names and types must be equal.

    Raises:
        ConfigurationError: Columns differ. The error names them.
    """
    problems = []
    own_fields = {field.name: field for field in own}
    for field in user:
        if field.name not in own_fields:
            problems.append(f"{field.name!r} does not exist in this source")
        elif not _same_type(own_fields[field.name].type, field.type):
            problems.append(f"{field.name!r} is {own_fields[field.name].type}, not {field.type}, in this source")
    problems += [f"{name!r} is missing in .schema(…)" for name in own.names if name not in user.names]
    if problems:
        raise ConfigurationError(
            "the schema given with .schema(…) is not the schema of this source: " + "; ".join(problems),
            source=source,
            advice="remove .schema(…), and select columns with the option `columns`",
        )


def _same_type(have: pa.DataType, want: pa.DataType) -> bool:
    try:
        return normal_type(have, relaxed=True) == normal_type(want, relaxed=True)
    except ConversionError:
        return False


# -- Maps Arrow types to types that Spark supports.


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
