# SPDX-License-Identifier: Apache-2.0
"""Kafka's record batches in fetched bytes: their headers, and the columns of their records.

All three formats of batches share the first 17 bytes up to `magic`. Format 2 exists since Kafka 0.11.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from forebay.errors import ConfigurationError, DataError
from forebay.sources.kafka.split import TopicPartition

# -- The columns of records.


_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])

COLUMNS: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(_HEADER),
}
"""The columns of Spark's own source, in its order; `headers` only with `includeHeaders`."""

GROUP_BYTES = 4 << 20
"""Decompressed bytes after which an Arrow record batch is complete: this bounds memory for highly compressed data."""

MAX_BATCH_BYTES = 128 << 20
"""The default of the option `maxRecordBytes`."""

MAX_MILLIS = (1 << 63) // 1000 - 1
"""Maximum timestamp in ms whose microseconds fit into 64 bits."""


def record_schema(
    columns: Sequence[str] | None = None,
    *,
    include_headers: bool = False,
    column_types: Mapping[str, pa.DataType] = COLUMNS,
) -> pa.Schema:
    """Return the Arrow schema of `columns`, in this order; None = of all columns in `column_types`.

    Raises:
        ConfigurationError: A column is unknown.
    """
    if columns is None:
        columns = [name for name in column_types if include_headers or name != "headers"]
    for name in columns:
        if name not in column_types:
            raise ConfigurationError(
                f"the Kafka source has no column {name!r}",
                option="columns",
                advice=f"select from {', '.join(column_types)}",
            )
    return pa.schema([pa.field(name, column_types[name]) for name in columns])


# -- Splits fetched bytes into record batches, and parses their headers.


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


# -- The input and the output of a decoder.


@dataclass(frozen=True, slots=True)
class RawFetch:
    """The fetched bytes of one partition.

    Args:
        topic: The topic.
        partition: The number of the partition.
        data: The record batches; the last one may be incomplete.
        start: The first wanted offset.
        end: The offset to stop before; None = no end.
        read_committed: Whether to drop records of aborted transactions.
        aborted: The aborted transactions of this fetch, as (producer id, first offset).
    """

    topic: str
    partition: int
    data: memoryview
    start: int
    end: int | None = None
    read_committed: bool = False
    aborted: Sequence[tuple[int, int]] = ()

    @property
    def topic_partition(self) -> TopicPartition:
        """The topic and the number of the partition."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class Body:
    """The records of one batch, decompressed.

    Args:
        header: The header of the batch.
        data: A buffer with the records: the whole fetch for an uncompressed batch, the message for old formats.
        begin: The position of the first record in `data`.
        end: The position after the last record in `data`.
    """

    header: BatchHeader
    data: memoryview
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Decoded:
    """The decoded records of a part of a fetch.

    Args:
        batch: The records; None if the part has no readable records, but only aborted, compacted or control records.
        next_offset: The next offset after this part.
    """

    batch: pa.RecordBatch | None
    next_offset: int


class Record(NamedTuple):
    """One record, where records are read one by one.

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
    headers: tuple[tuple[str, bytes | None], ...] = ()


def record_table(schema: pa.Schema, rows: Sequence[Record], fetch: RawFetch) -> pa.RecordBatch:
    """Return records as an Arrow record batch of the columns of `schema`.

    Raises:
        DataError: A timestamp is too large for 64-bit microseconds.
    """
    for row in rows if "timestamp" in schema.names else ():
        if abs(row.timestamp) > MAX_MILLIS:
            raise corrupt_batch(fetch.topic_partition, f"the timestamp {row.timestamp} ms is out of range", row.offset)
    columns: dict[str, list[object]] = {
        "key": [row.key for row in rows],
        "value": [row.value for row in rows],
        "topic": [fetch.topic] * len(rows),
        "partition": [fetch.partition] * len(rows),
        "offset": [row.offset for row in rows],
        "timestamp": [row.timestamp * 1000 for row in rows],
        "timestampType": [row.timestamp_type for row in rows],
        "headers": [[{"key": k, "value": v} for k, v in row.headers] or None for row in rows],
    }
    return pa.RecordBatch.from_arrays([pa.array(columns[field.name], field.type) for field in schema], schema=schema)
