# SPDX-License-Identifier: Apache-2.0
"""Stops a query in the middle of its micro-batch, again and again.

Run by the tests as `python -P stop_program.py DIRECTORY TIMES`.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from forebay.spark.changelog.targets.changes import Changes
from forebay.spark.changelog.targets.target import Target, apply_changes


class Waits(Target):
    """Runs a job that does not end."""

    begun = threading.Event()

    def _apply(self, changes: Changes, batch_id: int, query_id: str, *, adopt: bool) -> bool:
        slow = changes.df.selectExpr("java_method('java.lang.Thread', 'sleep', 600000L + id)")
        self.begun.set()
        slow.collect()
        return True


def stopped(df: DataFrame, directory: str) -> bool:
    target = Waits()
    target.begun.clear()
    query: Any = apply_changes(df, target, keys="id", checkpoint_location=directory)
    target.begun.wait(100)
    while not any(job for job in df.sparkSession.sparkContext.statusTracker().getActiveJobsIds()):
        query.awaitTermination(0.05)
    query.stop()
    return query.exception() is None and not query.isActive


def main() -> None:
    directory, times = sys.argv[1], int(sys.argv[2])
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    spark.range(3).write.parquet(f"{directory}/in")
    df = spark.readStream.schema("id long").parquet(f"{directory}/in")
    done = sum(stopped(df, f"{directory}/checkpoint {number}") for number in range(times))
    sys.stdout.write(f"stopped {done} micro-batches\n")
    spark.stop()


if __name__ == "__main__":
    main()
