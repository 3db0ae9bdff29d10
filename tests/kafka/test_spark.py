# SPDX-License-Identifier: Apache-2.0
"""`forebay_kafka` in real Spark on a real Apache Kafka: cases of Spark's own suites, and differences."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import forebay
from forebay.errors import ConfigurationError, DataLossError, ForebayError

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

    def start(self, *, available_now: bool = True, once: bool = False, **options: Any) -> Any:
        def keep(batch: Any, _number: int) -> None:
            rows = batch.selectExpr("partition", "CAST(value AS STRING)").collect()
            self.batches.append(sorted(tuple(row) for row in rows))

        writer = self.frame(**options).writeStream.foreachBatch(keep).option("checkpointLocation", self.checkpoint)
        if once:
            writer = writer.trigger(once=True)
        elif available_now:
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


def failure(stream: Stream, **options: Any) -> ForebayError:
    with pytest.raises(sql.utils.StreamingQueryException) as caught:
        stream.run(**options)
    found = forebay.unwrap(caught.value)
    assert found is not None
    return found


def batch(spark: Any, kafka: Any, **options: Any) -> Any:
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
    frame = batch(spark, kafka, subscribe=topic, includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    shown = frame.selectExpr(
        "CAST(key AS STRING)", "CAST(value AS STRING)", "topic", "partition", "offset", "unix_millis(timestamp)",
        "timestampType", "headers",
    )  # fmt: skip
    first, second = [tuple(row) for row in shown.orderBy("offset").collect()]
    assert first[:7] == ("k", "a", topic, 0, 0, 1_000_123, 0)
    assert [(one.key, one.value) for one in first[7]] == [("h", bytearray(b"1")), ("h", bytearray(b""))]
    assert second == (None, "b", topic, 0, 1, 1_000_124, 0, None)


def test_a_bounded_batch_and_the_same_frame_twice(spark, kafka):  # "explicit offsets", "reuse same dataframe in query"
    topic = kafka.topic(3)
    for partition in range(3):
        kafka.send(topic, range(partition * 10, partition * 10 + 10), partition)
    assert values(batch(spark, kafka, subscribe=topic)) == sorted(str(number) for number in range(30))
    offsets = f'{{"{topic}":{{"0":-2,"1":4,"2":8}}}}', f'{{"{topic}":{{"0":3,"1":-1,"2":9}}}}'
    frame = batch(spark, kafka, subscribe=topic, startingOffsets=offsets[0], endingOffsets=offsets[1])
    expected = sorted(str(number) for number in [0, 1, 2, *range(14, 20), 28])
    assert values(frame) == expected
    assert values(frame.union(frame)) == sorted(expected * 2)
    assert values(batch(spark, kafka, subscribe=topic, minPartitions=9)) == sorted(str(one) for one in range(30))
    cut = batch(spark, kafka, subscribe=topic, maxRecordsPerPartition=4)
    assert cut.rdd.getNumPartitions() == 9
    assert cut.select("offset", "partition").distinct().count() == 30


def test_only_chosen_columns_are_read(spark, kafka):
    topic = kafka.topic()
    kafka.send(topic, range(4))
    assert batch(spark, kafka, subscribe=topic, columns="offset,partition").collect() == [(n, 0) for n in range(4)]


def test_bad_batch_options_are_refused(spark, kafka):  # "bad batch query options"
    topic = kafka.topic()
    with pytest.raises(Exception, match="can't be latest") as caught:
        batch(spark, kafka, subscribe=topic, startingOffsets="latest").count()
    found = forebay.unwrap(caught.value)
    assert isinstance(found, ConfigurationError) and found.option == "startingOffsets"


def test_max_offsets_per_trigger_with_a_skew_of_101_11_1(stream, kafka):  # "maxOffsetsPerTrigger"
    topic = kafka.topic(3)
    expected = []
    for partition, (low, high) in enumerate([(100, 200), (10, 20), (1, 1)]):
        kafka.send(topic, range(low, high + 1), partition)
        expected += [(partition, str(number)) for number in range(low, high + 1)]
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 10}
    query = stream.start(available_now=False, **options)
    try:
        wait(lambda: len(stream.batches) >= 4, query)
    finally:
        query.stop()
    assert all(len(rows) == 10 for rows in stream.batches[:4])
    read = [{partition for partition, _ in rows} for rows in stream.batches[:4]]
    assert set.union(*read[:3]) == {0, 1, 2}  # none starves
    stream.run(**options)  # after a restart: the same limits, nothing twice
    assert all(len(rows) <= 10 for rows in stream.batches)
    done = [row for rows in stream.batches for row in rows]
    assert set(done) == set(expected)


def test_once_ignores_the_limit(stream, kafka):
    topic = kafka.topic()
    kafka.send(topic, range(30))
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 10}
    assert [len(rows) for rows in stream.run(once=True, **options)] == [30]


def test_available_now_reads_all_in_three_batches_and_continues_after_a_restart(stream, kafka):
    topic = kafka.topic(5)
    for number in range(15):
        kafka.send(topic, [number], number % 5)
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 5}
    assert [len(rows) for rows in stream.run(**options)] == [5, 5, 5]
    assert stream.run(**options) == []
    kafka.send(topic, range(15, 18), 2)
    assert stream.run(**options) == [[(2, "15"), (2, "16"), (2, "17")]]
    assert len(stream.rows()) == len(set(stream.rows())) == 18


def test_a_new_stream_begins_at_the_latest_offsets(stream, kafka):
    topic = kafka.topic()
    kafka.send(topic, range(3))
    assert stream.run(subscribe=topic) == []
    kafka.send(topic, range(3, 6))
    assert stream.run(subscribe=topic) == [[(0, "3"), (0, "4"), (0, "5")]]


@pytest.mark.parametrize("how", ["subscribe", "subscribePattern"])
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


def test_a_topic_recreated_between_two_runs_is_reported(stream, kafka):
    # Spark's own source loses what was written to the new topic below the old offsets, and says nothing.
    topic = kafka.topic()
    kafka.send(topic, range(3))
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    assert len(stream.run(**options)) == 1
    kafka.delete(topic)
    kafka.topic(name=topic)
    kafka.send(topic, range(100, 110))
    error = failure(stream, **options)
    assert isinstance(error, DataLossError) and error.split == f"{topic}/0"
    assert "deleted and created again" in error.message
    stream.run(**options, failOnDataLoss="false")
    assert [text for _, text in stream.rows()] == sorted(str(n) for n in (0, 1, 2, *range(100, 110)))


def test_records_that_aged_out_are_a_loss_or_skipped_without_doubles(stream, kafka):  # KafkaDontFailOnDataLossSuite
    topic = kafka.topic()
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    kafka.send(topic, range(3))
    stream.run(**options)
    kafka.send(topic, range(3, 20))
    kafka.lose(topic, 0, 10)
    error = failure(stream, **options)
    assert isinstance(error, DataLossError) and error.split == f"{topic}/0"
    assert "offset 3" in error.message
    stream.run(**options, failOnDataLoss="false")
    assert [int(text) for _, text in stream.rows()] == sorted([*range(3), *range(10, 20)], key=str)


def test_a_topic_deleted_while_it_is_read_is_survived_if_that_is_wanted(stream, kafka):
    topic, other = kafka.topic(), kafka.topic()
    options = {"subscribe": f"{topic},{other}", "startingOffsets": "earliest", "failOnDataLoss": "false"}
    kafka.send(topic, range(3))
    query = stream.start(available_now=False, discoveryInterval="200ms", **options)
    try:
        wait(lambda: len(stream.rows()) == 3, query)
        kafka.delete(topic)
        kafka.send(other, range(10, 15))
        wait(lambda: len(stream.rows()) == 8, query)
    finally:
        query.stop()


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_transactions_under_both_isolation_levels(spark, stream, kafka, isolation):
    # The end is the last stable offset: an open transaction holds nobody up.
    import kafka as kafka_python

    topic = kafka.topic()
    producer = kafka_python.KafkaProducer(bootstrap_servers=kafka.address, transactional_id=topic)
    try:
        producer.init_transactions()
        for commit, texts in ((True, "ab"), (False, "cd"), (True, "ef"), (None, "gh")):
            producer.begin_transaction()
            sent = [producer.send(topic, text.encode(), partition=0) for text in texts]
            producer.flush()
            [one.get(30) for one in sent]
            if commit is not None:
                (producer.commit_transaction if commit else producer.abort_transaction)()
        visible = "abef" if isolation == "read_committed" else "abcdefgh"
        options = {"subscribe": topic, "startingOffsets": "earliest", "kafka__isolation__level": isolation}
        assert "".join(values(batch(spark, kafka, subscribe=topic, kafka__isolation__level=isolation))) == visible
        assert "".join(text for rows in stream.run(**options) for _, text in rows) == visible
        producer.commit_transaction()
        later = stream.run(**options)
        assert "".join(text for _, text in stream.rows()) == "abefgh" or (isolation == "read_uncommitted" and not later)
    finally:
        producer.close()


def test_a_stream_with_an_end_stops_there(stream, kafka):
    topic = kafka.topic(2)
    ends = f'{{"{topic}":{{"0":4,"1":8}}}}'
    options = {"subscribe": topic, "startingOffsets": "earliest", "endingOffsets": ends}
    for partition in range(2):
        kafka.send(topic, range(6), partition)
    assert sum(map(len, stream.run(**options))) == 10
    kafka.send(topic, range(6, 12), 0)
    kafka.send(topic, range(6, 12), 1)
    assert stream.run(**options) == [[(1, "6"), (1, "7")]]
    assert stream.run(**options) == []


def test_progress_is_in_the_group_when_the_last_batch_is_proven_done(stream, kafka, broker):
    topic = kafka.topic()
    kafka.send(topic, range(7))
    group = kafka.name("group")
    stream.run(subscribe=topic, startingOffsets="earliest", commitOffsets="true", kafka__group__id=group)
    with broker.admin() as admin:
        found = admin.list_group_offsets({group: None})[group]
    assert {(one.topic, one.partition): offset.offset for one, offset in found.items()} == {(topic, 0): 7}


def test_an_exhausted_source_does_not_stall_another_in_a_union(stream, kafka):  # SPARK-22956
    one, two = kafka.topic(), kafka.topic()
    kafka.send(one, range(3))
    frames = [stream.frame(subscribe=name, startingOffsets="earliest") for name in (one, two)]
    counts: list[int] = []

    def run() -> None:
        query = (
            frames[0].union(frames[1]).writeStream.foreachBatch(lambda rows, _: counts.append(rows.count()))
            .option("checkpointLocation", stream.checkpoint).trigger(availableNow=True).start()
        )  # fmt: skip
        assert query.awaitTermination(500) and query.exception() is None

    run()
    kafka.send(two, range(5))
    run()
    assert sum(counts) == 8


def test_a_broker_that_is_away_is_named(spark):
    frame = spark.read.format("forebay_kafka").option("kafka.bootstrap.servers", "127.0.0.1:1")
    frame = frame.option("subscribe", "t").option("kafka.default.api.timeout.ms", "300").option("retries", "0")
    with pytest.raises(Exception, match=r"no broker of 127\.0\.0\.1:1 can be reached"):
        frame.load().count()
