# SPDX-License-Identifier: Apache-2.0
"""One Spark session for all tests of this folder, because its start takes longer than most tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

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


class Bucket(NamedTuple):
    """A bucket of a server that outlives the processes of a query."""

    settings: Mapping[str, str]
    name: str
    client: Any

    def moved(self, options: Mapping[str, Any], prefix: str) -> dict[str, Any]:
        """Upload the files below the option `path`; return the options for data and state in the bucket."""
        root = Path(options["path"])
        for file in (path for path in root.rglob("*") if path.is_file()):
            key = f"{prefix}/in/{file.relative_to(root)}"
            self.client.put_object(Bucket=self.name, Key=key, Body=file.read_bytes())
        return {
            **options,
            "path": f"s3://{self.name}/{prefix}/in",
            "stateLocation": f"s3://{self.name}/{prefix}/state",
            **{f"{of}.{name}": value for of in ("storage", "stateStorage") for name, value in self.settings.items()},
        }


@pytest.fixture(scope="session")
def bucket(s3_server: Any) -> Bucket:
    """A bucket of a real server."""
    return Bucket(s3_server.options(), s3_server.make_bucket("kills"), s3_server.client)


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
