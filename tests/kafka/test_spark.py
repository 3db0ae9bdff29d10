# SPDX-License-Identifier: Apache-2.0
"""Cases of Spark's own suites, and differences: on real Spark where they are about Spark, else below it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import forebay
from forebay.errors import ConfigurationError, DataLossError

sql = pytest.importorskip("pyspark.sql")


class Stream:
    """A query with its checkpoint, run up to what there is; what each micro-batch brought."""

    def __init__(self, spark: Any, kafka: Any, checkpoint: str) -> None:
        self.spark, self.kafka, self.checkpoint = spark, kafka, checkpoint
        self.batches: list[list[tuple[int, str]]] = []

    def frame(self, **options: Any) -> Any:
        reader = self.spark.readStream.format("forebay_kafka").option("kafka.bootstrap.servers", self.kafka.address)
        for name, value in options.items():
            reader = reader.option(name.replace("__", "."), str(value))
        return reader.load()

    def start(self, *, available_now: bool = True, **options: Any) -> Any:
        def keep(batch: Any, _number: int) -> None:
            rows = batch.selectExpr("partition", "CAST(value AS STRING)").collect()
            self.batches.append(sorted(tuple(row) for row in rows))

        writer = self.frame(**options).writeStream.foreachBatch(keep).option("checkpointLocation", self.checkpoint)
        if available_now:
            writer = writer.trigger(availableNow=True)
        return writer.start()

    def run(self, **options: Any) -> list[list[tuple[int, str]]]:
        """Run up to what there is, and return what came, without empty micro-batches."""
        before = len(self.batches)
        query = self.start(**options)
        assert query.awaitTermination(500)
        if query.exception() is not None:
            raise query.exception()
        return [rows for rows in self.batches[before:] if rows]

    def rows(self) -> list[tuple[int, str]]:
        return sorted(row for rows in self.batches for row in rows)


@pytest.fixture
def stream(spark, kafka, tmp_path) -> Stream:
    return Stream(spark, kafka, str(tmp_path / "checkpoint"))


def wait(condition: Callable[[], bool], query: Any) -> None:
    """Poll until a query has come so far, or has failed."""
    paused = threading.Event()
    for _ in range(3000):
        if condition():
            return
        if query.exception() is not None:
            raise query.exception()
        paused.wait(0.1)
    raise AssertionError("the query did not come so far")


def frame(spark: Any, kafka: Any, **options: Any) -> Any:
    reader = spark.read.format("forebay_kafka").option("kafka.bootstrap.servers", kafka.address)
    for name, value in options.items():
        reader = reader.option(name.replace("__", "."), str(value))
    return reader.load()


def values(frame: Any) -> list[str]:
    return sorted(row[0] for row in frame.selectExpr("CAST(value AS STRING)").collect())


def test_column_types_keys_headers_and_nulls(spark, kafka):  # "Kafka column types", SPARK-27494
    topic = kafka.topic()
    kafka.send(topic, ["a"], key=b"k", headers=[("h", b"1"), ("h", b"")], timestamp_ms=1_000_123)
    kafka.send(topic, ["b"], timestamp_ms=1_000_124)
    read = frame(spark, kafka, subscribe=topic, includeHeaders="true")
    assert read.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    shown = read.selectExpr(
        "CAST(key AS STRING)", "CAST(value AS STRING)", "topic", "partition", "offset", "unix_millis(timestamp)",
        "timestampType", "headers",
    )  # fmt: skip
    first, second = [tuple(row) for row in shown.orderBy("offset").collect()]
    assert first[:7] == ("k", "a", topic, 0, 0, 1_000_123, 0)
    assert [(one.key, one.value) for one in first[7]] == [("h", bytearray(b"1")), ("h", bytearray(b""))]
    assert second == (None, "b", topic, 0, 1, 1_000_124, 0, None)


def test_a_bounded_batch_and_the_same_frame_twice(
    spark, kafka, batch
):  # "explicit offsets", "reuse same dataframe in query"
    topic = kafka.topic(3)
    for partition in range(3):
        kafka.send(topic, range(partition * 10, partition * 10 + 10), partition)
    assert batch(subscribe=topic) == [*range(30)]
    offsets = f'{{"{topic}":{{"0":-2,"1":4,"2":8}}}}', f'{{"{topic}":{{"0":3,"1":-1,"2":9}}}}'
    bounded = frame(spark, kafka, subscribe=topic, startingOffsets=offsets[0], endingOffsets=offsets[1])
    assert values(bounded.union(bounded)) == sorted(str(number) for number in [0, 1, 2, *range(14, 20), 28] * 2)
    assert batch(subscribe=topic, minPartitions=9) == [*range(30)]
    cut = frame(spark, kafka, subscribe=topic, maxRecordsPerPartition=4)
    read = cut.select("partition", "offset", sql.functions.spark_partition_id()).collect()
    assert sorted(row[:2] for row in read) == [(partition, offset) for partition in range(3) for offset in range(10)]
    assert len({row[2] for row in read}) == 9


def test_only_chosen_columns_are_read(spark, kafka):
    topic = kafka.topic()
    kafka.send(topic, range(4))
    assert frame(spark, kafka, subscribe=topic, columns="offset,partition").collect() == [(n, 0) for n in range(4)]


def test_bad_batch_options_are_refused(spark, kafka):  # "bad batch query options"
    topic = kafka.topic()
    with pytest.raises(Exception, match="can't be latest") as caught:
        frame(spark, kafka, subscribe=topic, startingOffsets="latest").count()
    found = forebay.unwrap(caught.value)
    assert isinstance(found, ConfigurationError) and found.option == "startingOffsets"


def test_max_offsets_per_trigger_with_a_skew_of_101_11_1(kafka, begin):  # "maxOffsetsPerTrigger"
    topic = kafka.topic(3)
    parts = [range(100, 201), range(10, 21), range(1, 2)]
    for partition, numbers in enumerate(parts):
        kafka.send(topic, numbers, partition)
    query = begin(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=10)
    batches = [query.trigger() for _ in range(4)]
    assert [len(numbers) for numbers in batches] == [10] * 4
    read = {number for numbers in batches[:3] for number in numbers}
    assert all(read & set(numbers) for numbers in parts)  # none starves
    query.restart()  # the same limits, nothing twice
    assert all(len(numbers) <= 10 for numbers in query.drain())
    assert query.values == sorted(number for numbers in parts for number in numbers)


def test_once_ignores_the_limit(kafka, begin):
    topic = kafka.topic()
    kafka.send(topic, range(30))
    query = begin(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=10)
    assert query.trigger(limited=False) == [*range(30)]


def test_available_now_reads_all_in_three_batches_and_continues_after_a_restart(stream, kafka, broker):
    """And when the last micro-batch is proven done, its end is in the group."""
    topic, group = kafka.topic(5), kafka.name("group")
    for number in range(15):
        kafka.send(topic, [number], number % 5)
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 5}
    options |= {"commitOffsets": "true", "kafka__group__id": group}
    assert [len(rows) for rows in stream.run(**options)] == [5, 5, 5]
    with broker.admin() as admin:
        found = admin.list_group_offsets({group: None})[group]
    assert {(one.topic, one.partition): offset.offset for one, offset in found.items()} == {
        (topic, partition): 3 for partition in range(5)
    }
    kafka.send(topic, range(15, 18), 2)
    assert stream.run(**options) == [[(2, "15"), (2, "16"), (2, "17")]]
    assert len(stream.rows()) == len(set(stream.rows())) == 18


def test_a_new_stream_begins_at_the_latest_offsets(kafka, begin):
    topic = kafka.topic()
    kafka.send(topic, range(3))
    query = begin(subscribe=topic)
    assert query.drain() == []
    kafka.send(topic, range(3, 6))
    query.restart()
    assert query.drain() == [[3, 4, 5]]


@pytest.mark.soak
@pytest.mark.parametrize("how", [pytest.param("subscribe", marks=pytest.mark.soak), "subscribePattern"])
def test_partitions_added_while_running_lose_nothing(stream, kafka, how):
    topic = kafka.topic(5)
    options = {how: topic, "startingOffsets": "earliest", "discoveryInterval": "200ms"}
    query = stream.start(available_now=False, **options)
    try:
        for partition in range(5):
            kafka.send(topic, [partition], partition)
        wait(lambda: len(stream.rows()) == 5, query)
        kafka.grow(topic, 10)
        for partition in range(10):
            kafka.send(topic, [partition + 10], partition)
        wait(lambda: len(stream.rows()) >= 15, query)
    finally:
        query.stop()
    assert stream.rows() == sorted([(n, str(n)) for n in range(5)] + [(n, str(n + 10)) for n in range(10)])


def test_a_topic_recreated_between_two_runs_is_reported(kafka, begin):
    # Spark's own source loses what was written to the new topic below the old offsets, and says nothing.
    topic = kafka.topic()
    kafka.send(topic, range(3))
    query = begin(subscribe=topic, startingOffsets="earliest")
    assert query.drain() == [[0, 1, 2]]
    kafka.delete(topic)
    kafka.topic(name=topic)
    kafka.send(topic, range(100, 110))
    query.restart()
    with pytest.raises(DataLossError, match="deleted and created again") as caught:
        query.drain()
    assert caught.value.split == f"{topic}/0"
    query.restart(failOnDataLoss="false")
    assert query.drain() == [[*range(100, 110)]]


def test_records_that_aged_out_are_a_loss_or_skipped_without_doubles(kafka, begin):  # KafkaDontFailOnDataLossSuite
    topic = kafka.topic()
    query = begin(subscribe=topic, startingOffsets="earliest")
    kafka.send(topic, range(3))
    assert query.drain() == [[0, 1, 2]]
    kafka.send(topic, range(3, 20))
    kafka.lose(topic, 0, 10)
    query.restart()
    with pytest.raises(DataLossError, match="offset 3") as caught:
        query.drain()
    assert caught.value.split == f"{topic}/0"
    query.restart(failOnDataLoss="false")
    assert query.drain() == [[*range(10, 20)]]


def test_a_loss_ends_a_stream_on_spark_with_its_typed_error(stream, kafka):
    topic = kafka.topic()
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    kafka.send(topic, range(3))
    stream.run(**options)
    kafka.send(topic, range(3, 20))
    kafka.lose(topic, 0, 10)
    with pytest.raises(sql.utils.StreamingQueryException) as caught:
        stream.run(**options)
    found = forebay.unwrap(caught.value)
    assert isinstance(found, DataLossError)
    assert found.split == f"{topic}/0"


@pytest.mark.soak("True")
@pytest.mark.parametrize("strict", [True, False])
def test_a_topic_recreated_after_spark_planned_the_tasks_gives_no_row_of_the_new_topic(spark, kafka, tmp_path, strict):
    topic = kafka.topic()
    kafka.send(topic, range(20))
    batches = []

    def keep(batch: Any, number: int) -> None:
        rdd = batch.select("value").rdd
        assert rdd.getNumPartitions() > 0  # Spark has planned the tasks, and none has run
        if number == 0:
            kafka.delete(topic)
            kafka.topic(name=topic)
            kafka.send(topic, range(1000, 1200))
        batches.append(sorted(int(row.value) for row in rdd.collect()))

    reader = spark.readStream.format("forebay_kafka").option("kafka.bootstrap.servers", kafka.address)
    reader = reader.option("subscribe", topic).option("startingOffsets", "earliest").option("failOnDataLoss", strict)
    writer = reader.load().writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.start()
    if strict:
        with pytest.raises(sql.utils.StreamingQueryException) as caught:
            query.awaitTermination(100)
        found = forebay.unwrap(caught.value)
        assert isinstance(found, DataLossError)
        assert "created again" in str(found)
        assert batches == []
    else:
        wait(lambda: sum(map(len, batches)) >= 200, query)
        query.stop()
        assert [rows for rows in batches if rows] == [[*range(1000, 1200)]]


def test_a_topic_deleted_while_it_is_read_is_survived_if_that_is_wanted(kafka, begin):
    topic, other = kafka.topic(), kafka.topic()
    query = begin(subscribe=f"{topic},{other}", startingOffsets="earliest", failOnDataLoss="false")
    kafka.send(topic, range(3))
    query.drain()
    kafka.delete(topic)
    kafka.send(other, range(10, 15))
    query.drain()
    assert query.values == [0, 1, 2, *range(10, 15)]


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_transactions_under_both_isolation_levels(kafka, begin, batch, isolation):
    # The end is the last stable offset: an open transaction holds nobody up.
    import kafka as kafka_python

    topic = kafka.topic()
    producer = kafka_python.KafkaProducer(bootstrap_servers=kafka.address, transactional_id=topic)
    try:
        producer.init_transactions()
        for commit, numbers in ((True, (0, 1)), (False, (2, 3)), (True, (4, 5)), (None, (6, 7))):
            producer.begin_transaction()
            sent = [producer.send(topic, b"%d" % number, partition=0) for number in numbers]
            producer.flush()
            [one.get(30) for one in sent]
            if commit is not None:
                (producer.commit_transaction if commit else producer.abort_transaction)()
        visible = [0, 1, 4, 5] if isolation == "read_committed" else [*range(8)]
        options = {"subscribe": topic, "startingOffsets": "earliest", "kafka__isolation__level": isolation}
        assert batch(**options) == visible
        query = begin(**options)
        query.drain()
        assert query.values == visible
        producer.commit_transaction()
        query.restart()
        later = query.drain()
        assert query.values == [0, 1, 4, 5, 6, 7] or (isolation == "read_uncommitted" and not later)
    finally:
        producer.close()


def test_a_stream_with_an_end_stops_there(kafka, begin):
    topic = kafka.topic(2)
    query = begin(subscribe=topic, startingOffsets="earliest", endingOffsets=f'{{"{topic}":{{"0":4,"1":8}}}}')
    for partition in range(2):
        kafka.send(topic, range(6), partition)
    query.drain()
    assert query.values == sorted([*range(4), *range(6)])
    kafka.send(topic, range(6, 12), 0)
    kafka.send(topic, range(6, 12), 1)
    query.restart()
    assert query.drain() == [[6, 7]]
    query.restart()
    assert query.drain() == []


@pytest.mark.soak
def test_an_exhausted_source_does_not_stall_another_in_a_union(stream, kafka):  # SPARK-22956
    one, two = kafka.topic(), kafka.topic()
    kafka.send(one, range(3))
    frames = [stream.frame(subscribe=name, startingOffsets="earliest") for name in (one, two)]
    counts: list[int] = []
    query = (
        frames[0].union(frames[1]).writeStream.foreachBatch(lambda rows, _: counts.append(rows.count()))
        .option("checkpointLocation", stream.checkpoint).start()
    )  # fmt: skip
    try:
        wait(lambda: sum(counts) == 3, query)
        kafka.send(two, range(5))
        wait(lambda: sum(counts) >= 8, query)
    finally:
        query.stop()
    assert sum(counts) == 8


def test_a_broker_that_is_away_is_named(spark):
    away = spark.read.format("forebay_kafka").option("kafka.bootstrap.servers", "127.0.0.1:1")
    away = away.option("subscribe", "t").option("kafka.default.api.timeout.ms", "300").option("retries", "0")
    with pytest.raises(Exception, match=r"no broker of 127\.0\.0\.1:1 can be reached"):
        away.load().count()
