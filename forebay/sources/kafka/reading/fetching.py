# SPDX-License-Identifier: Apache-2.0
"""Fetches ranges of offsets of many partitions with one consumer, as record batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import LogTruncationError, OffsetOutOfRangeError

from forebay.clock import Clock, SystemClock
from forebay.errors import ForebayError
from forebay.sources.kafka.client.clients import connect as connected
from forebay.sources.kafka.client.offset_loss import SILENT, Bounds, Inquiry, PositionLostError, stuck, unreachable
from forebay.sources.kafka.reading.fetch_backends import Fetched, Key, consuming
from forebay.sources.kafka.records.decoding import GROUP_BYTES
from forebay.sources.kafka.records.raw import RawFetch

FETCH_BYTES = 4 << 20
"""Of one partition in one fetch: decoding by columns needs many records at a time."""
ALL_BYTES = 16 << 20
"""Of all partitions in one fetch, from one broker. One is decoded while the next is under way: twice this is held."""

_SLICE = 0.05
"""Seconds in which `wake_up` is noticed."""
_STALL = 5.0
"""Seconds without progress after which the brokers are asked what is the matter."""
_CUT = "its log was cut off there, and written anew, when its leader changed"


@dataclass(frozen=True, slots=True)
class FetchedPart:
    """What `fetch` brought of one range.

    Args:
        topic: The topic.
        partition: The partition.
        batch: The records; None: there is only progress, or an end, to tell.
        next_offset: The next offset to read.
        finished: The range is read to its end; said once, and the fetcher has forgotten the range.
        caught_up: A range without an end: everything there was is read, for now; said once until more comes.
    """

    topic: str
    partition: int
    batch: pa.RecordBatch | None
    next_offset: int
    finished: bool
    caught_up: bool = False


@dataclass(slots=True)
class _Range:
    topic: str
    partition: int
    offset: int
    end: int | None
    waited: float = 0.0
    moved: float = 0.0
    told: bool = False

    @property
    def key(self) -> Key:
        return self.topic, self.partition

    @property
    def done(self) -> bool:
        return self.end is not None and self.offset >= self.end


class PartitionFetcher:
    """Reads ranges of any number of partitions through one consumer.

    Everything is called on one thread, except `wake_up`. The next bytes are asked for before the last ones are decoded,
    so that brokers, network and decoding work at the same time. May be used again after `clear`: connections stay.

    Args:
        arguments: Of kafka-python's `KafkaConsumer`: brokers, security, isolation level, client id ….
        schema: The wanted columns, from `record_schema`.
        check_crcs: Compare checksums.
        poll_timeout: Seconds without progress in a range with an end until that is an error; Spark's
            `kafkaConsumer.pollTimeoutMs`.
        clock: Where time comes from.
        by_columns: Decode by columns where kafka-python's inside allows it; else record by record.
        connect: Makes consumers, of their arguments; `KafkaConsumer` by default.

    Raises:
        RetriableError: No broker answers; their addresses are in the text.
        KafkaError: Anything else that the consumer refuses with.
    """

    def __init__(
        self,
        arguments: Mapping[str, object],
        schema: pa.Schema,
        *,
        check_crcs: bool = True,
        poll_timeout: float = 120.0,
        clock: Clock | None = None,
        by_columns: bool = True,
        connect: Callable[..., Any] | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._timeout = poll_timeout
        arguments = _completed(arguments, check_crcs=check_crcs)
        self._committed = arguments.get("isolation_level") == "read_committed"
        connect = connect or _connect
        try:
            self._consumer = connect(**arguments)
        except SILENT as error:
            raise unreachable(arguments, str(error)) from error
        self._inquiry = Inquiry(self._consumer, connect, arguments)
        self._consuming = consuming(self._consumer, schema, self._limits, check_crcs=check_crcs, by_columns=by_columns)
        self._ranges: dict[Key, _Range] = {}
        self._queued: deque[_Range] = deque()
        self._fetched: deque[Fetched] = deque()
        self._cut: deque[Key] = deque()
        self._failed: ForebayError | None = None
        self._asked = 0.0
        self._came = float("-inf")
        self._left = self._clock.monotonic()
        self._woken = False
        self._changed = False

    def assign(self, topic: str, partition: int, offset: int, end: int | None = None, *, waited: float = 0.0) -> None:
        """Read a range, beside those under way; does not block.

        A second range of a partition waits until the first one is read. An empty range is finished by `fetch`.

        Args:
            topic: The topic.
            partition: The partition.
            offset: The first offset to read.
            end: The offset to stop before; None: go on for ever.
            waited: Seconds that the first record was waited for before.
        """
        self._queued.append(_Range(topic, partition, offset, end, waited))

    def waited(self, topic: str, partition: int) -> float:
        """Return for how many seconds calls of `fetch` have waited for the next record of a partition."""
        one = self._ranges.get((topic, partition))
        return 0.0 if one is None else self._left - one.moved

    def drop(self, topic: str, partition: int) -> None:
        """Forget the ranges of a partition, and what is fetched of them. None there is no error."""
        key = (topic, partition)
        self._changed = self._ranges.pop(key, None) is not None or self._changed
        self._queued = deque(one for one in self._queued if one.key != key)
        self._fetched = deque(one for one in self._fetched if one[0] != key)

    def clear(self) -> None:
        """Forget all ranges, so that another task can use the connections."""
        self._changed = self._changed or bool(self._ranges)
        self._ranges.clear()
        self._queued.clear()
        self._fetched.clear()
        self._cut.clear()
        self._failed, self._woken = None, False

    def end_of(self, topic: str, partition: int) -> int | None:
        """Return where a broker last said that the partition ends for this reader; None: not heard yet."""
        return self._consuming.end_of((topic, partition))

    def fetch(self, timeout: float) -> list[FetchedPart]:
        """Return what there is, in order for each partition; wait for it if need be.

        Args:
            timeout: Seconds to wait, at most. A `wake_up` ends the wait, also one from before the call.

        Returns:
            Parts of one or more ranges, about 4 MiB together; nothing after the timeout or a `wake_up`.

        Raises:
            PositionLostError: Offsets of a range are gone; the range is forgotten.
            DataError: Damaged bytes; the range is forgotten.
            RetriableError: The brokers do not answer, or a range does not move.
            KafkaError: What else a broker refuses with, missing rights for example.
        """
        now = self._clock.monotonic()
        for one in self._ranges.values():  # what was done between two calls is no waiting for records
            one.moved += now - self._left
        try:
            return self._fetch(now + timeout)
        finally:
            self._left = self._clock.monotonic()

    def _fetch(self, deadline: float) -> list[FetchedPart]:
        while True:
            self._begin()
            parts = self._parts()
            left = deadline - self._clock.monotonic()
            if parts or self._woken or left <= 0 or not self._ranges:
                self._woken = False
                return parts
            self._poll(min(left, _SLICE))
            self._look_at_stalls()

    def wake_up(self) -> None:
        """Make a waiting `fetch` return promptly. Called from any thread; loses nothing."""
        self._woken = True

    def close(self) -> None:
        """Close the connections. Called once; safe after errors."""
        self.clear()
        self._consumer.close(autocommit=False)

    def _begin(self) -> None:
        """Begin the ranges that wait, and tell the consumer which partitions there are."""
        waiting, self._queued = self._queued, deque()
        begun: list[_Range] = []
        for one in waiting:
            if one.key in self._ranges:
                self._queued.append(one)
            else:
                self._ranges[one.key] = one
                begun.append(one)
        if not begun and not self._changed:
            return
        self._changed = False
        active = [one for one in self._ranges.values() if not one.done]
        self._consumer.assign([TopicPartition(*one.key) for one in active])
        for one in begun:
            one.moved = self._clock.monotonic() - one.waited
            if not one.done:
                self._consumer.seek(TopicPartition(*one.key), one.offset)
                # An earlier range of the partition has ended with a pause.
                self._consumer.resume(TopicPartition(*one.key))

    def _limits(self, topic: str, partition: int, offset: int) -> RawFetch | None:
        """Return what is wanted of a fetch; None where nobody waits for it any more."""
        one = self._ranges.get((topic, partition))
        if one is None or one.done:
            return None
        return RawFetch(topic, partition, memoryview(b""), offset, one.end, self._committed)

    def _parts(self) -> list[FetchedPart]:
        """Decode what is fetched, up to about one group of bytes, and tell finished ranges."""
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed
        # Ranges that were empty from the start.
        parts = [self._part(one, None, one.offset) for one in list(self._ranges.values()) if one.done]
        size = 0
        while size < GROUP_BYTES and self._fetched:
            key, pieces = self._fetched[0]
            one = self._ranges[key]
            try:
                piece = next(pieces, None)
            except ForebayError as error:
                self.drop(*key)
                if not parts:
                    raise
                self._failed = error  # what came before the damage is told first
                break
            if piece is not None:
                size += 0 if piece.batch is None else piece.batch.nbytes
                parts.append(self._part(one, piece.batch, piece.next_offset))
                continue
            self._fetched.popleft()
            if self._caught_up(one):
                parts.append(self._part(one, None, one.offset))
        return parts

    def _part(self, one: _Range, batch: pa.RecordBatch | None, offset: int) -> FetchedPart:
        if offset > one.offset:
            one.moved = self._came = self._clock.monotonic()
            one.told = False
        one.offset = offset
        caught_up = self._caught_up(one)
        one.told = one.told or caught_up
        if one.done:
            del self._ranges[one.key]
            self._fetched = deque(fetched for fetched in self._fetched if fetched[0] != one.key)
        return FetchedPart(*one.key, batch, offset, finished=one.done, caught_up=caught_up)

    def _caught_up(self, one: _Range) -> bool:
        """Whether a range without an end has come to what a broker says is the end, and that was not told yet."""
        if one.end is not None or one.told:
            return False
        end = self._consuming.end_of(one.key)
        return end is not None and one.offset >= end

    def _poll(self, seconds: float) -> None:
        """Let the consumer fetch, and tell of ranges that are lost, one by one: the consumer tells of all at once."""
        try:
            if not self._cut:
                self._fetched.extend(self._consuming.poll(seconds))
        except OffsetOutOfRangeError as error:
            self._changed = True  # a range that is read to its end is troubled no more
            for place, offset in error.args[0].items():
                if (key := (place.topic, place.partition)) in self._ranges:
                    raise self._lost(key, offset) from error
        except LogTruncationError as error:
            self._changed = True
            self._cut.extend((place.topic, place.partition) for place in error.divergent_offsets)
        while self._cut:
            if (key := self._cut.popleft()) in self._ranges:
                raise self._lost(key, self._ranges[key].offset, _CUT)

    def _lost(self, key: Key, offset: int, reason: str | None = None) -> PositionLostError:
        """Return the error for a range whose offsets are gone, and forget the range."""
        end = self._ranges[key].end
        bounds = self._bounds([self._ranges[key]])[0][key]
        self.drop(*key)
        return PositionLostError(*key, offset, end, bounds, reason)

    def _look_at_stalls(self) -> None:
        """Ask the brokers about ranges that have not moved for long.

        A range that has an end must move on; for one without an end, the brokers must be there.
        """
        now = self._clock.monotonic()
        patience = min(_STALL, self._timeout)
        still = [one for one in self._ranges.values() if now - max(one.moved, self._asked) >= patience]
        if not still:
            return
        bounds, held = self._bounds(still)
        self._asked = self._clock.monotonic()
        for one in still:
            found = bounds[one.key]
            if found is None or not found[0] <= one.offset <= found[1] or (one.end or 0) > found[1]:
                self.drop(*one.key)
                raise PositionLostError(*one.key, one.offset, one.end, found)
            # While others of the consumer are served, a partition may have to wait for its turn.
            if one.end is not None and now - max(one.moved, self._came) >= self._timeout:
                raise stuck(*one.key, one.offset, now - one.moved, found[1], held.get(one.key))

    def _bounds(self, ranges: Sequence[_Range]) -> tuple[dict[Key, Bounds | None], dict[Key, int]]:
        """Return what there is of partitions, and from where on an open transaction holds back what is wanted of them.

        What is now read as read_committed may have been planned without, up to records that are held back: they are
        there, and no loss.
        """
        bounds = self._inquiry.bounds([one.key for one in ranges])
        if not self._committed:
            return bounds, {}
        short = {
            one.key: found
            for one in ranges
            if (found := bounds[one.key]) is not None and max(one.offset, one.end or 0) > found[1]
        }
        written = self._inquiry.written([*short])
        held = {key: found for key, found in short.items() if written[key] > found[1]}
        lifted = {key: (found[0], written[key]) for key, found in held.items()}
        return {**bounds, **lifted}, {key: found[1] for key, found in held.items()}


def _connect(**arguments: object) -> Any:  # noqa: ANN401 - kafka-python has no types
    return connected(KafkaConsumer, arguments)


def _completed(arguments: Mapping[str, object], *, check_crcs: bool) -> dict[str, object]:
    """Return a consumer's arguments: what reading needs, over what users say, over what reading likes."""
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
