# SPDX-License-Identifier: Apache-2.0
"""One Spark session for all tests of this folder, because its start takes longer than most tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Two cores; a failed task is tried once more, as on a cluster."""
    earlier = SparkSession.getActiveSession()
    if earlier is not None:
        earlier.stop()  # of other tests in this process: its master cannot be changed any more
    session = (
        SparkSession.builder.master("local[2,2]")
        .appName("forebay tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "Asia/Tokyo")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


Run = Callable[..., dict[int, list[int]]]


@pytest.fixture
def run_stream() -> Run:
    """Run a streaming query of a column `n` to its end; gives the sorted values of each micro-batch, by number."""

    def run(
        frame: DataFrame,
        checkpoint: Path,
        *,
        before: Callable[[], object] | None = None,
        view: Callable[[DataFrame], DataFrame] = lambda found: found,
    ) -> dict[int, list[int]]:
        batches = {}

        def keep(found: DataFrame, number: int) -> None:
            if before is not None:
                before()
            batches[number] = sorted(row.n for row in view(found).collect())

        writer = frame.writeStream.option("checkpointLocation", str(checkpoint)).foreachBatch(keep)
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(500)
        finally:
            query.stop()
        return batches

    return run
