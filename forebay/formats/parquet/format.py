# SPDX-License-Identifier: Apache-2.0
"""Reads Parquet files as Spark's vectorised reader does."""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from forebay.formats.base import FileFormat, batch_of, part_borders, rows_between, unfit_value
from forebay.formats.filters import Expression, kept_ranges, leaves
from forebay.formats.parquet.convert import Converter, ProjectedColumn
from forebay.formats.parquet.footer import Leaf, columns_of, inferred_schema, unreadable_column
from forebay.formats.parquet.open import (
    OpenParquet,
    check_groups,
    group_bytes,
    longest_chunk,
    opened,
    row_starts,
    wrong_footer,
)
from forebay.formats.parquet.skipping import FilteredColumn, matching_groups
from forebay.formats.values.ddl import merged
from forebay.formats.values.rebase import RebaseMode, rebase_of
from forebay.options import option

if TYPE_CHECKING:
    from forebay.formats.base import InputFile

_log = logging.getLogger(__name__)

_BATCH_ROWS = 16_384
_BATCH_BYTES = 8 << 20
_LEAST_ROWS = 64
_PROBE_ROWS = 512
_READ_AHEAD_BYTES = 32 << 20
_MOST_BUFFER, _LEAST_BUFFER = 4 << 20, 64 << 10

_WRITING = "it is for writing; each Parquet file names its own codecs"


@dataclass(frozen=True, kw_only=True)
class ParquetOptions:
    """The options for reading Parquet files."""

    merge_schema: bool = option(default=False, doc="infer the schema from all files, not only from the first")
    datetime_rebase_mode: RebaseMode = option(
        default="CORRECTED", doc="the calendar of old dates in files that Spark did not write"
    )
    int96_rebase_mode: RebaseMode = option(
        default="CORRECTED", doc="the calendar of old INT96 timestamps in files that Spark did not write"
    )
    case_sensitive: bool = option(
        default=False, doc="compare names of columns exactly: the session's `spark.sql.caseSensitive`"
    )


@dataclass(frozen=True)
class ParquetFormat(FileFormat):
    """Reads Parquet files. A position is a row index. Slices begin at row groups; a read may begin at any row."""

    name: ClassVar[str] = "parquet"
    options_class: ClassVar[type] = ParquetOptions
    refused: ClassVar[Mapping[str, str]] = {"compression": _WRITING, "parquet.compression": _WRITING}
    counts_rows: ClassVar[bool] = True

    options: ParquetOptions = ParquetOptions()

    @property
    def case_sensitive(self) -> bool:
        """Whether names of columns are compared exactly: the option `caseSensitive`."""
        return self.options.case_sensitive

    def infer_schema(self, files: Sequence[InputFile]) -> pa.Schema:
        """Infer the schema of the first file by path, as Spark does. With `mergeSchema`, merge all schemas."""
        schema: pa.Schema | None = None
        first = () if not files else (min(files, key=lambda file: file.path),)
        for file in sorted(files, key=lambda file: file.path) if self.options.merge_schema else first:
            with opened(file) as parquet:
                file_schema = inferred_schema(
                    parquet.file(), file.path, self.options.case_sensitive, parquet.unreadable
                )
            schema = (
                file_schema if schema is None else merged(schema, file_schema, file.path, self.options.case_sensitive)
            )
        if schema is None:
            raise ValueError("infer_schema needs at least one file")
        return schema

    def merged_schema(self, files: Sequence[InputFile]) -> pa.Schema:
        """Merge the schemas of all files, as `infer_schema` does with `mergeSchema`."""
        return replace(self, options=replace(self.options, merge_schema=True)).infer_schema(files)

    def sliceable(self, file: InputFile) -> bool:
        """Return True: a Parquet file can be cut at any row."""
        return True

    def borders(self, file: InputFile, target_bytes: int) -> list[int]:
        """Return the starts of row groups that cut the file into slices of about `target_bytes`. Reads the footer."""
        if not file.size:
            return []
        with opened(file) as parquet:
            return part_borders(row_starts(parquet), group_bytes(parquet, file.size), target_bytes)

    def matching_ranges(
        self, file: InputFile, schema: pa.Schema, row_filter: Expression, position: int, end: int | None
    ) -> list[tuple[int, int | None]]:
        """Return the row ranges of the row groups that may match by their statistics. Reads the footer."""
        if not file.size:
            return [(position, end)]
        with opened(file) as parquet:
            converter = self._converter(file, parquet)
            nodes = columns_of(parquet.file())
            rebased = converter.rebase.dates_mode != "CORRECTED"
            names = {leaf.column for leaf in leaves(row_filter)}.intersection(schema.names)
            columns = {
                name: FilteredColumn(converter.column(schema.field(name), nodes), schema.field(name).type, rebased)
                for name in names
            }
            keep = matching_groups(parquet, row_filter, columns)
            starts = row_starts(parquet)
        _log.info("%s: rowFilter leaves out %d of %d row groups", file.path, keep.count(False), len(keep))
        return kept_ranges(keep, starts, position, end)

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
        with opened(file) as parquet:
            converter = self._converter(file, parquet)
            whole = parquet.file()
            nodes = columns_of(whole)
            reader = _Reader(parquet, whole, projected, [converter.column(item, nodes) for item in projected])
            yield from reader.read(position, end)

    def _converter(self, file: InputFile, parquet: OpenParquet) -> Converter:
        metadata = parquet.metadata.metadata or {}
        rebase = rebase_of(metadata, self.options.datetime_rebase_mode, self.options.int96_rebase_mode)
        return Converter(file.path, self.options.case_sensitive, rebase, parquet.unreadable)


class _Reader:
    def __init__(
        self, parquet: OpenParquet, file: pq.ParquetFile, schema: pa.Schema, columns: list[ProjectedColumn]
    ) -> None:
        self._schema = schema
        self._columns = columns
        self._leaves = [leaf for column in columns for leaf in column.leaves]
        self._starts = row_starts(parquet)
        self._open = parquet
        self._parquet = file
        # Arrow cannot join dictionaries of several row groups inside nested columns.
        self._one_group_at_a_time = any(_has_inner_dictionary(kind) for kind in file.schema_arrow.types)
        self._rows_per_batch = _BATCH_ROWS
        self._measured = False

    def read(self, position: int, end: int | None) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield the rows `[position, end)` in order, as pairs of a batch and the position after it.

        An `end` of None is the file's end.
        """
        end = self._starts[-1] if end is None else min(end, self._starts[-1])
        if not self._leaves:
            yield from self._nothing_but_nulls(position, end)
            return
        groups = self._groups(position, end)
        check_groups(self._open, groups, self._leaves)
        self._open.expect(groups, [leaf.index for leaf in self._leaves])
        self._parquet = self._open.file(self._buffer_bytes(groups))
        while position < end:
            group = self._group_of(position)
            self._plan(group)
            before = position
            for batch in self._from(group, position - self._starts[group], end - position):
                converted = self._converted(batch, position)
                position += batch.num_rows
                yield converted, position
                if self._replan(batch):
                    break
            if position == before:
                raise wrong_footer(
                    self._open, f"it states {self._starts[-1]} rows, but the columns end at row {position}"
                )

    def _buffer_bytes(self, groups: range) -> int:
        """Return how many bytes of a column to read at a time; 0 for whole column chunks, if all are short enough.

        Only reading whole column chunks bounds the memory that a wrong size in a page header takes.
        """
        buffer = max(_LEAST_BUFFER, min(_MOST_BUFFER, _READ_AHEAD_BYTES // len(self._leaves)))
        return 0 if longest_chunk(self._open, groups, self._leaves) <= buffer else buffer

    def _plan(self, group: int) -> None:
        """Choose the number of rows of a batch for a row group.

        The first number is low if the footer does not tell the size of a row.
        """
        estimate, sure = self._estimate(group)
        if not (sure or self._measured):
            estimate = min(estimate, _PROBE_ROWS)
        self._rows_per_batch = min(self._rows_per_batch, estimate) if self._measured else estimate

    def _replan(self, batch: pa.RecordBatch) -> bool:
        """Adapt the number of rows of a batch to the size of a batch just read.

        Returns whether to restart the row group with the new number. A restart reads one page again.
        """
        rows = max(_LEAST_ROWS, min(_BATCH_ROWS, batch.num_rows * _BATCH_BYTES // max(1, batch.nbytes)))
        first, self._measured = not self._measured, True
        now = self._rows_per_batch
        if 2 * rows < now or (first and now == _PROBE_ROWS and rows > now):
            self._rows_per_batch = rows
            return True
        return False

    def _from(self, group: int, skip: int, rows: int) -> Iterator[pa.RecordBatch]:
        """Yield up to `rows` rows of row group `group`, starting at its row `skip`, as batches before conversion."""
        groups = [group] if self._one_group_at_a_time else list(range(group, self._parquet.metadata.num_row_groups))
        yield from rows_between(self._batches(groups), skip, rows)

    def _batches(self, groups: list[int]) -> Iterator[pa.RecordBatch]:
        paths = [leaf.path for leaf in self._leaves]
        try:
            yield from self._parquet.iter_batches(self._rows_per_batch, groups, paths, use_threads=False)
        except pa.ArrowInvalid:
            for leaf in self._leaves:
                # Only their values tell how long decimals of BYTE_ARRAY are; Arrow reads at most 16 bytes.
                if leaf.kind == "DECIMAL" and leaf.physical == "BYTE_ARRAY":
                    self._check_readable(leaf, groups)
            raise

    def _check_readable(self, leaf: Leaf, groups: list[int]) -> None:
        try:
            for _ in self._parquet.iter_batches(self._rows_per_batch, groups, [leaf.path], use_threads=False):
                pass
        except pa.ArrowInvalid as error:
            raise unreadable_column(leaf.path, self._open.path, str(error)) from error

    def _converted(self, batch: pa.RecordBatch, position: int) -> pa.RecordBatch:
        arrays = []
        for column, target in zip(self._columns, self._schema, strict=True):
            if column.source is None:
                arrays.append(pa.nulls(batch.num_rows, target.type))
                continue
            array = batch.column(batch.schema.get_field_index(column.source))
            try:
                arrays.append(array if column.convert is None else column.convert(array))
            except pa.ArrowInvalid as error:
                raise unfit_value(target, self._open.path, position, error) from None
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _nothing_but_nulls(self, position: int, end: int) -> Iterator[tuple[pa.RecordBatch, int]]:
        while position < end:
            rows = min(_BATCH_ROWS, end - position)
            position += rows
            yield batch_of([pa.nulls(rows, column.type) for column in self._schema], self._schema, rows), position

    def _groups(self, position: int, end: int) -> range:
        """Return the row groups to read for the rows `[position, end)`.

        An empty row group belongs to the slice that begins there, or else to the last slice.
        """
        first = min(bisect_left(self._starts, position), self._group_of(position))
        groups = len(self._starts) - 1
        return range(first, groups if end == self._starts[-1] else bisect_left(self._starts, end))

    def _group_of(self, position: int) -> int:
        return bisect_right(self._starts, position) - 1

    def _estimate(self, group: int) -> tuple[int, bool]:
        """Return how many rows of a row group make a batch of the target size, and whether this is exact."""
        metadata = self._parquet.metadata.row_group(group)
        total, sure = 1, True
        for leaf in self._leaves:
            column = metadata.column(leaf.index)
            width = _WIDTHS.get(column.physical_type, 8)
            if column.physical_type == "BYTE_ARRAY" and column.has_dictionary_page:
                # A dictionary hides the length of its strings.
                statistics = column.statistics
                if statistics is not None and statistics.has_min_max:
                    width = max(width, len(statistics.min_raw), len(statistics.max_raw))
                else:
                    sure = False
            total += max(column.total_uncompressed_size, column.num_values * width)
        return max(_LEAST_ROWS, min(_BATCH_ROWS, _BATCH_BYTES * max(metadata.num_rows, 1) // total)), sure


def _has_inner_dictionary(data_type: pa.DataType) -> bool:
    inside = [data_type.field(index).type for index in range(data_type.num_fields)]
    return any(isinstance(kind, pa.DictionaryType) or _has_inner_dictionary(kind) for kind in inside)


_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4}
