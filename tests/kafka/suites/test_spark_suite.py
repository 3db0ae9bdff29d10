# SPDX-License-Identifier: Apache-2.0
"""Our equivalents, by name, of the cases of Spark's KafkaMicroBatchSourceSuite that need no Spark."""

from __future__ import annotations

import contextlib
import json

import pytest
from kafka import KafkaProducer

from forebay.errors import ConfigurationError, DataLossError
from forebay.sources.kafka.client import client_errors as offset_loss

pytestmark = pytest.mark.soak
HOW = pytest.mark.parametrize("how", ["assign", "subscribe", "subscribePattern"])
EARLIEST = {"startingOffsets": "earliest"}


def subscription(how: str, topic: str, partitions: int = 5) -> dict[str, str]:
    """The option that names the topic; for the pattern, with letters that it does not need."""
    named = {"assign": json.dumps({topic: [*range(partitions)]}), "subscribePattern": f"{topic}[a-z]*"}
    return {how: named.get(how, topic)}


def pair(begin, **options):
    """One that fails on data loss, and one that does not."""
    return [begin(failOnDataLoss=flag, **options) for flag in ("true", "false")]


def grown(kafka, send, how, topic, queries):
    """Ten partitions instead of five while the queries run, where they may be found."""
    if how != "assign":
        kafka.grow(topic, 10)
        send(topic, range(109, 117), spread=10)
        for query in queries:
            query.drain()
            assert query.values[-8:] == [*range(109, 117)]


@HOW
def test_from_latest_offsets(kafka, send, begin, how):
    topic = kafka.topic(5)
    send(topic, [-1])
    queries = pair(begin, **subscription(how, topic), startingOffsets="latest")
    assert [query.drain() for query in queries] == [[], []]
    send(topic, [1, 2, 3], spread=5)
    for query in queries:
        query.drain()
        query.restart()
        assert query.drain() == []
    send(topic, [4, 5, 6], spread=5)
    for query in queries:
        query.restart()
        query.drain()
        assert query.values == [1, 2, 3, 4, 5, 6]
    grown(kafka, send, how, topic, queries)


@HOW
def test_from_earliest_offsets(kafka, send, begin, how):
    topic = kafka.topic(5)
    send(topic, [1, 2, 3], spread=5)
    queries = pair(begin, **subscription(how, topic), **EARLIEST)
    for query in queries:
        query.drain()
        assert query.values == [1, 2, 3]
    send(topic, [4, 5, 6], spread=5)
    for query in queries:
        query.drain()
        query.restart()
        assert query.drain() == []
        assert query.values == [1, 2, 3, 4, 5, 6]
    grown(kafka, send, how, topic, queries)


@HOW
def test_from_specific_offsets(kafka, send, begin, how):
    topic = kafka.topic(5)
    for partition, values in enumerate([[-20, -21, -22], [-10], [0, 1, 2], [10, 11, 12], [20, 21, 22]]):
        send(topic, values, partition)
    starts = json.dumps({topic: {"0": -2, "1": -1, "2": 0, "3": 1, "4": 2}})
    queries = pair(begin, **subscription(how, topic), startingOffsets=starts)
    for query in queries:
        query.drain()
        query.restart()
        assert query.drain() == []
        assert query.values == [-22, -21, -20, 0, 1, 2, 11, 12, 22]
    send(topic, range(30, 35), spread=5)
    for query in queries:
        query.drain()
        assert query.values[-5:] == [*range(30, 35)]
    grown(kafka, send, how, topic, queries)


def timed(send, topic):
    """Three records in each partition, a second apart; partition 4 begins a second later."""
    for partition in range(5):
        for number in range(3):
            late = 1000 if partition == 4 else 0
            send(topic, [partition * 10 + number], partition, timestamp_ms=5000 + number * 1000 + late)


@HOW
@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("startingOffsetsByTimestamp", [0, 1, 2, 11, 12, 22, 31, 32, 40, 41, 42]),
        ("startingTimestamp", [1, 2, 11, 12, 21, 22, 31, 32, 40, 41, 42]),
    ],
)
def test_from_specific_and_global_timestamps(kafka, send, begin, how, option, expected):
    topic = kafka.topic(5)
    timed(send, topic)
    times = json.dumps({topic: {"0": 1, "1": 6000, "2": 6001, "3": 5500, "4": 6000}})
    queries = pair(begin, **subscription(how, topic), **{option: times if option.endswith("ByTimestamp") else 5001})
    for query in queries:
        query.drain()
        query.restart()
        assert query.drain() == []
        assert query.values == expected
    grown(kafka, send, how, topic, queries)


@HOW
@pytest.mark.parametrize("option", ["startingOffsetsByTimestamp", "startingTimestamp"])
def test_from_timestamps_with_non_matching_starting_offset(kafka, send, begin, how, option):
    topic = kafka.topic(5)
    timed(send, topic)
    times = json.dumps({topic: {str(number): 8500 for number in range(5)}})
    options = {**subscription(how, topic), option: times if option.endswith("ByTimestamp") else 8500}
    with pytest.raises(ConfigurationError, match="has no record at or after 8500") as caught:
        begin(**options).trigger()
    assert caught.value.option == option
    query = begin(**options, startingOffsetsByTimestampStrategy="latest")
    assert query.drain() in ([], [[]])
    send(topic, range(100, 105), spread=5, timestamp_ms=9000)
    query.drain()
    assert query.values == [*range(100, 105)]


def test_spark_26718_rate_limit_set_to_long_max_should_not_overflow(kafka, send, begin):
    topic = kafka.topic()
    query = begin(subscribe=topic, **EARLIEST, maxOffsetsPerTrigger=2**63 - 1)
    send(topic, range(10))
    assert query.drain() == [[*range(10)]]
    send(topic, range(10, 20))
    assert query.drain() == [[*range(10, 20)]]


def skewed(kafka, send):
    topic = kafka.topic(3)
    for partition, (low, high) in enumerate([(100, 200), (10, 20), (1, 1)]):
        send(topic, range(low, high + 1), partition)
    return topic


def test_max_offsets_per_trigger(kafka, send, begin):
    topic = skewed(kafka, send)
    query = begin(subscribe=topic, **EARLIEST, maxOffsetsPerTrigger=10)
    first, second = query.trigger(), query.trigger()
    assert len(first) == len(second) == 10  # Spark's: 8 + 1 + 1, then 9 + 1
    assert 1 in first + second and 10 in first
    query.restart()
    assert len(query.trigger()) == 10
    assert all(len(values) <= 10 for values in query.drain())
    assert query.values == sorted([1, *range(10, 21), *range(100, 201)])


def test_min_offsets_per_trigger(kafka, send, begin):
    topic = skewed(kafka, send)
    query = begin(subscribe=topic, **EARLIEST, minOffsetsPerTrigger=15, maxTriggerDelay="60s")
    assert len(query.trigger()) == 113  # the first one waits for nothing
    send(topic, range(300, 310), 1)
    assert query.trigger() is None
    send(topic, range(310, 315), 0)
    assert query.trigger() == [*range(300, 315)]
    send(topic, [400])
    assert query.trigger() is None
    assert query.trigger(seconds=61) == [400]


def test_composite_read_limit(kafka, send, begin):
    topic = skewed(kafka, send)
    limits = {"minOffsetsPerTrigger": 15, "maxOffsetsPerTrigger": 20, "maxTriggerDelay": "60s"}
    query = begin(subscribe=topic, **EARLIEST, **limits)
    sizes = [len(query.trigger()) for _ in range(5)]
    assert sizes == [20] * 5
    assert query.trigger() is None  # 13 are left: fewer than 15
    send(topic, range(300, 310))
    assert len(query.trigger()) == 20
    assert len(query.trigger(seconds=61)) == 3


@pytest.mark.parametrize("failing", [True, False])
def test_query_with_trigger_available_now_when_topic_partitions_got_unavailable(
    kafka, send, begin, failing, monkeypatch
):
    monkeypatch.setattr(offset_loss, "_TIMEOUT_MS", 300)
    topic = kafka.topic(5)
    send(topic, range(15), spread=5)
    options = (
        {"failOnDataLoss": "true"} if failing else {"failOnDataLoss": "false", "kafkaConsumer__pollTimeoutMs": 500}
    )
    query = begin(subscribe=topic, **EARLIEST, maxOffsetsPerTrigger=5, **options)
    query.planner.prepare_available_now()
    assert len(query.trigger()) == 5
    kafka.delete(topic)
    if failing:
        kafka.topic(1, name=topic)
    with pytest.raises((DataLossError, ConfigurationError)) if failing else contextlib.nullcontext():
        query.drain()
    assert len(query.values) == 5


def test_query_with_trigger_available_now_when_offsets_in_planned_topic_partitions_got_unavailable(kafka, send, begin):
    topic = kafka.topic(5)
    send(topic, range(15), spread=5)
    query = begin(subscribe=topic, **EARLIEST, maxOffsetsPerTrigger=5)
    query.planner.prepare_available_now()
    assert len(query.trigger()) == 5
    for partition in range(5):
        kafka.lose(topic, partition, 3)
    with pytest.raises(DataLossError, match="offset"):
        query.drain()


def test_subscribing_topic_by_pattern_with_topic_deletions(kafka, send, begin):
    prefix = kafka.name("deleted")
    one = kafka.topic(5, name=f"{prefix}-seems")
    query = begin(subscribePattern=f"{prefix}-.*", **EARLIEST, failOnDataLoss="false")
    send(one, [1, 2, 3], spread=5)
    query.drain()
    kafka.delete(one)
    two = kafka.topic(5, name=f"{prefix}-bad")
    send(two, [4, 5, 6], spread=5)
    query.drain()
    assert query.values == [1, 2, 3, 4, 5, 6]


def test_subscribe_topic_by_pattern_with_topic_recreation_between_batches(kafka, send, begin):
    prefix = kafka.name("again")
    one, two = kafka.topic(name=f"{prefix}-1"), kafka.topic(name=f"{prefix}-2")
    send(one, [1, 3])
    send(two, [2, 4])
    query = begin(subscribePattern=f"{prefix}-.*", **EARLIEST)
    query.drain()
    kafka.delete(two)
    kafka.topic(name=two)
    send(two, [6])
    with pytest.raises(DataLossError, match="deleted and created again") as caught:
        query.drain()
    assert caught.value.split == f"{two}/0"
    assert query.values == [1, 2, 3, 4]


def test_serialization_and_deserialization_of_initial_offsets(kafka, send, begin):
    topic = kafka.topic(3)
    send(topic, range(7), 1)
    query = begin(subscribe=topic, startingOffsets="latest")
    query.trigger()
    send(topic, range(10, 13), 1)
    query.restart(startingOffsets="earliest")  # counts for a new query only
    assert query.drain() == [[10, 11, 12]]


def test_deserialization_of_initial_offset_written_by_future_version(kafka, send, begin):
    topic = kafka.topic()
    query = begin(subscribe=topic)
    query.trigger()
    assert query.offset is not None
    query.offset = {**query.offset, "v": 9999}
    query.restart()
    with pytest.raises(ConfigurationError, match="newer forebay"):
        query.trigger()


@pytest.mark.parametrize("limit", [4, 7, 100])
@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_read_kafka_transactional_messages(kafka, begin, level, limit):
    """And SPARK-25495: what was fetched ahead in one micro-batch serves the next, and nothing comes twice."""
    topic = kafka.topic()
    with KafkaProducer(bootstrap_servers=kafka.address, transactional_id=topic) as producer:
        producer.init_transactions()
        for number, end in enumerate("cacac"):
            producer.begin_transaction()
            for value in range(number * 4, number * 4 + 4):
                producer.send(topic, str(value).encode(), partition=0)
            producer.flush(30)
            (producer.commit_transaction if end == "c" else producer.abort_transaction)()
    options = {"subscribe": topic, **EARLIEST, "maxOffsetsPerTrigger": limit, "kafka__isolation__level": level}
    query = begin(**options)
    query.drain()
    hidden = {*range(4, 8), *range(12, 16)} if level == "read_committed" else set()
    assert query.values == [value for value in range(20) if value not in hidden]
    assert len(query.batches) == -(-25 // limit)  # marks are offsets too: some micro-batches have no visible row


def test_spark_30656_min_partitions(kafka, send, begin):
    topic = kafka.topic()
    query = begin(subscribe=topic, **EARLIEST, minPartitions=3)
    query.trigger()
    send(topic, range(11))
    end = query.plan()
    assert end is not None and query.offset is not None
    assert len(query.planner.tasks(query.offset, end)) == 3
    assert query.read(end) == [*range(11)]


def test_custom_metrics_with_rate_limit_no_rate_limit_and_corner_cases(kafka, send, begin):
    topic = skewed(kafka, send)
    limited, free = begin(subscribe=topic, **EARLIEST, maxOffsetsPerTrigger=10), begin(subscribe=topic, **EARLIEST)
    limited.trigger()
    report = limited.planner.report()
    assert report["behind"]["rows"] == 103
    assert sum(one["behind"] for one in report["worst"]) == 103
    assert max(one["behind"] for one in report["worst"]) == report["worst"][0]["behind"]
    free.trigger()
    assert free.planner.report()["behind"].get("rows", 0) == 0
    nothing = begin(subscribe=kafka.topic())
    nothing.trigger()
    assert nothing.planner.report()["behind"].get("rows", 0) == 0
