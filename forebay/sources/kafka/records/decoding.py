# SPDX-License-Identifier: Apache-2.0
"""The types between fetching and decoding: a decoder's input and output, and the columns of records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.sources.kafka.records.wire import BatchHeader, corrupt_batch
from forebay.sources.kafka.split import TopicPartition

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
