# SPDX-License-Identifier: Apache-2.0
"""The driver that is killed: reads a source up to what there is now, into a sink that shows every row.

Run by the tests as `python -P kill_program.py plan.json`, again after each death.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, ClassVar

from pyspark.sql import SparkSession

import forebay
from forebay.sources.files import FileSource
from forebay.sources.rate import RateSource
from forebay.testkit.kills import Killable, KillList, MicroBatchFiles, restart_until_done


class KillableRate(Killable, RateSource):
    """Rows by number."""

    name: ClassVar[str] = "killable_rate"


class KillableFiles(Killable, FileSource):
    """Files of a directory."""

    name: ClassVar[str] = "killable_files"


SOURCES = (KillableRate, KillableFiles)


def start(spark: SparkSession, plan: dict[str, Any], kills: KillList) -> Any:
    """Start the query of a plan: once more on the same checkpoint."""
    reader = spark.readStream.format(plan["format"]).options(**plan["options"], kills=kills.directory)
    if "schema" in plan:
        reader = reader.schema(plan["schema"])
    return (
        reader.load()
        .writeStream.foreachBatch(MicroBatchFiles(plan["rows"], kills))
        .option("checkpointLocation", plan["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )


def session(master: str) -> SparkSession:
    """Make a session that is ready soon."""
    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "600m")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


def main() -> None:
    """Run the plan in the file that is named on the command line."""
    with open(sys.argv[1], encoding="utf-8") as file:
        plan = json.load(file)
    kills = KillList(plan["kills"])
    spark = session(plan["master"])
    jvm: Any = spark._jvm
    kills.these_are(jvm=int(jvm.ProcessHandle.current().pid()), driver=os.getpid())
    forebay.register(spark, *SOURCES)
    restart_until_done(lambda: start(spark, plan, kills), kills)


if __name__ == "__main__":
    main()
