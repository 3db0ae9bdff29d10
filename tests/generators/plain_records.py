# SPDX-License-Identifier: Apache-2.0
"""Reads Kafka's record batches record by record in plain Python: the reference that judges the columnar decoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from forebay.errors import DataError
from forebay.sources.kafka.records.batches import Body, Decoded, RawFetch, Record, corrupt_batch, record_table
from forebay.sources.kafka.records.columnar import LEAST_RECORD, ColumnarDecoder
from forebay.sources.kafka.records.selecting import Cursor, MalformedError
from forebay.sources.kafka.split import TopicPartition

_MAX_MILLIS = (1 << 63) // 1000 - 1


class PlainDecoder(ColumnarDecoder):
    """Selects batches as the columnar decoder does, and reads records one by one, but not those of old formats."""

    def _group(self, bodies: Sequence[Body], after: int, fetch: RawFetch) -> Iterator[Decoded]:
        if any(body.header.magic < 2 for body in bodies):
            yield from super()._group(bodies, after, fetch)
            return
        rows: list[Record] = []
        reached = fetch.start
        for body in bodies:
            try:
                rows += self._rows(body, fetch)
            except DataError:
                if rows:  # return these first
                    yield Decoded(record_table(self._schema, rows, fetch), reached)
                raise
            reached = max(reached, min(body.header.last + 1, after))
        yield Decoded(record_table(self._schema, rows, fetch) if rows else None, after)

    def _rows(self, body: Body, fetch: RawFetch) -> list[Record]:
        found = [*records(body, fetch.topic_partition, with_headers="headers" in self._schema.names)]
        if "timestamp" in self._schema.names and any(abs(row.timestamp) > _MAX_MILLIS for row in found):
            raise corrupt_batch(fetch.topic_partition, "a timestamp is out of range", body.header.base)
        return [row for row in found if row.offset >= fetch.start and (fetch.end is None or row.offset < fetch.end)]


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


def _headers(cursor: Cursor, *, read: bool) -> Iterator[tuple[str, bytes | None]]:
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
