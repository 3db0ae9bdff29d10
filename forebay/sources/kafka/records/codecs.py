# SPDX-License-Identifier: Apache-2.0
"""Decompresses the records of Kafka's record batches with C libraries, up to a limit of bytes."""

from __future__ import annotations

import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress

import cramjam
import zstandard

_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER = 16  # the magic, a version and the oldest version that can read it
_LENGTH = struct.Struct(">i")
_SNAPPY_MAX_RATIO = 64 / 3
"""Maximum compression ratio of snappy: three bytes encode a copy of 64 bytes."""

NAMES = {0: "none", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}


_GZIP_MAX_RATIO = 1032
_LZ4_MAX_RATIO = 255
"""Maximum compression ratios of deflate and of a block of LZ4. Shorter data cannot exceed the limit."""
_ZSTD_PIECE = 1024
"""Bytes to decompress at a time if the size is unknown. The maximum ratio is 32768: a block of 128 KiB in 4 bytes."""
_ZSTD_USUAL_RATIO = 16
_LZ4_MAGIC = struct.Struct("<I").pack(0x184D2204)
_LZ4_SIZE = struct.Struct("<I")
_LZ4_MAX_BLOCK = 4 << 20
_LZ4_PLAIN = 1 << 31
"""The bit of a block's size that marks a block without compression."""


class TooLargeError(ValueError):
    """Says that the decompressed records take more bytes than the limit. They were not decompressed whole."""


def _snappy(data: memoryview, limit: int) -> memoryview:
    """Decompress snappy: raw, as librdkafka writes it, or in blocks, as the Java library writes it."""
    if bytes(data[: len(_XERIAL)]) != _XERIAL:
        return _snappy_block(data, limit)
    blocks, at, left = [], _XERIAL_HEADER, limit
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if length < 0 or at + length > len(data):
            raise ValueError(f"a snappy block claims {length} bytes, but only {len(data) - at} bytes are left")
        blocks.append(_snappy_block(data[at : at + length], left))
        left -= len(blocks[-1])
        at += length
    return blocks[0] if len(blocks) == 1 else memoryview(b"".join(blocks))


def _snappy_block(data: memoryview, limit: int) -> memoryview:
    # cramjam allocates the claimed size, and a failed allocation kills the process.
    claimed = cramjam.snappy.decompress_raw_len(data)
    if claimed > len(data) * _SNAPPY_MAX_RATIO:
        raise ValueError(f"{len(data)} compressed bytes claim to contain {claimed} bytes, which is impossible")
    if claimed > limit:
        raise TooLargeError
    return memoryview(cramjam.snappy.decompress_raw(data))


_idle: deque[zstandard.ZstdDecompressor] = deque(maxlen=8)
"""Idle decompressors, kept because they are expensive to create. Only one thread uses a decompressor at a time."""


def _zstd(data: memoryview, limit: int) -> memoryview:
    """Decompress zstd: one whole frame, as producers write it, at once if it fits; any others piece by piece."""
    size = zstandard.frame_content_size(data)
    if size > limit:
        raise TooLargeError
    try:
        decompressor = _idle.pop()
    except IndexError:
        decompressor = zstandard.ZstdDecompressor()
    try:
        likely = min(limit, max(1 << 16, _ZSTD_USUAL_RATIO * len(data)))  # Java's producers do not write the size
        with suppress(zstandard.ZstdError):
            return memoryview(decompressor.decompress(data, max_output_size=likely, allow_extra_data=False))
        return _joined(_zstd_pieces(decompressor, data), limit)
    finally:
        _idle.append(decompressor)


def _zstd_pieces(decompressor: zstandard.ZstdDecompressor, data: memoryview) -> Iterator[bytes]:
    remaining: bytes | memoryview = data
    while remaining:
        frame = decompressor.decompressobj()
        while remaining and not frame.eof:
            yield frame.decompress(remaining[:_ZSTD_PIECE])
            remaining = remaining[_ZSTD_PIECE:]
        if not frame.eof:
            raise ValueError("the data ends inside a frame")
        remaining = frame.unused_data + bytes(remaining)


def _gzip(data: memoryview, limit: int) -> memoryview:
    if len(data) * _GZIP_MAX_RATIO <= limit:
        return memoryview(cramjam.gzip.decompress(data))
    return _joined(_gzip_pieces(data, limit), limit)


def _gzip_pieces(data: memoryview, limit: int) -> Iterator[bytes]:
    remaining: bytes | memoryview = data
    while remaining:
        member = zlib.decompressobj(wbits=31)
        yield member.decompress(remaining, limit + 1)
        if not member.eof and not member.unconsumed_tail:
            raise ValueError("the data ends inside a member")
        remaining = member.unused_data


def _lz4(data: memoryview, limit: int) -> memoryview:
    # Blocks may be filled in part only, so the bound may be above the limit, and the records below it.
    most = 2 * limit + _LZ4_MAX_BLOCK
    if len(data) * _LZ4_MAX_RATIO > limit and _lz4_bound(data, most) > most:
        raise TooLargeError
    plain = memoryview(cramjam.lz4.decompress(data))
    if len(plain) > limit:
        raise TooLargeError
    return plain


def _lz4_bound(data: memoryview, most: int) -> int:
    """Return an upper bound of the decompressed bytes of LZ4 frames, from the sizes of their blocks.

    A block decompresses to at most the block size of its frame, 64 KiB to 4 MiB. The walk ends above `most`.
    """
    bound, at = 0, 0
    while at < len(data) and bound <= most:
        if data[at : at + 4] != _LZ4_MAGIC:
            raise ValueError("the data is no LZ4 frame")
        flags, descriptor = data[at + 4], data[at + 5]
        largest = 1 << (8 + 2 * (descriptor >> 4 & 7))
        at += 7 + (8 if flags & 8 else 0) + (4 if flags & 1 else 0)
        while bound <= most:
            (size,) = _LZ4_SIZE.unpack_from(data, at)
            length = size & (_LZ4_PLAIN - 1)
            at += _LZ4_SIZE.size
            if not size:
                break
            bound += length if size & _LZ4_PLAIN else min(largest, length * _LZ4_MAX_RATIO)
            at += length + (4 if flags & 0x10 else 0)
        at += 4 if flags & 4 else 0
    return bound


def _joined(pieces: Iterable[bytes], limit: int) -> memoryview:
    parts, size = [], 0
    for piece in pieces:
        size += len(piece)
        if size > limit:
            raise TooLargeError
        parts.append(piece)
    return memoryview(parts[0] if len(parts) == 1 else b"".join(parts))


_CODECS: Mapping[int, Callable[[memoryview, int], memoryview]] = {1: _gzip, 2: _snappy, 3: _lz4, 4: _zstd}


def decompress(codec: int, data: memoryview, limit: int) -> memoryview:
    """Return the decompressed records of a batch. `codec` is the codec's number from the header of the batch.

    Raises:
        TooLargeError: The records take more than `limit` bytes.
        ValueError: The codec is unknown, or the data is damaged.
    """
    if codec == 0:
        if len(data) > limit:
            raise TooLargeError
        return data
    known = _CODECS.get(codec)
    if known is None:
        raise ValueError(f"the compression codec {codec} is unknown; known are {', '.join(NAMES.values())}")
    try:
        return known(data, limit)
    except TooLargeError:
        raise
    except (cramjam.DecompressionError, zstandard.ZstdError, zlib.error, ValueError, IndexError, struct.error) as error:
        raise ValueError(f"{NAMES[codec]} cannot decompress the records: {error}") from error
