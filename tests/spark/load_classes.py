# SPDX-License-Identifier: Apache-2.0
"""Runs what most tests run, so that the JVM can write an archive of Spark's classes. See the Makefile."""

from __future__ import annotations

import tempfile

from pyspark import SparkContext
from pyspark.sql import SparkSession

import forebay

if __name__ == "__main__":
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    forebay.register(spark)
    with tempfile.TemporaryDirectory() as directory:
        spark.read.format("forebay_rate").option("rows", 10).load().collect()
        for name in ("parquet", "csv", "json"):
            spark.range(10).selectExpr("id", "cast(id as string) as text").write.format(name).save(
                f"{directory}/{name}"
            )
            spark.read.schema("id bigint, text string").format(name).load(f"{directory}/{name}").groupBy(
                "text"
            ).count().collect()
        stream = spark.readStream.format("forebay_rate").option("rows", 10).load()
        query = (
            stream.withWatermark("timestamp", "1 second")
            .groupBy("timestamp")
            .count()
            .writeStream.format("memory")
            .queryName("counts")
            .option("checkpointLocation", f"{directory}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(60)
    spark.stop()
    # The JVM ends, and writes the archive, after its standard input is closed.
    gateway = SparkContext._gateway
    assert gateway is not None
    java = gateway.proc
    java.stdin.close()
    java.wait(120)
