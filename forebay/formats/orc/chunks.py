# SPDX-License-Identifier: Apache-2.0
"""Decompresses the metadata of ORC files, which is stored in chunks with a header of three bytes each."""

from __future__ import annotations

import zlib
from enum import IntEnum

import pyarrow as pa

from forebay.formats.compression.codecs import lz4_run, snappy_size
from forebay.formats.orc.wire import Malformed

_HEADER = 3
_ORIGINAL = 1
_MOST_METADATA = 64 << 20
"""Upper bound for the bytes of one decompressed footer. It suffices for a few hundred thousand types."""


class Codec(IntEnum):
    """The codecs, as numbered in orc_proto.proto."""

    NONE = 0
    ZLIB = 1
    SNAPPY = 2
    LZO = 3
    LZ4 = 4
    ZSTD = 5
    BROTLI = 6


RATIOS = {Codec.NONE: 1, Codec.ZLIB: 1_032, Codec.SNAPPY: 64, Codec.LZ4: 256, Codec.ZSTD: 20_000}
"""Maps each codec that can be read to the most decompressed bytes per compressed byte."""


def decompress(data: bytes, codec: Codec, block: int) -> bytes:
    """Return decompressed metadata; raise Malformed if a chunk is damaged.

    Args:
        data: All chunks of the metadata.
        codec: The codec of the file, one of `RATIOS`.
        block: The most bytes of a decompressed chunk.
    """
    if codec is Codec.NONE:
        return data
    out = bytearray()
    at = 0
    while at < len(data):
        header = int.from_bytes(data[at : at + _HEADER], "little")
        at += _HEADER
        chunk = data[at : at + (header >> 1)]
        at += header >> 1
        if at > len(data):
            raise Malformed("a compressed chunk is cut off")
        out += chunk if header & _ORIGINAL else _chunk(chunk, codec, block)
        if len(out) > _MOST_METADATA:
            raise Malformed(f"the metadata has more than {_MOST_METADATA} bytes")
    return bytes(out)


def _chunk(data: bytes, codec: Codec, block: int) -> bytes:
    try:
        match codec:
            case Codec.ZLIB:
                inflater = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
                return inflater.decompress(data, block)
            case Codec.SNAPPY:
                size = snappy_size(data)
                if size > block:
                    raise Malformed(f"it states {size} bytes of data, but at most {block} are allowed")
                return pa.Codec("snappy").decompress(data, size, asbytes=True)
            case Codec.LZ4:
                return _lz4(data, block)
            case _:
                with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
                    return bytes(stream.read(block))
    except (pa.ArrowException, OSError, ValueError, zlib.error) as error:
        raise Malformed(f"a compressed chunk cannot be decompressed: {error}") from error


def _lz4(data: bytes, block: int) -> bytes:
    """Decompress an LZ4 block, which does not state its decompressed size."""
    out = bytearray()
    at = 0
    while at < len(data):
        token = data[at]
        at, literals = lz4_run(data, at + 1, token >> 4)
        out += data[at : at + literals]
        at += literals
        if at >= len(data):
            break
        offset = int.from_bytes(data[at : at + 2], "little")
        at, length = lz4_run(data, at + 2, token & 15)
        start = len(out) - offset
        if offset == 0 or start < 0 or len(out) + length > block:
            raise Malformed("an LZ4 chunk refers to bytes before its start, or states more data than a block may have")
        length += 4
        repeated = bytes(out[start:]) * (length // offset + 1)
        out += repeated[:length]
    return bytes(out)


def stored(data: bytes, codec: Codec, block: int) -> bytes:
    """Return plain metadata in the form of chunks that are not compressed."""
    if codec is Codec.NONE:
        return data
    size = min(block, (1 << 23) - 1)
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    return b"".join((len(part) << 1 | _ORIGINAL).to_bytes(_HEADER, "little") + part for part in parts)
