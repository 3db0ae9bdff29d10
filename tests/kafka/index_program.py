# SPDX-License-Identifier: Apache-2.0
"""The driver that is killed: a topic of changes into a datasource, up to what there is.

Run by the tests as `python -P index_program.py plan.json`. It sends itself SIGKILL before or after a put.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import forebay
from forebay.changelog import apply_changes
from forebay.index import Datasource, Funnel, ObjectType, Property
from forebay.state.local_state_store import LocalStateStore

OBJECT = ObjectType("Thing", {"id": "bigint"}, [Datasource("things", {"name": Property("string", filter=True)})])


def arm(at: int) -> None:
    """Let the put with this number be the last one: odd numbers are killed before it, even ones after it."""
    put, seen = LocalStateStore.put_if_absent, [0]

    def last(store: LocalStateStore, name: str, data: bytes) -> bool:
        seen[0] += 1
        if seen[0] == at and at % 2:
            os.kill(os.getpid(), signal.SIGKILL)
        done = put(store, name, data)
        if seen[0] == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    LocalStateStore.put_if_absent = last  # type: ignore[method-assign, assignment]


def main() -> None:
    plan: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    forebay.register(spark)
    arm(plan["at"])
    changes = spark.readStream.format("forebay_kafka").options(**plan["options"], maxOffsetsPerTrigger=40).load()
    funnel = Funnel(plan["location"], OBJECT, shards=2)
    query = apply_changes(
        changes,
        funnel.target("things"),
        keys="id",
        checkpoint_location=plan["checkpoint"],
        trigger={"availableNow": True},
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
