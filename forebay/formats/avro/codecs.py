# SPDX-License-Identifier: Apache-2.0
"""Decompresses Avro blocks. Each codec stops when the result exceeds a limit."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.formats.avro.damage import Malformed
from forebay.formats.compression.codecs import snappy_size

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
