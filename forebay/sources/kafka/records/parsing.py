# SPDX-License-Identifier: Apache-2.0
"""Parses records one by one in plain Python: the reference for the columnar decoder.

This parser also reads batches that the columnar decoder rejects, and its errors name the damaged record.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from forebay.sources.kafka.records.decoding import Body
from forebay.sources.kafka.records.wire import corrupt_batch
from forebay.sources.kafka.split import TopicPartition

LEAST_RECORD = 7
"""Bytes of the smallest record: length, attributes, timestamp, offset, two null lengths, a header count of 0."""

HeaderPair = tuple[str, bytes | None]


class Record(NamedTuple):
    """One parsed record.

    Args:
        offset: The offset of the record.
        timestamp: Milliseconds since 1970; -1 = none.
        timestamp_type: 0 = time of creation, 1 = time of appending to the log, -1 = none.
        key: The key; None if there is none.
        value: The value; None = a tombstone.
        headers: The headers in order, including duplicates.
    """

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[HeaderPair, ...] = ()


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


def records(body: Body, partition: TopicPartition, *, with_headers: bool = False) -> Iterator[Record]:
    """Yield the records of a batch of format 2. Unless `with_headers` is set, skip the headers without a check.

    Raises:
        DataError: Records are damaged.
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
        raise MalformedError(f"a record claims {length} bytes, but {batch.end - batch.at} are left")
    cursor = Cursor(body.data, batch.at + 1, batch.at + length)  # skip the attributes, which are unused
    batch.at += length
    timestamp = header.first_timestamp + cursor.varint(10)
    delta = cursor.varint()
    if not 0 <= delta <= header.last - header.base:
        raise MalformedError(
            f"the offset delta {delta} of a record exceeds the {header.last - header.base + 1} offsets of the batch"
        )
    key, value = cursor.blob(), cursor.blob()
    pairs = tuple(_headers(cursor, read=with_headers))
    if header.timestamp_type:
        timestamp = header.max_timestamp
    return Record(header.base + delta, timestamp, header.timestamp_type, key, value, pairs)


def _headers(cursor: Cursor, *, read: bool) -> Iterator[HeaderPair]:
    count = cursor.varint()
    if count < 0 or count > cursor.end - cursor.at:
        raise MalformedError(f"a record claims {count} headers in {cursor.end - cursor.at} bytes")
    if count and not read:
        return
    for _ in range(count):
        key = cursor.blob()
        if key is None:
            raise MalformedError("a header of a record has no key")
        yield key.decode("utf-8", "replace"), cursor.blob()
    if cursor.at != cursor.end:
        raise MalformedError(f"{cursor.end - cursor.at} bytes of the record are left after its headers")
