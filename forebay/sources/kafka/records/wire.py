# SPDX-License-Identifier: Apache-2.0
"""The frame of Kafka's record batches: where each begins and ends, and what its header says.

All three formats share the first 17 bytes up to `magic`; 2 is the format since Kafka 0.11.
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
"""Bytes before those that the length counts."""
CRC_BEGIN = 21
"""The checksum of format 2 covers everything from here on."""
_LEAST_OLD = 14 + LOG_OVERHEAD
_MAGIC = 16
_MOST_OFFSET = (1 << 63) - 2
"""The offset after it must be one, too."""

_CODEC_MASK = 0x07
_LOG_APPEND = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20


def corrupt_batch(partition: TopicPartition, what: str, offset: int) -> DataError:
    """Return the error for damaged bytes at an offset."""
    return DataError(
        f"topic {partition.topic}, partition {partition.partition}, offset {offset}: {what}",
        position=offset,
        advice="skip this offset, or look at the broker's disk and at the network in between",
    )


class Header(NamedTuple):
    """What a record batch says of itself.

    Args:
        begin: Where it begins in the fetched bytes.
        end: Where it ends.
        base: Its first offset.
        last: Its last offset, also if compaction has removed that record.
        magic: The format, 0 to 2; what follows is of format 2 only.
        epoch: Of the leader who took it in; -1: unknown.
        crc: The checksum it should have.
        attributes: Codec and flags.
        first_timestamp: What the time stamps of records are relative to, milliseconds.
        max_timestamp: The latest of them; the time of appending, if the broker stamps.
        producer: Id of the producer; -1 if it has none.
        records: How many records are in it; compaction leaves batches without any.
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
        """Where the records begin."""
        return self.begin + HEADER_SIZE

    @property
    def codec(self) -> int:
        """How the records are compressed; 0: not at all."""
        return self.attributes & _CODEC_MASK

    @property
    def timestamp_type(self) -> int:
        """0: the producer stamped the records; 1: the broker did."""
        return 1 if self.attributes & _LOG_APPEND else 0

    @property
    def transactional(self) -> bool:
        """Whether the records belong to a transaction."""
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def control(self) -> bool:
        """Whether this is the mark at the end of a transaction, and no data."""
        return bool(self.attributes & _CONTROL)


def headers(data: memoryview, partition: TopicPartition) -> Iterator[Header]:
    """Walk the whole record batches of fetched bytes; what a broker cut off at the end is left out.

    Raises:
        DataError: A length, a format or an offset that cannot be.
    """
    begin, size, reached = 0, len(data), -1
    while size - begin >= _MAGIC + 1:
        base, length, _, magic = _COMMON.unpack_from(data, begin)
        end = begin + LOG_OVERHEAD + length
        least = HEADER_SIZE if magic == 2 else _LEAST_OLD
        if length < least - LOG_OVERHEAD or not 0 <= magic <= 2:
            raise corrupt_batch(partition, f"a record batch of format {magic} and {length} bytes cannot be", base)
        if not 0 <= base <= _MOST_OFFSET:
            raise corrupt_batch(partition, "a record batch at such an offset cannot be", base)
        if end > size:
            return
        header = _header(data, begin, end, partition) if magic == 2 else _old(base, begin, end, magic)
        if base <= reached:  # else its records would be read twice, or after later ones
            raise corrupt_batch(
                partition, f"a record batch that begins here cannot follow one that goes up to {reached}", base
            )
        yield header
        begin, reached = end, header.last


def _header(data: memoryview, begin: int, end: int, partition: TopicPartition) -> Header:
    base, _, epoch, magic, crc, attributes, delta, first, latest, producer, _, _, count = _V2.unpack_from(data, begin)
    if count < 0 or delta < 0 or base + delta > _MOST_OFFSET:
        raise corrupt_batch(partition, f"a record batch with {count} records over {delta + 1} offsets cannot be", base)
    return Header(begin, end, base, base + delta, magic, epoch, crc, attributes, first, latest, producer, count)


def _old(base: int, begin: int, end: int, magic: int) -> Header:
    """Return the header of an old message: compressed ones carry the offset of their *last* record."""
    return Header(begin, end, base, base, magic, -1, 0, 0, -1, -1, -1, -1)
