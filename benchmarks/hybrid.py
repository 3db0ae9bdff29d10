# SPDX-License-Identifier: Apache-2.0
"""What a hybrid costs: each source read by itself and as a part of a hybrid, in the same run, in turn.

The other part is empty or a row. Run it: ``make bench BENCH=hybrid``. Ratio = seconds alone / seconds in the hybrid.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from cpu import seconds_since, tree
from kafka import KafkaProducer
from pyspark.sql import SparkSession
from report import Cell, publish

import forebay
from forebay import FileSource, HybridSource, KafkaSource, Source
from forebay.testkit.kafka_broker import KafkaBroker


def csv_files(directory: Path, files: int, rows: int) -> FileSource:
    directory.mkdir()
    for number in range(files):
        lines = (f"{number * rows + n},customer {n % 977},{n * 0.25},2024-01-{n % 28 + 1:02}" for n in range(rows))
        (directory / f"{number:03}.csv").write_text("id,name,amount,day\n" + "\n".join(lines) + "\n")
    options = {"header": True, "inferSchema": False}
    return FileSource(path=str(directory), file_format="csv", format_options=options)


def topic(broker: KafkaBroker, records: int) -> KafkaSource:
    broker.create_topic("orders", 2)
    with KafkaProducer(bootstrap_servers=broker.address, linger_ms=50, batch_size=1 << 18) as producer:
        for number in range(records):
            producer.send("orders", f"{number:0100}".encode(), partition=number % 2)
    return KafkaSource(subscribe=["orders"], kafka={"bootstrap.servers": broker.address})


def measured(spark: SparkSession, source: Source) -> tuple[float, float]:
    """Return wall and CPU seconds of a batch read of all columns."""
    before, began = tree(), time.perf_counter()
    forebay.read(spark, source).write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began, seconds_since(before)


def compared(spark: SparkSession, name: str, alone: Source, hybrid: Source, rows: int, repeats: int) -> Cell:
    kinds: dict[str, tuple[Source, list[float], list[float]]] = {"alone": (alone, [], []), "hybrid": (hybrid, [], [])}
    for turn in range(repeats + 1):
        for source, seconds, cpu in kinds.values():
            took, used = measured(spark, source)
            if turn:  # the first one warms up
                seconds.append(took)
                cpu.append(used)
    _, ours, our_cpu = kinds["hybrid"]
    _, theirs, their_cpu = kinds["alone"]
    return Cell(name, "the source alone", ours, theirs, our_cpu, their_cpu, rows)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--repeats", type=int, default=7)
    arguments.add_argument("--rows", type=int, default=2_000_000)
    asked = arguments.parse_args()
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    with tempfile.TemporaryDirectory() as scratch, KafkaBroker() as broker:
        place = Path(scratch)
        files, one = csv_files(place / "many", 8, asked.rows // 8), csv_files(place / "one", 1, 1)
        live = topic(broker, asked.rows)
        broker.create_topic("none", 1)
        none = KafkaSource(subscribe=["none"], kafka={"bootstrap.servers": broker.address})
        cells = [
            compared(spark, "history: CSV files", files, HybridSource(files, one), asked.rows, asked.repeats),
            compared(spark, "live: Kafka, 100 B", live, HybridSource(none, live), asked.rows, asked.repeats),
        ]
        publish("hybrid", cells)
    spark.stop()


if __name__ == "__main__":
    main()
