# SPDX-License-Identifier: Apache-2.0
"""The driver that is killed: a query with keyed state over files of changes, into a sink that shows every change.

Run by the tests as `python -P state_kill_program.py plan.json`, again after each death.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as users write it

import forebay
from forebay.sources.files import FileSource
from forebay.spark.changelog import stateful
from forebay.spark.changelog.converting import from_changes
from forebay.spark.changelog.materialize import changelog_join, latest_per_key, materialize
from forebay.state.local_state_store import LocalStateStore
from forebay.testkit.kills import Killable, KillList, MicroBatchFiles, killable_state, restart_until_done

SCHEMA = "side int, id long, level int, name string, at timestamp, _change_type string"


class KillableFiles(Killable, FileSource):
    """Files of a directory."""

    name: ClassVar[str] = "killable_files"


def view(df: DataFrame, **state: Any) -> DataFrame:
    """The rows of one side by their key, of changes in any order."""
    rows = df.where("side = 0").drop("side", "at")
    return materialize(rows, "id", strategy="retract", on_missing_retraction="hold", preimages=True, **state)


def joined(df: DataFrame, **state: Any) -> DataFrame:
    """Both sides joined, and the pairs by the key of the left side: two operators."""
    left = df.where("side = 0").select("id", "level", "name", "_change_type")
    right = df.where("side = 1").select(F.col("id").alias("level"), F.col("name").alias("other"), "_change_type")
    right = right.withColumn("level", F.col("level").cast("int") % 5)
    left = left.withColumn("level", F.col("level") % 5)
    whole = (from_changes(side, images="full", history="complete") for side in (left, right))
    pairs = changelog_join(*whole, "level", **state)
    return materialize(pairs, ["id", "other"], strategy="retract", on_missing_retraction="hold", **state)


def latest(df: DataFrame, **state: Any) -> DataFrame:
    """The last row of each key; keys expire."""
    return latest_per_key(df.drop("side"), "id", sequence_by="level", state_ttl="40 seconds", event_time="at", **state)


QUERIES = {"view": view, "join": joined, "latest": latest}


class Straggler:
    """The function of `mapInArrow`, whose first attempt in shard 0 of micro-batch 2 is stuck before its manifest."""

    def __init__(self, task: Any, directory: str) -> None:
        self.task, self.directory = task, Path(directory)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context: Any = TaskContext.get()
        here = context.partitionId() == 0 and context.getLocalProperty("streaming.sql.batchId") == "2"
        if here and not context.attemptNumber() and not (self.directory / "stuck").exists():
            (self.directory / "stuck").touch()
            with patch.object(LocalStateStore, "put_if_absent", self.late(LocalStateStore.put_if_absent)):
                yield from self.task(batches)
            return
        rows = list(self.task(batches))
        if here:
            (self.directory / f"passed.{context.attemptNumber()}").touch()
        yield from rows

    def late(self, put: Any) -> Any:
        """Return a write that waits, if it is of a manifest, until another attempt has ended."""

        def wait(store: LocalStateStore, name: str, data: bytes) -> Any:
            for _ in range(2400 if name.endswith(".json") else 0):  # two minutes, on a busy machine
                if list(self.directory.glob("passed.*")):
                    time.sleep(0.2)
                    (self.directory / f"late.{put(store, name, data)}").touch()
                    return False
                time.sleep(0.05)
            return put(store, name, data)

        return wait


def start(spark: SparkSession, plan: dict[str, Any], kills: KillList) -> Any:
    """Start the query of a plan: once more on the same checkpoint."""
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", 2)
    reader = spark.readStream.format("killable_files").schema(SCHEMA)
    df = reader.options(**plan["options"], fileFormat="json", kills=kills.directory).load()
    with killable_state(kills, small=40), ExitStack() as stack:
        if "straggler" in plan:
            made = stateful._Task
            task = lambda *arguments: Straggler(made(*arguments), plan["straggler"])  # noqa: E731 - a class in its place
            stack.enter_context(patch.object(stateful, "_Task", task))
        changes = QUERIES[plan["query"]](
            df, state_location=plan["state"], state_storage=plan.get("storage"), shards=plan.get("shards", 2)
        )
    stream = changes.writeStream.foreachBatch(MicroBatchFiles(plan["rows"], kills))
    return stream.option("checkpointLocation", plan["checkpoint"]).trigger(availableNow=True).start()


def session(plan: dict[str, Any]) -> SparkSession:
    """Make a session that is ready soon."""
    builder = SparkSession.builder.master(plan["master"])
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "600m",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
        **plan.get("conf", {}),
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def main() -> None:
    """Run the plan in the file that is named on the command line."""
    with open(sys.argv[1], encoding="utf-8") as file:
        plan = json.load(file)
    kills = KillList(plan["kills"])
    spark = session(plan)
    jvm: Any = spark._jvm
    kills.these_are(jvm=int(jvm.ProcessHandle.current().pid()), driver=os.getpid())
    forebay.register(spark, KillableFiles)
    restart_until_done(lambda: start(spark, plan, kills), kills)


if __name__ == "__main__":
    main()
