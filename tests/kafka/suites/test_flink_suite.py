# SPDX-License-Identifier: Apache-2.0
"""Our equivalents, by name, of the cases of Flink's Kafka suites: read in this process, from a real broker."""

from __future__ import annotations

import datetime as dt
from types import SimpleNamespace

import pytest
from kafka import KafkaProducer
from manual_clock import ManualClock

import forebay
from forebay.framework.runtime.runtime import ThreadRuntime
from forebay.sources.kafka import KafkaSource
from forebay.sources.kafka.enumerator import KafkaEnumerator
from forebay.sources.kafka.fetching import PartitionFetcher
from forebay.sources.kafka.records.batches import record_schema
from forebay.sources.kafka.split import KafkaSplit
from forebay.sources.kafka.split_reader import KafkaSplitReader
from forebay.watermarks.strategy import WatermarkStrategy


@pytest.fixture
def source(kafka):
    def source(topic, **options):
        return KafkaSource(subscribe=[topic], kafka={"bootstrap.servers": kafka.address}, **options)

    return source


QUICK = forebay.HostOptions(poll_interval="50ms", discovery_interval="200ms", retries=0)


def taken(run, rows):
    """The next rows of a run that does not end, so many at least."""
    found = []
    while len(found) < rows:
        found += next(run).to_pylist()
    return found


def numbers(rows):
    return [int(row["value"]) for row in rows]


# ---- KafkaSourceITCase


def test_basic_read(kafka, send, source):
    topic = kafka.topic(3)
    for partition in range(3):
        send(topic, range(partition * 10, partition * 10 + 10), partition)
    with forebay.run(source(topic), options=QUICK) as run:
        rows = taken(run, 30)
        assert all(one.bytes > 0 and one.position == 10 for one in run.progress())  # testNumBytesInCounter
    for partition in range(3):
        own = [row for row in rows if row["partition"] == partition]
        assert numbers(own) == [*range(partition * 10, partition * 10 + 10)]


def test_timestamp(kafka, send, source):
    topic = kafka.topic()
    for number in range(3):
        send(topic, [number], timestamp_ms=1000 + number)
    with forebay.run(source(topic), options=QUICK) as run:
        stamps = [row["timestamp"].timestamp() for row in taken(run, 3)]
    assert stamps == [1.0, 1.001, 1.002]


def test_value_only_deserializer(kafka, send, source):
    topic = kafka.topic()
    send(topic, range(3))
    with forebay.run(source(topic).with_columns(("value",)), options=QUICK) as run:
        assert taken(run, 3) == [{"value": b"0"}, {"value": b"1"}, {"value": b"2"}]


def test_redundant_parallelism(kafka, send, source):
    topic = kafka.topic()
    send(topic, range(10))
    with forebay.run(source(topic), parallelism=4, options=QUICK) as run:
        assert numbers(taken(run, 10)) == [*range(10)]


def test_basic_read_without_group_id(kafka, broker, send, source):
    topic = kafka.topic()
    send(topic, range(3))
    with broker.admin() as admin:
        before = admin.list_groups()
        with forebay.run(source(topic), options=QUICK) as run:
            taken(run, 3)
        assert admin.list_groups() == before


def test_per_partition_watermark(kafka, send, source):
    topic = kafka.topic(2)
    send(topic, [0], 0, timestamp_ms=5000)
    send(topic, [1], 0, timestamp_ms=9000)
    send(topic, [2], 1, timestamp_ms=3000)
    strategy, number = WatermarkStrategy.monotonous(), 3
    with forebay.run(source(topic), watermarks=strategy, options=QUICK) as run:
        taken(run, 3)
        for least in (0, 3_000_000):  # it follows the partition that is behind, a moment later
            while run.watermark is None or run.watermark < least:
                send(topic, [number], 0, timestamp_ms=9000 + number)
                taken(run, 1)
                number += 1
            assert least <= run.watermark < (7_000_000 if least else 3_000_000)
            send(topic, [number], 1, timestamp_ms=7000)
            taken(run, 1)
            number += 1


def test_consuming_empty_topic(kafka, batch):
    assert batch(subscribe=kafka.topic(3)) == []


def test_consuming_topic_with_empty_partitions(kafka, send, batch, source):
    """And testAssigningEmptySplits, testAssigningEmptySplitOnly: they end."""
    topic = kafka.topic(5)
    send(topic, range(5), 3)
    assert batch(subscribe=topic) == [*range(5)]
    assert batch(subscribe=topic, minPartitions=9) == [*range(5)]
    with forebay.run(source(topic), options=QUICK) as run:
        assert numbers(taken(run, 5)) == [*range(5)]


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_consuming_transactional_message(kafka, batch, level):
    """The input ends with marks that are no records, and the read ends all the same."""
    topic = kafka.topic()
    with KafkaProducer(bootstrap_servers=kafka.address, transactional_id=topic) as producer:
        producer.init_transactions()
        for number in range(4):
            producer.begin_transaction()
            producer.send(topic, b"%d" % number, partition=0).get(30)
            (producer.abort_transaction if number % 2 else producer.commit_transaction)()
    wanted = [0, 2] if level == "read_committed" else [0, 1, 2, 3]
    assert batch(subscribe=topic, kafka__isolation__level=level) == wanted


# ---- KafkaSourceEnumeratorTest


def test_discover_partitions_periodically_triggers_assignments(kafka, send, source):
    topic = kafka.topic()
    send(topic, range(3))
    with forebay.run(source(topic), options=QUICK) as run:
        assert len(taken(run, 3)) == 3
        kafka.grow(topic, 2)
        send(topic, range(10, 13), 1)
        assert numbers(taken(run, 3)) == [10, 11, 12]


def test_snapshot_state_and_add_splits_back(kafka, send, source, tmp_path):
    """And testWorkWithPreexistingAssignments: any reader continues from the positions after a restart."""
    topic = kafka.topic(4)
    send(topic, range(40), spread=4)
    first: list[list[int]] = []
    with forebay.run(source(topic), checkpoint=tmp_path, options=QUICK) as run:
        while sum(map(len, first)) < 40:
            first.append(numbers(next(run).to_pylist()))
        run.checkpoint()  # all but the batch in our hands
    send(topic, range(40, 60), spread=4)
    safe = {value for values in first[:-1] for value in values}
    second: set[int] = set()
    with forebay.run(source(topic), parallelism=3, checkpoint=tmp_path, options=QUICK) as run:
        while not {*range(60)} <= safe | second:
            second |= {*numbers(next(run).to_pylist())}
    assert not safe & second


# ---- KafkaPartitionSplitReaderTest


def test_wakeup_then_assign(kafka, send):
    topic = kafka.topic()
    send(topic, range(3))
    reader = PartitionFetcher({"bootstrap_servers": kafka.address}, record_schema(["value"]))
    try:
        reader.wake_up()
        reader.assign(KafkaSplit(id=f"{topic}/0", position=0, end=3))
        parts = []
        while not any(part.finished for part in parts):
            parts += reader.fetch(30)
    finally:
        reader.close()
    assert sum(part.batch.num_rows for part in parts if part.batch is not None) == 3


def test_pause_or_resume_splits_with_unassigned_partition(source):
    context = SimpleNamespace(runtime=ThreadRuntime(), lease=None)  # a broker is not even asked
    reader = KafkaSplitReader(source("t"), context)
    reader.add_splits([KafkaSplit(id="t/0", position=0, end=5)])
    assert reader.pause_or_resume_splits(["t/7"], ["t/8"])
    assert reader.pause_or_resume_splits([], [])
    reader.close()


def test_pending_records_gauge(kafka, send, begin):
    topic = kafka.topic(2, name=f"{kafka.name('pending')}.with_all-kinds")
    send(topic, range(25), spread=2)
    query = begin(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=5)
    query.trigger()
    report = query.planner.report()
    assert report["behind"]["rows"] == 20
    assert {one["split"] for one in report["worst"]} == {f"{topic}/0", f"{topic}/1"}


# ---- KafkaSourceReaderTest


def committed(broker, group):
    with broker.admin() as admin:
        found = admin.list_group_offsets({group: None})[group]
    return {f"{one.topic}/{one.partition}": offset.offset for one, offset in found.items()}


def test_offset_commit_on_checkpoint_complete(kafka, broker, send, begin):
    """A later one covers earlier ones; testNotCommitOffsetsForUninitializedSplits: nothing of what is unread."""
    topic, group = kafka.topic(2), kafka.name("group")
    send(topic, range(7), 1)
    options = {"subscribe": topic, "startingOffsets": "earliest", "commitOffsets": "true", "kafka__group__id": group}
    query = begin(**options, maxOffsetsPerTrigger=3)
    query.drain()
    found = committed(broker, group)
    assert found[f"{topic}/1"] == 7 and found.get(f"{topic}/0", 0) == 0
    send(topic, range(7, 12), 1)
    query.drain()
    assert committed(broker, group)[f"{topic}/1"] == 12


def test_disable_offset_commit(kafka, broker, send, begin):
    topic, group = kafka.topic(), kafka.name("group")
    send(topic, range(7))
    query = begin(subscribe=topic, startingOffsets="earliest", kafka__group__id=group)
    query.drain()
    with broker.admin() as admin:
        assert group not in str(admin.list_groups())


def test_commit_empty_offsets_without_alive_fetchers(kafka, broker):
    """And testCommitOffsetsWithoutAliveFetchers: who commits is who plans, and needs no reader."""
    topic, group = kafka.topic(), kafka.name("group")
    options = {"kafka.bootstrap.servers": kafka.address, "subscribe": topic, "commitOffsets": "true"}
    enumerator = KafkaEnumerator(
        KafkaSource.from_options({**options, "kafka.group.id": group}), ManualClock(), streaming=True
    )
    try:
        enumerator.committed({})
        with broker.admin() as admin:
            assert group not in str(admin.list_groups())
        enumerator.discover({}, True)  # until then the id of the topic is unknown
        enumerator.committed({f"{topic}/0": 0})
        assert committed(broker, group) == {f"{topic}/0": 0}
    finally:
        enumerator.close()


# ---- OffsetsInitializerTest


def test_timestamp_offsets_initializer_for_empty_partitions(kafka, send, begin):
    topic = kafka.topic(3)
    at = int(dt.datetime(2026, 1, 1, tzinfo=dt.UTC).timestamp() * 1000)
    send(topic, [1, 2], 1, timestamp_ms=at)
    query = begin(subscribe=topic, startingTimestamp=at, startingOffsetsByTimestampStrategy="latest")
    query.drain()
    send(topic, [3], 0, timestamp_ms=at - 1000)
    query.drain()
    assert query.values == [1, 2, 3]
