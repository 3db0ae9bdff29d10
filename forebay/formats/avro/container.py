# SPDX-License-Identifier: Apache-2.0
"""The container of an Avro file: a header, then blocks, each followed by the file's 16-byte sync marker.

fastavro reads blocks too, but from the beginning of a file only, takes one that is cut off in the number of records of
a block for a whole one, and ignores the checksums of snappy.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.formats.base import InputFile
from forebay.formats.compression.byte_streams import STEP_BYTES, read_fully
from forebay.formats.compression.codecs import snappy_size
from forebay.formats.units import Malformed

_MAGIC = b"Obj\x01"
SYNC_BYTES = 16
_MAX_HEADER_BYTES = 16 << 20
_MAX_VARINT_BYTES = 10


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
    head = _Bytes(raw, _MAX_HEADER_BYTES)
    if head.take(4) != _MAGIC:
        raise Malformed("the file does not begin with the magic bytes of Avro ('Obj' and 1)")
    metadata: dict[str, bytes] = {}
    while count := head.varint():
        if count < 0:
            head.varint()  # the size of the part in bytes
        for _ in range(abs(count)):
            key = head.take(head.varint()).decode("utf-8", "replace")
            metadata[key] = head.take(head.varint())
    marker_at = head.at
    return ContainerHeader(metadata, head.take(SYNC_BYTES), marker_at)


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
    raise Malformed("an integer of variable length does not end")


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


class _Bytes:
    """Reads a header from its start, in order. A header has at most `limit` bytes."""

    def __init__(self, raw: BinaryIO, limit: int) -> None:
        self._raw = raw
        self._limit = limit
        self._data = b""
        self.at = 0

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes; raise Malformed if the file ends first or the header exceeds its limit."""
        stop = self.at + size
        if size < 0 or stop > self._limit:
            raise Malformed(f"the header of the file states a negative length, or more than {self._limit} bytes")
        while len(self._data) < stop:
            part = self._raw.read(max(8192, stop - len(self._data)))
            if not part:
                raise Malformed("the file ends inside its header")
            self._data += part
        taken = self._data[self.at : stop]
        self.at = stop
        return taken

    def varint(self) -> int:
        """Return the next zigzag varint; raise Malformed if it does not end."""
        start = self.at
        while self.take(1)[0] > 127:
            if self.at - start >= _MAX_VARINT_BYTES:
                raise Malformed("an integer of variable length does not end")
        return read_varint(self._data, start)[0]


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
