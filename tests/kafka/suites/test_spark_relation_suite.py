# SPDX-License-Identifier: Apache-2.0
"""Our equivalents, by name, of cases of Spark's KafkaRelationSuite and KafkaDontFailOnDataLossSuite, without Spark."""

from __future__ import annotations

import json
import random

import pytest

from forebay.errors import ConfigurationError, DataLossError
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.tasks.assign_tasks import plan_bounded
from forebay.framework.tasks.read_task import ReadTask, run_task
from forebay.sources.kafka import KafkaSource


@pytest.fixture
def timed(kafka, send):
    """A topic whose three partitions have ten records each, a second apart."""
    topic = kafka.topic(3)
    for partition in range(3):
        for number in range(10):
            send(topic, [partition * 10 + number], partition, timestamp_ms=1000 * number)
    return topic


def each(topic, *values):
    return json.dumps({topic: {str(partition): value for partition, value in enumerate(values)}})


def test_default_starting_and_ending_offsets_with_headers(kafka, send, table):
    topic = kafka.topic(3)
    pairs = [("a", b"b"), ("e", b"f"), ("e", b"g")]
    send(topic, range(10), 0, headers=pairs)
    send(topic, range(10, 20), 1, headers=pairs[:1])
    send(topic, [20], 2)
    rows = table(subscribe=topic, includeHeaders="true")
    assert sorted(int(row["value"]) for row in rows) == [*range(21)]
    found = {row["partition"]: row["headers"] and [tuple(one.values()) for one in row["headers"]] for row in rows}
    assert found == {0: pairs, 1: pairs[:1], 2: None}


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        # timestamp provided for starting and ending
        ({"startingOffsetsByTimestamp": (3000, 1, 9000)}, {"endingOffsetsByTimestamp": (5000, 2000, 99000)},
         [3, 4, 11, 29]),
        # timestamp provided for starting, offset provided for ending
        ({"startingOffsetsByTimestamp": (8000, 8000, 8000)}, {"endingOffsets": (-1, 9, 8)}, [8, 9, 18]),
        # … and the other way
        ({"startingOffsets": (-2, 8, 0)}, {"endingOffsetsByTimestamp": (1000, 9500, 1)}, [0, 18, 19, 20]),
        # global timestamp provided for starting and ending
        ({"startingTimestamp": 4000}, {"endingTimestamp": 5001}, [4, 5, 14, 15, 24, 25]),
        # no matched offset for timestamp - endingOffsets
        ({"startingTimestamp": 8000}, {"endingTimestamp": 10**12}, [8, 9, 18, 19, 28, 29]),
    ],
)  # fmt: skip
def test_timestamps_and_offsets_provided_for_starting_and_ending(batch, timed, start, end, expected):
    options = {
        name: each(timed, *value) if isinstance(value, tuple) else value for name, value in {**start, **end}.items()
    }
    assert batch(subscribe=timed, **options) == expected


@pytest.mark.parametrize("option", ["startingTimestamp", "startingOffsetsByTimestamp"])
def test_no_matched_offset_for_timestamp_starting_offsets(batch, timed, option):
    given = {option: 20_000 if option == "startingTimestamp" else each(timed, 0, 20_000, 0)}
    with pytest.raises(ConfigurationError, match="has no record at or after 20000") as caught:
        batch(subscribe=timed, **given)
    assert caught.value.option == option
    found = batch(subscribe=timed, **given, startingOffsetsByTimestampStrategy="latest")
    assert found == ([] if option == "startingTimestamp" else [*range(10), *range(20, 30)])


def test_late_binding_start_offsets(kafka, send, batch):
    """Differs from Spark on purpose: planning fixes the offsets of a batch, and lost records are reported."""
    topic = kafka.topic()
    send(topic, range(10))
    planned = {}
    for strict in (True, False):
        address = {"bootstrap.servers": kafka.address}
        source = KafkaSource(subscribe=[topic], fail_on_data_loss=strict, kafka=address)
        planned[strict] = [
            ReadTask(source, task, HostOptions(retries=0)) for task in plan_bounded(source, HostOptions())
        ]
    kafka.lose(topic, 0, 10)
    send(topic, range(10, 20))

    def rows(strict):
        return [row for task in planned[strict] for part in run_task(task) for row in part.batch.to_pylist()]

    with pytest.raises(DataLossError, match="offset 0 up to 10"):
        rows(True)
    assert rows(False) == []
    assert batch(subscribe=topic) == [*range(10, 20)]  # a new one begins where there is something


def test_fail_on_data_loss_false_should_not_return_duplicated_records_microbatch(kafka, send, begin):
    topic = kafka.topic()
    send(topic, range(10))
    query = begin(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=4, failOnDataLoss="false")
    assert query.trigger() == [0, 1, 2, 3]
    kafka.lose(topic, 0, 6)
    send(topic, range(10, 15))
    query.drain()
    assert query.values == [0, 1, 2, 3, *range(6, 15)]


def test_fail_on_data_loss_false_should_not_return_duplicated_records_batch(kafka, send, batch):
    topic = kafka.topic()
    send(topic, range(10))
    kafka.lose(topic, 0, 6)
    starts = {"startingOffsets": each(topic, 2)}
    with pytest.raises(DataLossError, match="starts at the offset 2"):
        batch(subscribe=topic, **starts)
    assert batch(subscribe=topic, failOnDataLoss="false", **starts) == [6, 7, 8, 9]
    assert batch(subscribe=topic, failOnDataLoss="false", minPartitions=4, **starts) == [6, 7, 8, 9]


@pytest.mark.soak
def test_stress_test_for_fail_on_data_loss_false(kafka, send, begin):
    """Topics come, lose records, go and come again while they are read: nothing fails, nothing comes twice."""
    chance, prefix = random.Random(7), kafka.name("stress")
    topics = [f"{prefix}-{number}" for number in range(3)]
    there = {kafka.topic(2, name=topics[0])}
    sent: list[int] = []
    query = begin(
        subscribePattern=f"{prefix}-.*", startingOffsets="earliest", failOnDataLoss="false", maxOffsetsPerTrigger=40
    )
    for _ in range(25):
        topic = chance.choice(topics)
        if topic not in there:
            there.add(kafka.topic(2, name=topic))
        elif chance.random() < 0.25 and len(there) > 1:
            kafka.delete(topic)
            there.discard(topic)
        values = range(len(sent), len(sent) + chance.randrange(1, 30))
        if topic in there:
            send(topic, values, spread=2)
            sent += values
            if chance.random() < 0.3:
                kafka.lose(topic, 0, -1)
        if chance.random() < 0.7:
            query.trigger()
        if chance.random() < 0.2:
            query.restart()
    last = range(len(sent), len(sent) + 20)
    for topic in there:
        query.drain()
        send(topic, last, spread=2)
        query.drain()
        sent += last
        last = range(last.stop, last.stop + 20)
    assert len(query.values) == len(set(query.values))
    assert set(query.values) <= set(sent)
    assert set(range(last.start - 20 * len(there), last.start)) <= set(query.values)
