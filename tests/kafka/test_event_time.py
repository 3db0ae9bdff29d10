# SPDX-License-Identifier: Apache-2.0
"""Event time of Kafka records: where the next one of a partition is in time."""

from __future__ import annotations

import uuid

import kafka as kafka_python
import pytest

from forebay.clock import SystemClock
from forebay.sources.kafka.planning.event_times import RecordTimes
from forebay.sources.kafka.source import KafkaSource
from forebay.sources.kafka.split import KafkaSplit

BASE = 1_700_000_000_000
"""Milliseconds since 1970."""


def write(kafka, topic, times, **producer):
    """Write records with these timestamps, in ms after BASE, by partition."""
    given = {"bootstrap_servers": kafka.address, "acks": "all", **producer}
    with kafka_python.KafkaProducer(**given) as sending:
        if "transactional_id" in producer:
            sending.init_transactions()
            sending.begin_transaction()
        for partition, all_at in times.items():
            for at in all_at:
                sending.send(topic, str(at).encode(), partition=partition, timestamp_ms=BASE + at)
        if "transactional_id" in producer:
            sending.commit_transaction()
        sending.flush()


@pytest.fixture
def times(kafka):
    """Return a function that looks times up, in ms after BASE."""
    opened = []

    def look(topic, *ranges, **options):
        source = KafkaSource(subscribe=[topic], kafka={"bootstrap.servers": kafka.address, **options})
        looking = RecordTimes(source, SystemClock())
        opened.append(looking)
        splits = [KafkaSplit(id=f"{topic}/{partition}", position=start, end=end) for partition, start, end in ranges]
        found = looking.of(splits)
        return {name.split("/")[1]: us // 1000 - BASE for name, us in found.items()}

    yield look
    for one in opened:
        one.close()


def test_the_time_of_the_next_record_or_of_the_last_one(kafka, times):
    topic = kafka.topic(4)
    write(kafka, topic, {0: range(100), 1: [7], 2: [3, 1, 2]})
    asked = [(0, 42, 100), (1, 1, 1), (2, 1, 3), (3, 0, 0)]
    assert times(topic, *asked) == {"0": 42, "1": 7, "2": 1}


def test_the_last_record_is_found_before_the_markers_of_transactions(kafka, times):
    topic = kafka.topic()
    for at in range(3):
        write(kafka, topic, {0: [at]}, transactional_id=uuid.uuid4().hex)
    assert times(topic, (0, 6, 6), **{"isolation.level": "read_committed"}) == {"0": 2}
    assert times(topic, (0, 1, 6), **{"isolation.level": "read_committed"}) == {"0": 1}


def test_a_gap_is_skipped_and_lost_offsets_have_no_time(kafka, times):
    topic = kafka.topic(2)
    write(kafka, topic, {0: range(50), 1: range(50)})
    kafka.lose(topic, 0, 20)
    assert times(topic, (0, 10, 50), (1, 10, 50)) == {"1": 10}


def test_log_append_time(kafka, times):
    topic = kafka.topic(message_timestamp_type="LogAppendTime")
    write(kafka, topic, {0: [0]})
    assert times(topic, (0, 0, 1))["0"] > 10_000_000


def test_record_batches_larger_than_a_fetch(kafka, times):
    topic = kafka.topic(3)
    given = {"bootstrap_servers": kafka.address, "acks": "all", "batch_size": 900_000, "linger_ms": 2000}
    with kafka_python.KafkaProducer(**given) as sending:
        for partition in range(3):
            for at in range(8):
                sending.send(topic, bytes(100_000), partition=partition, timestamp_ms=BASE + at)
        sending.flush()
    assert times(topic, (0, 5, 8), (1, 6, 8), (2, 7, 8)) == {"0": 5, "1": 6, "2": 7}
