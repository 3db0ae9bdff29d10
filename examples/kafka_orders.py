# SPDX-License-Identifier: Apache-2.0
"""The setup of the Kafka examples: a real Apache Kafka with a topic of orders, and a Spark session."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from kafka.record.memory_records import MemoryRecordsBuilder
from pyspark.sql import SparkSession

import forebay
from forebay.testkit.kafka_broker import KafkaBroker

TOPIC = "orders"
PARTITIONS = 4
SHOPS = ("Berlin", "Lyon", "Oslo", "Porto")
HOUR = 3_600_000  # ms

_CHUNK = 2_500


class Orders:
    """Produces orders to a topic: ``{"order": 17, "shop": "Lyon", "amount": 12.5}``, with the shop as key.

    It writes thousands of records at a time, so that examples start quickly.
    """

    def __init__(self, broker: KafkaBroker, topic: str = TOPIC, partitions: int = PARTITIONS) -> None:
        self.servers = broker.address
        self.topic = topic
        self.written = 0
        self._partitions = itertools.cycle(range(partitions))
        self._stack = ExitStack()
        # Orders of days past are written all at once: they must not be too old before they are read.
        broker.create_topic(topic, partitions, {"retention.ms": "-1"})
        self._append = self._stack.enter_context(broker.appending())

    def write(
        self, count: int, since: int | None = None, until: int | None = None, show: Callable[[int], None] | None = None
    ) -> None:
        """Write `count` orders with times between two bounds (ms since 1970), or now; report progress to `show`."""
        first = int(time.time() * 1000) if since is None else since
        last = first if until is None else until
        chunk = max(1, min(_CHUNK, count // 96))  # small chunks for few orders, so that every partition has all times
        for start in range(0, count, chunk):
            rows = range(start, min(start + chunk, count))
            self._send(rows, lambda row: first + (last - first) * row // count)
            if show is not None:
                show(rows.stop)

    def _send(self, rows: range, placed: Callable[[int], int]) -> None:
        batch = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 20)
        for row in rows:
            number = self.written + row - rows.start
            shop = SHOPS[number % len(SHOPS)]
            order = json.dumps({"order": number, "shop": shop, "amount": number % 100 + 0.5})
            batch.append(timestamp=placed(row), key=shop.encode(), value=order.encode())
        batch.close()
        self._append(self.topic, {next(self._partitions): bytes(batch.buffer())})
        self.written += len(rows)

    def close(self) -> None:
        self._stack.close()


@contextmanager
def kafka_with_orders(count: int = 0, since: int | None = None, until: int | None = None) -> Iterator[Orders]:
    """Start a real Apache Kafka (one node, no Docker) with orders in a topic; remove it afterwards."""
    print("Starting Apache Kafka …", flush=True)
    with KafkaBroker() as broker:
        orders = Orders(broker)
        orders.write(count, since, until)
        try:
            yield orders
        finally:
            orders.close()


@contextmanager
def spark_session(name: str) -> Iterator[SparkSession]:
    """Start Spark and register forebay's formats."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    print("Starting Spark …", flush=True)
    spark = (
        SparkSession.builder.master("local[*]")
        .appName(name)
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    forebay.register(spark)
    try:
        yield spark
    finally:
        spark.stop()
