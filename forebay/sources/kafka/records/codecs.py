# SPDX-License-Identifier: Apache-2.0
"""Decompression of record batches, all of it in C."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress

import cramjam
import zstandard

_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER = 16  # the magic, a version and the oldest version that can read it
_LENGTH = struct.Struct(">i")
_SNAPPY_MOST = 64 / 3
"""So many bytes come out of one: three say that 64 are to be copied."""

NAMES = {0: "none", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}


def _snappy(data: memoryview) -> memoryview:
    """Decompress raw snappy (librdkafka), or blocks of it framed as the Java library does."""
    if bytes(data[: len(_XERIAL)]) != _XERIAL:
        return _snappy_block(data)
    blocks, at = [], _XERIAL_HEADER
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if length < 0 or at + length > len(data):
            raise ValueError(f"a snappy block of {length} bytes, where {len(data) - at} are left")
        blocks.append(_snappy_block(data[at : at + length]))
        at += length
    return blocks[0] if len(blocks) == 1 else memoryview(b"".join(blocks))


def _snappy_block(data: memoryview) -> memoryview:
    # As much memory is taken as the block says it needs, and where that cannot be had, the process ends.
    claimed = cramjam.snappy.decompress_raw_len(data)
    if claimed > len(data) * _SNAPPY_MOST:
        raise ValueError(f"{len(data)} bytes that say they hold {claimed}")
    return memoryview(cramjam.snappy.decompress_raw(data))


_idle: deque[zstandard.ZstdDecompressor] = deque(maxlen=8)
"""They may not be used by two threads at once, and cost more to make than a record batch takes."""


def _zstd(data: memoryview) -> memoryview:
    """Decompress one whole frame, as producers write it; whatever else it may be, the other library decides."""
    try:
        mine = _idle.pop()
    except IndexError:
        mine = zstandard.ZstdDecompressor()
    plain, frame = b"", mine.decompressobj()
    with suppress(zstandard.ZstdError):
        plain = frame.decompress(data)
    _idle.append(mine)
    whole = frame.eof and not frame.unused_data
    return memoryview(plain if whole else cramjam.zstd.decompress(data))


_CODECS: Mapping[int, Callable[[memoryview], memoryview]] = {
    1: lambda data: memoryview(cramjam.gzip.decompress(data)),
    2: _snappy,
    3: lambda data: memoryview(cramjam.lz4.decompress(data)),
    4: _zstd,
}


def decompress(codec: int, data: memoryview) -> memoryview:
    """Return the records of a batch, decompressed.

    Raises:
        ValueError: An unknown codec, or damaged data; the text says which.
    """
    if codec == 0:
        return data
    known = _CODECS.get(codec)
    if known is None:
        raise ValueError(f"there is no compression with number {codec}; known are {', '.join(NAMES.values())}")
    try:
        return known(data)
    except (cramjam.DecompressionError, ValueError, struct.error) as error:
        raise ValueError(f"{NAMES[codec]} cannot decompress it: {error}") from error
