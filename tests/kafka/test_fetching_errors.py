# SPDX-License-Identifier: Apache-2.0
"""A fetcher with failures that brokers do not produce on demand. No broker is needed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from kafka import TopicPartition
from kafka.errors import LogTruncationError, OffsetOutOfRangeError
from manual_clock import ManualClock

from forebay.errors import RetriableError
from forebay.sources.kafka.client.client_errors import PositionLostError
from forebay.sources.kafka.fetching import PartitionFetcher
from forebay.sources.kafka.records.batches import record_schema
from forebay.sources.kafka.split import KafkaSplit

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))


class Consumer:
    """Answers each poll with the next answer: records, or an error; then with nothing. A poll takes a second."""

    def __init__(self, clock, *answers, stable=100, written=100):
        self.clock, self.answers = clock, list(answers)
        self.stable, self.written = stable, written
        self.assigned, self.positions, self.level = set(), {}, None

    def connect(self, **arguments):
        probe = Consumer(self.clock, stable=self.stable, written=self.written)
        probe.assigned, probe.level = self.assigned, arguments.get("isolation_level")
        if self.level is None:
            self.level = probe.level or "read_uncommitted"
            return self
        return probe

    def assign(self, topic_partitions):
        self.assigned = set(topic_partitions)

    def assignment(self):
        return self.assigned

    def paused(self):
        return set()

    def seek(self, topic_partition, offset):
        self.positions[topic_partition] = offset

    def resume(self, topic_partition):
        assert topic_partition in self.assigned

    pause = resume

    def position(self, topic_partition, timeout_ms):
        return self.positions[topic_partition]

    def poll(self, timeout_ms, max_records):
        self.clock.advance(1)
        answer = self.answers.pop(0) if self.answers else {}
        if isinstance(answer, Exception):
            raise answer
        found = {
            topic_partition: [record(topic_partition, offset) for offset in offsets]
            for topic_partition, offsets in answer.items()
        }
        self.positions |= {topic_partition: offsets[-1] + 1 for topic_partition, offsets in answer.items()}
        return found

    def highwater(self, topic_partition):
        return self.written

    def partitions_for_topic(self, topic):
        return {topic_partition.partition for topic_partition in self.assigned}

    def beginning_offsets(self, topic_partitions, timeout_ms):
        return dict.fromkeys(topic_partitions, 0)

    def end_offsets(self, topic_partitions, timeout_ms):
        return dict.fromkeys(topic_partitions, self.stable if self.level == "read_committed" else self.written)

    def close(self, autocommit):
        self.assigned = set()


def record(topic_partition, offset):
    return SimpleNamespace(
        topic=topic_partition.topic,
        partition=topic_partition.partition,
        offset=offset,
        timestamp=0,
        timestamp_type=0,
        key=None,
        value=b"",
        headers=(),
    )


@pytest.fixture
def clock(without_internals):
    without_internals("raw bytes", "topic ids")  # the consumer has none
    return ManualClock()


def reading(consumer, *ranges, **arguments):
    made = PartitionFetcher(arguments, record_schema(["offset"]), clock=consumer.clock, connect=consumer.connect)
    for partition, start, end in ranges:
        made.assign(KafkaSplit(id=f"t/{partition}", position=start, end=end))
    return made


@pytest.mark.parametrize("error", [LogTruncationError({P0: None}), OffsetOutOfRangeError({P0: 2})])
def test_an_error_of_a_partition_that_is_read_to_its_end_is_ignored(clock, error):
    consumer = Consumer(clock, {P0: [0, 1]}, error, {P1: [0, 1, 2]})
    fetcher = reading(consumer, (0, 0, 2), (1, 0, 3))
    assert [part.split_id for part in fetcher.fetch(5) if part.finished] == ["t/0"]
    assert [part.split_id for part in fetcher.fetch(5) if part.finished] == ["t/1"]
    assert consumer.assigned == {P1}, "the consumer no longer reads it"


def test_each_truncated_partition_is_reported(clock):
    consumer = Consumer(clock, {P0: [0, 1]}, LogTruncationError({P0: None, P1: None, P2: None}))
    fetcher = reading(consumer, (0, 0, 2), (1, 0, 3), (2, 5, 9))
    fetcher.fetch(5)
    for partition, offset in ((1, 0), (2, 5)):
        with pytest.raises(PositionLostError, match="truncated") as caught:
            fetcher.fetch(5)
        assert (caught.value.partition, caught.value.offset, caught.value.truncated) == (partition, offset, True)
    assert fetcher.fetch(5) == []


@pytest.mark.parametrize("start", [5, 8])
def test_an_open_transaction_inside_a_range_is_waited_for_and_is_no_loss(clock, start):
    """It was planned as read_uncommitted, and is read again as read_committed."""
    consumer = Consumer(clock, stable=6, written=10)
    fetcher = reading(consumer, (0, start, 10), isolation_level="read_committed")
    fetcher.fetch(5)  # tells the position
    assert fetcher.fetch(60) == []
    with pytest.raises(RetriableError, match="a transaction is open from offset 6 on") as caught:
        fetcher.fetch(100)
    assert caught.value.position == str(start)
    assert "isolation.level" in caught.value.advice
    fetcher.clear()
    fetcher.assign(KafkaSplit(id="t/0", position=start, end=10))
    consumer.stable, consumer.answers = 10, [{}] * 20 + [{P0: [*range(start, 10)]}]
    while not (parts := fetcher.fetch(60))[-1].finished:
        assert parts, "it stands still"


@pytest.mark.parametrize(("level", "written"), [("read_committed", 9), ("read_uncommitted", 6)])
def test_an_end_that_nothing_was_written_up_to_is_a_loss(clock, level, written):
    fetcher = reading(Consumer(clock, stable=6, written=written), (0, 5, 10), isolation_level=level)
    fetcher.fetch(5)
    with pytest.raises(PositionLostError, match="the partition ends before"):
        fetcher.fetch(60)


def test_a_refused_offset_behind_an_open_transaction_is_there_after_all(clock):
    consumer = Consumer(clock, OffsetOutOfRangeError({P0: 5}), stable=6, written=10)
    with pytest.raises(PositionLostError) as caught:
        reading(consumer, (0, 5, 10), isolation_level="read_committed").fetch(60)
    assert caught.value.is_there
