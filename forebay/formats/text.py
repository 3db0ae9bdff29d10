# SPDX-License-Identifier: Apache-2.0
"""The text format: one row per line, or per file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import ConfigurationError, DataError
from forebay.formats.base import FileFormat
from forebay.formats.compression import open_decompressed
from forebay.formats.encodings import valid_utf8
from forebay.formats.input_file import InputFile
from forebay.formats.record_blocks import BLOCK_BYTES, MAX_RECORD_BYTES, Block, RecordBlocks

TEXT_SCHEMA = pa.schema([pa.field("value", pa.string())])

REFUSED = {
    "encoding": "Spark's text source reads UTF-8 only, and uses it for writing",
    "compression": "it is for writing; when reading, the suffix of a file says it",
}
"""Options of Spark's text source that are not honoured → why; the file source refuses them by name."""

_MAX_ROWS = 65_536


@dataclass(frozen=True)
class TextOptions:
    """The options of text files."""

    wholetext: bool = False
    """Each file is one row."""
    line_sep: str | None = None
    """What ends a line; by default any of line feed, carriage return, and both."""
    max_record_bytes: int = MAX_RECORD_BYTES
    """A longer line, or with `wholetext` a longer file, is an error."""
    block_bytes: int = BLOCK_BYTES
    """How much is read at a time."""

    def __post_init__(self) -> None:
        if self.line_sep == "":
            raise ConfigurationError(
                "lineSep is empty", option="lineSep", advice="leave it out, or give what ends a line"
            )

    def blocks(self) -> RecordBlocks:
        """How lines are cut."""
        separator = None if self.line_sep is None else self.line_sep.encode()
        return RecordBlocks(separator, self.block_bytes, self.max_record_bytes)


@dataclass(frozen=True)
class TextFormat(FileFormat):
    """Text files. `TextOptions` says how they are read. Bytes that are no UTF-8 become U+FFFD."""

    options: TextOptions

    name: ClassVar[str] = "text"

    def infer_schema(self, files: Sequence[InputFile]) -> pa.Schema:
        """One column of strings, `value`, whatever the files."""
        return TEXT_SCHEMA

    def sliceable(self, file: InputFile) -> bool:
        """Plain files of lines are."""
        return not self.options.wholetext and self.options.blocks().sliceable(file)

    def borders(self, file: InputFile, target_bytes: int) -> list[int]:
        """Equal slices; readers look for the next line themselves."""
        return self.options.blocks().borders(file, target_bytes) if self.sliceable(file) else []

    def read(
        self,
        file: InputFile,
        schema: pa.Schema,
        *,
        columns: Sequence[str] | None = None,
        position: int = 0,
        end: int | None = None,
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """See `FileFormat.read`. The one column may have any name.

        Raises:
            ConfigurationError: The schema is not one column of strings.
            DataError: A line is longer than `maxRecordBytes`, or compressed data are damaged.
        """
        if [field.type for field in schema] != [pa.string()]:
            raise ConfigurationError(
                f"a text file has one column of strings, and the schema asks for {_shown(schema)}",
                option="schema",
                advice="give a schema of one string column beside partition columns",
            )
        names = list(schema.names if columns is None else columns)
        pieces = self._whole(file, position, end) if self.options.wholetext else self._lines(file, position, end)
        for lines, after in pieces:
            yield pa.RecordBatch.from_arrays([lines] * len(names), names=names), after

    def _lines(self, file: InputFile, position: int, end: int | None) -> Iterator[tuple[pa.Array, int]]:
        blocks = self.options.blocks()
        for block in blocks.read(file, position=position, end=end):
            if block.cut:
                raise self._too_long(file, f"the line at byte {block.offset(0)}", block.offset(0))
            for piece in blocks.pieces(block, _MAX_ROWS):
                lines = _split(piece, blocks.separator)
                if len(lines):
                    yield lines, piece.end

    def _whole(self, file: InputFile, position: int, end: int | None) -> Iterator[tuple[pa.Array, int]]:
        if position or end == 0:
            return
        with open_decompressed(file) as stream:
            data = stream.read(self.options.max_record_bytes + 1)
        if len(data) > self.options.max_record_bytes:
            raise self._too_long(file, "the file", 0)
        if not data:
            return  # Spark passes over empty files
        yield pa.array([valid_utf8(data)], pa.binary()).cast(pa.string()), max(1, len(data))

    def _too_long(self, file: InputFile, what: str, at: int) -> DataError:
        return DataError(
            f"{what} of {file.path} is longer than {self.options.max_record_bytes} bytes",
            position=f"byte {at}",
            option="maxRecordBytes",
            advice="raise maxRecordBytes, if a record may be that long and the memory allows it",
        )


def _split(block: Block, separator: bytes | None) -> pa.Array:
    """Return the lines of a block as strings, without what ends them."""
    data: bytes | bytearray = valid_utf8(block.data)
    if separator is None:
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        separator = b"\n"
    whole = pa.Array.from_buffers(
        pa.large_string(), 1, [None, pa.array([0, len(data)], pa.int64()).buffers()[1], pa.py_buffer(data)]
    )
    lines = pc.list_flatten(pc.split_pattern(whole, separator.decode()))
    if data.endswith(separator) or not data:
        lines = lines.slice(0, len(lines) - 1)
    return pc.cast(lines, pa.string())


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema) or "none"
