# SPDX-License-Identifier: Apache-2.0
"""The plain decoder: reads record by record, as the reference and the fallback of the columnar decoder."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from kafka.record.legacy_records import LegacyRecordBatch

from forebay.errors import DataError, ForebayError
from forebay.sources.kafka.records.codecs import TooLargeError, decompress
from forebay.sources.kafka.records.decoding import Body, Decoded, RawFetch
from forebay.sources.kafka.records.selecting import FetchDecoder, Record, records
from forebay.sources.kafka.records.wire import corrupt_batch, too_large
from forebay.sources.kafka.split import TopicPartition

_LENGTH = struct.Struct(">i")
_MAX_MILLIS = (1 << 63) // 1000 - 1


class PlainDecoder(FetchDecoder):
    """Decodes groups of record batches record by record."""

    def group(self, bodies: Sequence[Body], after: int, fetch: RawFetch) -> Iterator[Decoded]:
        """Decode a group of batches record by record. See `ColumnarDecoder.group` for the arguments."""
        rows: list[Record] = []
        reached = fetch.start
        for body in bodies:
            try:
                rows += self._rows(body, fetch)
            except DataError:
                if rows:  # return these first; an old message has only its last offset
                    yield Decoded(self.table(rows, fetch), reached)
                raise
            reached = max(reached, min(body.header.last + 1, after))
        yield Decoded(self.table(rows, fetch) if rows else None, after)

    def _rows(self, body: Body, fetch: RawFetch) -> list[Record]:
        with_headers = "headers" in self._schema.names
        unfiltered: Iterable[Record]
        if body.header.magic == 2:
            unfiltered = records(body, fetch.topic_partition, with_headers=with_headers)
        else:
            unfiltered = _old_records(body, fetch.topic_partition, self._limit, check_crcs=self._check)
        return [
            record
            for record in unfiltered
            if record.offset >= fetch.start and (fetch.end is None or record.offset < fetch.end)
        ]

    def table(self, rows: list[Record], fetch: RawFetch) -> pa.RecordBatch:
        """Return records as an Arrow record batch.

        Raises:
            DataError: A timestamp is too large for 64-bit microseconds.
        """
        for row in rows if "timestamp" in self._schema.names else ():
            if abs(row.timestamp) > _MAX_MILLIS:
                raise corrupt_batch(
                    fetch.topic_partition, f"the timestamp {row.timestamp} ms is out of range", row.offset
                )
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
        arrays = [pa.array(columns[field.name], field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class _Message(LegacyRecordBatch):  # type: ignore[misc]  # kafka-python has no types
    """A message of format 0 or 1 (before Kafka 0.11), decompressed by forebay's codecs. Such messages are rare."""

    __slots__ = ("limit",)
    limit: int

    def _decompress(self, key_offset: int) -> memoryview:
        (key,) = _LENGTH.unpack_from(self._buffer, key_offset)
        at = key_offset + _LENGTH.size + max(key, 0)
        (size,) = _LENGTH.unpack_from(self._buffer, at)
        at += _LENGTH.size
        if size < 0 or at + size > len(self._buffer):
            raise ValueError(f"a compressed message claims the invalid size of {size} bytes")
        return decompress(self.compression_type, self._buffer[at : at + size], self.limit)


def _old_records(body: Body, partition: TopicPartition, limit: int, *, check_crcs: bool) -> Iterator[Record]:
    """Yield the records of a message of format 0 or 1. A compressed message contains other messages."""
    offset = body.header.base
    try:
        batch = _Message(body.data, body.header.magic)
        batch.limit = limit
        right = not check_crcs or batch.validate_crc()
        for record in batch if right else ():
            if not 0 <= record.offset <= offset:
                raise ValueError(f"the message contains a record of offset {record.offset}, outside its range")  # noqa: TRY301 - reported below, like others
            stamped = record.timestamp is not None
            kind = record.timestamp_type if record.timestamp_type is not None else -1
            yield Record(record.offset, record.timestamp if stamped else -1, kind, record.key, record.value)
    except ForebayError:
        raise
    except TooLargeError:
        raise too_large(partition, limit, offset) from None
    except Exception as error:
        raise corrupt_batch(
            partition, f"a message of format {body.header.magic} is damaged: {error!r}", offset
        ) from error
    if not right:
        raise corrupt_batch(partition, "the checksum of the message is wrong", offset)
