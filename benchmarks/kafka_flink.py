# SPDX-License-Identifier: Apache-2.0
"""`forebay_kafka` beside Flink's Kafka connector and Spark's own source: all rows and columns of a topic, in turn.

All read on two cores, in processes that stay: a Spark session, and a JVM of Flink with source and sink chained. "Net"
is without the start of a job: less the median time of a topic of one record batch. Flink's rows are counted. Run it:
``make bench BENCH=kafka_flink``, or quicker with ``BENCH_ARGS='--rows 1000000 --repeats 3'``. Needs a JDK.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Self

from cpu import seconds_since, tree
from flink_jars import FlinkProgram, kafka_connector_jars
from kafka_peer import both
from kafka_topics import KINDS, fill
from pyspark.sql import SparkSession
from report import WHERE

from forebay.testkit.kafka_broker import KafkaBroker
from forebay.text_tables import text_table

CORES = 2
SMALL = "one-batch"
OURS = "forebay_kafka"
Reader = Callable[[str], tuple[int, float, float]]
"""Reads a topic; returns rows, seconds by the clock, and seconds of CPU."""


class Flink:
    """A JVM of Flink that reads topics. Use as a context manager."""

    def __init__(self, broker: KafkaBroker, classes: Path) -> None:
        source = Path(__file__).parent / "flink" / "KafkaReadJob.java"
        program = FlinkProgram(source, classes, kafka_connector_jars())
        self._command = program.command(broker.address, CORES, options=["-Xmx3g"])

    def __enter__(self) -> Self:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            self._command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, bufsize=1
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()

    def reader(self, mode: str) -> Reader:
        """Return what reads in a mode: `batch` or `streaming`."""

        def read(topic: str) -> tuple[int, float, float]:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            print(mode, topic, file=self._process.stdin)
            rows, seconds, cpu = self._process.stdout.readline().split()
            return int(rows), float(seconds), float(cpu)

        return read


def spark_reader(spark: SparkSession, name: str, broker: KafkaBroker) -> Reader:
    """Return what reads with a source of Spark."""

    def read(topic: str) -> tuple[int, float, float]:
        reader = spark.read.format(name).option("kafka.bootstrap.servers", broker.address)
        frame = reader.option("subscribe", topic).load()
        before, began = tree(broker.pid), time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        seconds, cpu = time.perf_counter() - began, seconds_since(before, broker.pid)
        return -1, seconds, cpu

    return read


def turns(readers: dict[str, Reader], topic: str, rows: int, repeats: int) -> dict[str, list[tuple[float, float]]]:
    """Let all read a topic in turn; the first turn warms up."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in readers}
    for turn in range(repeats + 1):
        for name in list(readers) if turn % 2 else reversed(readers):
            found, seconds, cpu = readers[name](topic)
            if found not in (-1, rows):
                raise SystemExit(f"{name} read {found:,} rows of {rows:,}")
            if turn:
                taken[name].append((seconds, cpu))
        print(f"  {topic}, turn {turn}", file=sys.stderr, flush=True)
    return taken


@dataclass(frozen=True)
class Taken:
    """What a reader took for a topic.

    Args:
        topic: The topic, in words.
        reader: The name of the reader.
        rows: Rows of the topic.
        seconds: By the clock, one for each turn.
        cpu: Median CPU seconds.
        start: Median seconds of a job that reads one record batch.
    """

    topic: str
    reader: str
    rows: int
    seconds: list[float]
    cpu: float
    start: float

    def rate(self, *, net: bool) -> float:
        """Return rows a second, without the start of the job if `net`."""
        return self.rows / (median(self.seconds) - (self.start if net else 0.0))


def measured(readers: dict[str, Reader], topic: str, rows: int, few: int, repeats: int) -> list[Taken]:
    """Return what each reader took for a topic."""
    starts = turns(readers, SMALL, few, repeats)
    return [
        Taken(
            topic,
            name,
            rows,
            [seconds for seconds, _ in took],
            median(cpu for _, cpu in took),
            median(seconds for seconds, _ in starts[name]),
        )
        for name, took in turns(readers, topic, rows, repeats).items()
    ]


def table(found: list[Taken]) -> None:
    """Print rates, and how many times as fast ours is."""
    lines = []
    for one in found:
        ours = next(other for other in found if other.topic == one.topic and other.reader == OURS)
        lines.append(
            [
                one.topic,
                one.reader,
                f"{median(one.seconds):.2f} ({min(one.seconds):.2f}-{max(one.seconds):.2f})",
                f"{one.start:.2f}",
                f"{one.rate(net=False) / 1e6:.2f}",
                f"{ours.rate(net=False) / one.rate(net=False):.2f}×",
                f"{one.rate(net=True) / 1e6:.2f}",
                f"{ours.rate(net=True) / one.rate(net=True):.2f}×",
                f"{one.cpu * 1e6 / one.rows:.2f}",
            ]
        )
    header = ["topic", "reader", "s: median (min-max)", "start", "M rows/s", "ours is", "net M/s", "ours is", "CPU s/M"]
    print(text_table(header, lines))


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=6_000_000, help="rows of 100 B of a topic; a tenth of 1 KB")
    parser.add_argument("--repeats", type=int, default=5, help="turns that count, after one that warms up (5)")
    parser.add_argument("--kinds", default="100 B,1 KB keyed,100 B keyed lz4,1 KB keyed zstd", help="of records")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--conf", action="append", default=[], help="a setting of Spark, name=value; may be repeated")
    parser.add_argument("--no-spark", dest="spark", action="store_false", help="leave out Spark's own source")
    asked = parser.parse_args()
    with KafkaBroker() as broker, tempfile.TemporaryDirectory() as classes:
        spark = both(str(CORES), asked.conf)
        few = fill(broker, SMALL, KINDS["100 B"], 1, 1)
        with Flink(broker, Path(classes)) as flink:
            readers = {OURS: spark_reader(spark, OURS, broker)}
            if asked.spark:
                readers["Spark's kafka"] = spark_reader(spark, "kafka", broker)
            readers |= {f"Flink, {mode}": flink.reader(mode) for mode in ("streaming", "batch")}
            found: list[Taken] = []
            for kind in asked.kinds.split(","):
                topic, wanted = kind.replace(" ", "-"), asked.rows // (10 if kind.startswith("1 KB") else 1)
                rows = asked.partitions * fill(broker, topic, KINDS[kind], wanted, asked.partitions)
                found += measured(readers, topic, rows, few, asked.repeats)
                broker.delete_topic(topic)
                table(found)
        spark.stop()
    WHERE.mkdir(parents=True, exist_ok=True)
    (WHERE / "kafka_flink.json").write_text(json.dumps([asdict(one) for one in found], indent=2) + "\n")


if __name__ == "__main__":
    main()
