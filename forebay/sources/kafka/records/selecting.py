# SPDX-License-Identifier: Apache-2.0
"""Selects the record batches of a fetch to decode, by offset range and transaction; checks and groups them.

Also reads messages of the formats before Kafka 0.11, one by one.
"""

from __future__ import annotations

import struct
import zlib
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import crc32c

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
from forebay.sources.kafka.records.codecs import TooLargeError, decompress
from forebay.sources.kafka.split import TopicPartition


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
_LENGTH = struct.Struct(">i")


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
