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
    """A bucket of a server in this process, which outlives the processes of a query."""

    endpoint: str
    name: str
    client: Any

    def moved(self, options: Mapping[str, Any], prefix: str) -> dict[str, Any]:
        """Upload the files below the option `path`; return the options for data and state in the bucket."""
        root = Path(options["path"])
        for file in (path for path in root.rglob("*") if path.is_file()):
            key = f"{prefix}/in/{file.relative_to(root)}"
            self.client.put_object(Bucket=self.name, Key=key, Body=file.read_bytes())
        settings = {"endpoint_url": self.endpoint, "key": "the-key-id", "secret": "the-secret-text"}
        return {
            **options,
            "path": f"s3://{self.name}/{prefix}/in",
            "stateLocation": f"s3://{self.name}/{prefix}/state",
            **{f"{of}.{name}": value for of in ("storage", "stateStorage") for name, value in settings.items()},
        }


@pytest.fixture(scope="session")
def bucket() -> Iterator[Bucket]:
    """A bucket of moto."""
    boto3 = pytest.importorskip("boto3")
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0)
    server.start()
    endpoint = "http://{}:{}".format(*server.get_host_and_port())
    client = boto3.client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="y"
    )
    client.create_bucket(Bucket="kills")
    yield Bucket(endpoint, "kills", client)
    client.close()
    server.stop()


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
