# SPDX-License-Identifier: Apache-2.0
"""JSON files, read as Spark's own reader reads them: one record in each line, or with `multiLine` one document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from forebay.formats.base import FileFormat
from forebay.formats.compression import open_decompressed
from forebay.formats.encodings import as_utf8
from forebay.formats.json.blocks import BlockReader
from forebay.formats.json.documents import read_document
from forebay.formats.json.infer import infer_schema
from forebay.formats.json.options import JsonOptions
from forebay.formats.record_blocks import Block, RecordBlocks

if TYPE_CHECKING:
    from forebay.formats.input_file import InputFile


_UNKNOWN = pa.schema([])
"""The columns of a file that nobody has looked at yet, or where they do not matter."""


@dataclass(frozen=True)
class JsonFormat(FileFormat):
    """Reads JSON files. Positions are byte offsets in the decompressed bytes (in UTF-8, where `encoding` is another).

    Args:
        options: How to read.
    """

    name: ClassVar[str] = "json"

    options: JsonOptions = field(default_factory=JsonOptions)

    def infer_schema(self, files: Sequence[InputFile]) -> pa.Schema:
        """As Spark: from all records of all files (or a sample of them); columns in the order of their names."""
        return infer_schema(files, self.options, self._blocks)

    def sliceable(self, file: InputFile) -> bool:
        """Plain files with a record in each line are."""
        return not self.options.multi_line and self._plain and self._cutter(_UNKNOWN).sliceable(file)

    def borders(self, file: InputFile, target_bytes: int) -> list[int]:
        """Cuts into equal slices: a record belongs to the slice in which it starts."""
        return self._cutter(_UNKNOWN).borders(file, target_bytes) if self.sliceable(file) else []

    def read(
        self,
        file: InputFile,
        schema: pa.Schema,
        *,
        columns: Sequence[str] | None = None,
        position: int = 0,
        end: int | None = None,
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Read the records that start in `[position, end)`.

        With `multiLine` a file is read whole: it takes about three times its size in memory, and one of more than
        `maxRecordBytes` is malformed.
        """
        wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
        reader = BlockReader(wanted, self.options, file.path)
        if self.options.multi_line:
            block_bytes = self.options.bytes_at_once(schema)
            yield from read_document(file, reader, self.options, block_bytes=block_bytes, position=position, end=end)
            return
        for block in self._blocks(file, position, end, schema):
            if block.cut:
                batch = reader.malformed(bytes(block.data), block.offset(0))
            else:
                batch = reader.read(block.data, block.offset(0))
            if batch.num_rows:
                yield batch, block.end

    def _blocks(
        self, file: InputFile, position: int = 0, end: int | None = None, schema: pa.Schema = _UNKNOWN
    ) -> Iterator[Block]:
        """The blocks of the records that start in `[position, end)`."""
        cutter = self._cutter(schema)
        if self._plain:
            yield from cutter.read(file, position=position, end=end)
        elif end is None or end > position:
            with as_utf8(open_decompressed(file), self.options.encoding or "UTF-8") as stream:
                yield from cutter.cut(stream, position=position, end=end)

    @property
    def _plain(self) -> bool:
        return (self.options.encoding or "UTF-8").upper() == "UTF-8"

    def _cutter(self, schema: pa.Schema) -> RecordBlocks:
        options = self.options
        return RecordBlocks(
            separator=None if options.line_sep is None else options.line_sep.encode(),
            block_bytes=options.bytes_at_once(schema),
            max_record_bytes=options.max_record_bytes,
        )
