# SPDX-License-Identifier: Apache-2.0
"""A job for a scheduler: every hour it writes the new records of a topic to files, and ends.

Run it: ``python examples/kafka_hourly.py`` (it starts a Kafka of its own, and is its own scheduler).
"""

from __future__ import annotations

import tempfile

from pyspark.sql import SparkSession
from pyspark.sql import functions as fn


def run_once(spark: SparkSession, servers: str, topic: str, files: str, checkpoint: str) -> int:
    """Append the orders since the last run to Parquet files, with a directory for each day; return their number.

    After a killed run the next one repeats its last micro-batch, and the file sink replaces the rows.
    """
    orders = (
        spark.readStream.format("forebay_kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        # For the first run alone: later ones go on from the checkpoint.
        .option("startingOffsets", "earliest")
        # After a long pause there is much to read: so much at a time, in as many micro-batches as it takes.
        .option("maxOffsetsPerTrigger", 1_000_000)
        .load()
        .select(
            fn.from_json(fn.col("value").cast("string"), "order long, shop string, amount double").alias("order"),
            fn.to_date("timestamp").alias("day"),
        )
        .select("order.*", "day")
    )
    query = (
        orders.writeStream.format("parquet")
        .partitionBy("day")
        .option("path", files)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)  # what is there now, and then the query ends
        .start()
    )
    query.awaitTermination()
    return sum(report["numInputRows"] for report in query.recentProgress)


def main() -> None:
    from kafka_orders import HOUR, kafka_with_orders, spark_session

    midnight = 1_767_312_000_000  # 2026-01-02 00:00 UTC
    with (
        kafka_with_orders() as orders,
        spark_session("hourly") as spark,
        tempfile.TemporaryDirectory() as directory,
    ):
        files, checkpoint = f"{directory}/orders", f"{directory}/checks"
        for hour in (-1, 0, 1):
            orders.write(6_000, midnight + hour * HOUR, midnight + (hour + 1) * HOUR)
            print(
                f"the run of hour {hour:+d}:",
                run_once(spark, orders.servers, orders.topic, files, checkpoint),
                "orders",
            )
        print("a run with nothing new:", run_once(spark, orders.servers, orders.topic, files, checkpoint), "orders")
        spark.read.parquet(files).groupBy("day", "shop").count().orderBy("day", "shop").show()


if __name__ == "__main__":
    main()
