# SPDX-License-Identifier: Apache-2.0
"""Splits fetched bytes into Kafka's record batches, and parses the headers of the batches.

All three formats share the first 17 bytes up to `magic`. Format 2 exists since Kafka 0.11.
"""

from __future__ import annotations

import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

import cramjam
import zstandard

from forebay.errors import DataError
from forebay.sources.kafka.split import TopicPartition

# -- Decompresses the records of Kafka's record batches with C libraries, up to a limit of bytes.


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
        mine = _idle.pop()
    except IndexError:
        mine = zstandard.ZstdDecompressor()
    try:
        likely = min(limit, max(1 << 16, _ZSTD_USUAL_RATIO * len(data)))  # Java's producers do not write the size
        with suppress(zstandard.ZstdError):
            return memoryview(mine.decompress(data, max_output_size=likely, allow_extra_data=False))
        return _joined(_zstd_pieces(mine, data), limit)
    finally:
        _idle.append(mine)


def _zstd_pieces(mine: zstandard.ZstdDecompressor, data: memoryview) -> Iterator[bytes]:
    rest: bytes | memoryview = data
    while rest:
        frame = mine.decompressobj()
        while rest and not frame.eof:
            yield frame.decompress(rest[:_ZSTD_PIECE])
            rest = rest[_ZSTD_PIECE:]
        if not frame.eof:
            raise ValueError("the data ends inside a frame")
        rest = frame.unused_data + bytes(rest)


def _gzip(data: memoryview, limit: int) -> memoryview:
    if len(data) * _GZIP_MAX_RATIO <= limit:
        return memoryview(cramjam.gzip.decompress(data))
    return _joined(_gzip_pieces(data, limit), limit)


def _gzip_pieces(data: memoryview, limit: int) -> Iterator[bytes]:
    rest: bytes | memoryview = data
    while rest:
        member = zlib.decompressobj(wbits=31)
        yield member.decompress(rest, limit + 1)
        if not member.eof and not member.unconsumed_tail:
            raise ValueError("the data ends inside a member")
        rest = member.unused_data


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
    found, size = [], 0
    for piece in pieces:
        size += len(piece)
        if size > limit:
            raise TooLargeError
        found.append(piece)
    return memoryview(found[0] if len(found) == 1 else b"".join(found))


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


_COMMON = struct.Struct(">qiib")  # base offset, length, leader epoch (or an old checksum), magic
_V2 = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = _V2.size  # 61
LOG_OVERHEAD = 12
"""Bytes of a batch that its length field does not count: offset and length."""
CRC_BEGIN = 21
"""The position in a batch of format 2 from which its checksum covers all bytes."""
_LEAST_OLD = 14 + LOG_OVERHEAD
_MAGIC = 16
_MOST_OFFSET = (1 << 63) - 2
"""Maximum offset of a record: the next offset must also fit into 64 bits."""

_CODEC_MASK = 0x07
_LOG_APPEND = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20


def corrupt_batch(partition: TopicPartition, what: str, offset: int) -> DataError:
    """Return the error for damaged bytes at an offset of a partition. `what` describes the damage."""
    return DataError(
        f"topic {partition.topic}, partition {partition.partition}, offset {offset}: {what}",
        position=offset,
        advice="check the broker's disk and the network to it, or start at a later offset to skip the damage",
    )


def too_large(partition: TopicPartition, limit: int, offset: int) -> DataError:
    """Return the error for a record batch at an offset of a partition that takes more than `limit` bytes."""
    return DataError(
        f"topic {partition.topic}, partition {partition.partition}, offset {offset}: the record batch takes more than "
        f"maxRecordBytes ({limit} bytes)",
        position=offset,
        option="maxRecordBytes",
        advice="if a record batch may be that large and fits into memory, raise maxRecordBytes",
    )


class Header(NamedTuple):
    """The header of a record batch.

    Args:
        begin: The position of the batch in the fetched bytes.
        end: The position after the batch in the fetched bytes.
        base: The first offset of the batch.
        last: The last offset of the batch, even if compaction has removed that record.
        magic: The format, 0 to 2; the following fields exist in format 2 only.
        epoch: The leader epoch; -1 = unknown.
        crc: The expected checksum.
        attributes: Codec and flags.
        first_timestamp: The base of the records' relative timestamps, in ms.
        max_timestamp: The latest timestamp; the append time if the topic uses append times.
        producer: The producer id; -1 = none.
        records: The number of records; 0 is possible after compaction.
    """

    begin: int
    end: int
    base: int
    last: int
    magic: int
    epoch: int
    crc: int
    attributes: int
    first_timestamp: int
    max_timestamp: int
    producer: int
    records: int

    @property
    def body(self) -> int:
        """The position of the first record in the fetched bytes."""
        return self.begin + HEADER_SIZE

    @property
    def codec(self) -> int:
        """The number of the compression codec; 0 = none."""
        return self.attributes & _CODEC_MASK

    @property
    def timestamp_type(self) -> int:
        """The type of the timestamps: 0 = time of creation, 1 = time of appending."""
        return 1 if self.attributes & _LOG_APPEND else 0

    @property
    def transactional(self) -> bool:
        """Whether the records belong to a transaction."""
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def control(self) -> bool:
        """Whether this is a control batch: the marker at the end of a transaction."""
        return bool(self.attributes & _CONTROL)


def headers(data: memoryview, partition: TopicPartition) -> Iterator[Header]:
    """Yield the headers of the complete record batches of fetched bytes.

    Raises:
        DataError: A length, a format or an offset is invalid.
    """
    begin, size, reached = 0, len(data), -1
    while size - begin >= _MAGIC + 1:
        base, length, _, magic = _COMMON.unpack_from(data, begin)
        end = begin + LOG_OVERHEAD + length
        least = HEADER_SIZE if magic == 2 else _LEAST_OLD
        if length < least - LOG_OVERHEAD or not 0 <= magic <= 2:
            raise corrupt_batch(partition, f"a record batch has the invalid format {magic} or length {length}", base)
        if not 0 <= base <= _MOST_OFFSET:
            raise corrupt_batch(partition, "a record batch has an invalid offset", base)
        if end > size:
            return
        header = _header(data, begin, end, partition) if magic == 2 else _old(base, begin, end, magic)
        if base <= reached:  # its records would be read twice or out of order
            raise corrupt_batch(partition, f"a record batch begins here, but the one before it ends at {reached}", base)
        yield header
        begin, reached = end, header.last


def _header(data: memoryview, begin: int, end: int, partition: TopicPartition) -> Header:
    base, _, epoch, magic, crc, attributes, delta, first, latest, producer, _, _, count = _V2.unpack_from(data, begin)
    if count < 0 or delta < 0 or base + delta > _MOST_OFFSET:
        raise corrupt_batch(
            partition, f"a record batch has the invalid counts of {count} records over {delta + 1} offsets", base
        )
    return Header(begin, end, base, base + delta, magic, epoch, crc, attributes, first, latest, producer, count)


def _old(base: int, begin: int, end: int, magic: int) -> Header:
    """Return the header of a message of format 0 or 1. A compressed message carries the offset of its *last* record."""
    return Header(begin, end, base, base, magic, -1, 0, 0, -1, -1, -1, -1)
