# SPDX-License-Identifier: Apache-2.0
"""Starts queries whose options have secrets, and writes all that a session shows of them to a directory."""

from __future__ import annotations

import contextlib
import io
import sys
import traceback
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import forebay

SECRET = "hunter2-canary"
LOGIN = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="b" password="{SECRET}";'
QUERIES: list[tuple[str, dict[str, str]]] = [
    ("forebay_files", {"fileFormat": "text", "stateStorage.key": SECRET, "stateStorage.secret": SECRET}),
    ("forebay_files", {"fileFormat": "text", "path": "s3://b/x", "storage.key": SECRET, "storage.token": SECRET}),
    ("forebay_kafka", {"kafka.bootstrap.servers": f"bob:{SECRET}@h:9092", "subscribe": "t"}),
    (
        "forebay_kafka",
        {
            "kafka.bootstrap.servers": "127.0.0.1:1",
            "subscribe": "t",
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": LOGIN,
            "kafka.default.api.timeout.ms": "300",
            "fetchOffset.numRetries": "0",
            "retries": "0",
        },
    ),
]


def main(root: Path) -> None:
    """Run each query as a stream into the directory `shown`."""
    shown, files = root / "shown", root / "in"
    for directory in (shown, files, root / "events"):
        directory.mkdir(parents=True)
    (files / "a.txt").write_text("x\n")
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.eventLog.enabled", "true").config("spark.eventLog.dir", str(shown))
    spark = builder.config("spark.eventLog.compress", "false").getOrCreate()
    forebay.register(spark)
    for number, (name, options) in enumerate(QUERIES):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            try:
                run(spark, name, {"path": str(files)} | options if name == "forebay_files" else options, shown, number)
            except (forebay.ForebayError, PySparkException) as error:
                out.write(f"{''.join(traceback.format_exception(error))} {error} {error!r}")
        (shown / f"{number}.txt").write_text(out.getvalue())
    spark.stop()


def run(spark: SparkSession, name: str, options: dict[str, str], shown: Path, number: int) -> None:
    """Print the plans and the progress of a query, and its error."""
    df = spark.readStream.format(name).options(**options).load()
    df.explain(extended=True)
    writer: Any = df.writeStream.format("noop").option("checkpointLocation", str(shown / f"checkpoint-{number}"))
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination(60)
    finally:
        query.explain(extended=True)
        sys.stdout.write(f"{query.status} {query.recentProgress} {query.exception()} {forebay.describe(name)}")
        query.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
