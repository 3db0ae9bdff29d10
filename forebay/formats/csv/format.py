# SPDX-License-Identifier: Apache-2.0
"""The CSV format: Spark's semantics, Arrow's speed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa

from forebay.formats.base import FileFormat
from forebay.formats.csv.infer import CsvInference
from forebay.formats.csv.limits import within_limits
from forebay.formats.csv.options import CsvOptions
from forebay.formats.csv.read import CsvReading
from forebay.formats.csv.rows import RowMaker
from forebay.formats.input_file import InputFile
from forebay.formats.record_blocks import RecordBlocks


@dataclass(frozen=True)
class CsvFormat(FileFormat):
    """CSV files. `CsvOptions` says how they are read."""

    options: CsvOptions = field(default_factory=CsvOptions)

    name: ClassVar[str] = "csv"

    def infer_schema(self, files: Sequence[InputFile]) -> pa.Schema:
        """See `FileFormat.infer_schema`. Without `inferSchema` every column is a string, and only the head is read."""
        return CsvInference(self.options).schema(files)

    def sliceable(self, file: InputFile) -> bool:
        """Plain UTF-8 files of one-line records are."""
        return not self.options.multi_line and self._blocks.sliceable(file)

    def borders(self, file: InputFile, target_bytes: int) -> list[int]:
        """Equal slices; readers look for the next record themselves."""
        return self._blocks.borders(file, target_bytes) if self.sliceable(file) else []

    def read(
        self,
        file: InputFile,
        schema: pa.Schema,
        *,
        columns: Sequence[str] | None = None,
        position: int = 0,
        end: int | None = None,
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """See `FileFormat.read`. A record has one malformed value or more, or another number of values, or neither."""
        with within_limits(file.path):
            rows = RowMaker(self.options, schema, columns, file.path, position=position)
            for tokens, block in CsvReading(self.options, file, rows.names, rows.wanted).pieces(position, end):
                batch = rows.oversized(block) if tokens is None else rows.batch(tokens, block)
                if batch.num_rows:
                    yield batch, block.end

    @property
    def _blocks(self) -> RecordBlocks:
        return self.options.blocks()
