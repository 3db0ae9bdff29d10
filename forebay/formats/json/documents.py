# SPDX-License-Identifier: Apache-2.0
"""Reads JSON files with one document over any number of lines: an object, or an array of objects."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa

from forebay.formats.compression.codecs import open_decompressed
from forebay.formats.json.blocks import BlockReader
from forebay.formats.json.jackson_tokens import as_utf8
from forebay.formats.json.options import JsonOptions
from forebay.formats.json.stdlib_reader import refuse_constant
from forebay.formats.records import as_utf8 as decoding_stream
from forebay.formats.records import valid_utf8

if TYPE_CHECKING:
    from forebay.formats.base import InputFile

_NEXT = re.compile(r"[ \t\r\n]*([,\]])[ \t\r\n]*")
_START = re.compile(r"[ \t\r\n]*\[[ \t\r\n]*")
_STEP_BYTES = 4 << 20


def read_document(
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
    spans = elements(text) if complete else []
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


def document_bytes(file: InputFile, options: JsonOptions) -> tuple[bytes, bool]:
    """Return the bytes of the file, decoded to UTF-8 with the option `encoding`, and whether they are complete.

    If the file is longer than `maxRecordBytes`, return only its start.
    """
    parts: list[bytes] = []
    size = 0
    with decoding_stream(open_decompressed(file), options.encoding or "UTF-8") as stream:
        while size <= options.max_record_bytes and (part := stream.read(_STEP_BYTES)):
            parts.append(part)
            size += len(part)
    data = b"".join(parts)
    # A document's bytes that are invalid in the encoding of the option are replaced; those of a line make it malformed.
    return data if options.encoding is None else bytes(valid_utf8(data)), size <= options.max_record_bytes


def elements(data: bytes) -> list[tuple[int, int]]:
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
