# SPDX-License-Identifier: Apache-2.0
"""Records one by one, in plain Python: slow and easy to read, what the columnar decoder is judged by.

It also reads what the columnar decoder does not: the old formats, and batches that make it give up; then its error says
which record is damaged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from forebay.sources.kafka.records.decoding import Body
from forebay.sources.kafka.records.wire import corrupt_batch
from forebay.sources.kafka.split import TopicPartition

LEAST_RECORD = 7
"""Bytes of the smallest record: length, attributes, time, offset, two null lengths, no headers."""

HeaderPair = tuple[str, bytes | None]


class Record(NamedTuple):
    """One record.

    Args:
        offset: Its offset.
        timestamp: Milliseconds since 1970; -1: it has none.
        timestamp_type: 0: the producer's time; 1: the broker's; -1: it has none.
        key: Its key, if any.
        value: Its value; None: a tombstone.
        headers: Its headers in order, doubles kept.
    """

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[HeaderPair, ...] = ()


class MalformedError(Exception):
    """Bytes that are no records; caught where the partition and the offset are known."""


class Cursor:
    """Reads Kafka's primitive types from bytes, one after the other.

    Args:
        data: The bytes.
        at: Where to begin.
        end: Where to stop, at the latest.
    """

    def __init__(self, data: memoryview, at: int, end: int) -> None:
        self._data = data
        self.at = at
        self.end = end

    def varint(self, most: int = 5) -> int:
        """Read a zigzag number of at most so many bytes: 5 for 32 bits, 10 for 64."""
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
        raise MalformedError(f"no number of {most} bytes at most")

    def blob(self) -> bytes | None:
        """Read bytes with their length before them; -1 stands for null."""
        length = self.varint()
        if length == -1:
            return None
        if length < -1 or length > self.end - self.at:
            raise MalformedError(f"a field of {length} bytes where {self.end - self.at} are left")
        self.at += length
        return bytes(self._data[self.at - length : self.at])


def records(body: Body, partition: TopicPartition, *, with_headers: bool = False) -> Iterator[Record]:
    """Yield the records of a batch in the format of today.

    Args:
        body: The batch.
        partition: The partition, for errors.
        with_headers: Read the headers too; else they are skipped unseen.

    Raises:
        DataError: Damaged records.
    """
    header = body.header
    cursor = Cursor(body.data, body.begin, body.end)
    for number in range(header.records):
        try:
            yield _record(cursor, body, with_headers=with_headers)
        except MalformedError as error:
            raise corrupt_batch(
                partition,
                f"record {number} of {header.records} in the batch from this offset on is damaged: {error}",
                header.base,
            ) from error
    if cursor.at != body.end:
        raise corrupt_batch(
            partition,
            f"{body.end - cursor.at} bytes are left after the {header.records} records of the batch",
            header.base,
        )


def _record(batch: Cursor, body: Body, *, with_headers: bool) -> Record:
    header = body.header
    length = batch.varint()
    if not LEAST_RECORD - 1 <= length <= batch.end - batch.at:
        raise MalformedError(f"it has {length} bytes where {batch.end - batch.at} are left")
    cursor = Cursor(body.data, batch.at + 1, batch.at + length)  # past the attributes, which mean nothing yet
    batch.at += length
    timestamp = header.first_timestamp + cursor.varint(10)
    delta = cursor.varint()
    if not 0 <= delta <= header.last - header.base:
        raise MalformedError(f"it lies {delta} after the first of {header.last - header.base + 1} offsets")
    key, value = cursor.blob(), cursor.blob()
    pairs = tuple(_headers(cursor, read=with_headers))
    if header.timestamp_type:
        timestamp = header.max_timestamp
    return Record(header.base + delta, timestamp, header.timestamp_type, key, value, pairs)


def _headers(cursor: Cursor, *, read: bool) -> Iterator[HeaderPair]:
    count = cursor.varint()
    if count < 0 or count > cursor.end - cursor.at:
        raise MalformedError(f"it has {count} headers in {cursor.end - cursor.at} bytes")
    if count and not read:
        return
    for _ in range(count):
        key = cursor.blob()
        if key is None:
            raise MalformedError("a header has no key")
        yield key.decode("utf-8", "replace"), cursor.blob()
    if cursor.at != cursor.end:
        raise MalformedError(f"{cursor.end - cursor.at} bytes are left after its headers")
