# SPDX-License-Identifier: Apache-2.0
"""Selects the record batches of a fetch to decode, by offset range and transaction; checks and decompresses them.

Also reads messages of the formats before Kafka 0.11, one by one.
"""

from __future__ import annotations

import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

import cramjam
import crc32c
import zstandard

from forebay.errors import DataError
from forebay.sources.kafka.records.batches import (
    CODEC_MASK,
    CRC_BEGIN,
    LOG_APPEND,
    LOG_OVERHEAD,
    MAX_BATCH_BYTES,
    BatchHeader,
    Body,
    RawFetch,
    Record,
    corrupt_batch,
    headers,
    too_large,
)
from forebay.sources.kafka.split import TopicPartition

# -- Decompresses records with C libraries, up to a limit of bytes.


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


# -- Reads numbers and texts.


class MalformedError(Exception):
    """The error for bytes that are not valid records. The caller adds partition and offset to the text."""


class Cursor:
    """Reads Kafka's primitive types from bytes, up to the position `end`."""

    def __init__(self, data: memoryview, at: int, end: int) -> None:
        self._data = data
        self.at = at
        self.end = end

    def varint(self, most: int = 5) -> int:
        """Read a zigzag varint of at most `most` bytes: 5 for 32 bits, 10 for 64."""
        value = shift = 0
        for at in range(self.at, min(self.at + most, self.end)):
            byte = self._data[at]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >> (32 if most == 5 else 64):
                    break
                self.at = at + 1
                return (value >> 1) ^ -(value & 1)
            shift += 7
        raise MalformedError(f"a varint has more than {most} bytes")

    def blob(self) -> bytes | None:
        """Read bytes with a length prefix; return None for the length -1."""
        length = self.varint()
        if length == -1:
            return None
        if length < -1 or length > self.end - self.at:
            raise MalformedError(f"a field claims {length} bytes, but {self.end - self.at} are left")
        self.at += length
        return bytes(self._data[self.at - length : self.at])


# -- Selects record batches.


_MARKER = struct.Struct(">hh")  # version and type: the key of a control record
_ABORT = 0
_NO_END = 1 << 63


class Selection:
    """Iterates over the record batches of one fetch, and keeps track of its aborted transactions."""

    def __init__(self, fetch: RawFetch, *, check_crcs: bool = True, limit: int = MAX_BATCH_BYTES) -> None:
        self._fetch = fetch
        self._limit = limit
        self._check = check_crcs
        self._waiting = deque(sorted((first, producer) for producer, first in fetch.aborted))
        self._aborted: set[int] = set()

    def bodies(self) -> Iterator[tuple[Body | None, int]]:
        """Yield each batch, or None for a batch without wanted records, with the next offset after it.

        Raises:
            DataError: A batch is damaged. The text names topic, partition and offset.
        """
        fetch, reached = self._fetch, self._fetch.start
        end = fetch.end if fetch.end is not None else _NO_END
        for header in headers(fetch.data, fetch.topic_partition):
            if header.base >= end and header.magic == 2:
                yield None, end
                return
            selected = (header.magic < 2 or self._wanted(header)) and header.last >= fetch.start
            body = self._body(header) if selected else None
            reached = max(reached, min(header.last + 1, end))
            yield body, reached
            if reached >= end:
                return

    def groups(self, least: int) -> Iterator[tuple[list[Body], int]]:
        """Yield the batches in groups of at least `least` decompressed bytes, each with the next offset after it.

        The last group is empty if only batches without readable records follow.

        Raises:
            DataError: A batch is damaged. The batches before it are yielded first.
        """
        reported = reached = self._fetch.start
        group: list[Body] = []
        size, damage = 0, None
        try:
            for body, reached in self.bodies():
                if body is not None:
                    group.append(body)
                    size += body.end - body.begin
                if body is not None and size >= least:
                    reported = reached
                    yield group, reported
                    group, size = [], 0
        except DataError as error:
            damage = error
        if group or reached != reported:
            yield group, reached
        if damage is not None:
            raise damage

    def _wanted(self, header: BatchHeader) -> bool:
        """Return whether a batch contains readable records. Also tracks the open aborted transactions."""
        if self._fetch.read_committed and header.producer >= 0:
            while self._waiting and self._waiting[0][0] <= header.last:
                self._aborted.add(self._waiting.popleft()[1])
            if header.control:
                if header.producer in self._aborted and self._ends_aborted(header):
                    self._aborted.discard(header.producer)
            elif header.transactional and header.producer in self._aborted:
                return False
        return header.records > 0 and not header.control

    def _ends_aborted(self, header: BatchHeader) -> bool:
        body = self._body(header)
        cursor = Cursor(body.data, body.begin, body.end)
        try:
            cursor.varint()  # the length of the record, then its attributes, timestamp and offset
            cursor.at += 1
            cursor.varint(10)
            cursor.varint()
            return bool(_MARKER.unpack_from(cursor.blob() or b"")[1] == _ABORT)
        except (MalformedError, struct.error):
            raise corrupt_batch(
                self._fetch.topic_partition, "the marker at the end of a transaction cannot be read", header.base
            ) from None

    def _body(self, header: BatchHeader) -> Body:
        data, partition = self._fetch.data, self._fetch.topic_partition
        if header.magic < 2:
            return Body(header, data[header.begin : header.end], 0, header.end - header.begin)
        if self._check and crc32c.crc32c(data[header.begin + CRC_BEGIN : header.end]) != header.crc:
            raise corrupt_batch(partition, "the checksum of the record batch is wrong", header.base)
        try:
            plain = decompress(header.codec, data[header.body : header.end], self._limit)
        except TooLargeError:
            raise too_large(partition, self._limit, header.base) from None
        except ValueError as error:
            raise corrupt_batch(partition, str(error), header.base) from error
        return Body(header, plain, 0, len(plain)) if header.codec else Body(header, data, header.body, header.end)


# -- Messages of formats 0 and 1 (before Kafka 0.11). They are rare, and read one by one.


_OLD = {0: struct.Struct(">qiIbb"), 1: struct.Struct(">qiIbbq")}
"""By format: offset, length, checksum, format and attributes of a message, and in format 1 its timestamp."""
_OLD_CRC_BEGIN = 16


class _Message(NamedTuple):
    offset: int
    crc: int
    attributes: int
    timestamp: int
    key: memoryview | None
    value: memoryview | None


def old_records(body: Body, partition: TopicPartition, limit: int, *, check_crcs: bool) -> list[Record]:
    """Return the records of a message of format 0 or 1. A compressed message contains other messages.

    Raises:
        DataError: The message is damaged.
    """
    offset, magic = body.header.base, body.header.magic
    try:
        outer, _ = _message(body.data, 0, magic)
        if check_crcs and zlib.crc32(body.data[_OLD_CRC_BEGIN:]) != outer.crc:
            raise corrupt_batch(partition, "the checksum of the message is wrong", offset)
        messages = [outer] if not outer.attributes & CODEC_MASK else _packed(outer, magic, limit)
    except TooLargeError:
        raise too_large(partition, limit, offset) from None
    except (ValueError, struct.error) as error:
        raise corrupt_batch(partition, f"a message of format {magic} is damaged: {error}", offset) from error
    kind = -1 if magic == 0 else int(bool(outer.attributes & LOG_APPEND))
    stamps = [outer.timestamp if kind == 1 else each.timestamp for each in messages]
    return [
        Record(each.offset, stamp, kind, _bytes(each.key), _bytes(each.value))
        for each, stamp in zip(messages, stamps, strict=True)
    ]


def _packed(outer: _Message, magic: int, limit: int) -> list[_Message]:
    """Return the messages in a compressed one, which has the offset of the last of them."""
    if outer.value is None:
        raise ValueError("a compressed message contains nothing")
    data, at = memoryview(decompress(outer.attributes & CODEC_MASK, outer.value, limit)), 0
    messages = []
    while at < len(data):
        message, at = _message(data, at, magic)
        messages.append(message)
    shift = outer.offset - messages[-1].offset if magic and messages else 0  # format 1 counts from the first one
    moved = [message._replace(offset=message.offset + shift) for message in messages]
    for message in moved:
        if message.attributes & CODEC_MASK or not 0 <= message.offset <= outer.offset:
            raise ValueError("it contains a compressed message, or one of an offset outside its range")
    return moved


def _message(data: memoryview, at: int, magic: int) -> tuple[_Message, int]:
    """Return the message at a position, and the position after it."""
    offset, length, crc, own_magic, attributes, *stamp = _OLD[magic].unpack_from(data, at)
    end = at + LOG_OVERHEAD + length
    key, after = _field(data, at + _OLD[magic].size, end)
    value, after = _field(data, after, end)
    if own_magic != magic or after != end or end > len(data):
        raise ValueError(f"it claims the format {own_magic} or the length {length}")
    return _Message(offset, crc, attributes, stamp[0] if stamp else -1, key, value), end


def _field(data: memoryview, at: int, end: int) -> tuple[memoryview | None, int]:
    """Return the bytes with a length prefix at a position (None for the length -1), and the position after them."""
    (length,) = _LENGTH.unpack_from(data, at)
    begin = at + _LENGTH.size
    if length < -1 or length > end - begin:
        raise ValueError(f"a field claims {length} bytes")
    return (None, begin) if length < 0 else (data[begin : begin + length], begin + length)


def _bytes(field: memoryview | None) -> bytes | None:
    return None if field is None else bytes(field)
