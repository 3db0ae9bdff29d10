# SPDX-License-Identifier: Apache-2.0
"""The file source: schemas, and the factory of its enumerators and split readers."""

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
from forebay.sources.files.columns import nullable
from forebay.sources.files.inference import inferred_schema
from forebay.sources.files.scan import FileScan
from forebay.sources.files.split import FileSplit, place_of
from forebay.sources.files.user_schema import check_schema


class FileSource(FileScan):
    """Reads CSV, JSON lines, Parquet and text files with Spark's own options, slicing big ones.

    Options that are not listed here belong to the file format, such as `header` and `sep` for CSV:
    `FileSource(path="orders.csv", format_options={"header": True})`.
    """

    name: ClassVar[str] = "forebay_files"
    split_class: ClassVar[type[Split]] = FileSplit

    def check(self) -> None:
        """Refuse what `FileScan` refuses, and an archive that overlaps the input.

        If files are to be archived, it follows local links.

        Raises:
            ConfigurationError: Naming the option.
        """
        super().check()
        check_cleaning(self)

    def schema(self) -> pa.Schema:
        """Return the schema: the one given, or what the files and directories say, then the partition columns."""
        full = self.full_schema()
        if self._columns is None:
            return full
        missing = [name for name in self._columns if name not in full.names]
        if missing:
            raise ConfigurationError(
                f"there is no column {missing[0]!r}",
                source=self.name,
                option="columns",
                advice=f"choose from {', '.join(full.names)}",
            )
        return pa.schema([full.field(name) for name in self._columns])

    def full_schema(self) -> pa.Schema:
        """Return the schema before columns were chosen; settled by a host before anything is read."""
        return self._schema if self._schema is not None else inferred_schema(self)

    def with_schema(self, schema: pa.Schema) -> Self:
        """Return this source reading with a schema of the user's; partition columns are those it names.

        Raises:
            ConfigurationError: The schema has two columns of one name, or a type that no file is read as.
        """
        check_schema(self, schema)
        # As Spark does for files: nobody checked what is in them when they were written (SPARK-28651).
        return self._with(_schema=nullable(schema))

    def with_columns(self, columns: tuple[str, ...]) -> Self:
        """Return this source reading only these columns: others are not decoded."""
        return self._with(_columns=columns)

    def create_enumerator(self, context: SplitEnumeratorContext) -> DiscoveryEnumerator:
        """Make the enumerator that lists and slices; in a stream one that lists again and again."""
        if context.streaming:
            from forebay.sources.files.stream_enumerator import FileStreamEnumerator

            return FileStreamEnumerator(self, context.clock)
        from forebay.sources.files.enumerator import FileEnumerator

        return FileEnumerator(self)

    def create_split_reader(self, context: SourceReaderContext) -> SplitReader:
        """Make the reader of files, one after the other."""
        from forebay.sources.files.split_reader import FileSplitReader

        return FileSplitReader(self, context.options)

    def order_key(self, position: Position) -> tuple[int, int]:
        """Return a position as offset and rows after it, also one that is an offset alone."""
        return place_of(position)

    def _with(self, **settled: object) -> Self:
        """Return a copy that carries what a host settled; not options, so not fields."""
        other = copy.copy(self)
        for name, value in settled.items():
            object.__setattr__(other, name, value)
        return other
