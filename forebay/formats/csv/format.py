# SPDX-License-Identifier: Apache-2.0
"""The CSV format: returns the same rows as Spark's own CSV reader, and uses Arrow where possible."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa

from forebay.formats.base import FileFormat, InputFile, JoinedContents
from forebay.formats.csv.infer import infer_schema, merged_schema
from forebay.formats.csv.options import REFUSED, CsvOptions
from forebay.formats.csv.read import CsvReading
from forebay.formats.csv.rows import RowMaker
from forebay.formats.csv.univocity.rules import within_limits
from forebay.formats.records.joining import join_lines


@dataclass(frozen=True)
class CsvFormat(FileFormat):
    """Reads CSV files with the given `CsvOptions`."""

    options: CsvOptions = field(default_factory=CsvOptions)

    name: ClassVar[str] = "csv"
    options_class: ClassVar[type] = CsvOptions
    refused: ClassVar[Mapping[str, str]] = REFUSED

    def infer_schema(self, files: Sequence[InputFile]) -> pa.Schema:
        """See `FileFormat.infer_schema`. Without `inferSchema` all columns are strings, and only the header is read."""
        return infer_schema(self.options, files)

    def merged_schema(self, files: Sequence[InputFile]) -> pa.Schema:
        """Return the columns of the longest header. Columns match by position, so new ones must come last.

        The rows of files with a shorter header have too few fields, which only the mode `PERMISSIVE` accepts.
        """
        return merged_schema(self.options, files)

    def sliceable(self, file: InputFile) -> bool:
        """Return whether the file is uncompressed UTF-8 in which no record spans several lines."""
        return not self.options.multi_line and self.options.blocks().sliceable(file)

    def borders(self, file: InputFile, target_bytes: int) -> list[int]:
        """See `FileFormat.borders`. A bzip2, xz or seekable zstd file is cut by its compressed bytes."""
        return [] if self.options.multi_line else self.options.blocks().borders(file, target_bytes)

    def join(self, contents: Sequence[bytes]) -> JoinedContents | None:
        """See `FileFormat.join`. Returns None with `lineSep` or `comment`, because then a line need not be a row."""
        if self.options.line_sep is not None or self.options.comment:
            return None
        return join_lines(contents, header=self.options.header, not_one_row=[b"\n"])

    def read(
        self,
        file: InputFile,
        schema: pa.Schema,
        *,
        columns: Sequence[str] | None = None,
        position: int = 0,
        end: int | None = None,
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """See `FileFormat.read`."""
        with within_limits(file.path):
            rows = RowMaker(self.options, schema, columns, file.path, position=position)
            for tokens, block in CsvReading(self.options, file, rows.names, rows.wanted).blocks(position, end):
                batch = rows.oversized(block) if tokens is None else rows.batch(tokens, block)
                if batch.num_rows:
                    yield batch, block.end
