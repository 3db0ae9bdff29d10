# SPDX-License-Identifier: Apache-2.0
"""The interface between fetching and decoding: a decoder's input and output, and the columns of records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.sources.kafka.records.wire import Header
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
"""Decompressed bytes after which a record batch is complete; bounds memory for well-compressed data."""


def record_schema(columns: Sequence[str] | None = None, *, include_headers: bool = False) -> pa.Schema:
    """Return the Arrow schema of decoded records.

    Args:
        columns: The wanted columns, in this order; None = all.
        include_headers: Whether all columns include `headers`.

    Raises:
        ConfigurationError: An unknown column.
    """
    if columns is None:
        columns = [name for name in COLUMNS if include_headers or name != "headers"]
    for name in columns:
        if name not in COLUMNS:
            raise ConfigurationError(
                f"Kafka records have no column {name!r}", option="columns", advice=f"there are {', '.join(COLUMNS)}"
            )
    return pa.schema([pa.field(name, COLUMNS[name]) for name in columns])


@dataclass(frozen=True, slots=True)
class RawFetch:
    """The fetched bytes of one partition.

    Args:
        topic: The topic.
        partition: The partition.
        data: The record batches; the last one may be incomplete.
        start: The first wanted offset.
        end: The offset to stop before; None = no end.
        read_committed: Drop records of aborted transactions.
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
        """Topic and partition."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class Body:
    """The records of one batch, decompressed.

    Args:
        header: The header of the batch.
        data: A buffer with the records: the whole fetch for an uncompressed batch, the message for old formats.
        begin: Their begin in `data`.
        end: Their end in `data`.
    """

    header: Header
    data: memoryview
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Decoded:
    """A part of a fetch, decoded.

    Args:
        batch: The records; None = only offsets without readable records (aborted, compacted, control records).
        next_offset: The offset after this part.
    """

    batch: pa.RecordBatch | None
    next_offset: int


class RecordDecoder(Protocol):
    """Decodes fetched bytes into record batches. Called on one thread; stateless between fetches."""

    def decode(self, fetch: RawFetch) -> Iterator[Decoded]:
        """Decode a fetch, part by part.

        The last part's `next_offset` is the start of the next fetch. It comes from the header of the last whole batch,
        so it skips compacted offsets and control records.

        Raises:
            DataError: Damaged bytes, after the records before them; the text names topic, partition and offset.
        """
