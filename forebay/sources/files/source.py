# SPDX-License-Identifier: Apache-2.0
"""The file source: its schema, and the factory of its enumerators and split readers."""

from __future__ import annotations

import copy
from typing import ClassVar, Self

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.framework.discovery import DiscoveryEnumerator
from forebay.framework.enumerator import SplitEnumeratorContext
from forebay.framework.reader import SourceReaderContext
from forebay.framework.split import Position, Split
from forebay.framework.split_reader import SplitReader
from forebay.sources.files.cleaning import check_cleaning
from forebay.sources.files.scan import FileScan, parse_event_time
from forebay.sources.files.schema import check_evolution, check_schema, inferred_schema, nullable
from forebay.sources.files.split import FileSplit, offset_and_rows


class FileSource(FileScan):
    """Reads CSV, JSON lines, Parquet, ORC, Avro, text and binary files with Spark's own options. Big files are sliced.

    The options of the file format are in `format_options`, such as `header` and `sep` for CSV:
    `FileSource(path="orders.csv", format_options={"header": True})`.
    """

    name: ClassVar[str] = "forebay_files"
    split_class: ClassVar[type[Split]] = FileSplit

    def check(self) -> None:
        """Run the checks of `FileScan`, and refuse an archive that overlaps the input (after following local links).

        Raises:
            ConfigurationError: An option is missing, unknown or invalid. The error names it.
        """
        super().check()
        check_cleaning(self)

    @property
    def event_time(self) -> str | None:
        """The event time column that `fileEventTime=footer:<column>` names; None for other values of the option."""
        if self.file_event_time is None:
            return None
        event_time = parse_event_time(self.file_event_time, self.name)
        return event_time.argument if event_time.kind == "footer" else None

    def schema(self) -> pa.Schema:
        """Return the user's schema or the inferred one, with only the selected columns.

        Raises:
            ConfigurationError: A selected column, or a column of `rowFilter`, is not in the schema.
        """
        full = self.full_schema()
        self.bound_row_filter(full)
        if self._columns is None:
            return full
        missing = [name for name in self._columns if name not in full.names]
        if missing:
            raise ConfigurationError(
                f"{missing[0]!r} in the option `columns` is not a column of the schema",
                source=self.name,
                option="columns",
                advice=f"select from {', '.join(full.names)}",
            )
        return pa.schema([full.field(name) for name in self._columns])

    def full_schema(self) -> pa.Schema:
        """Return the schema of all columns, including those that are not selected.

        A host calls this method before it reads anything, and keeps the result.
        """
        return self._schema if self._schema is not None else inferred_schema(self)

    def with_schema(self, schema: pa.Schema) -> Self:
        """Return a copy of this source with the user's schema, which must name the partition columns to read.

        Raises:
            ConfigurationError: The schema has duplicate column names, or a type that files cannot have.
        """
        check_schema(self, schema)
        # As in Spark: nothing checked the files for nulls when they were written (SPARK-28651).
        return self._with(_schema=nullable(schema), _schema_inferred=False, _inferred_from=None, _listing=None)

    def with_inferred_schema(self, schema: pa.Schema) -> Self:
        """Return a copy of this source that keeps the inferred schema and the listing used to infer it.

        A host calls this method just before it plans a read.
        """
        listing = self._inferred_from
        object.__setattr__(self, "_inferred_from", None)
        return self.with_schema(schema)._with(_schema_inferred=True, _listing=listing)  # noqa: SLF001 - of this class

    def with_columns(self, columns: tuple[str, ...]) -> Self:
        """Return a copy of this source that reads only these columns; other columns are not decoded."""
        return self._with(_columns=columns)

    def create_enumerator(self, context: SplitEnumeratorContext) -> DiscoveryEnumerator:
        """Create the enumerator: one for streams if the host plans a stream, else one for bounded reads."""
        # Only the first enumerator may use the listing, and tasks should not carry it.
        listing = self._listing
        object.__setattr__(self, "_listing", None)
        if context.streaming:
            check_evolution(self)
            from forebay.sources.files.stream_enumerator import FileStreamEnumerator

            return FileStreamEnumerator(self, context.clock)
        from forebay.sources.files.enumerator import FileEnumerator

        return FileEnumerator(self, listing)

    def create_split_reader(self, context: SourceReaderContext) -> SplitReader:
        """Create a split reader, which reads one file after another."""
        from forebay.sources.files.split_reader import FileSplitReader

        return FileSplitReader(self, context.options)

    def order_key(self, position: Position) -> tuple[int, int]:
        """Return the sort key of a position: the file format's position, then the number of rows read after it."""
        return offset_and_rows(position)

    def _with(self, **attributes: object) -> Self:
        other = copy.copy(self)
        for name, value in attributes.items():
            object.__setattr__(other, name, value)
        return other
