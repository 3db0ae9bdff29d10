# SPDX-License-Identifier: Apache-2.0
"""The JSON format: one record per line or, with `multiLine`, one document per file, as in Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from forebay.formats.base import FileFormat, JoinedContents
from forebay.formats.json.blocks import BlockReader
from forebay.formats.json.documents import read_document
from forebay.formats.json.inference import infer_schema
from forebay.formats.json.options import REFUSED, JsonOptions
from forebay.formats.records import Block, join_lines

if TYPE_CHECKING:
    from forebay.formats.base import InputFile


_NOT_ONE_ROW = (b"\n", b"[", b" ", b"\t")
"""How a line may begin that is not one row: a blank line, or an array of records."""
_UNKNOWN = pa.schema([])
"""Stands for a schema that is not known yet, or does not matter."""


@dataclass(frozen=True)
class JsonFormat(FileFormat):
    """Reads JSON files.

    A position is a byte offset in the decompressed text, converted to UTF-8 from its `encoding`.
    """

    name: ClassVar[str] = "json"
    options_class: ClassVar[type] = JsonOptions
    refused: ClassVar[Mapping[str, str]] = REFUSED

    options: JsonOptions = field(default_factory=JsonOptions)

    def infer_schema(self, files: Sequence[InputFile]) -> pa.Schema:
        """Infer a schema as Spark does, from all records or from a sample. Its columns are sorted by name."""
        return infer_schema(files, self.options, self._blocks)

    def sliceable(self, file: InputFile) -> bool:
        """Return whether the file is uncompressed UTF-8 with one record per line."""
        return not self.options.multi_line and self.options.blocks().sliceable(file)

    def borders(self, file: InputFile, target_bytes: int) -> list[int]:
        """See `FileFormat.borders`. A bzip2, xz or seekable zstd file is cut by its compressed bytes."""
        return [] if self.options.multi_line else self.options.blocks().borders(file, target_bytes)

    def join(self, contents: Sequence[bytes]) -> JoinedContents | None:
        """See `FileFormat.join`."""
        return join_lines(contents, not_one_row=_NOT_ONE_ROW) if self.options.line_sep is None else None

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

        With `multiLine` the whole file is read at once, which takes about three times its size in memory. A file longer
        than `maxRecordBytes` then counts as one malformed record.
        """
        projected = schema if columns is None else pa.schema([schema.field(name) for name in columns])
        reader = BlockReader(projected, self.options, file.path)
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
        """Yield the blocks of lines for the records that start in `[position, end)`."""
        return self.options.blocks(self.options.bytes_at_once(schema)).read(file, position=position, end=end)
