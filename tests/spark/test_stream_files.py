# SPDX-License-Identifier: Apache-2.0
"""`forebay_files` in real Spark streams: files in, rows in a sink, over restarts, beside Spark's own file stream."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import forebay

NOON = 1_700_000_000


@pytest.fixture(scope="module", autouse=True)
def _registered(spark: SparkSession) -> None:
    forebay.register(spark)


def put(directory: Path, name: str, text: str, at: float = 0.0) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(text)
    moment = int((NOON + at) * 1e9)
    os.utime(path, ns=(moment, moment))
    return path


def stream(spark: SparkSession, directory: Path, **options: Any) -> DataFrame:
    reader = spark.readStream.format("forebay_files").schema(options.pop("schema", "value string"))
    options = {"fileFormat": "text", **options}
    return reader.options(**options).load(str(directory))


class Query:
    """Runs a stream up to what there is, and keeps what each micro-batch brought."""

    def __init__(self, tmp_path: Path) -> None:
        self.checkpoint = str(tmp_path / "checkpoint")
        self.batches: list[list[tuple[Any, ...]]] = []

    def run(self, frame: DataFrame, *, once: bool = False) -> list[list[tuple[Any, ...]]]:
        taken: list[list[tuple[Any, ...]]] = []

        def keep(batch: DataFrame, _number: int) -> None:
            taken.append(sorted(tuple(row) for row in batch.collect()))

        writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", self.checkpoint)
        query = writer.trigger(once=True).start() if once else writer.trigger(availableNow=True).start()
        query.awaitTermination(120)
        assert query.exception() is None
        self.batches += taken
        return [rows for rows in taken if rows]


def test_files_come_once_in_order_and_over_restarts(spark: SparkSession, tmp_path: Path) -> None:
    inbox = tmp_path / "in"
    for number in range(5):
        put(inbox, f"{number}.txt", f"{number}\n", at=-number)
    query = Query(tmp_path)
    frame = stream(spark, inbox, maxFilesPerTrigger=2)
    assert query.run(frame) == [[("3",), ("4",)], [("1",), ("2",)], [("0",)]]
    assert query.run(frame) == []
    put(inbox, "5.txt", "5\n")
    assert query.run(frame) == [[("5",)]]
