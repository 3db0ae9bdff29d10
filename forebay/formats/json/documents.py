# SPDX-License-Identifier: Apache-2.0
"""JSON files that are one document: an object, or an array of objects, over any number of lines."""

from __future__ import annotations

import codecs
import json
import re
from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from forebay.formats.compression import open_decompressed
from forebay.formats.encodings import as_utf8
from forebay.formats.json.blocks import BlockReader
from forebay.formats.json.options import JsonOptions

if TYPE_CHECKING:
    from forebay.formats.input_file import InputFile

_NEXT = re.compile(r"[ \t\r\n]*([,\]])[ \t\r\n]*")
_START = re.compile(r"[ \t\r\n]*\[[ \t\r\n]*")
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
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
    """The rows of the file's document whose records start in `[position, end)`, and the position after them.

    A document with something malformed in it counts as one record that starts at 0.
    """
    data, whole = document_bytes(file, options)
    if not whole:
        if position == 0 and end != 0:
            yield reader.malformed(data, 0), file.size or len(data)
        return
    spans = elements(data)
    if spans is None:
        yield from _as_one(reader, data, position, end)
        return
    done: list[tuple[pa.RecordBatch, int]] = []
    for first, last in _groups(spans, block_bytes, {position, end or 0}):
        batch = reader.read_lines([data[start:stop] for start, stop in spans[first:last]], 0)
        if reader.malformed_records:
            # To Spark the whole document is one malformed record then.
            yield from _as_one(reader, data, position, end)
            return
        done.append((batch, spans[first][0]))
    yield from _chosen(done, len(data), position, end)


def _chosen(
    done: list[tuple[pa.RecordBatch, int]], size: int, position: int, end: int | None
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The batches that start in a range. A position that was yielded is the start of one."""
    starts = [start for _, start in done[1:]] + [size]
    for place, ((batch, start), after) in enumerate(zip(done, starts, strict=True)):
        first = 0 if place == 0 else start
        if first >= position and (end is None or first < end):
            yield batch, after


def _as_one(reader: BlockReader, data: bytes, position: int, end: int | None) -> Iterator[tuple[pa.RecordBatch, int]]:
    if position == 0 and end != 0:
        batch = reader.read_record(data, 0)
        if batch.num_rows:
            yield batch, max(1, len(data))


def _groups(spans: list[tuple[int, int]], block_bytes: int, positions: set[int]) -> Iterator[tuple[int, int]]:
    """Records to be read at once, by their numbers. None go across a position: it may come from other groups."""
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
    """The document as UTF-8, and whether that is all of it: of one that is too large only the head comes."""
    parts: list[bytes] = []
    size = 0
    with as_utf8(open_decompressed(file), options.encoding or "UTF-8") as stream:
        while size <= options.max_record_bytes and (part := stream.read(_STEP_BYTES)):
            parts.append(part)
            size += len(part)
    data = b"".join(parts)
    if options.encoding is not None:
        return data, size <= options.max_record_bytes
    return _as_utf8(data), size <= options.max_record_bytes


def _as_utf8(data: bytes) -> bytes:
    """The document without its mark, in UTF-8: without `encoding` Jackson guesses from the first four bytes."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            rest = data[len(mark) :]
            return rest if encoding == "utf-8" else rest.decode(encoding, "replace").encode()
    head = data[:4]
    for pattern, encoding in (("0001", "utf-32-be"), ("1000", "utf-32-le"), ("01", "utf-16-be"), ("10", "utf-16-le")):
        if len(head) >= len(pattern) and all(
            (byte != 0) == (sign == "1") for byte, sign in zip(head, pattern, strict=False)
        ):
            return data.decode(encoding, "replace").encode()
    return data


def elements(data: bytes) -> list[tuple[int, int]] | None:
    """Where the objects of a well-formed array of objects start and stop; None for any other document."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    found = _START.match(text)
    if found is None:
        return None
    at = found.end()
    spans: list[tuple[int, int]] = []
    decode = json.JSONDecoder(parse_constant=_refuse).raw_decode
    try:
        while True:
            if text[at] != "{":
                return None
            stop = decode(text, at)[1]
            spans.append((at, stop))
            found = _NEXT.match(text, stop)
            if found is None:
                return None
            if found[1] == "]":
                break
            at = found.end()
    except (ValueError, IndexError, RecursionError):
        return None
    return spans if text.isascii() else _byte_spans(text, spans)


def _byte_spans(text: str, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    at = byte = 0
    for start, stop in spans:
        first = byte + len(text[at:start].encode())
        at, byte = stop, first + len(text[start:stop].encode())
        out.append((first, byte))
    return out


def _refuse(text: str) -> None:
    raise ValueError(text)
