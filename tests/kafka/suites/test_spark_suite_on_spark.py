# SPDX-License-Identifier: Apache-2.0
"""Cases of Spark's KafkaMicroBatchSourceSuite that are about Spark: joins, watermarks, metrics, stopping."""

from __future__ import annotations

from typing import Any

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


def test_input_row_metrics(spark, kafka, send, frame, tmp_path):
    topic = kafka.topic(2)
    send(topic, range(9), spread=2)
    query = run(frame(topic).writeStream.format("noop"), tmp_path)
    assert sum(one["numInputRows"] for one in query.recentProgress) == 9


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
    run(writer.outputMode("append"), tmp_path)
    assert windows == [(begin, 2)]
    send(topic, [4], timestamp_ms=begin)
    query = run(writer, tmp_path)
    assert sum(one["stateOperators"][0]["numRowsDroppedByWatermark"] for one in query.recentProgress) == 1
    assert windows == [(begin, 2)]


def test_cannot_stop_kafka_stream(spark, kafka, send, frame, tmp_path):
    """It returns, with nothing to read, and again and again on one checkpoint."""
    topic = kafka.topic(2)
    send(topic, range(4))
    counts: list[int] = []
    for _ in range(2):
        writer = frame(topic, refreshInterval="50ms").writeStream.foreachBatch(
            lambda rows, _: counts.append(rows.count())
        )
        query = writer.option("checkpointLocation", str(tmp_path)).start()
        query.processAllAvailable()
        send(topic, range(4))
        query.processAllAvailable()
        query.stop()
        assert not query.isActive and query.exception() is None
    assert sum(counts) == 12
