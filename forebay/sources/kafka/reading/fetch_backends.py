# SPDX-License-Identifier: Apache-2.0
"""Polls a consumer in one of two ways: raw bytes that are decoded by columns, or kafka-python's records one by one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from kafka.version import __version__ as kafka_python

from forebay.sources.kafka.client import kafka_internals
from forebay.sources.kafka.client.offset_loss import Key
from forebay.sources.kafka.records.columnar import ColumnarDecoder
from forebay.sources.kafka.records.decoding import Decoded, RawFetch
from forebay.sources.kafka.records.parsing import Record
from forebay.sources.kafka.records.plain import PlainDecoder

_log = logging.getLogger(__name__)

_ALL_RECORDS = 1 << 30
_RECORDS_PER_POLL = 10_000

Wanted = Callable[[str, int, int], RawFetch | None]
"""A function of topic, partition and offset. Returns the range to read as a RawFetch without bytes; None = nothing."""
FetchedRecords = tuple[Key, Iterator[Decoded]]
"""A partition, and its fetched records, decoded when iterated."""


def fetch_backend(
    consumer: Any,  # noqa: ANN401 - kafka-python has no types
    schema: pa.Schema,
    wanted: Wanted,
    *,
    check_crcs: bool,
    by_columns: bool,
    limit: int,
) -> _ColumnarBackend | _RecordBackend:
    """Return the columnar backend, if `by_columns` is set and kafka-python's internals are as expected.

    Otherwise return the backend that reads record by record.
    """
    unexpected = kafka_internals.unexpected_internal() if by_columns else None
    if unexpected is not None:
        _log.warning(
            "kafka-python %s has unexpected internals (%s), so records are read one by one, which is slower",
            kafka_python,
            unexpected,
        )
    if unexpected is not None or not by_columns:
        return _RecordBackend(consumer, schema, wanted)
    return _ColumnarBackend(consumer, wanted, ColumnarDecoder(schema, check_crcs=check_crcs, limit=limit))


class _ColumnarBackend:
    """Returns the fetched bytes of partitions, decoded by columns when iterated. Called on one thread."""

    def __init__(self, consumer: Any, wanted: Wanted, decoder: ColumnarDecoder) -> None:  # noqa: ANN401
        self._consumer = consumer
        self._decoder = decoder
        self._ends = kafka_internals.give_raw(consumer, wanted)
        if kafka_internals.unexpected_receiver_internal() is None:
            kafka_internals.receive_fast(consumer)

    def poll(self, seconds: float) -> list[FetchedRecords]:
        found = self._consumer.poll(timeout_ms=_millis(seconds), max_records=_ALL_RECORDS)
        fetches = [one for items in found.values() for one in items]
        if fetches:
            kafka_internals.ask_ahead(self._consumer)
        return [((one.topic, one.partition), self._decoder.decode(one)) for one in fetches]

    def end_of(self, key: Key) -> int | None:
        """Return the end of a partition, as its last fetch reported it for the isolation level; None = no fetch yet."""
        return self._ends.get(key)


class _RecordBackend:
    """Returns the records that kafka-python parses one by one. Called on one thread."""

    def __init__(self, consumer: Any, schema: pa.Schema, wanted: Wanted) -> None:  # noqa: ANN401
        self._consumer = consumer
        self._decoder = PlainDecoder(schema)
        self._wanted = wanted
        self._reported: dict[Key, int] = {}

    def poll(self, seconds: float) -> list[FetchedRecords]:
        found = self._consumer.poll(timeout_ms=_millis(seconds), max_records=_RECORDS_PER_POLL)
        fetched: list[FetchedRecords] = []
        # Positions also move over control and compacted records, so partitions without records count too.
        for partition in self._consumer.assignment() - self._consumer.paused():
            items = found.get(partition, ())
            after = self._consumer.position(partition, timeout_ms=0)
            wanted = self._wanted(partition.topic, partition.partition, items[0].offset if items else after or 0)
            if wanted is None or after is None or (not items and after == self._reported.get(partition)):
                continue
            self._reported[partition] = after
            rows = [_record(item) for item in items if wanted.end is None or item.offset < wanted.end]
            after = after if wanted.end is None else min(after, wanted.end)
            if after == wanted.end:
                self._consumer.pause(partition)
            table = self._decoder.table(rows, wanted) if rows else None
            fetched.append((partition, iter([Decoded(table, after)])))
        return fetched

    def end_of(self, key: Key) -> int | None:
        return self._consumer.highwater(key) if key in self._consumer.assignment() else None


def _record(item: Any) -> Record:  # noqa: ANN401 - kafka-python has no types
    stamp = -1 if item.timestamp is None else item.timestamp
    kind = -1 if item.timestamp_type is None else item.timestamp_type
    return Record(item.offset, stamp, kind, item.key, item.value, tuple(item.headers or ()))


def _millis(seconds: float) -> int:
    return max(1, int(seconds * 1000))
