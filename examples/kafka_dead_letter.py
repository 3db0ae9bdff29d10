# SPDX-License-Identifier: Apache-2.0
"""JSON values with a dead-letter path: writes good orders to one table, and corrupt records with the reason to another.

Run it: ``python examples/kafka_dead_letter.py`` (it starts a Kafka of its own, and sends orders).
"""

from __future__ import annotations

import tempfile

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.streaming.query import StreamingQuery

ORDER = "order BIGINT, shop STRING, amount DOUBLE"


def sort_out(spark: SparkSession, servers: str, topic: str, directory: str) -> StreamingQuery:
    """Write the current records to `orders` and `dead_letters` below a directory; return a query that ends by itself.

    A restart continues after the last record.
    """

    def store(batch: DataFrame, number: int) -> None:
        """Spark calls this for each micro-batch; after a crash possibly again, with the same number and rows."""
        batch.persist()  # it is written twice but read once
        bad = batch.where("_corrupt_record IS NOT NULL")
        good = batch.where("_corrupt_record IS NULL AND value IS NOT NULL")  # null is a tombstone
        # A directory of its own for each micro-batch: one that comes again replaces itself.
        good.select("value.*").write.mode("overwrite").parquet(f"{directory}/orders/batch={number}")
        # The letter has key and value as they came, topic, partition, offset and reason: all it takes to send it again.
        bad.select("_corrupt_record.*").write.mode("overwrite").parquet(f"{directory}/dead_letters/batch={number}")
        batch.unpersist()

    return (
        spark.readStream.format("forebay_kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("valueFormat", "json")
        .option("valueSchema", ORDER)
        .load()
        .writeStream.queryName("dead letters")
        .foreachBatch(store)
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )


def main() -> None:
    import kafka
    from kafka_orders import kafka_with_orders, spark_session

    with (
        kafka_with_orders(10_000) as orders,
        spark_session("forebay dead letters") as spark,
        tempfile.TemporaryDirectory() as directory,
    ):
        with kafka.KafkaProducer(bootstrap_servers=orders.servers) as producer:
            for spoiled in (b'{"order": 1, "shop": ', b'{"order": "one", "shop": "north"}', b"\xff\xfe", b"[]"):
                producer.send(orders.topic, spoiled)
        sort_out(spark, orders.servers, orders.topic, directory).awaitTermination()
        found = spark.read.parquet(f"{directory}/orders")
        found.groupBy("shop").agg(fn.count("*").alias("orders"), fn.sum("amount").alias("revenue")).show()
        letters = spark.read.parquet(f"{directory}/dead_letters").orderBy("partition", "offset")
        letters.select("partition", "offset", "reason", fn.col("value").cast("string")).show(truncate=False)


if __name__ == "__main__":
    main()
