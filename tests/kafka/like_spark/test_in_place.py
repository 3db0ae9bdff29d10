# SPDX-License-Identifier: Apache-2.0
"""A query of Spark's own Kafka source continues with forebay_kafka on its checkpoint, or is refused with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pyspark = pytest.importorskip("pyspark")


class House:
    """A checkpoint in which one source may live after the other."""

    def __init__(self, spark: Any, kafka: Any, topic: str, checkpoint: Path) -> None:
        self.spark, self.kafka, self.topic, self.checkpoint = spark, kafka, topic, str(checkpoint)
        self.came: list[str] = []

    def run(self, name: str, *, fail: bool = False) -> None:
        def keep(batch: Any, _number: int) -> None:
            found = [row[0] for row in batch.selectExpr("CAST(value AS STRING)").collect()]
            if fail and found:
                raise ValueError("on purpose")
            self.came += found

        frame = (
            self.spark.readStream.format(name)
            .option("kafka.bootstrap.servers", self.kafka.address)
            .option("subscribe", self.topic)
            .option("startingOffsets", "earliest")
            .load()
        )
        writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", self.checkpoint)
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(500)
        if query.exception() is not None:
            raise query.exception()


@pytest.mark.soak
def test_a_query_of_spark_s_own_source_continues_in_place_once_its_last_batch_is_finished(spark, kafka, tmp_path):
    topic = kafka.topic(2)
    house = House(spark, kafka, topic, tmp_path)
    kafka.send(topic, range(5), 0)
    kafka.send(topic, range(5, 8), 1)
    house.run("kafka")
    kafka.send(topic, range(8, 12), 0)
    with pytest.raises(pyspark.sql.utils.StreamingQueryException, match="on purpose"):
        house.run("kafka", fail=True)
    with pytest.raises(pyspark.sql.utils.StreamingQueryException, match="first finish that micro-batch"):
        house.run("forebay_kafka")
    house.run("kafka")
    kafka.grow(topic, 3)
    kafka.send(topic, range(12, 14), 2)
    house.run("forebay_kafka")
    kafka.send(topic, range(14, 16), 1)
    house.run("forebay_kafka")
    assert sorted(map(int, house.came)) == list(range(16))
