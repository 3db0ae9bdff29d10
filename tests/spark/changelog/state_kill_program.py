# SPDX-License-Identifier: Apache-2.0
"""The driver that is killed: a query with keyed state over files of changes, into a sink that shows every change.

Run by the tests as `python -P state_kill_program.py plan.json`, again after each death.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, ClassVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as users write it

import forebay
from forebay.sources.files import FileSource
from forebay.spark.changelog.joining import changelog_join
from forebay.spark.changelog.keyed import latest_per_key
from forebay.spark.changelog.materialize import materialize
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
    pairs = changelog_join(left.withColumn("level", F.col("level") % 5), right, "level", **state)
    return materialize(pairs, ["id", "other"], strategy="retract", on_missing_retraction="hold", **state)


def latest(df: DataFrame, **state: Any) -> DataFrame:
    """The last row of each key; keys expire."""
    return latest_per_key(df.drop("side"), "id", sequence_by="level", state_ttl="40 seconds", event_time="at", **state)


QUERIES = {"view": view, "join": joined, "latest": latest}


def start(spark: SparkSession, plan: dict[str, Any], kills: KillList) -> Any:
    """Start the query of a plan: once more on the same checkpoint."""
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", 2)
    reader = spark.readStream.format("killable_files").schema(SCHEMA)
    df = reader.options(**plan["options"], fileFormat="json", kills=kills.directory).load()
    with killable_state(kills, small=40):
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
