# SPDX-License-Identifier: Apache-2.0
"""A driver on a cluster: a task that never ends and is overtaken, and an executor that dies in a micro-batch.

Run by the tests as `python -P cluster_program.py master directory`.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

import forebay
from forebay.sources.rate import RateSource
from forebay.testkit.kills import Kill, Killable, KillList, MicroBatchFiles


class Straggler(forebay.SimpleSource):
    """Four splits of thirty rows; the first task that reads the first one is stuck in the middle of it."""

    name: ClassVar[str] = "straggler"

    directory: str

    def schema(self) -> pa.Schema:
        return pa.schema([("split", pa.string()), ("n", pa.int64())])

    def splits(self) -> list[str]:
        return [f"s{number}" for number in range(4)]

    def read(self, split: forebay.Split) -> Any:
        for n in range(split.position or 0, 30):  # type: ignore[arg-type]
            if n == 20 and split.id == "s0":
                self.stick()
            yield {"split": split.id, "n": n}

    def stick(self) -> None:
        context: Any = TaskContext.get()
        directory = Path(self.directory)
        # A second attempt passes; on a busy machine it may come here before the one that it overtakes.
        if context.attemptNumber() or (directory / "stuck").exists():
            (directory / f"passed.{context.attemptNumber()}.{os.getpid()}").touch()
            return
        (directory / "stuck").write_text(f"{context.attemptNumber()} {os.getpid()}")
        for _ in range(1200):  # a minute: longer than a second attempt takes to come, also on a slow machine
            time.sleep(0.05)
        (directory / "gave up").touch()
        raise RuntimeError("no second attempt ended")


class KillableRate(Killable, RateSource):
    """Rows by number."""

    name: ClassVar[str] = "killable_rate"


def run(spark: SparkSession, place: Path, name: str, **options: object) -> None:
    """Read all that is there into files."""
    frame = spark.readStream.format(name).options(**options).load()
    stream = frame.writeStream.foreachBatch(MicroBatchFiles(place / "rows"))
    stream.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True).start().awaitTermination()


def main() -> None:
    """Run both queries on the cluster."""
    master, root = sys.argv[1], Path(sys.argv[2])
    builder = SparkSession.builder.master(master)
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "600m",
        "spark.executor.memory": "512m",
        "spark.speculation": "true",
        # Otherwise tasks that report no rows yet, as all that are stuck in Python, are never overtaken.
        "spark.speculation.efficiency.enabled": "false",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "100ms",
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    forebay.register(spark, Straggler, KillableRate)
    place = root / "speculation"
    place.mkdir()
    run(spark, place, "straggler", directory=place, numPartitions=4, maxRowsPerBatch=5)

    place = root / "executor"
    kills = KillList(place / "kills")
    kills.arm(Kill("read-middle", "executor", at=5))
    options: dict[str, object] = {"rows": 200, "numSplits": 2, "maxRowsPerTrigger": 100, "maxRowsPerBatch": 10}
    run(spark, place, "killable_rate", **options, kills=kills.directory)
    spark.stop()


if __name__ == "__main__":
    main()
