# SPDX-License-Identifier: Apache-2.0
"""The demo of event time: a skewed Kafka topic, one window query, three sources; rows kept and rows lost.

Run it: ``make demo-skew``, or ``python examples/demo_skew.py``. It needs Spark 4.2, for Spark's own Kafka source.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kafka.record.memory_records import MemoryRecordsBuilder
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "benchmarks")]

from demo import lines_of, title  # noqa: E402 - the examples are programs, found beside this one
from kafka_peer import both  # noqa: E402

from forebay.testkit.kafka_broker import KafkaBroker  # noqa: E402
from forebay.text_tables import text_table  # noqa: E402

TOPIC = "readings"
BASE = 1_767_225_600_000
"""2026-01-01 00:00 UTC, in ms."""
SLOW, FAST = 1, 60
"""Seconds of event time from one record of a partition to the next."""
PARTITIONS = {0: ("slow", SLOW), 1: ("fast", FAST)}
_WIDTH = 56

SPARK, PLAIN, ALIGNED = "kafka (Spark's own)", "forebay_kafka", "forebay_kafka, aligned"
SOURCES = {SPARK: ("kafka", {}), PLAIN: ("forebay_kafka", {}), ALIGNED: ("forebay_kafka", {"alignmentMaxDrift": "1h"})}


def readings(spark: SparkSession, source: str, servers: str, limit: int, **options: str) -> DataFrame:
    return (
        spark.readStream.format(source)
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", "readings")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", limit)
        .options(**options)  # for the third run: alignmentMaxDrift = 1h
        .load()
    )


def by_window(rows: DataFrame) -> DataFrame:
    return (
        rows.withWatermark("timestamp", "1 hour")
        .groupBy(fn.window("timestamp", "5 minutes"), "partition")
        .agg(fn.count("*").alias("rows"))
    )


@dataclass
class Batch:
    """One micro-batch: the minute of the last record that was read, by partition, and Spark's watermark after it."""

    last: dict[str, float | None]
    watermark: float | None = None


@dataclass
class Run:
    """What one query did.

    Attributes:
        windows: Rows by window and partition, as the query last said.
        batches: Its micro-batches.
        seconds: Its time.
    """

    windows: dict[tuple[Any, int], int] = field(default_factory=dict)
    batches: list[Batch] = field(default_factory=list)
    seconds: float = 0.0

    def keep(self, batch: DataFrame, _number: int) -> None:
        for row in batch.collect():
            self.windows[row["window"].start, row["partition"]] = row["rows"]

    def kept(self, partition: int) -> int:
        return sum(rows for (_, one), rows in self.windows.items() if one == partition)


def fill(broker: KafkaBroker, records: int) -> None:
    """Write the topic: both partitions have as many records, but those of one cover sixty times the time."""
    broker.create_topic(TOPIC, len(PARTITIONS), {"retention.ms": "-1"})
    with broker.appending() as append:
        for partition, (_, step) in PARTITIONS.items():
            batch = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 20)
            for number in range(records):
                batch.append(timestamp=BASE + number * step * 1000, key=None, value=b"%d" % number)
            batch.close()
            append(TOPIC, {partition: bytes(batch.buffer())})


def run(spark: SparkSession, name: str, servers: str, limit: int, checks: str) -> Run:
    """Read the whole topic with one source, in micro-batches of `limit` records."""
    source, options = SOURCES[name]
    done = Run()
    last = [
        fn.max(fn.when(fn.col("partition") == partition, fn.col("timestamp").cast("double"))).alias(label)
        for partition, (label, _) in PARTITIONS.items()
    ]
    rows = readings(spark, source, servers, limit, **options).observe("last", *last)
    began = time.monotonic()
    query = (
        by_window(rows)
        .writeStream.foreachBatch(done.keep)
        .outputMode("update")
        .option("checkpointLocation", checks)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    done.seconds = time.monotonic() - began
    for report in query.recentProgress:
        watermark = (report.eventTime or {}).get("watermark")
        if done.batches and watermark is not None:  # it was set by the micro-batch before
            done.batches[-1].watermark = minute(watermark)
        if report.numInputRows:
            found = report.observedMetrics["last"]
            done.batches.append(
                Batch({label: None if at is None else (at - BASE / 1000) / 60 for label, at in found.asDict().items()})
            )
    return done


def minute(watermark: str) -> float | None:
    """Return the minute of a watermark as Spark writes it; None before the first."""
    at = time.strptime(watermark[:19] + " UTC", "%Y-%m-%dT%H:%M:%S %Z")
    since = (time.mktime(at) - time.timezone - BASE / 1000) / 60
    return since if since >= -1440 else None


def picture(done: Run, records: int) -> str:
    """Draw a line for each micro-batch: where both partitions and Spark's watermark are."""
    full, end = records * FAST / 60, (records - 1) * SLOW / 60
    lines = [f"    # 0 min{f'{full:.0f} min':>{_WIDTH - 5}}"]
    slow = fast = 0.0
    for number, batch in enumerate(done.batches):
        read_before = slow >= end
        slow, fast = batch.last["slow"] or slow, batch.last["fast"] or fast
        line = ["·"] * _WIDTH
        for mark, at in (("│", batch.watermark), ("F", fast), ("s", None if read_before else slow)):
            if at is not None:
                line[max(0, min(_WIDTH - 1, int(at / full * _WIDTH)))] = mark
        done_now = slow >= end and not read_before
        lines.append(f"  {number:3} {''.join(line)}{'  s is read to its end' if done_now else ''}")
    return "\n".join(lines)


def table(found: dict[str, Run], records: int) -> str:
    header = ["source", "slow: kept", "slow: lost", "fast: kept", "fast: lost", "micro-batches", "seconds"]
    rows = [
        [
            name,
            *(f"{one:,}" for at in PARTITIONS for one in (done.kept(at), records - done.kept(at))),
            str(len(done.batches)),
            f"{done.seconds:.1f}",
        ]
        for name, done in found.items()
    ]
    return text_table(header, rows)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--records", type=int, default=400, help="in each of the two partitions")
    options.add_argument("--limit", type=int, default=100, help="records of one micro-batch")
    args = options.parse_args()

    title("1. A topic whose two partitions go at different speeds")
    print("Starting Apache Kafka; the first time ever this downloads 43 MB …", flush=True)
    with KafkaBroker() as broker, tempfile.TemporaryDirectory() as directory:
        fill(broker, args.records)
        print(
            f"Two partitions, {args.records} records each: one a second in the slow one, one a minute in the fast one."
        )
        print("Starting Spark, with Spark's own Kafka source as well …", flush=True)
        spark = both()
        spark.conf.set("spark.sql.shuffle.partitions", 1)
        title("2. The same window query on three sources")
        lines_of(readings)
        lines_of(by_window)
        print("  s: slow partition, F: fast partition, │: Spark's watermark. Spark drops rows left of it.")
        found = {}
        for number, name in enumerate(SOURCES):
            found[name] = run(spark, name, broker.address, args.limit, f"{directory}/{number}")
            if name != PLAIN:
                print(f"\n  {name}: where the partitions and Spark's watermark are after each micro-batch")
                print(picture(found[name], args.records))
        spark.stop()
    title("3. Rows kept and rows lost")
    print(table(found, args.records))
    print(
        "  Spark's watermark follows the fastest partition, so rows of the slow one come too late. Alignment reads no"
    )
    print(
        "  partition more than an hour ahead of the slowest one. It costs more micro-batches, and the fast one waits."
    )
    print("  Continue with docs/event-time.md.")


if __name__ == "__main__":
    main()
