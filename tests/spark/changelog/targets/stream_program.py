# SPDX-License-Identifier: Apache-2.0
"""The driver that is killed: a stream of changes into PostgreSQL, up to what there is.

Run by the tests as `python -P stream_program.py plan.json`, again after each death.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, ClassVar

from pyspark.sql import SparkSession

import forebay
from forebay.sources.rate import RateSource
from forebay.spark.changelog.targets.postgres import PostgresTarget
from forebay.spark.changelog.targets.target import apply_changes
from forebay.testkit.kills import Killable, KillList


class KillableRate(Killable, RateSource):
    """Rows by number."""

    name: ClassVar[str] = "killable_rate"


class MeetingPoints(PostgresTarget):
    """Reaches a point before and after the transaction of a micro-batch."""

    kills: KillList

    def _merge(self, *given: Any) -> bool:
        self.kills.meet("sink-begins")
        done = super()._merge(*given)
        self.kills.meet("sink-written")
        return done


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    spark = (
        SparkSession.builder.master("local[2,3]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    kills = KillList(plan["kills"])
    jvm: Any = spark._jvm
    kills.these_are(jvm=int(jvm.ProcessHandle.current().pid()), driver=os.getpid())
    forebay.register(spark, KillableRate)
    rows = spark.readStream.format("killable_rate").options(**plan["options"]).load()
    target = MeetingPoints(plan["dsn"], plan["table"])
    target.kills = kills
    query = apply_changes(
        rows.selectExpr("value % 40 AS id", "value AS v", "value % 7 = 0 AS gone"),
        target,
        keys="id",
        sequence_by="v",
        apply_as_deletes="gone",
        except_column_list=["gone"],
        checkpoint_location=plan["checkpoint"],
        trigger={"availableNow": True},
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
