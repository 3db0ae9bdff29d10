# SPDX-License-Identifier: Apache-2.0
"""What alignment costs: planning by number of splits, throughput and latency on Kafka, and the state of a backfill.

``planner``: a source in memory, caught up by micro-batches of one record a split: seconds and calls of one micro-batch.
``kafka``: 64 partitions read by AvailableNow with alignment on and off, level and skewed in event time.
``latency``: a live topic, one record a second: seconds from `send` to the micro-batch, with alignment on and off.
``backfill``: 16 partitions over 60 days in windows of an hour: peak rows of state, aligned and not.
Run it: ``make bench BENCH=alignment``, or one part with ``BENCH_ARGS='--parts planner'``. Needs Java and Spark.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NoReturn, cast

import pyarrow as pa
from kafka import KafkaProducer
from kafka.record.memory_records import MemoryRecordsBuilder
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from report import WHERE

import forebay
from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.microbatch.stream_planner import open_stream
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.testkit.kafka_broker import KafkaBroker
from forebay.text_tables import text_table

BASE = 1_700_000_000
HOUR, DAY = 3600, 86_400
KINDS: dict[str, dict[str, str]] = {"off": {}, "on": {"alignmentMaxDrift": "1h"}}


class Log(DiscoveryEnumerator):
    """Splits with 1,000 records each; those of an odd number go sixty times as fast. Counts its calls."""

    exact_ends = True
    calls: ClassVar[Counter[str]] = Counter()
    splits: ClassVar[int] = 1

    def discover(self, known: object, first: bool) -> Discovered:
        return Discovered([Split(f"{number:05}", position=0) for number in range(self.splits)])

    def latest(self, splits: Sequence[Split]) -> Mapping[str, int]:
        self.calls["latest"] += 1
        return dict.fromkeys((split.id for split in splits), 1000)

    def advance(self, split: Split, *, rows: int | None = None, byte_budget: int | None = None) -> int:
        return min(cast(int, split.position) + (rows or 1), 1000)

    def positions_at(self, event_time: int, splits: Sequence[Split]) -> Mapping[str, int]:
        self.calls["positions_at"] += 1
        return {one.id: max(0, min(1000, -(-(event_time - BASE * 10**6) // self._step(one)))) for one in splits}

    def event_times(self, splits: Sequence[Split], column: str) -> Mapping[str, int]:
        self.calls["event_times"] += 1
        return {one.id: BASE * 10**6 + min(cast(int, one.position), 999) * self._step(one) for one in splits}

    @staticmethod
    def _step(split: Split) -> int:
        return 60_000_000 if int(split.id) % 2 else 1_000_000


class InMemory(Source):
    """The source of `Log`."""

    name = "in_memory"
    bounded = False
    event_time = "at"

    def schema(self) -> pa.Schema:
        return pa.schema({"at": pa.timestamp("us", "UTC")})

    def create_enumerator(self, context: object) -> Log:
        return Log()

    def create_split_reader(self, context: object) -> NoReturn:
        raise NotImplementedError


def planner(counts: Sequence[int], turns: int = 8) -> list[dict[str, Any]]:
    """Plan micro-batches of a record per split, without reading."""
    found = []
    for count in counts:
        row: dict[str, Any] = {"splits": count}
        for drift in (None, "10s"):
            Log.splits = count
            options = HostOptions(max_rows_per_trigger=max(10, count), alignment_max_drift=drift)
            planning = open_stream(InMemory(), options, parallelism=2)
            at: Any = planning.initial()
            seconds = []
            for turn in range(turns):
                if turn == 1:
                    Log.calls.clear()
                began = time.perf_counter()
                after = planning.latest(at)
                seconds.append(time.perf_counter() - began)
                at = json.loads(json.dumps(after))
            planning.close()
            name = "off" if drift is None else "on"
            row[f"ms_{name}"] = round(statistics.median(seconds[1:]) * 1000, 2)
            if drift is not None:
                row["calls"] = round((Log.calls["event_times"] + Log.calls["positions_at"]) / (turns - 1), 1)
        found.append(row)
    return found


def fill(broker: KafkaBroker, topic: str, steps: Sequence[float], rows: int, size: int) -> None:
    """Write a topic: each partition has `rows` records, this many seconds apart."""
    broker.create_topic(topic, len(steps), {"retention.ms": "-1"})
    with broker.appending() as append:
        for partition, step in enumerate(steps):
            for first in range(0, rows, 140):  # 16 KB, as producers write by default
                batch = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 20)
                for number in range(first, min(rows, first + 140)):
                    batch.append(timestamp=int((BASE + number * step) * 1000), key=None, value=bytes(size))
                batch.close()
                append(topic, {partition: bytes(batch.buffer())})


def stream(spark: SparkSession, broker: KafkaBroker, topic: str, **options: int | str) -> DataFrame:
    """Return the rows of a topic."""
    reader = spark.readStream.format("forebay_kafka").option("kafka.bootstrap.servers", broker.address)
    return reader.option("subscribe", topic).option("startingOffsets", "earliest").options(**options).load()


def drain(frame: DataFrame, mode: str = "append", sink: str = "noop") -> tuple[float, list[Any]]:
    """Read a topic to its end; return the seconds and the reports."""
    with tempfile.TemporaryDirectory() as checks:
        began = time.perf_counter()
        query = frame.writeStream.format(sink).outputMode(mode).option("checkpointLocation", checks)
        running = query.trigger(availableNow=True).start()
        running.awaitTermination()
        return time.perf_counter() - began, [one for one in running.recentProgress if one.numInputRows]


def throughput(spark: SparkSession, broker: KafkaBroker, rows: int, rounds: int) -> list[dict[str, Any]]:
    """Read 64 partitions with alignment on and off, interleaved."""
    found = []
    hours = 8
    level = [hours * HOUR / rows] * 64
    for name, steps in (("level", level), ("one 60x slower", [level[0] / 60, *level[1:]])):
        topic = f"t-{name.replace(' ', '-')}"
        fill(broker, topic, steps, rows, 100)
        limit = 64 * rows // hours
        took: dict[str, list[float]] = {"off": [], "on": []}
        batches, planning = {}, {}
        for turn in range(rounds + 1):
            for kind, options in KINDS.items():
                seconds, reports = drain(stream(spark, broker, topic, maxOffsetsPerTrigger=limit, **options))
                batches[kind] = len(reports)
                planning[kind] = statistics.median(one.durationMs["latestOffset"] for one in reports)
                if turn:
                    took[kind].append(round(seconds, 2))
        found.append(
            {"topic": name, "rows": 64 * rows, "off_s": took["off"], "on_s": took["on"]}
            | {"ratio": round(statistics.median(took["off"]) / statistics.median(took["on"]), 2)}
            | {"micro_batches": batches, "planning_ms": planning}
        )
    return found


def latency(spark: SparkSession, broker: KafkaBroker, records: int) -> list[dict[str, Any]]:
    """Send a record a second to each of two partitions; take the time until it was collected."""
    found = []
    for kind, options in KINDS.items():
        topic = f"live-{kind}"
        broker.create_topic(topic, 2)
        seen: dict[bytes, float] = {}
        came = threading.Condition()

        def keep(
            frame: DataFrame, _number: int, seen: dict[bytes, float] = seen, came: threading.Condition = came
        ) -> None:
            values = [bytes(row["value"]) for row in frame.collect()]
            with came:
                seen.update(dict.fromkeys(values, time.perf_counter()))
                came.notify_all()

        seconds = []
        with tempfile.TemporaryDirectory() as checks, KafkaProducer(bootstrap_servers=broker.address) as producer:
            query = stream(spark, broker, topic, **options).writeStream.foreachBatch(keep)
            running = query.option("checkpointLocation", checks).start()
            for number in range(records + 3):
                began, wanted = time.perf_counter(), {b"%d/%d" % (number, partition) for partition in range(2)}
                for partition, value in enumerate(sorted(wanted)):
                    producer.send(topic, value, partition=partition)
                with came:
                    if not came.wait_for(lambda wanted=wanted, seen=seen: wanted <= seen.keys(), 120):  # type: ignore[misc]
                        raise TimeoutError(f"{kind}: the records {wanted} did not come")
                if number >= 3:  # the first ones start workers
                    seconds.append(max(seen[one] for one in wanted) - began)
                time.sleep(max(0.0, began + 1 - time.perf_counter()))
            running.stop()
        found.append(
            {"alignment": kind, "median_s": round(statistics.median(seconds), 3), "max_s": round(max(seconds), 3)}
        )
    return found


def backfill(spark: SparkSession, broker: KafkaBroker, rows: int) -> list[dict[str, Any]]:
    """Read 60 days of 16 partitions into windows of an hour; the same share of records is another share of the days."""
    found = []
    broker.create_topic("days", 16, {"retention.ms": "-1"})
    total = 0
    with broker.appending() as append:
        for partition in range(16):
            bend = (0.5, 1.0, 2.0, 3.0)[partition % 4]  # most records in the last days, evenly, in the first days
            total += rows
            batch = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 20)
            for number in range(rows):
                at = BASE + int((number / rows) ** bend * 60 * DAY)
                batch.append(timestamp=at * 1000, key=None, value=b"")
            batch.close()
            append("days", {partition: bytes(batch.buffer())})
    runs: tuple[tuple[str, str, dict[str, str]], ...] = (
        ("by event time, drift 22 hours", "22 hours", {"alignmentMaxDrift": "22h"}),
        ("unordered, delay 22 hours", "22 hours", {}),
        ("unordered, delay 60 days", "60 days", {}),
    )
    for name, delay, options in runs:
        frame = stream(spark, broker, "days", maxOffsetsPerTrigger=total // 16, **options)
        grouped = frame.withWatermark("timestamp", delay).groupBy(fn.window("timestamp", "1 hour"), "partition")
        seconds, reports = drain(grouped.count(), mode="update")
        found.append(
            {
                "read": name,
                "peak_state_rows": max(state.numRowsTotal for one in reports for state in one.stateOperators),
                "dropped": sum(state.numRowsDroppedByWatermark for one in reports for state in one.stateOperators),
                "micro_batches": len(reports),
                "seconds": round(seconds, 1),
            }
        )
    return found


def session() -> SparkSession:
    """Start Spark."""
    spark = (
        SparkSession.builder.master("local[*]")
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .config("spark.sql.shuffle.partitions", 1)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.numRecentProgressUpdates", 2000)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    forebay.register(spark)
    return spark


def main() -> None:
    """Measure, print tables, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", default=["planner", "kafka", "latency", "backfill"])
    parser.add_argument("--rows", type=int, default=20_000, help="records of each of the 64 partitions (20,000)")
    parser.add_argument("--rounds", type=int, default=3, help="reads of each kind that count (3)")
    parser.add_argument("--records", type=int, default=15, help="records of each latency run (15)")
    parser.add_argument("--days-rows", type=int, default=4320, help="records of the fullest partition of the backfill")
    given = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {}

    def show(part: str, rows: list[dict[str, Any]]) -> None:
        found[part] = rows
        print(f"\n{part}\n{text_table(list(rows[0]), [[str(value) for value in row.values()] for row in rows])}")
        sys.stdout.flush()

    if "planner" in given.parts:
        show("planner", planner([1, 100, 1_000, 10_000]))
    if {"kafka", "latency", "backfill"} & set(given.parts):
        spark = session()
        with KafkaBroker() as broker:
            if "backfill" in given.parts:
                show("backfill", backfill(spark, broker, given.days_rows))
            if "kafka" in given.parts:
                show("kafka", throughput(spark, broker, given.rows, given.rounds))
            if "latency" in given.parts:
                show("latency", latency(spark, broker, given.records))
        spark.stop()
    WHERE.mkdir(parents=True, exist_ok=True)
    (WHERE / "alignment.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
