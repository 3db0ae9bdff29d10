# SPDX-License-Identifier: Apache-2.0
"""The Kafka demo: a bounded backfill and a live tail on a real Apache Kafka, with rows per second and lag on screen.

Run it: ``make demo-kafka``, or ``python examples/demo_kafka.py``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.streaming.query import StreamingQuery

import forebay

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from demo import lines_of, title  # noqa: E402 - the examples are programs, found beside this one
from kafka_orders import HOUR, PARTITIONS, Orders, spark_session  # noqa: E402
from progress_bar import progress  # noqa: E402

from forebay.testkit.kafka_broker import KafkaBroker  # noqa: E402

_BAR = 30


def backfill(spark: SparkSession, servers: str, since: int, until: int) -> DataFrame:
    return (
        spark.read.format("forebay_kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", "orders")
        .option("startingTimestamp", since)  # ms since 1970
        .option("endingTimestamp", until)
        .load()
    )


def tail(spark: SparkSession, servers: str, limit: int) -> DataFrame:
    return (
        spark.readStream.format("forebay_kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", "orders")
        .option("startingOffsets", "latest")
        .option("maxOffsetsPerTrigger", limit)  # so that a burst is read in several micro-batches, and a lag is seen
        .load()
    )


class Producer:
    """Writes orders on a thread at a steady rate with one burst, and ends."""

    def __init__(self, orders: Orders, *, each_second: int, burst: int, seconds: int) -> None:
        self._orders = orders
        self._each_second, self._burst, self._seconds = each_second, burst, seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.sent = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        before, began = self._orders.written, time.monotonic()
        for second in range(self._seconds):
            self._orders.write(self._each_second + (self._burst if second == self._seconds // 3 else 0))
            self.sent = self._orders.written - before
            if self._stop.wait(max(0.0, began + second + 1 - time.monotonic())):
                return


class Tail:
    """Prints a line for each micro-batch from Spark's progress reports, and collects them for the summary."""

    def __init__(self, query: StreamingQuery, producer: Producer, full: int) -> None:
        self._query, self._producer, self._full = query, producer, full
        self._began = time.monotonic()
        self._shown = -1
        self.read = self.most_behind = self.behind = 0
        print(f"    {'time':>5}  {'sent':>9}  {'read':>9}  {'rows/s':>8}  {'lag':>8}")

    def show_news(self) -> None:
        for report in self._query.recentProgress:
            if report["batchId"] > self._shown and report["numInputRows"]:
                self._shown = report["batchId"]
                self._show(report)

    def _show(self, report: Any) -> None:
        self.read += report["numInputRows"]
        # What the source says of itself: how many offsets this micro-batch left unread.
        self.behind = json.loads(report["sources"][0]["latestOffset"])["behind"]["rows"]
        self.most_behind = max(self.most_behind, self.behind)
        bar = "█" * -(-_BAR * self.behind // self._full)
        print(
            f"    {time.monotonic() - self._began:4.0f}s  {self._producer.sent:9,}  {self.read:9,}"
            f"  {report['processedRowsPerSecond']:8,.0f}  {self.behind:8,}  {bar}",
            flush=True,
        )


def fill(orders: Orders, count: int, since: int, until: int) -> None:
    began = time.monotonic()

    def show(done: int) -> None:
        full = _BAR * done // count
        sys.stdout.write(f"\r  writing {'█' * full}{'░' * (_BAR - full)} {done:,}/{count:,} orders ")

    orders.write(count, since, until, show=show if sys.stdout.isatty() else None)
    show(count)
    print(f"in {time.monotonic() - began:.1f} s")


def run_backfill(spark: SparkSession, orders: Orders, since: int, until: int) -> str:
    lines_of(backfill)
    print("A first small read starts Spark's Python workers, and is not timed …", flush=True)
    backfill(spark, orders.servers, since, since + HOUR).count()
    hours = (
        backfill(spark, orders.servers, since, until)
        .groupBy(fn.date_format("timestamp", "yyyy-MM-dd HH:00").alias("hour"))
        .agg(fn.count("*").alias("orders"), fn.count_distinct("partition").alias("partitions"))
        .orderBy("hour")
    )
    began = time.monotonic()
    with progress(spark, "reading"):
        table = hours.toArrow()
    took = time.monotonic() - began
    print(forebay.Peek(table, table.num_rows + 1))
    read = sum(table.column("orders").to_pylist())
    said = f"{read:,} of {orders.written:,} orders, those of {(until - since) // HOUR} hours, in {took:.1f} s"
    return f"{said}: {read / took:,.0f} rows/s"


def run_tail(spark: SparkSession, orders: Orders, checks: str, args: argparse.Namespace) -> str:
    lines_of(tail)
    # Of each micro-batch how many orders there were, and the sum of their numbers: what is lost or comes twice is seen.
    seen: dict[int, Any] = {}

    def keep(batch: DataFrame, number: int) -> None:
        order = fn.get_json_object(fn.col("value").cast("string"), "$.order").cast("long")
        seen[number] = batch.agg(fn.count("*"), fn.coalesce(fn.sum(order), fn.lit(0))).first()

    frame = tail(spark, orders.servers, args.limit)
    query = (
        frame.writeStream.foreachBatch(keep).option("checkpointLocation", checks).trigger(processingTime="1 second")
    ).start()
    while query.lastProgress is None and query.isActive:  # now it knows where it starts
        time.sleep(0.05)
    first = orders.written
    print(f"A producer sends {args.each_second:,} orders a second, and after a while a burst of {args.burst:,}.")
    print(f"The query takes up to {args.limit:,} in each micro-batch, one a second. The lag is what it leaves there:\n")
    with Producer(orders, each_second=args.each_second, burst=args.burst, seconds=args.seconds) as producer:
        shown = Tail(query, producer, args.burst)
        while query.isActive and (producer.running or shown.read < producer.sent):
            time.sleep(0.1)
            shown.show_news()
    query.stop()
    if (error := query.exception()) is not None:
        raise error
    count, total = (sum(column) for column in zip(*seen.values(), strict=True))
    right = (count, total) == (producer.sent, sum(range(first, orders.written)))
    once = "each of them exactly once" if right else f"WRONG: {count:,} came"
    lag = f"at most {shown.most_behind:,} behind, {shown.behind:,} in the end"
    return f"{producer.sent:,} orders sent and read, {once}; {lag}"


def show_lag(servers: str, checks: str) -> None:
    from forebay.cli import main as command

    arguments = ["kafka", "lag", "--checkpoint", checks, "--bootstrap-servers", servers]
    print(f"$ forebay {' '.join(arguments)}")
    command(arguments)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rows", type=int, default=1_000_000, help="orders in the topic before the backfill")
    options.add_argument("--seconds", type=int, default=18, help="how long the producer of the tail runs")
    options.add_argument("--each-second", type=int, default=5_000, help="what it sends")
    options.add_argument("--burst", type=int, default=100_000, help="what it sends once")
    options.add_argument("--limit", type=int, default=25_000, help="what the query takes in a micro-batch")
    args = options.parse_args()

    title("1. A real Apache Kafka, one node, started by forebay.testkit (no Docker)")
    print("Starting Apache Kafka; the first time ever this downloads 43 MB …", flush=True)
    with KafkaBroker() as broker, tempfile.TemporaryDirectory() as directory:
        orders = Orders(broker)
        print(f"Kafka is up at {broker.address}. The topic 'orders', {PARTITIONS} partitions, a day of orders:")
        midnight = int(time.time() * 1000) // (24 * HOUR) * 24 * HOUR
        since = midnight - 24 * HOUR
        fill(orders, args.rows, since, midnight)
        with spark_session("forebay demo of Kafka") as spark:
            print("Spark is up.")
            title("2. A bounded backfill: the first half of yesterday, and nothing else")
            backfilled = run_backfill(spark, orders, since, since + 12 * HOUR)
            title("3. A live tail, with a producer running")
            tailed = run_tail(spark, orders, f"{directory}/checks", args)
        title("4. The query has stopped, and 10,000 more orders come: how far is it behind?")
        orders.write(10_000)
        show_lag(orders.servers, f"{directory}/checks")
        orders.close()
    title("What you saw")
    print(f"  backfill   {backfilled}")
    print(f"  live tail  {tailed}")
    print("  Kafka and its data are gone again. Continue with docs/kafka.md.")


if __name__ == "__main__":
    main()
