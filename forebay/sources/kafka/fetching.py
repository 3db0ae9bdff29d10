# SPDX-License-Identifier: Apache-2.0
"""Fetches ranges of offsets of many partitions with one consumer, and returns them as record batches."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any

import pyarrow as pa
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import LogTruncationError, OffsetOutOfRangeError
from kafka.version import __version__ as kafka_python

from forebay.clock import Clock, SystemClock
from forebay.errors import ForebayError
from forebay.framework.split_reader import Fetched
from forebay.sources.kafka.client import kafka_internals
from forebay.sources.kafka.client.client_errors import (
    Bounds,
    BoundsProbe,
    Key,
    PositionLostError,
    TopicIdRefusedError,
    must_answer,
    stuck,
)
from forebay.sources.kafka.records.batches import (
    GROUP_BYTES,
    MAX_BATCH_BYTES,
    Decoded,
    RawFetch,
    Record,
    record_table,
)
from forebay.sources.kafka.records.columnar import ColumnarDecoder
from forebay.sources.kafka.split import KafkaSplit

# -- A range of offsets that a fetcher reads, and its state.


class RangeState(Enum):
    """The state of a range of offsets that a fetcher reads.

    A range is NEW until the next fetch, then READING, and FINISHED at its end. A range without an end changes between
    READING and CAUGHT_UP.
    """

    NEW = auto()
    READING = auto()
    CAUGHT_UP = auto()
    FINISHED = auto()


@dataclass(slots=True)
class FetchRange:
    """A range of offsets of one partition.

    Args:
        split_id: The id of the split of this range.
        key: Topic and number of the partition.
        offset: The next offset to read.
        end: The offset to stop before; None = no end.
        waited: Seconds for which earlier attempts waited for the first record.
        topic_id: The id of the topic; None = unknown.
    """

    split_id: str
    key: Key
    offset: int
    end: int | None
    waited: float = 0.0
    topic_id: str | None = None
    state: RangeState = RangeState.NEW
    progress_at: float = 0.0
    """When the offset last moved, in clock seconds; shifted by the time spent outside of `fetch`."""

    def begin(self, now: float) -> None:
        """Start reading the range. An empty range is finished at once."""
        self.progress_at = now - self.waited
        self._move_to(self.offset)

    def advance(self, offset: int, now: float) -> bool:
        """Move the range to an offset; return whether it is after the present one."""
        if offset <= self.offset:
            return False
        self.progress_at = now
        self._move_to(offset)
        return True

    def is_at(self, partition_end: int | None) -> bool:
        """Return whether a READING range without an end has reached the end of its partition."""
        at_end = partition_end is not None and self.offset >= partition_end
        return self.state is RangeState.READING and self.end is None and at_end

    def _move_to(self, offset: int) -> None:
        self.offset = offset
        done = self.end is not None and offset >= self.end
        self.state = RangeState.FINISHED if done else RangeState.READING


# -- Fetches ranges of offsets of many partitions with one consumer, and returns them as record batches.


FETCH_BYTES = 4 << 20
"""Maximum bytes of one partition in one fetch; the columnar decoder is fast on many records."""
ALL_BYTES = 16 << 20
"""Maximum bytes of one fetch from one broker. Memory holds two fetches: one is decoded while the next one arrives."""

_SLICE = 0.05
"""Maximum seconds of one poll. A `wake_up` takes effect after the running poll."""
_STALL = 5.0
"""Seconds without progress before the fetcher asks the brokers for the cause."""
_REFUSED = 0.5
"""Seconds without progress if a broker does not know the topic id: it may not know a new topic yet."""
_TRUNCATED = "the log was truncated there when its leader changed"


class PartitionFetcher:
    """Reads ranges of any number of partitions through one consumer; at most one range of a partition at a time.

    All methods but `wake_up` are called on one thread. The fetcher requests the next bytes before it decodes the last
    ones, so brokers, network and decoding work at the same time. After `clear` it serves another task on the same
    connections.

    Args:
        arguments: Arguments of kafka-python's `KafkaConsumer`: brokers, security, isolation level, client id, ….
        schema: The wanted columns, from `record_schema`.
        check_crcs: Whether to verify the checksums of record batches.
        poll_timeout: Seconds without progress in a range with an end after which an error is raised; Spark's
            `kafkaConsumer.pollTimeoutMs`.
        max_record_bytes: The most bytes of a record batch, decompressed.
        clock: The clock that measures the timeouts; None = the system's.
        connect: A function that makes a consumer from its arguments; by default a `KafkaConsumer`.

    Raises:
        RetriableError: No broker answers; the text names their addresses.
        KafkaError: The consumer fails for another reason.
    """

    def __init__(
        self,
        arguments: Mapping[str, object],
        schema: pa.Schema,
        *,
        check_crcs: bool = True,
        poll_timeout: float = 120.0,
        max_record_bytes: int = MAX_BATCH_BYTES,
        clock: Clock | None = None,
        connect: Callable[..., Any] | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._timeout = poll_timeout
        self._arguments = _with_defaults(arguments, check_crcs=check_crcs)
        self._committed = self._arguments.get("isolation_level") == "read_committed"
        self._connect = connect or _connect
        self._make_backend = partial(
            fetch_backend,
            schema=schema,
            next_range=self._next_range,
            check_crcs=check_crcs,
            limit=max_record_bytes,
        )
        self._open()
        self._ranges: dict[Key, FetchRange] = {}
        self._fetched: deque[FetchedRecords] = deque()
        self._truncated: deque[Key] = deque()
        self._failed: ForebayError | None = None
        self._asked_at = 0.0
        self._progress_at = float("-inf")
        self._returned_at = self._clock.monotonic()
        self._woken = False
        self._changed = False

    def _open(self) -> None:
        with must_answer(self._arguments):
            self._consumer = self._connect(**self._arguments)
        self._probe = BoundsProbe(self._consumer, self._connect, self._arguments)
        self._backend = self._make_backend(self._consumer)
        usable = kafka_internals.unexpected_internal("topic ids") is None
        self._topic_ids = kafka_internals.TopicIds(self._consumer) if usable else None
        self._is_of_another_topic = False

    @property
    def by_topic_id(self) -> bool:
        """Whether the brokers read by topic id, and so refuse a topic that was deleted and created again."""
        return self._topic_ids is not None and self._topic_ids.applied is not False

    def assign(self, split: KafkaSplit, *, waited: float = 0.0) -> None:
        """Add the range of a split; does not block. `fetch` finishes an empty range.

        Args:
            split: The range. The fetcher must have no other range of its partition.
            waited: Seconds for which earlier attempts waited for the first record.
        """
        key = TopicPartition(*split.topic_partition)
        end = split.end if isinstance(split.end, int) else None
        self._ranges[key] = FetchRange(split.id, key, split.start, end, waited, split.topic_id)
        self._changed = True
        if self._topic_ids is not None and not self._topic_ids.set(key, split.topic_id):
            self._is_of_another_topic = True

    def waited(self, key: Key) -> float:
        """Return the seconds that calls of `fetch` have waited for the next record of a partition."""
        assigned = self._ranges.get(key)
        return 0.0 if assigned is None or assigned.state is RangeState.NEW else self._returned_at - assigned.progress_at

    def drop(self, key: Key) -> None:
        """Drop the range of a partition and its fetched records, if there are any."""
        self._changed = self._ranges.pop(key, None) is not None or self._changed
        self._fetched = deque(fetched for fetched in self._fetched if fetched[0] != key)

    def clear(self) -> None:
        """Drop all ranges, so that another task can use the connections."""
        self._changed = self._changed or bool(self._ranges)
        self._ranges.clear()
        self._fetched.clear()
        self._truncated.clear()
        self._failed, self._woken = None, False

    def fetch(self, timeout: float) -> list[Fetched]:
        """Return available records, about 4 MiB, in order for each partition. If there are none, wait for new records.

        Args:
            timeout: Maximum seconds to wait. A `wake_up` ends the wait, even if it was called before `fetch`.

        Raises:
            PositionLostError: Offsets of a range no longer exist, or a broker does not know its topic id. The range is
                dropped.
            DataError: Fetched bytes are damaged. The range is dropped.
            RetriableError: The brokers do not answer, or a range makes no progress.
            KafkaError: A broker refuses the request, for example because a permission is missing.
        """
        now = self._clock.monotonic()
        for assigned in self._ranges.values():  # the time between two calls does not count as waiting
            assigned.progress_at += now - self._returned_at
        try:
            return self._fetch(now + timeout)
        finally:
            self._returned_at = self._clock.monotonic()

    def _fetch(self, deadline: float) -> list[Fetched]:
        while True:
            self._begin()
            parts = self._parts()
            left = deadline - self._clock.monotonic()
            if parts or self._woken or left <= 0 or not self._ranges:
                self._woken = False
                return parts
            self._poll(min(left, _SLICE))
            self._check_stalls()

    def wake_up(self) -> None:
        """Make a waiting `fetch` return promptly. Called from any thread; loses nothing."""
        self._woken = True

    def close(self) -> None:
        """Close the connections. Called once; safe after errors."""
        self.clear()
        self._consumer.close(autocommit=False)

    def _begin(self) -> None:
        """Begin new ranges, and assign the partitions of all ranges to the consumer."""
        if not self._changed:
            return
        self._changed = False
        new = [assigned for assigned in self._ranges.values() if assigned.state is RangeState.NEW]
        for assigned in new:
            assigned.begin(self._clock.monotonic())
        if self._is_of_another_topic:
            # The consumer may have fetched records of the earlier topic, and its fetch sessions have the earlier id.
            self._consumer.close(autocommit=False)
            self._fetched.clear()
            self._open()
            new = list(self._ranges.values())
            for assigned in new:
                if self._topic_ids is not None:
                    self._topic_ids.set(assigned.key, assigned.topic_id)
        self._consumer.assign(
            [assigned.key for assigned in self._ranges.values() if assigned.state is not RangeState.FINISHED]
        )
        for assigned in new:
            if assigned.state is not RangeState.FINISHED:
                self._consumer.seek(assigned.key, assigned.offset)
                self._consumer.resume(assigned.key)  # the end of an earlier range of this partition paused it

    def _next_range(self, topic: str, partition: int, offset: int) -> RawFetch | None:
        """Return the range of a partition to read from an offset on, as a RawFetch without bytes; None = nothing."""
        assigned = self._ranges.get((topic, partition))
        if assigned is None or assigned.state is RangeState.FINISHED:
            return None
        return RawFetch(topic, partition, memoryview(b""), offset, assigned.end, self._committed)

    def _parts(self) -> list[Fetched]:
        """Decode fetched records up to about GROUP_BYTES, and report finished ranges."""
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed
        empty = [assigned for assigned in self._ranges.values() if assigned.state is RangeState.FINISHED]
        parts = [self._part(assigned, None, assigned.offset) for assigned in empty]
        size = 0
        while size < GROUP_BYTES and self._fetched:
            key, decoded = self._fetched[0]
            assigned = self._ranges[key]
            try:
                piece = next(decoded, None)
            except ForebayError as error:
                self.drop(key)
                if not parts:
                    raise
                self._failed = error  # raised by the next call, after the parts before the damage
                break
            if piece is not None:
                size += 0 if piece.batch is None else piece.batch.nbytes
                parts.append(self._part(assigned, piece.batch, piece.next_offset))
                continue
            self._fetched.popleft()
            if assigned.is_at(self._backend.end_of(assigned.key)):
                parts.append(self._part(assigned, None, assigned.offset))
        return parts

    def _part(self, assigned: FetchRange, batch: pa.RecordBatch | None, offset: int) -> Fetched:
        now = self._clock.monotonic()
        if assigned.advance(offset, now):
            self._progress_at = now
        caught_up = assigned.is_at(self._backend.end_of(assigned.key))
        if caught_up:
            assigned.state = RangeState.CAUGHT_UP
        finished = assigned.state is RangeState.FINISHED
        if finished:
            del self._ranges[assigned.key]
            self._fetched = deque(fetched for fetched in self._fetched if fetched[0] != assigned.key)
        return Fetched(assigned.split_id, batch, offset, finished=finished, caught_up=caught_up)

    def _poll(self, seconds: float) -> None:
        """Let the consumer fetch. kafka-python reports several lost positions at once; they are raised one by one."""
        try:
            if not self._truncated:
                self._fetched.extend(self._backend.poll(seconds))
        except OffsetOutOfRangeError as error:
            self._changed = True  # assign again, without partitions that are read to their end
            for key, offset in error.args[0].items():
                if key in self._ranges:
                    raise self._lost(key, offset) from error
        except LogTruncationError as error:
            self._changed = True
            self._truncated.extend(error.divergent_offsets)
        while self._truncated:
            if (key := self._truncated.popleft()) in self._ranges:
                raise self._lost(key, self._ranges[key].offset, _TRUNCATED)

    def _lost(self, key: Key, offset: int, reason: str | None = None) -> PositionLostError:
        """Drop a range whose offsets no longer exist, and return the error to raise."""
        end = self._ranges[key].end
        bounds = self._bounds([self._ranges[key]])[0][key]
        self.drop(key)
        return PositionLostError(*key, offset, end, bounds, reason)

    def _check_stalls(self) -> None:
        """Ask the brokers why ranges make no progress. Raise an error if the offsets of such a range no longer exist.

        For a range with an end, also raise an error if it makes no progress for `poll_timeout`. A range without an end
        may wait for ever, while the brokers answer.
        """
        now = self._clock.monotonic()
        patience = min(_STALL, self._timeout)
        stalled = [
            assigned
            for assigned in self._ranges.values()
            if now - max(assigned.progress_at, self._asked_at) >= patience
        ]
        ids = self._topic_ids
        for assigned in self._ranges.values():
            if ids is not None and now - assigned.progress_at >= _REFUSED and ids.is_refused(assigned.key):
                self.drop(assigned.key)
                raise TopicIdRefusedError(*assigned.key, assigned.offset, assigned.end, None)
        if not stalled:
            return
        bounds, held = self._bounds(stalled)
        self._asked_at = self._clock.monotonic()
        for assigned in stalled:
            limits = bounds[assigned.key]
            if limits is None or not limits[0] <= assigned.offset <= limits[1] or (assigned.end or 0) > limits[1]:
                self.drop(assigned.key)
                raise PositionLostError(*assigned.key, assigned.offset, assigned.end, limits)
            # While the consumer serves other partitions, this partition may have to wait for its turn.
            if assigned.end is not None and now - max(assigned.progress_at, self._progress_at) >= self._timeout:
                raise stuck(
                    *assigned.key, assigned.offset, now - assigned.progress_at, limits[1], held.get(assigned.key)
                )

    def _bounds(self, ranges: Sequence[FetchRange]) -> tuple[dict[Key, Bounds | None], dict[Key, int]]:
        """Return the bounds of the partitions, and for partitions with held-back records the last stable offset.

        Under read_committed, an open transaction holds back the records of a micro-batch that was planned before this
        isolation level was set. As these records exist, the bounds of such a partition end at the high watermark.
        """
        bounds = self._probe.bounds([assigned.key for assigned in ranges])
        if not self._committed:
            return bounds, {}
        short = {
            assigned.key: limits
            for assigned in ranges
            if (limits := bounds[assigned.key]) is not None and max(assigned.offset, assigned.end or 0) > limits[1]
        }
        written = self._probe.written([*short])
        held = {key: limits for key, limits in short.items() if written[key] > limits[1]}
        lifted = {key: (limits[0], written[key]) for key, limits in held.items()}
        return {**bounds, **lifted}, {key: limits[1] for key, limits in held.items()}


def _connect(**arguments: object) -> Any:  # noqa: ANN401 - kafka-python has no types
    return kafka_internals.connect(KafkaConsumer, arguments)


def _with_defaults(arguments: Mapping[str, object], *, check_crcs: bool) -> dict[str, object]:
    """Return a consumer's arguments: the user's override defaults; those that reading requires override both."""
    return {
        "max_partition_fetch_bytes": FETCH_BYTES,
        "fetch_max_bytes": ALL_BYTES,
        "metrics_enabled": False,
        **arguments,
        "group_id": None,
        "enable_auto_commit": False,
        "auto_offset_reset": "none",
        "check_crcs": check_crcs,
        "allow_auto_create_topics": False,
    }


# -- Polls a consumer in one of two ways: raw bytes that are decoded by columns, or kafka-python's records one by one.


_log = logging.getLogger(__name__)

_ALL_RECORDS = 1 << 30
_RECORDS_PER_POLL = 10_000

NextRange = Callable[[str, int, int], RawFetch | None]
"""A function of topic, partition and offset. Returns the range to read as a RawFetch without bytes; None = nothing."""
FetchedRecords = tuple[Key, Iterator[Decoded]]
"""A partition, and its fetched records, decoded when iterated."""


def fetch_backend(
    consumer: Any,  # noqa: ANN401 - kafka-python has no types
    schema: pa.Schema,
    next_range: NextRange,
    *,
    check_crcs: bool,
    limit: int,
) -> _ColumnarBackend | _RecordBackend:
    """Return the columnar backend; if kafka-python's internals are not as expected, the one that reads by records."""
    unexpected = kafka_internals.unexpected_internal("raw bytes")
    if unexpected is not None:
        _log.warning(
            "kafka-python %s has unexpected internals (%s), so records are read one by one, which is slower",
            kafka_python,
            unexpected,
        )
        return _RecordBackend(consumer, schema, next_range)
    return _ColumnarBackend(consumer, next_range, ColumnarDecoder(schema, check_crcs=check_crcs, limit=limit))


class _ColumnarBackend:
    """Returns the fetched bytes of partitions, decoded by columns when iterated. Called on one thread."""

    def __init__(self, consumer: Any, next_range: NextRange, decoder: ColumnarDecoder) -> None:  # noqa: ANN401
        self._consumer = consumer
        self._decoder = decoder
        self._ends = kafka_internals.give_raw(consumer, next_range)

    def poll(self, seconds: float) -> list[FetchedRecords]:
        polled = self._consumer.poll(timeout_ms=_millis(seconds), max_records=_ALL_RECORDS)
        fetches = [fetch for items in polled.values() for fetch in items]
        if fetches:
            kafka_internals.ask_ahead(self._consumer)
        return [((fetch.topic, fetch.partition), self._decoder.decode(fetch)) for fetch in fetches]

    def end_of(self, key: Key) -> int | None:
        """Return the end of a partition, as its last fetch reported it for the isolation level; None = no fetch yet."""
        return self._ends.get(key)


class _RecordBackend:
    """Returns the records that kafka-python parses one by one. Called on one thread."""

    def __init__(self, consumer: Any, schema: pa.Schema, next_range: NextRange) -> None:  # noqa: ANN401
        self._consumer = consumer
        self._schema = schema
        self._next_range = next_range
        self._reported: dict[Key, int] = {}

    def poll(self, seconds: float) -> list[FetchedRecords]:
        polled = self._consumer.poll(timeout_ms=_millis(seconds), max_records=_RECORDS_PER_POLL)
        fetched: list[FetchedRecords] = []
        # Positions also move over control and compacted records, so partitions without records count too.
        for partition in self._consumer.assignment() - self._consumer.paused():
            items = polled.get(partition, ())
            after = self._consumer.position(partition, timeout_ms=0)
            fetch = self._next_range(partition.topic, partition.partition, items[0].offset if items else after or 0)
            if fetch is None or after is None or (not items and after == self._reported.get(partition)):
                continue
            self._reported[partition] = after
            rows = [_record(item) for item in items if fetch.end is None or item.offset < fetch.end]
            after = after if fetch.end is None else min(after, fetch.end)
            if after == fetch.end:
                self._consumer.pause(partition)
            table = record_table(self._schema, rows, fetch) if rows else None
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
