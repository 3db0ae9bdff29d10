# SPDX-License-Identifier: Apache-2.0
"""Two ways to take what a consumer has fetched: as bytes, decoded by columns, or as anybody would, record by record."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pyarrow as pa
from kafka import TopicPartition
from kafka.version import __version__ as kafka_python

from forebay.sources.kafka.client import kafka_internals
from forebay.sources.kafka.records.columnar import ColumnarDecoder
from forebay.sources.kafka.records.decoding import Decoded
from forebay.sources.kafka.records.parsing import Record
from forebay.sources.kafka.records.plain import PlainDecoder
from forebay.sources.kafka.records.raw import RawFetch

_log = logging.getLogger(__name__)

_MANY = 1 << 30
_SLOW_RECORDS = 10_000

Key = tuple[str, int]
Limits = Callable[[str, int, int], RawFetch | None]
"""Says what of a partition, from an offset on, is wanted: a RawFetch without bytes; None: nothing."""
Fetched = tuple[Key, Iterator[Decoded]]


class Consuming(Protocol):
    """Polls a consumer. For one thread."""

    def poll(self, seconds: float) -> list[Fetched]:
        """Wait for fetches, at most so long, and return them to be decoded, in order.

        Raises:
            KafkaError: What the consumer meets.
        """

    def end_of(self, key: Key) -> int | None:
        """Return where a broker last said that a partition ends for this reader; None: not heard yet."""


def consuming(
    consumer: Any,  # noqa: ANN401 - kafka-python has no types
    schema: pa.Schema,
    limits: Limits,
    *,
    check_crcs: bool,
    by_columns: bool,
) -> Consuming:
    """Return the quick way where kafka-python's inside is as expected and it is wanted, else the slow one.

    Args:
        consumer: The consumer.
        schema: The wanted columns.
        limits: What of a partition is wanted.
        check_crcs: Compare checksums; the slow way leaves it to the consumer.
        by_columns: Take the quick way if possible.
    """
    if not by_columns:
        return _ByRecord(consumer, schema, limits)
    misfit = kafka_internals.misfit()
    if misfit is not None:
        _log.warning("kafka-python %s is not as expected (%s): records are read one by one", kafka_python, misfit)
        return _ByRecord(consumer, schema, limits)
    return _ByColumns(consumer, schema, limits, check_crcs=check_crcs)


class _ByColumns:
    def __init__(self, consumer: Any, schema: pa.Schema, limits: Limits, *, check_crcs: bool) -> None:  # noqa: ANN401
        self._consumer = consumer
        self._decoder = ColumnarDecoder(schema, check_crcs=check_crcs)
        self._ends = kafka_internals.give_raw(consumer, limits)
        if kafka_internals.receiver_misfit() is None:
            kafka_internals.receive_fast(consumer)

    def poll(self, seconds: float) -> list[Fetched]:
        found = self._consumer.poll(timeout_ms=_millis(seconds), max_records=_MANY)
        fetches = [one for items in found.values() for one in items]
        if fetches:
            kafka_internals.ask_ahead(self._consumer)
        return [((one.topic, one.partition), self._decoder.decode(one)) for one in fetches]

    def end_of(self, key: Key) -> int | None:
        return self._ends.get(key)


class _ByRecord:
    def __init__(self, consumer: Any, schema: pa.Schema, limits: Limits) -> None:  # noqa: ANN401
        self._consumer = consumer
        self._decoder = PlainDecoder(schema)
        self._limits = limits
        self._told: dict[Key, int] = {}

    def poll(self, seconds: float) -> list[Fetched]:
        found = self._consumer.poll(timeout_ms=_millis(seconds), max_records=_SLOW_RECORDS)
        fetched: list[Fetched] = []
        # Partitions without records are looked at too: their positions move over what is no record.
        for place in self._consumer.assignment() - self._consumer.paused():
            key = (place.topic, place.partition)
            items = found.get(place, ())
            after = self._consumer.position(place, timeout_ms=0)
            wanted = self._limits(*key, items[0].offset if items else after or 0)
            if wanted is None or after is None or (not items and after == self._told.get(key)):
                continue
            self._told[key] = after
            rows = [_record(item) for item in items if wanted.end is None or item.offset < wanted.end]
            after = after if wanted.end is None else min(after, wanted.end)
            if after == wanted.end:
                self._consumer.pause(place)
            table = self._decoder.table(rows, wanted) if rows else None
            fetched.append((key, iter([Decoded(table, after)])))
        return fetched

    def end_of(self, key: Key) -> int | None:
        place = TopicPartition(*key)
        return self._consumer.highwater(place) if place in self._consumer.assignment() else None


def _record(item: Any) -> Record:  # noqa: ANN401 - kafka-python has no types
    stamp = -1 if item.timestamp is None else item.timestamp
    kind = -1 if item.timestamp_type is None else item.timestamp_type
    return Record(item.offset, stamp, kind, item.key, item.value, tuple(item.headers or ()))


def _millis(seconds: float) -> int:
    return max(1, int(seconds * 1000))
