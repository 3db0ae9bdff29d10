# SPDX-License-Identifier: Apache-2.0
"""The text format: one row per line or, with `wholetext`, per file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import ConfigurationError, DataError
from forebay.formats.base import FileFormat, InputFile, JoinedContents
from forebay.formats.compression.codecs import open_decompressed
from forebay.formats.records import (
    BLOCK_BYTES,
    MAX_RECORD_BYTES,
    Block,
    RecordBlocks,
    join_lines,
    one_value,
    valid_utf8,
)

TEXT_SCHEMA = pa.schema([pa.field("value", pa.string())])

_MAX_ROWS = 65_536


@dataclass(frozen=True)
class TextOptions:
    """The options for reading text files."""

    wholetext: bool = False
    """Whether each file is one row, instead of each line."""
    line_sep: str | None = None
    """The text that ends a line; by default a line feed, a carriage return, or both."""
    max_record_bytes: int = MAX_RECORD_BYTES
    """A longer line, or with `wholetext` a longer file, is an error."""
    block_bytes: int = BLOCK_BYTES
    """How many bytes to read at a time."""

    def __post_init__(self) -> None:
        if self.line_sep == "":
            raise ConfigurationError(
                "the option lineSep is empty",
                option="lineSep",
                advice="leave lineSep out, or set it to the text that ends a line",
            )

    def blocks(self) -> RecordBlocks:
        """Return the settings for cutting a file into blocks of lines."""
        separator = None if self.line_sep is None else self.line_sep.encode()
        return RecordBlocks(separator, self.block_bytes, self.max_record_bytes)


@dataclass(frozen=True)
class TextFormat(FileFormat):
    """Reads text files. Bytes that are not UTF-8 become U+FFFD."""

    options: TextOptions

    name: ClassVar[str] = "text"
    options_class: ClassVar[type] = TextOptions
    fixed_schema: ClassVar[bool] = True
    refused: ClassVar[Mapping[str, str]] = {
        "encoding": "it is for writing; Spark's text source reads UTF-8 only",
        "compression": "it is for writing; a file's suffix says how it is compressed",
    }

    def infer_schema(self, files: Sequence[InputFile]) -> pa.Schema:
        """Return a schema with one string column, `value`."""
        return TEXT_SCHEMA

    def sliceable(self, file: InputFile) -> bool:
        """Return whether a file is uncompressed and each of its lines is a row (no `wholetext`)."""
        return not self.options.wholetext and self.options.blocks().sliceable(file)

    def borders(self, file: InputFile, target_bytes: int) -> list[int]:
        """See `FileFormat.borders`. A bzip2, xz or seekable zstd file is cut by its compressed bytes."""
        return [] if self.options.wholetext else self.options.blocks().borders(file, target_bytes)

    def join(self, contents: Sequence[bytes]) -> JoinedContents | None:
        """See `FileFormat.join`."""
        return join_lines(contents) if self.options.line_sep is None else None

    def read(
        self,
        file: InputFile,
        schema: pa.Schema,
        *,
        columns: Sequence[str] | None = None,
        position: int = 0,
        end: int | None = None,
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """See `FileFormat.read`. `schema` must have one string column, of any name."""
        if [field.type for field in schema] != [pa.string()]:
            raise ConfigurationError(
                f"the text format reads one column of strings, but the schema has {_shown(schema)}",
                option="schema",
                advice="give a schema with one string column beside the partition columns",
            )
        names = list(schema.names if columns is None else columns)
        blocks = self._whole(file, position, end) if self.options.wholetext else self._lines(file, position, end)
        for lines, after in blocks:
            yield pa.RecordBatch.from_arrays([lines] * len(names), names=names), after

    def _lines(self, file: InputFile, position: int, end: int | None) -> Iterator[tuple[pa.Array, int]]:
        blocks = self.options.blocks()
        for block in blocks.read(file, position=position, end=end):
            if block.cut:
                raise self._too_long(file, f"the line at byte {block.offset(0)} of ", block.offset(0))
            for part in blocks.parts(block, _MAX_ROWS):
                lines = _split(part, blocks.separator)
                if len(lines):
                    yield lines, part.end

    def _whole(self, file: InputFile, position: int, end: int | None) -> Iterator[tuple[pa.Array, int]]:
        if position or end == 0:
            return
        with open_decompressed(file) as stream:
            data = stream.read(self.options.max_record_bytes + 1)
        if len(data) > self.options.max_record_bytes:
            raise self._too_long(file, "the file ", 0)
        if not file.size:
            return  # as in Spark, a file of no bytes has no row; one that decompresses to nothing has a row
        yield pa.array([valid_utf8(data)], pa.binary()).cast(pa.string()), max(1, len(data))

    def _too_long(self, file: InputFile, what: str, at: int) -> DataError:
        return DataError(
            f"{what}{file.path} is longer than maxRecordBytes ({self.options.max_record_bytes} bytes)",
            position=f"byte {at}",
            option="maxRecordBytes",
            advice="if a record may be that long and fits into memory, raise maxRecordBytes",
        )


def _split(block: Block, separator: bytes | None) -> pa.Array:
    """Return the lines of a block as an array of strings, without their line ends."""
    data: bytes | bytearray = valid_utf8(block.data)
    if separator is None:
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        separator = b"\n"
    lines = pc.list_flatten(pc.split_pattern(one_value(data, pa.large_string()), separator.decode()))
    if data.endswith(separator) or not data:
        lines = lines.slice(0, len(lines) - 1)
    return pc.cast(lines, pa.string())


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema) or "none"
