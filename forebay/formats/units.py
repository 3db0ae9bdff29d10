# SPDX-License-Identifier: Apache-2.0
"""Formats whose files consist of units of whole rows, with statistics of each: Parquet's row groups, ORC's stripes.

A format opens a file, tells where its units begin and which values they hold, and reads the rows of a unit. What
follows from that is here: schemas of several files, borders, the units that may match a filter, reads that begin and
end at any row, and the number of rows in a batch. The errors are those of Avro, too.
"""

from __future__ import annotations

import io
import logging
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

import pyarrow as pa

from forebay.errors import ConfigurationError, ForebayError
from forebay.formats.base import FileFormat, batch_of, damaged_file, part_borders, rows_between, unfit_value
from forebay.formats.filters import ANY, Expression, Leaf, Outcomes, Statistics, kept_ranges, may_be_true, outcomes
from forebay.formats.filters import leaves as leaves_of
from forebay.formats.values.columns import Convert, check_names
from forebay.formats.values.ddl import merged
from forebay.formats.values.numbers import exceeds_precision

if TYPE_CHECKING:
    from forebay.formats.base import InputFile

_log = logging.getLogger(__name__)

_BATCH_ROWS: Final = 16_384
_LEAST_ROWS: Final = 64
_PROBE_ROWS: Final = 512

Stored = TypeVar("Stored")


class Malformed(ValueError):
    """Bytes of a file that its format does not allow."""


@contextmanager
def wrap_damage(path: str, format_name: str) -> Iterator[None]:
    """If the `with` block raises Malformed, raise the DataError for a damaged file instead."""
    try:
        yield
    except Malformed as error:
        raise damaged_file(f"{path} is not a complete {format_name} file: {error}") from error


class ArrowFile(io.RawIOBase):
    """A file as Arrow's readers see it. `failure` keeps an error of the store, which they would take for damage."""

    failure: Exception | None = None

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True


@contextmanager
def arrow_errors(file: ArrowFile) -> Iterator[None]:
    """Let errors of the store pass a `with` block, and raise Malformed for those that Arrow finds in a file."""
    try:
        yield
    except (ForebayError, MemoryError):
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # UnicodeDecodeError: from a column's name
        if file.failure is not None:
            raise file.failure from None
        raise Malformed(str(error)) from error


def read_elsewhere(message: str, path: str, format_name: str) -> ConfigurationError:
    """Return the error for a file that Spark reads and forebay does not; `message` names the file and says why."""
    return ConfigurationError(message, source=path, advice=f"read it with spark.read.format({format_name!r})")


@dataclass(frozen=True, slots=True)
class UnitColumn(Generic[Stored]):
    """A column of the schema in one file.

    Attributes:
        field: The column in the schema.
        stored: What to read of the file; None if the file has no such column, so that all its values are null.
        convert: The conversion to the type of `field`; None if the values need none.
    """

    field: pa.Field
    stored: Stored | None = None
    convert: Convert | None = None


def unreadable_column(column: str, path: str, reason: str, format_name: str) -> ConfigurationError:
    """Return the error for a column of a healthy file that forebay does not read; `reason` goes on after its name."""
    return ConfigurationError(
        f"column {column!r} of {path} {reason}",
        source=path,
        advice=f"read the file with spark.read.format({format_name!r}), or with a schema that leaves this column out",
    )


def within_precision(array: pa.Array, column: str, path: str) -> pa.Array:
    """Return decimals unchanged; raise DataError if damage gave one more digits than its type in the file allows."""
    if exceeds_precision(array):
        raise damaged_file(f"column {column!r} of {path} has a value with more digits than {array.type} allows")
    return array


class BatchRows:
    """How many rows to read at a time, so that a batch has about `target_bytes`. One object for each read of a file."""

    def __init__(self, target_bytes: int) -> None:
        self.most = _BATCH_ROWS
        self._target = target_bytes
        self._measured = False

    def begin(self, bytes_per_row: float, *, sure: bool) -> None:
        """Choose the number for a unit by the estimated size of a row. If it is not sure, the first batch is short."""
        most = _limited(self._target / max(bytes_per_row, 1))
        if not (sure or self._measured):
            most = min(most, _PROBE_ROWS)
        self.most = min(self.most, most) if self._measured else most

    def adapt(self, batch: pa.RecordBatch) -> bool:
        """Adapt the number to a batch just read; return whether to begin anew with the other number behind it."""
        most = _limited(batch.num_rows * self._target / max(1, batch.nbytes))
        first, self._measured = not self._measured, True
        if 2 * most < self.most or (first and self.most == _PROBE_ROWS and most > self.most):
            self.most = most
            return True
        return False


def _limited(rows: float) -> int:
    return int(max(_LEAST_ROWS, min(_BATCH_ROWS, rows)))


class OpenUnits(ABC, Generic[Stored]):
    """An open file as a sequence of units. Used on one thread, inside the `with` block that opened it.

    Attributes:
        path: The path of the file, for errors.
        batch_bytes: The target size of a batch in bytes.
    """

    path: str
    batch_bytes: int = 8 << 20

    @property
    @abstractmethod
    def starts(self) -> Sequence[int]:
        """The first row of each unit, followed by the number of rows of the file."""

    @abstractmethod
    def schema(self) -> pa.Schema:
        """Return the schema that Spark infers from the file.

        Raises:
            ConfigurationError: Spark or Arrow lacks the type of a column.
        """

    @abstractmethod
    def sizes(self) -> Sequence[int]:
        """Return the size of each unit in bytes."""

    @abstractmethod
    def column(self, field: pa.Field) -> UnitColumn[Stored]:
        """Return where a column of the schema is in the file, and its conversion.

        Raises:
            ConfigurationError: The file has another type, or several columns of this name.
        """

    @abstractmethod
    def statistics(self, unit: int, column: UnitColumn[Stored]) -> Statistics | None:
        """Return what is known of the values of a column in a unit; None if nothing is. `column` is stored."""

    def prepare(self, columns: Sequence[UnitColumn[Stored]], position: int, end: int) -> None:
        """Check, and announce to the store, what a read of the rows `[position, end)` needs. By default, nothing."""

    @abstractmethod
    def batches(self, columns: Sequence[UnitColumn[Stored]], unit: int, rows: BatchRows) -> Generator[pa.RecordBatch]:
        """Yield the rows from the beginning of a unit on as they are stored, one array for each column.

        Ends with the unit or a later one. A generator: closing it ends the read.
        """


class UnitFormat(FileFormat):
    """Reads files of units. A position is a row index. Slices begin at units; a read may begin at any row.

    The options have the fields `case_sensitive` and `merge_schema`.
    """

    counts_rows: ClassVar[bool] = True
    units: ClassVar[str]
    """What units are called, in the plural."""

    @property
    def case_sensitive(self) -> bool:
        """Whether names of columns are compared exactly: the option `caseSensitive`."""
        sensitive: bool = self.options.case_sensitive
        return sensitive

    @abstractmethod
    def opened(self, file: InputFile) -> AbstractContextManager[OpenUnits[Any]]:
        """Open a file for a `with` block, and read its footer. Errors of the store pass unchanged.

        Raises:
            DataError: The file is damaged; also raised inside the `with` block.
            ConfigurationError: The file cannot be read.
        """

    def infer_schema(self, files: Sequence[InputFile]) -> pa.Schema:
        """Infer the schema of the first file, by path, that has columns. With `mergeSchema`, merge all schemas."""
        return self._schema(files, merge=self.options.merge_schema)

    def merged_schema(self, files: Sequence[InputFile]) -> pa.Schema:
        """Merge the schemas of all files, as `infer_schema` does with `mergeSchema`."""
        return self._schema(files, merge=True)

    def _schema(self, files: Sequence[InputFile], *, merge: bool) -> pa.Schema:
        schema = pa.schema([])
        for file in sorted(files, key=lambda file: file.path):
            with self.opened(file) as units:
                file_schema = units.schema()
            hint = ", or set caseSensitive if the names differ in case only"
            check_names(file_schema, file.path, case_sensitive=self.case_sensitive, hint=hint)
            schema = merged(schema, file_schema, file.path, self.case_sensitive) if schema.names else file_schema
            if schema.names and not merge:
                break
        return schema

    def sliceable(self, file: InputFile) -> bool:
        """Return True: a file can be cut at any row."""
        return True

    def borders(self, file: InputFile, target_bytes: int) -> list[int]:
        """Return the first rows of units that cut the file into slices of about `target_bytes`. Reads the footer."""
        if not file.size:
            return []
        with self.opened(file) as units:
            return part_borders(units.starts, units.sizes(), target_bytes)

    def matching_ranges(
        self, file: InputFile, schema: pa.Schema, row_filter: Expression, position: int, end: int | None
    ) -> list[tuple[int, int | None]]:
        """Return the row ranges of the units that may match by their statistics. Reads the footer."""
        if not file.size:
            return [(position, end)]
        with self.opened(file) as units:
            names = {leaf.column for leaf in leaves_of(row_filter)}.intersection(schema.names)
            columns = {name: units.column(schema.field(name)) for name in names}
            keep = [_may_match(units, unit, row_filter, columns) for unit in range(len(units.starts) - 1)]
        _log.info("%s: rowFilter leaves out %d of %d %s", file.path, keep.count(False), len(keep), self.units)
        return kept_ranges(keep, units.starts, position, end)

    def read(
        self,
        file: InputFile,
        schema: pa.Schema,
        *,
        columns: Sequence[str] | None = None,
        position: int = 0,
        end: int | None = None,
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Read the rows `[position, end)`. An empty file has no rows, as in Spark."""
        if not file.size:
            return
        projected = schema if columns is None else pa.schema([schema.field(name) for name in columns])
        with self.opened(file) as units:
            yield from _rows(units, projected, position, units.starts[-1] if end is None else end)


def _may_match(
    units: OpenUnits[Stored], unit: int, row_filter: Expression, columns: Mapping[str, UnitColumn[Stored]]
) -> bool:
    """Return whether some rows of a unit may match a filter. Columns that are not stored in files are missing."""

    def possible(leaf: Leaf) -> Outcomes:
        column = columns.get(leaf.column)
        if column is None:
            return ANY
        if column.stored is None:
            rows = units.starts[unit + 1] - units.starts[unit]
            return outcomes(leaf, Statistics(rows, rows))
        statistics = units.statistics(unit, column)
        return ANY if statistics is None else outcomes(leaf, statistics)

    return may_be_true(row_filter, possible)


def _rows(units: OpenUnits[Stored], schema: pa.Schema, position: int, end: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield the rows `[position, end)` of a file, as pairs of a batch and the position after it."""
    end = min(end, units.starts[-1])
    columns = [units.column(field) for field in schema]
    stored = [column for column in columns if column.stored is not None]
    units.prepare(stored, position, end)
    rows = BatchRows(units.batch_bytes)
    while position < end:
        unit = bisect_right(units.starts, position) - 1
        before = position
        with closing(units.batches(stored, unit, rows) if stored else _nothing(units, unit)) as batches:
            for batch in rows_between(batches, position - units.starts[unit], end - position):
                converted = _converted(units.path, batch, columns, schema, position)
                position += batch.num_rows
                yield converted, position
                if rows.adapt(batch):
                    break
        if position == before:
            raise damaged_file(
                f"the footer of {units.path} is wrong: "
                f"it states {units.starts[-1]} rows, but the columns end at row {position}"
            )


def _nothing(units: OpenUnits[Stored], unit: int) -> Generator[pa.RecordBatch]:
    """Yield the rows of a unit without any column."""
    missing = units.starts[unit + 1] - units.starts[unit]
    while missing:
        yield batch_of([], pa.schema([]), min(_BATCH_ROWS, missing))
        missing -= min(_BATCH_ROWS, missing)


def _converted(
    path: str, batch: pa.RecordBatch, columns: Sequence[UnitColumn[Stored]], schema: pa.Schema, position: int
) -> pa.RecordBatch:
    arrays = []
    stored = iter(batch.columns)
    for column in columns:
        if column.stored is None:
            arrays.append(pa.nulls(batch.num_rows, column.field.type))
            continue
        array = next(stored)
        try:
            arrays.append(array if column.convert is None else column.convert(array))
        except pa.ArrowInvalid as error:
            raise unfit_value(column.field, path, position, error) from None
    return batch_of(arrays, schema, batch.num_rows)
