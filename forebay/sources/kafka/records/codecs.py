# SPDX-License-Identifier: Apache-2.0
"""Decompresses the records of Kafka's record batches with C libraries."""

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
_SNAPPY_MAX_RATIO = 64 / 3
"""Maximum compression ratio of snappy: three bytes encode a copy of 64 bytes."""

NAMES = {0: "none", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}


def _snappy(data: memoryview) -> memoryview:
    """Decompress snappy: raw, as librdkafka writes it, or in blocks, as the Java library writes it."""
    if bytes(data[: len(_XERIAL)]) != _XERIAL:
        return _snappy_block(data)
    blocks, at = [], _XERIAL_HEADER
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if length < 0 or at + length > len(data):
            raise ValueError(f"a snappy block claims {length} bytes, but only {len(data) - at} bytes are left")
        blocks.append(_snappy_block(data[at : at + length]))
        at += length
    return blocks[0] if len(blocks) == 1 else memoryview(b"".join(blocks))


def _snappy_block(data: memoryview) -> memoryview:
    # cramjam allocates the claimed size, and a failed allocation kills the process.
    claimed = cramjam.snappy.decompress_raw_len(data)
    if claimed > len(data) * _SNAPPY_MAX_RATIO:
        raise ValueError(f"{len(data)} compressed bytes claim to contain {claimed} bytes, which is impossible")
    return memoryview(cramjam.snappy.decompress_raw(data))


_idle: deque[zstandard.ZstdDecompressor] = deque(maxlen=8)
"""Idle decompressors, kept because they are expensive to create. Only one thread uses a decompressor at a time."""


def _zstd(data: memoryview) -> memoryview:
    """Decompress one whole zstd frame, as producers write it. cramjam decompresses all other data."""
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
    """Return the decompressed records of a batch. `codec` is the codec's number from the header of the batch.

    Raises:
        ValueError: The codec is unknown, or the data is damaged.
    """
    if codec == 0:
        return data
    known = _CODECS.get(codec)
    if known is None:
        raise ValueError(f"the compression codec {codec} is unknown; known are {', '.join(NAMES.values())}")
    try:
        return known(data)
    except (cramjam.DecompressionError, ValueError, struct.error) as error:
        raise ValueError(f"{NAMES[codec]} cannot decompress the records: {error}") from error
