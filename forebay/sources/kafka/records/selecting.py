# SPDX-License-Identifier: Apache-2.0
"""Selects the record batches of a fetch to decode, by offset range and transaction; checks and groups them."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import crc32c
import pyarrow as pa

from forebay.errors import DataError
from forebay.sources.kafka.records.codecs import TooLargeError, decompress
from forebay.sources.kafka.records.decoding import GROUP_BYTES, MAX_BATCH_BYTES, Body, Decoded, RawFetch
from forebay.sources.kafka.records.wire import CRC_BEGIN, BatchHeader, corrupt_batch, headers, too_large
from forebay.sources.kafka.split import TopicPartition

# -- Parses records one by one in plain Python: the reference for the columnar decoder.
#
# This parser also reads batches that the columnar decoder rejects, and its errors name the damaged record.


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
        marker = next(records(self._body(header), self._fetch.topic_partition), None)
        if marker is None or marker.key is None or len(marker.key) < _MARKER.size:
            raise corrupt_batch(
                self._fetch.topic_partition, "the marker at the end of a transaction cannot be read", header.base
            )
        return bool(_MARKER.unpack_from(marker.key)[1] == _ABORT)

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


class FetchDecoder(ABC):
    """Decodes fetched bytes into Arrow record batches. Called on one thread; stateless between fetches.

    Args:
        schema: The wanted columns, from `record_schema`; others are neither decoded nor checked.
        check_crcs: Whether to verify the checksums of Kafka's record batches.
        group_bytes: Decompressed bytes after which an Arrow record batch is complete.
        limit: The most bytes of a record batch of Kafka, decompressed.
    """

    def __init__(
        self,
        schema: pa.Schema,
        *,
        check_crcs: bool = True,
        group_bytes: int = GROUP_BYTES,
        limit: int = MAX_BATCH_BYTES,
    ) -> None:
        self._limit = limit
        self._schema = schema
        self._check = check_crcs
        self._least = group_bytes

    def decode(self, fetch: RawFetch) -> Iterator[Decoded]:
        """Decode a fetch, part by part.

        The last part's `next_offset` is the start of the next fetch. This offset comes from the header of the last
        whole batch, so it lies after compacted offsets and control records.

        Raises:
            DataError: Bytes are damaged. The records before them are yielded first. The text names topic, partition and
                offset.
        """
        reported = fetch.start
        for bodies, after in Selection(fetch, check_crcs=self._check, limit=self._limit).groups(self._least):
            for part in self.group(bodies, after, fetch):
                if part.batch is not None or part.next_offset != reported:
                    reported = part.next_offset
                    yield part

    @abstractmethod
    def group(self, bodies: Sequence[Body], after: int, fetch: RawFetch) -> Iterator[Decoded]:
        """Decode a group of batches of a fetch; `after` is the next offset after them."""
