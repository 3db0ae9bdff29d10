# SPDX-License-Identifier: Apache-2.0
"""Event time of Kafka records: where the next one of a partition is in time."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime

import kafka as kafka_python
import pytest

from forebay.clock import SystemClock
from forebay.framework.microbatch.alignment import StreamAlignment
from forebay.framework.microbatch.stream_planner import open_stream
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.split import Json
from forebay.sources.kafka.enumerator import KafkaEnumerator
from forebay.sources.kafka.event_times import RecordTimes
from forebay.sources.kafka.source import KafkaSource
from forebay.sources.kafka.split import KafkaSplit

BASE = 1_700_000_000_000
"""Milliseconds since 1970."""


def write(kafka, topic, times, *, abort=False, size=1, **producer):
    """Write records with these timestamps, in ms after BASE, by partition; in a transaction, if it has an id."""
    given = {"bootstrap_servers": kafka.address, "acks": "all", **producer}
    with kafka_python.KafkaProducer(**given) as sending:
        if "transactional_id" in producer:
            sending.init_transactions()
            sending.begin_transaction()
        for partition, all_at in times.items():
            for at in all_at:
                sending.send(topic, bytes(size), partition=partition, timestamp_ms=BASE + at)
        if "transactional_id" in producer:
            sending.flush()
            sending.abort_transaction() if abort else sending.commit_transaction()
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


def test_the_last_record_is_found_where_those_before_it_are_lost(kafka, times):
    topic = kafka.topic()
    write(kafka, topic, {0: range(30)})
    kafka.lose(topic, 0, 20)
    assert times(topic, (0, 30, 30)) == {"0": 29}


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


def through(data):
    """Return what comes back from Spark's log."""
    return json.loads(json.dumps(data))


@pytest.fixture
def enumerator(kafka):
    """Return a function that makes the enumerator of a topic."""
    opened = []

    def make(topic, **options):
        source = KafkaSource(subscribe=[topic], kafka={"bootstrap.servers": kafka.address, **options})
        opened.append(KafkaEnumerator(source, SystemClock(), streaming=True))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def at(milliseconds):
    return (BASE + milliseconds) * 1000


def test_the_record_that_ended_a_micro_batch_is_not_fetched_again(kafka, enumerator, monkeypatch):
    topic = kafka.topic()
    write(kafka, topic, {0: range(100)})
    asked = enumerator(topic)
    split = KafkaSplit(id=f"{topic}/0", position=0, end=100)
    assert asked.positions_at(at(42), [split]) == {split.id: 42}
    monkeypatch.setattr(RecordTimes, "_connected", lambda self: pytest.fail("fetched"))
    assert asked.event_times([split.at(42)], "timestamp") == {split.id: at(42)}
    with pytest.raises(pytest.fail.Exception, match="fetched"):
        asked.event_times([split.at(43)], "timestamp")


def test_dis4_a_time_is_searched_from_the_position_where_an_earlier_record_is_later(kafka, enumerator, monkeypatch):
    """DIS-4. Brokers search from the beginning of a partition."""
    topic = kafka.topic(message_timestamp_after_max_ms=str(2**62))
    write(kafka, topic, {0: [0, 10**12, *range(1, 1000)]}, size=1000)
    asked = enumerator(topic)
    split = KafkaSplit(id=f"{topic}/0", position=2, end=1001)
    for first in (1, 2, 500, 999):
        assert asked.positions_at(at(first), [split]) == {split.id: first + 1}
        assert asked.event_times([split.at(first + 1)], "timestamp") == {split.id: at(first)}
    assert asked.positions_at(at(1000), [split]) == {split.id: 1001}
    monkeypatch.setattr("forebay.sources.kafka.event_times._SCANNED", 100)
    (to,) = asked.positions_at(at(999), [split]).values()
    assert 102 <= to < 500  # it ends with the fetch that has the last one of these records
    kafka.lose(topic, 0, 10)
    assert asked._record_times.first_at(at(999), [(split, 1, BASE)]) == {}  # deleted after the broker's answer


def test_a_time_is_not_searched_among_records_of_aborted_transactions(kafka, enumerator):
    topic = kafka.topic()
    write(kafka, topic, {0: range(10)})
    write(kafka, topic, {0: [1000]}, transactional_id=uuid.uuid4().hex, abort=True)
    write(kafka, topic, {0: range(10, 20)})
    split = KafkaSplit(id=f"{topic}/0", position=10, end=22)
    committed = {"isolation.level": "read_committed"}
    assert enumerator(topic, **committed).positions_at(at(15), [split]) == {split.id: 17}
    assert enumerator(topic).positions_at(at(15), [split]) == {split.id: 10}


@pytest.mark.soak
def test_after_an_absurd_record_a_micro_batch_costs_as_many_requests_as_before(kafka, monkeypatch, request):
    topic = kafka.topic(2, message_timestamp_after_max_ms=str(2**62))
    times = {0: [0, 10**12, *range(1, 2000)], 1: [*range(0, 2000, 2)]}
    write(kafka, topic, times)
    source = KafkaSource(subscribe=[topic], starting_offsets="earliest", kafka={"bootstrap.servers": kafka.address})
    planner = open_stream(source, HostOptions(alignment_max_drift="200ms"), parallelism=1)
    request.addfinalizer(planner.close)
    asked = Counter()
    for name in ("positions_at", "event_times"):
        real = getattr(KafkaEnumerator, name)
        monkeypatch.setattr(
            KafkaEnumerator, name, lambda *given, name=name, real=real: (asked.update([name]), real(*given))[1]
        )
    start, turns = through(planner.initial()), 0
    while (end := through(planner.latest(start))) != start:
        for task in planner.tasks(start, end):
            for part in task.slices:
                partition = int(part.id[-1])
                believed = [one for one in times[partition][part.position : part.end] if one < 10**12]
                assert max(believed, default=0) - min(believed, default=0) <= 400
        start, turns = end, turns + 1
    assert {entry[1] for entry in start["splits"]} == {2001, 1000}
    assert turns >= 9
    assert max(asked.values()) <= 2 * turns


def seconds_of(records):
    """Return the JSON records of these seconds after BASE; None is a damaged one."""
    for second in records:
        at = datetime.fromtimestamp(BASE / 1000 + (second or 0), UTC).isoformat(timespec="milliseconds")
        yield b'{"ts": ' if second is None else json.dumps({"ts": at, "n": 1}).encode()


def test_splits_are_held_back_by_a_time_inside_the_payload(kafka):
    """The timestamps of all records are equal; damaged payloads have no event time and stall nobody."""
    topic = kafka.topic(2)
    payloads = {0: [*range(20), None, *range(20, 60)], 1: [0, 60, None, None, None, *range(120, 3600, 60)]}
    with kafka_python.KafkaProducer(bootstrap_servers=kafka.address, acks="all") as sending:
        for partition, seconds in payloads.items():
            for value in seconds_of(seconds):
                sending.send(topic, value, partition=partition, timestamp_ms=BASE)
        sending.flush()
    schema = "ts TIMESTAMP, n INT"
    source = KafkaSource(
        subscribe=[topic],
        starting_offsets="earliest",
        value_format="json",
        value_schema=schema,
        kafka={"bootstrap.servers": kafka.address},
    )
    options = HostOptions(event_time_column="value.ts", alignment_max_drift="10s", max_rows_per_trigger=4)
    planner = open_stream(source, options, parallelism=2)
    read, at, waited = {0: 0, 1: 0}, through(planner.initial()), 0
    try:
        while (end := through(planner.latest(at))) != at:
            ahead = [payloads[one][start] for one, start in read.items() if start < len(payloads[one])]
            slowest = min(second for second in ahead if second is not None)
            for task in planner.tasks(at, end):
                for part in task.slices:
                    partition = int(part.id.rsplit("/", 1)[1])
                    first = payloads[partition][part.position]
                    assert part.position == read[partition]
                    assert first is None or None in ahead or first < slowest + 10
                    read[partition] = part.end
            waited += read[0] < len(payloads[0]) and read[1] < len(payloads[1])
            at = end
    finally:
        planner.close()
    # The slow partition ends at 59 s. The record at 60 s is within the drift; after the damaged ones come 120 s.
    assert read[0] == len(payloads[0])
    assert 2 <= read[1] <= 9
    assert waited > 5


@pytest.mark.soak  # it waits for the broker's throttling
def test_a_partition_behind_a_quota_is_never_called_idle(broker, kafka, throttle, request):
    topic, client = kafka.topic(2), f"slow-{uuid.uuid4().hex[:8]}"
    with kafka_python.KafkaProducer(bootstrap_servers=kafka.address, batch_size=0) as sending:
        for number in range(24):
            for partition, step in ((0, 1_000), (1, 60_000)):
                at = BASE + number * step
                sending.send(topic, os.urandom(40_000), partition=partition, timestamp_ms=at)
    throttle(broker, 60_000.0, client)  # bytes a second, and a look at a partition fetches up to 128 KB
    request.addfinalizer(lambda: throttle(broker, None, client))
    options = {"bootstrap.servers": kafka.address, "client.id": client}
    source = KafkaSource(subscribe=[topic], starting_offsets="earliest", kafka=options)
    limits = HostOptions(alignment_max_drift="5s", idle_timeout="1s", max_rows_per_trigger=1)
    planner = open_stream(source, limits, parallelism=1)
    request.addfinalizer(planner.close)
    alignment = planner._alignment
    assert isinstance(alignment, StreamAlignment)
    start: Mapping[str, Json] = planner.initial()
    read, slowest, deadline = {0: 0, 1: 0}, 0.0, time.monotonic() + 120
    while read[0] < 24:
        assert time.monotonic() < deadline
        began = time.monotonic()
        end = planner.latest(start)
        slowest = max(slowest, time.monotonic() - began)
        assert not alignment.times[f"{topic}/0"].idle
        for task in planner.tasks(start, end):
            for one in task.slices:
                assert isinstance(one.end, int)
                read[int(one.id[-1])] = one.end
        start = end
        assert (read[1] - 1) * 60 <= min(read[0], 23) + 5
    assert slowest > 1  # a look took longer than the timeout
