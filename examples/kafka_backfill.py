# SPDX-License-Identifier: Apache-2.0
"""A bounded backfill: reads only the orders of some hours, by their timestamps.

Run it: ``python examples/kafka_backfill.py`` (it starts a Kafka of its own).
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn


def backfill(spark: SparkSession, servers: str, topic: str, since: int, until: int) -> DataFrame:
    """Return orders and revenue of each hour from `since` to `until` (exclusive), in ms since 1970."""
    orders = (
        spark.read.format("forebay_kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingTimestamp", since)
        .option("endingTimestamp", until)
        # A partition that was silent since then has nothing to read, which is no error here.
        .option("startingOffsetsByTimestampStrategy", "latest")
        # Columns that are not named are not even decoded.
        .option("columns", "value,timestamp")
        .load()
    )
    return (
        orders.withColumn(
            "order", fn.from_json(fn.col("value").cast("string"), "order long, shop string, amount double")
        )
        .groupBy(fn.date_trunc("hour", "timestamp").alias("hour"))
        .agg(fn.count("*").alias("orders"), fn.sum("order.amount").alias("revenue"))
        .orderBy("hour")
    )


def main() -> None:
    from kafka_orders import HOUR, kafka_with_orders, spark_session

    day = 1_767_225_600_000  # 2026-01-01 00:00 UTC
    with kafka_with_orders(48_000, day, day + 24 * HOUR) as orders, spark_session("backfill") as spark:
        backfill(spark, orders.servers, orders.topic, day + 6 * HOUR, day + 9 * HOUR).show()


if __name__ == "__main__":
    main()
