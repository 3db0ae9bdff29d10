# SPDX-License-Identifier: Apache-2.0
"""Splits fetched bytes into Kafka's record batches, and parses the headers of the batches.

All three formats share the first 17 bytes up to `magic`. Format 2 exists since Kafka 0.11.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from forebay.errors import DataError
from forebay.sources.kafka.split import TopicPartition

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

CODEC_MASK = 0x07
LOG_APPEND = 0x08
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


class BatchHeader(NamedTuple):
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
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> int:
        """The type of the timestamps: 0 = time of creation, 1 = time of appending."""
        return 1 if self.attributes & LOG_APPEND else 0

    @property
    def transactional(self) -> bool:
        """Whether the records belong to a transaction."""
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def control(self) -> bool:
        """Whether this is a control batch: the marker at the end of a transaction."""
        return bool(self.attributes & _CONTROL)


def headers(data: memoryview, partition: TopicPartition) -> Iterator[BatchHeader]:
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


def _header(data: memoryview, begin: int, end: int, partition: TopicPartition) -> BatchHeader:
    base, _, epoch, magic, crc, attributes, delta, first, latest, producer, _, _, count = _V2.unpack_from(data, begin)
    if count < 0 or delta < 0 or base + delta > _MOST_OFFSET:
        raise corrupt_batch(
            partition, f"a record batch has the invalid counts of {count} records over {delta + 1} offsets", base
        )
    return BatchHeader(begin, end, base, base + delta, magic, epoch, crc, attributes, first, latest, producer, count)


def _old(base: int, begin: int, end: int, magic: int) -> BatchHeader:
    """Return the header of a message of format 0 or 1. A compressed message carries the offset of its *last* record."""
    return BatchHeader(begin, end, base, base, magic, -1, 0, 0, -1, -1, -1, -1)
