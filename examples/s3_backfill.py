# SPDX-License-Identifier: Apache-2.0
"""A backfill from S3 to Parquet. Credentials come from the environment, as for every program that uses boto3.

Run it: ``python examples/s3_backfill.py s3://bucket/orders /data/orders``.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import forebay


def backfill(spark: SparkSession, source: str, target: str, **options: str) -> None:
    """Copy the orders of 2024 that are worth more than 100 to `target`, a directory for each month."""
    orders = (
        spark.read.format("forebay_files")
        .options(**options)
        .option("partitionFilter", "year = 2024")
        .option("rowFilter", "amount > 100")
        .load(source)
    )
    orders.write.mode("overwrite").partitionBy("month").parquet(target)


if __name__ == "__main__":
    session = SparkSession.builder.appName("backfill").getOrCreate()
    forebay.register(session)
    backfill(session, sys.argv[1], sys.argv[2])
