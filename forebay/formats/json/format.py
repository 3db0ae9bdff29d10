# SPDX-License-Identifier: Apache-2.0
"""The JSON format: one record per line or, with `multiLine`, one document per file, as in Spark."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from forebay.formats.base import FileFormat, JoinedContents
from forebay.formats.json.blocks import BlockReader, document_bytes
from forebay.formats.json.inference import infer_schema
from forebay.formats.json.jackson import refuse_constant
from forebay.formats.json.jackson_tokens import as_utf8
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
            yield from _read_document(file, reader, self.options, block_bytes=block_bytes, position=position, end=end)
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


# -- Reads files with one document over any number of lines: an object, or an array of objects.


_NEXT = re.compile(r"[ \t\r\n]*([,\]])[ \t\r\n]*")
_START = re.compile(r"[ \t\r\n]*\[[ \t\r\n]*")


def _read_document(
    file: InputFile,
    reader: BlockReader,
    options: JsonOptions,
    *,
    block_bytes: int,
    position: int = 0,
    end: int | None = None,
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield the rows of the records that start in `[position, end)`, as pairs of a batch and the position after it.

    A record is an element of the file's array, or the whole file. A file with a malformed part counts as one record
    that starts at 0.

    Args:
        file: The file.
        reader: Converts records to batches.
        options: The options of the JSON format.
        block_bytes: How many bytes of records to convert at a time.
        position: A byte offset in the decompressed text.
        end: A byte offset in the decompressed text; None for the end of the file.
    """
    data, complete = document_bytes(file, options)
    text = as_utf8(data, options.encoding)
    batches: list[pa.RecordBatch] = []
    starts = [0]
    spans = _elements(text) if complete else []
    for first, last in _groups(spans, block_bytes, {position, end or 0}):
        batches.append(reader.read_lines([text[start:stop] for start, stop in spans[first:last]], 0))
        starts.append(spans[last][0] if last < len(spans) else len(text))
        if reader.malformed_records:  # to Spark the whole document is one malformed record
            batches.clear()
            break
    if batches:
        for batch, (start, after) in zip(batches, pairwise(starts), strict=True):
            if start >= position and (end is None or start < end):
                yield batch, after
    elif position == 0 and end != 0:
        batch = reader.read_record(data, 0) if complete else reader.malformed(data, 0)
        if batch.num_rows:
            yield batch, max(1, len(data)) if complete else file.size or len(data)


def _groups(spans: list[tuple[int, int]], block_bytes: int, positions: set[int]) -> Iterator[tuple[int, int]]:
    """Yield ranges of consecutive records to convert at a time, as pairs of indexes in `spans`.

    A range has about `block_bytes` and ends before each of `positions`, where another read may begin.
    """
    cuts = {bisect_left(spans, (position,)) for position in positions}
    first = size = 0
    for place, (start, stop) in enumerate(spans):
        if place > first and (size >= block_bytes or place in cuts):
            yield first, place
            first, size = place, 0
        size += stop - start
    if first < len(spans):
        yield first, len(spans)


def _elements(data: bytes) -> list[tuple[int, int]]:
    """Return the start and end of each object in a well-formed JSON array of objects; [] for any other text."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return []
    match = _START.match(text)
    if match is None:
        return []
    at = match.end()
    spans: list[tuple[int, int]] = []
    decode = json.JSONDecoder(parse_constant=refuse_constant).raw_decode
    try:
        while True:
            if text[at] != "{":
                return []
            stop = decode(text, at)[1]
            spans.append((at, stop))
            match = _NEXT.match(text, stop)
            if match is None:
                return []
            if match[1] == "]":
                break
            at = match.end()
    except (ValueError, IndexError, RecursionError):
        return []
    return spans if text.isascii() else _byte_spans(text, spans)


def _byte_spans(text: str, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    at = byte = 0
    for start, stop in spans:
        first = byte + len(text[at:start].encode())
        at, byte = stop, first + len(text[start:stop].encode())
        out.append((first, byte))
    return out
