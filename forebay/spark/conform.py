# SPDX-License-Identifier: Apache-2.0
"""Make record batches exactly what Spark accepts (S9): names, order, nullability, units, no large or view types.

Spark compares the first record batch with its own Arrow schema and writes the later ones as they come, so a batch
that differs in any of these would fail with a message about Arrow, far from the connector.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from forebay.errors import ConfigurationError, ContractError, DataError
from forebay.framework.arrow.batch_slices import slices_within
from forebay.framework.arrow.casting import ConversionError, convert, fits, forbids_nulls, refuse_nulls
from forebay.spark.arrays import normal_type, relaxed


def spark_schema(schema: pa.Schema, source: str) -> StructType:
    """Return the Spark schema of a source's Arrow schema. Called by planners.

    Raises:
        ContractError: It is not a schema, or has no column.
        ConfigurationError: A name comes twice, or Spark has no such type.
    """
    if not isinstance(schema, pa.Schema) or not schema.names:
        raise ContractError(
            f"schema() gave {schema!r}" if not isinstance(schema, pa.Schema) else "schema() gave no column",
            source=source,
            rule="SRC-1",
            advice="return a pyarrow.Schema with at least one field",
        )
    twice = [name for name, count in Counter(schema.names).items() if count > 1]
    if twice:
        raise ConfigurationError(
            f"the schema has the column {twice[0]!r} twice",
            source=source,
            advice="give every column a name of its own: Spark finds columns by name",
        )
    fields = []
    for field in schema:
        try:
            fields.append(pa.field(field.name, normal_type(field.type), field.nullable))
        except ConversionError as error:
            raise ConfigurationError(
                f"the column {field.name!r} cannot be read by Spark: {error}",
                source=source,
                advice="cast it in the source, or leave it out with the option columns",
            ) from error
    return from_arrow_schema(pa.schema(fields))


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the one Arrow schema that Spark accepts for `schema`."""
    return to_arrow_schema(schema, timezone="UTC")


@dataclass(frozen=True, slots=True)
class _Column:
    """How one column of the target comes from a batch."""

    index: int
    cast: bool
    check: bool


class Conformer:
    """Turns the record batches of one task into what Spark accepts. Used on the task thread.

    What to do is decided once for every schema that comes; a batch that fits already passes through untouched.

    Args:
        target: The Arrow schema that Spark expects.
        promised: The names in the schema of the source; a batch must have these columns and no others.
        source: The format name, for errors.
        max_rows: Most rows of one batch.
        max_bytes: Most bytes of one batch, unless it is a single row.
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
        self._columns: list[_Column] | None = []

    def conform(self, batch: pa.RecordBatch, *, split: str, position: object = None) -> Iterator[pa.RecordBatch]:
        """Yield the batch in Spark's form, cut to size; nothing for a batch without rows.

        Raises:
            ContractError: Columns or types are not those that the source promised.
            DataError: A value does not fit its column.
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
                    array = convert(array, field.type, truncate_time=True)  # Spark has microseconds alone
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

    def _plan(self, schema: pa.Schema, split: str) -> list[_Column] | None:
        """Decide how each column comes about; None = leave the batch alone."""
        problems = list(self._problems(schema))
        if problems:
            raise ContractError(
                "a record batch does not have the schema that the source promised: " + "; ".join(problems),
                source=self._source,
                split=split,
                rule="SR-2",
                advice="make schema() and what is read agree, in names and types",
            )
        names = schema.names
        columns = []
        for field in self._target:
            index = names.index(field.name)
            found = schema.field(index)
            # What a schema says of nulls nobody enforces, so a promise to Spark is always checked.
            columns.append(_Column(index, found.type != field.type, not field.nullable or forbids_nulls(field.type)))
        checks = any(column.check or column.cast for column in columns)
        # Metadata is taken off: Spark has no use for it, and its Arrow cannot read one that is no UTF-8.
        return None if self._target.equals(schema, check_metadata=True) and not checks else columns

    def _problems(self, schema: pa.Schema) -> Iterator[str]:
        counts = Counter(schema.names)
        yield from (f"the column {name!r} is there twice" for name, count in counts.items() if count > 1)
        wanted = self._target.names
        yield from (f"the column {name!r} is missing" for name in wanted if name not in counts)
        extra = [name for name in counts if name not in self._promised and name not in wanted]
        yield from (f"the column {name!r} is not in schema()" for name in extra)
        for field in self._target:
            if counts[field.name] == 1 and not fits(have := schema.field(field.name).type, field.type):
                yield f"the column {field.name!r} is {have}, not {field.type}"


def check_user_schema(user: pa.Schema, own: pa.Schema, source: str) -> None:
    """Check that the schema a user gave is the schema of a source that has no other.

    Names and types must be the same; order, nullability and metadata are the user's.

    Raises:
        ConfigurationError: Naming the columns that differ.
    """
    problems = []
    theirs = {field.name: field for field in own}
    for field in user:
        if field.name not in theirs:
            problems.append(f"{field.name!r} is not there")
        elif not _same_type(theirs[field.name].type, field.type):
            problems.append(f"{field.name!r} is {theirs[field.name].type}, not {field.type}")
    problems += [f"{name!r} is missing" for name in own.names if name not in user.names]
    if problems:
        raise ConfigurationError(
            "the schema given with .schema(…) is not the schema of this source: " + "; ".join(problems),
            source=source,
            advice="leave out .schema(…), and choose columns with the option columns",
        )


def _same_type(have: pa.DataType, want: pa.DataType) -> bool:
    try:
        return relaxed(have) == relaxed(want)
    except ConversionError:
        return False
