# SPDX-License-Identifier: Apache-2.0
"""A live tail: writes each micro-batch of new orders to a database; a repeated micro-batch replaces its rows.

Run it: ``python examples/kafka_tail.py`` (it starts a Kafka of its own, and sends orders).
"""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.streaming.query import StreamingQuery


def tail(spark: SparkSession, servers: str, topic: str, database: str, checkpoint: str) -> StreamingQuery:
    """Update the revenue of each shop in a database from now on; return the running query."""
    with closing(sqlite3.connect(database)) as made, made:
        made.execute(
            "CREATE TABLE IF NOT EXISTS revenue"
            " (batch INTEGER, shop TEXT, orders INTEGER, revenue REAL, PRIMARY KEY (batch, shop))"
        )

    def store(batch: DataFrame, number: int) -> None:
        """Spark calls this for each micro-batch; after a crash possibly again, with the same number and rows."""
        totals = batch.groupBy("shop").agg(fn.count("*"), fn.sum("amount")).collect()
        with closing(sqlite3.connect(database)) as connection, connection:  # one transaction
            connection.execute("DELETE FROM revenue WHERE batch = ?", (number,))
            connection.executemany("INSERT INTO revenue VALUES (?, ?, ?, ?)", [(number, *total) for total in totals])

    return (
        spark.readStream.format("forebay_kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .load()  # a stream starts at the latest offsets, unless told otherwise
        .select(fn.from_json(fn.col("value").cast("string"), "order long, shop string, amount double").alias("order"))
        .select("order.*")
        .writeStream.queryName("tail")
        .foreachBatch(store)
        .option("checkpointLocation", checkpoint)
        .start()
    )


def revenue(database: str) -> list[tuple[str, int, float]]:
    """Return orders and revenue of each shop so far."""
    with closing(sqlite3.connect(database)) as connection:
        query = "SELECT shop, SUM(orders), SUM(revenue) FROM revenue GROUP BY shop ORDER BY shop"
        return connection.execute(query).fetchall()


def main() -> None:
    import threading

    from kafka_orders import kafka_with_orders, spark_session

    with (
        kafka_with_orders(10_000) as orders,
        spark_session("tail") as spark,
        tempfile.TemporaryDirectory() as directory,
    ):
        database = f"{directory}/revenue.db"
        query = tail(spark, orders.servers, orders.topic, database, f"{directory}/checks")
        pause = threading.Event()
        while query.lastProgress is None and query.isActive:  # only now it knows where it starts
            pause.wait(0.1)
        for second in range(10):
            orders.write(1_000)
            pause.wait(1)
            shops = ", ".join(f"{shop} {total:,.0f}" for shop, _, total in revenue(database))
            print(f"{second + 1:3} s  {orders.written:,} orders in the topic; revenue: {shops or 'nothing yet'}")
        query.processAllAvailable()
        query.stop()
        print("in the end:", revenue(database))


if __name__ == "__main__":
    main()
