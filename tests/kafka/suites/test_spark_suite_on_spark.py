# SPDX-License-Identifier: Apache-2.0
"""Cases of Spark's KafkaMicroBatchSourceSuite that are about Spark: joins, watermarks, metrics, stopping."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

sql = pytest.importorskip("pyspark.sql")


@pytest.fixture
def frame(spark, kafka):
    def frame(topic: str, **options: str) -> Any:
        reader = spark.readStream.format("forebay_kafka").option("kafka.bootstrap.servers", kafka.address)
        return reader.option("subscribe", topic).options(startingOffsets="earliest", **options).load()

    return frame


def run(writer: Any, checkpoint: Any) -> Any:
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(500)
    if query.exception() is not None:
        raise query.exception()
    return query


@pytest.mark.soak
def test_ensure_stream_stream_self_join_and_correct_metrics(spark, kafka, send, frame, tmp_path):
    """Each side of a Python source keeps an offset of its own; both read the same, and every row is counted."""
    topic = kafka.topic(2)
    send(topic, range(10), spread=2)
    values = frame(topic).selectExpr("CAST(CAST(value AS STRING) AS INT) AS value", "timestamp")
    joined = values.join(values.withColumnRenamed("timestamp", "other"), "value")
    query = run(joined.writeStream.format("memory").queryName("self_joined"), tmp_path)
    rows = sorted(row.value for row in spark.table("self_joined").collect())
    assert rows == [*range(10)]
    assert sum(one["numInputRows"] for one in query.recentProgress) == 20


@pytest.mark.soak
def test_kafka_source_with_watermark(spark, kafka, send, frame, tmp_path):
    """A window comes out once it is over: the record of a minute later says so, and a late one is left out."""
    topic, begin = kafka.topic(), 1_700_000_000_000
    send(topic, [1, 2], timestamp_ms=begin)
    send(topic, [3], timestamp_ms=begin + 60_000)
    counted = (
        frame(topic)
        .withWatermark("timestamp", "10 seconds")
        .groupBy(sql.functions.window("timestamp", "10 seconds"))
        .count()
        .selectExpr("unix_millis(window.start)", "count")
    )
    windows: list[tuple[int, int]] = []
    writer = counted.writeStream.foreachBatch(lambda rows, _: windows.extend(tuple(row) for row in rows.collect()))
    query = writer.outputMode("append").option("checkpointLocation", str(tmp_path)).start()
    query.processAllAvailable()
    assert windows == [(begin, 2)]
    send(topic, [4], timestamp_ms=begin)
    query.processAllAvailable()
    query.stop()
    assert sum(one["stateOperators"][0]["numRowsDroppedByWatermark"] for one in query.recentProgress) == 1
    assert windows == [(begin, 2)]


class Stopped(NamedTuple):
    """Two queries on one checkpoint, one after the other, and the rows of their micro-batches."""

    queries: list[Any]
    counts: list[int]


@pytest.fixture(scope="module")
def stopped(spark, kafka, tmp_path_factory) -> Stopped:
    """Each is stopped with nothing to read; four records come before it starts, and four while it runs."""
    topic, found = kafka.topic(2), Stopped([], [])
    checkpoint = str(tmp_path_factory.mktemp("stopped"))
    reader = spark.readStream.format("forebay_kafka").option("kafka.bootstrap.servers", kafka.address)
    rows = reader.options(subscribe=topic, startingOffsets="earliest", refreshInterval="50ms").load()
    for _ in range(2):
        kafka.send(topic, range(4))
        writer = rows.writeStream.foreachBatch(lambda batch, _: found.counts.append(batch.count()))
        query = writer.option("checkpointLocation", checkpoint).start()
        query.processAllAvailable()
        kafka.send(topic, range(4), 1)
        query.processAllAvailable()
        query.stop()
        found.queries.append(query)
    return found


@pytest.mark.soak
def test_cannot_stop_kafka_stream(stopped):
    """It returns, with nothing to read, and again and again on one checkpoint."""
    for query in stopped.queries:
        assert not query.isActive and query.exception() is None
    assert sum(stopped.counts) == 16


@pytest.mark.soak
def test_input_row_metrics(stopped):
    assert [sum(one["numInputRows"] for one in query.recentProgress) for query in stopped.queries] == [8, 8]
