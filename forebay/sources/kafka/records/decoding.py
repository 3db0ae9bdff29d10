# SPDX-License-Identifier: Apache-2.0
"""The seam between fetching and decoding: what a decoder is given and gives, and the columns there are."""

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
"""The columns of Spark's own source, in its order; `headers` only where asked for."""

GROUP_BYTES = 4 << 20
"""So many decompressed bytes make one record batch, at least: what is compressed well must not fill the memory."""


def record_schema(columns: Sequence[str] | None = None, *, include_headers: bool = False) -> pa.Schema:
    """Return the Arrow schema of decoded records.

    Args:
        columns: The wanted ones, in this order; None: all.
        include_headers: Whether `headers` is among all.

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
    """What a broker sent for one partition, as it came.

    Args:
        topic: The topic.
        partition: The partition.
        data: The bytes: record batches, the last one perhaps cut off.
        start: The first wanted offset.
        end: The offset to stop before; None: no end.
        read_committed: Leave out records of aborted transactions.
        aborted: Those transactions, as (producer id, first offset); a broker names them with each fetch.
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
        """The partition, for errors."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class Body:
    """The records of one batch, decompressed.

    Args:
        header: What the batch says of itself.
        data: The bytes that hold them; of an uncompressed batch, all the fetched ones. Of an old message, the message.
        begin: Where they begin in `data`.
        end: Where they end.
    """

    header: Header
    data: memoryview
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Decoded:
    """A part of a fetch, decoded.

    Args:
        batch: The records; None: only offsets without records to read (aborted, compacted away, control records).
        next_offset: Where to go on after it.
    """

    batch: pa.RecordBatch | None
    next_offset: int


class RecordDecoder(Protocol):
    """Turns fetched bytes into record batches. Used by one thread; keeps nothing between fetches but caches."""

    def decode(self, fetch: RawFetch) -> Iterator[Decoded]:
        """Decode a fetch, part by part.

        The last part's `next_offset` is where the next fetch begins: after the last whole batch, by its header, so
        that what was compacted away or belongs to the broker is passed over.

        Raises:
            DataError: Damaged bytes; the text names topic, partition and offset. What is before them has been yielded.
        """
