# SPDX-License-Identifier: Apache-2.0
"""Reads the blocks of an Avro file, and decodes them to Arrow arrays of the stored types.

The container is a header, then blocks, each followed by the file's 16-byte sync marker. fastavro reads blocks too, but
from the beginning of a file only, takes one that is cut off in the number of records of a block for a whole one, and
ignores the checksums of snappy.

Polars decodes most schemas, fastavro the others. Both get a schema that describes the same bytes with fewer types: an
enum is an int, a map is an array of entries, and a branch of a union is a record with one field. Fields are named f0,
f1 and so on. A boolean is read as an int: its byte 1 gives -1 (zigzag), because both libraries take every byte except
0 for true, but Avro for Java only 1.
"""

from __future__ import annotations

import bz2
import importlib
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, BinaryIO, NamedTuple, cast

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.formats.avro.schema import Node, stored_type
from forebay.formats.base import InputFile
from forebay.formats.compression.codecs import STEP_BYTES, encoded_varint, read_fully, snappy_size
from forebay.formats.units import Malformed

_MAGIC = b"Obj\x01"
SYNC_BYTES = 16
_FIRST_READ = 8 << 10
_MAX_HEADER_BYTES = 16 << 20
_MAX_VARINT_BYTES = 10


class _CutOff(Malformed):
    """The bytes end before a value does."""


class ContainerHeader(NamedTuple):
    """The header of a file. `marker_at` is the offset of its sync marker, which precedes the first block."""

    metadata: dict[str, bytes]
    sync: bytes
    marker_at: int


class ContainerBlock(NamedTuple):
    """A decompressed block and its number of records, with the offsets of the sync markers before and after it."""

    records: int
    data: bytes
    marker_at: int
    next_marker: int


def read_header(raw: BinaryIO) -> ContainerHeader:
    """Read the header at the start of a file; raise Malformed if the file has no valid Avro header."""
    size = _FIRST_READ
    while True:
        raw.seek(0)
        data = read_fully(raw.read, size)
        try:
            return _header(data)
        except _CutOff:
            if len(data) < size or size > _MAX_HEADER_BYTES:
                raise Malformed(f"the header of the file does not end in its first {len(data)} bytes") from None
        size *= 8


def _header(data: bytes) -> ContainerHeader:
    if data[:4] != _MAGIC:
        raise Malformed("the file does not begin with the magic bytes of Avro ('Obj' and 1)")
    metadata: dict[str, bytes] = {}
    count, at = read_varint(data, 4)
    while count:
        if count < 0:
            _, at = read_varint(data, at)  # the size of the part in bytes
        for _ in range(abs(count)):
            key, at = _text(data, at)
            metadata[key.decode("utf-8", "replace")], at = _text(data, at)
        count, at = read_varint(data, at)
    if at + SYNC_BYTES > len(data):
        raise _CutOff("the header is cut off")
    return ContainerHeader(metadata, data[at : at + SYNC_BYTES], at)


def _text(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = read_varint(data, at)
    if size < 0:
        raise Malformed("the header of the file states a negative length")
    if at + size > len(data):
        raise _CutOff("the header is cut off")
    return data[at : at + size], at + size


def read_blocks(
    raw: BinaryIO, file: InputFile, header: ContainerHeader, position: int, end: int | None, max_bytes: int
) -> Iterator[ContainerBlock]:
    """Yield the blocks whose preceding sync marker begins in `[position, end)`; raise Malformed for a damaged block.

    Args:
        raw: The open file.
        file: The same file; no block may extend beyond its size.
        header: The header of the file.
        position: The offset at which the search for a sync marker starts.
        end: Where to stop; None for the end of the file.
        max_bytes: The most bytes of a valid block, compressed and decompressed.
    """
    codec = header.metadata.get("avro.codec", b"null").decode("utf-8", "replace")
    marker = header.marker_at
    if position > marker:
        first_marker = _find(raw, header.sync, position)
        if first_marker is None:
            return
        marker = first_marker
    while end is None or marker < end:
        raw.seek(marker + SYNC_BYTES)
        head = read_fully(raw.read, 2 * _MAX_VARINT_BYTES)
        if not head:
            return
        count, at = read_varint(head, 0)
        size, at = read_varint(head, at)
        start = marker + SYNC_BYTES + at
        if count < 0 or not 0 <= size <= max_bytes:
            raise Malformed(
                f"the block at byte {marker + SYNC_BYTES} states {count} records in {size} bytes, "
                f"but a block has at most {max_bytes} bytes (option maxBlockBytes) and no negative counts"
            )
        if start + size + SYNC_BYTES > file.size:
            raise Malformed(f"the file ends inside the block at byte {marker + SYNC_BYTES}")
        data = head[at:] + read_fully(raw.read, max(0, size + SYNC_BYTES - (len(head) - at)))
        if data[size : size + SYNC_BYTES] != header.sync:
            raise Malformed(f"the sync marker is missing at byte {start + size}")
        try:
            plain = decompressed(codec, data[:size], max_bytes)
        except ConfigurationError as error:
            raise error.with_context(source=file.path) from None
        yield ContainerBlock(count, plain, marker, start + size)
        marker = start + size


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the zigzag varint at an offset and the offset after it; raise Malformed if it does not end."""
    value = shift = 0
    for place in range(at, min(len(data), at + _MAX_VARINT_BYTES)):
        value |= (data[place] & 127) << shift
        if data[place] < 128:
            return (value >> 1) ^ -(value & 1), place + 1
        shift += 7
    raise (_CutOff if len(data) < at + _MAX_VARINT_BYTES else Malformed)("an integer of variable length does not end")


def _find(raw: BinaryIO, sync: bytes, position: int) -> int | None:
    """Return the offset of the first sync marker at or after a position; None if there is none."""
    raw.seek(position)
    tail = b""
    while chunk := raw.read(STEP_BYTES if tail else SYNC_BYTES):
        data = tail + chunk
        at = data.find(sync)
        if at >= 0:
            return position - len(tail) + at
        position += len(chunk)
        tail = data[-(SYNC_BYTES - 1) :]
    return None


# -- Decompresses Avro blocks. Each codec stops when the result exceeds a limit.


_CRC_BYTES = 4


def decompressed(codec: str, data: bytes, limit: int) -> bytes:
    """Return the decompressed bytes of a block.

    Raises:
        ConfigurationError: The codec is unknown.
        Malformed: The bytes are damaged, or decompress to more than `limit` bytes.
    """
    decode = _DECODERS.get(codec)
    if decode is None:
        raise ConfigurationError(
            f"blocks with the Avro codec {codec!r} cannot be decompressed",
            advice=f"write the file with one of the codecs {', '.join(_DECODERS)}",
        )
    try:
        plain = decode(data, limit)
    except (zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, pa.ArrowException) as error:
        raise Malformed(f"a block with the codec {codec} cannot be decompressed: {error}") from error
    if len(plain) > limit:
        raise Malformed(f"a block decompresses to more than {limit} bytes (option maxBlockBytes)")
    return plain


def _decode(decoder: Any, data: bytes, limit: int) -> bytes:  # noqa: ANN401 - the three share no type
    plain: bytes = decoder.decompress(data, limit + 1)
    if len(plain) <= limit and not decoder.eof:
        raise EOFError("the compressed data end early")
    return plain


def _snappy(data: bytes, limit: int) -> bytes:
    body, crc = data[:-_CRC_BYTES], data[-_CRC_BYTES:]
    size = snappy_size(body)
    if size > limit:
        raise ValueError(f"the block decompresses to more than {limit} bytes (option maxBlockBytes)")
    plain: bytes = pa.Codec("snappy").decompress(body, decompressed_size=size, asbytes=True)
    if zlib.crc32(plain).to_bytes(_CRC_BYTES, "big") != crc:
        raise ValueError("the checksum does not match the data")
    return plain


def _zstandard(data: bytes, limit: int) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        parts = []
        size = 0
        while size <= limit and (part := stream.read(min(1 << 20, limit + 1 - size))):
            parts.append(part)
            size += len(part)
    return b"".join(parts)


_DECODERS: dict[str, Callable[[bytes, int], bytes]] = {
    "null": lambda data, _: data,
    "deflate": lambda data, limit: _decode(zlib.decompressobj(-15), data, limit),
    "snappy": _snappy,
    "bzip2": lambda data, limit: _decode(bz2.BZ2Decompressor(), data, limit),
    "xz": lambda data, limit: _decode(lzma.LZMADecompressor(memlimit=limit), data, limit),
    "zstandard": _zstandard,
}


_ROWS_AT_A_TIME = 10_000
_ROWS_WITHOUT_BYTES = 1 << 24
_GUARD = b"\xd8forebay"
_SYNC = b"a-sync-marker-16"


class Decoder:
    """Decodes the blocks of one file. Not thread-safe."""

    def __init__(self, root: Node) -> None:
        self._root = root
        self.type = stored_type(root)
        self._names = 0
        self._wire = self._described(root)
        self._fast = root.least_bytes > 0 and _fast(root)
        self._parsed: Any = None  # the type of fastavro's parsed schemas is not public

    def decode(self, blocks: Sequence[ContainerBlock]) -> pa.StructArray:
        """Return the records of all `blocks` as one array of structs; raise Malformed if a block is damaged."""
        for block in blocks:
            if block.records > (
                len(block.data) // self._root.least_bytes if self._root.least_bytes else _ROWS_WITHOUT_BYTES
            ):
                raise Malformed(f"a block states {block.records} records, too many for its {len(block.data)} bytes")
        decoded = self._by_polars(blocks) if self._fast else None
        if decoded is not None:
            return decoded
        return cast("pa.StructArray", pa.concat_arrays([self._by_fastavro(block) for block in blocks]))

    def _by_polars(self, blocks: Sequence[ContainerBlock]) -> pa.StructArray | None:
        """Decode with polars; return None if polars is missing, fails, or does not use exactly the bytes of each block.

        Each block becomes one row: an array of its records, and a guard that shows whether all its bytes were used.
        """
        row = [{"name": "rows", "type": {"type": "array", "items": self._wire}}]
        row.append({"name": "guard", "type": {"type": "fixed", "name": "guard", "size": len(_GUARD)}})
        pl = _polars()
        if pl is None:
            return None
        schema = json.dumps({"type": "record", "name": "block", "fields": row}).encode()
        parts = []
        for block in blocks:
            parts += [varint(block.records), block.data, b"\0" if block.records else b"", _GUARD]
        size = sum(map(len, parts))
        header = [b"Obj\x01", varint(1), varint(11), b"avro.schema", varint(len(schema)), schema, b"\0", _SYNC]
        data = b"".join([*header, varint(len(blocks)), varint(size), *parts, _SYNC])
        try:
            table = pl.read_avro(io.BytesIO(data)).to_arrow(compat_level=pl.CompatLevel.oldest())
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError):
            return None
        if table.column("guard").combine_chunks().to_pylist() != [_GUARD] * len(blocks):
            return None
        lists = cast("pa.ListArray", table.column("rows").combine_chunks())
        if lists.value_lengths().to_pylist() != [block.records for block in blocks]:
            return None
        return cast("pa.StructArray", lists.flatten().cast(self.type))

    def _by_fastavro(self, block: ContainerBlock) -> pa.Array:
        """Decode a block with fastavro; raise Malformed unless its records are valid and use exactly its bytes."""
        try:
            fastavro = importlib.import_module("fastavro")
        except ImportError:
            raise ConfigurationError(
                "Avro files need fastavro, which is not installed", advice="pip install 'forebay[avro]'"
            ) from None
        if self._parsed is None:
            self._parsed = fastavro.parse_schema(self._wire)
        stream = io.BytesIO(block.data)
        arrays = []
        missing = block.records
        try:
            while missing:
                count = min(missing, _ROWS_AT_A_TIME)
                missing -= count
                rows = [
                    fastavro.schemaless_reader(stream, self._parsed, None, handle_unicode_errors="replace")
                    for _ in range(count)
                ]
                arrays.append(pa.array(rows, self.type))
        except (
            EOFError,
            ArithmeticError,
            LookupError,
            ValueError,
            TypeError,
            StopIteration,
            pa.ArrowException,
        ) as error:
            raise Malformed(f"the block at byte {block.marker_at + 16} is damaged: {error!r}") from error
        if stream.tell() != len(block.data):
            raise Malformed(f"the block at byte {block.marker_at + 16} has bytes after its {block.records} records")
        return pa.concat_arrays(arrays) if arrays else pa.array([], self.type)

    def _described(self, node: Node) -> object:
        match node.kind:
            case "record":
                return self._record([(f"f{at}", self._described(child)) for at, child in enumerate(node.children)])
            case "array":
                return {"type": "array", "items": self._described(node.children[0])}
            case "map":
                entry = self._record([("key", "string"), ("value", self._described(node.children[0]))])
                return {"type": "array", "items": entry}
            case "union":
                return self._union(node)
            case "enum" | "boolean":
                return "int"
            case "fixed":
                return {"type": "fixed", "name": self._name(), "size": node.size}
        return node.kind

    def _union(self, node: Node) -> object:
        several = len(node.branches) > 1
        values: list[object] = []
        member = 0
        for child in node.children:
            inside = self._described(child)
            if several and child.kind != "null":
                inside = self._record([(f"m{member}", inside)])
                member += 1
            values.append(inside)
        return values

    def _record(self, fields: list[tuple[str, object]]) -> object:
        return {
            "type": "record",
            "name": self._name(),
            "fields": [{"name": name, "type": inside} for name, inside in fields],
        }

    def _name(self) -> str:
        self._names += 1
        return f"n{self._names}"


def varint(value: int) -> bytes:
    """Encode a number of at least 0 as an Avro integer (zigzag varint)."""
    return encoded_varint(value << 1)


def _fast(node: Node) -> bool:
    """Return whether polars can decode an Avro type."""
    if node.kind == "union":
        return len(node.children) == 2 and len(node.branches) == 1 and _fast(node.branches[0])
    if node.kind == "record":
        return bool(node.children) and all(_fast(child) for child in node.children)
    return node.kind != "null" and node.least_bytes > 0 and all(_fast(child) for child in node.children)


@cache
def _polars() -> Any:  # noqa: ANN401 - a module, which is not always installed
    """Return polars, imported when the first block is decoded; None if it is not installed."""
    try:
        return importlib.import_module("polars")
    except ImportError:
        return None
