# SPDX-License-Identifier: Apache-2.0
"""A record in a quiet Kafka stream: how long from the producer until it is collected, and what waiting for it costs.

Three queries take turns, each alone: `forebay_kafka`, Spark's own source with its defaults, and Spark's own source with
``kafka.fetch.max.wait.ms=50``. Each gets one record a second; the time is taken from `send` until the record has been
collected in `foreachBatch`. Then the query, caught up, is left idle. A first turn of each does not count: the process
is cold then, and whoever began would pay for it. Run it: ``make bench BENCH=kafka_latency``, or quicker with
``BENCH_ARGS='--rounds 1'``. Needs Java and Spark 4.2.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from cpu import idle_cores
from kafka import KafkaProducer
from kafka_peer import both
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from report import Cell, publish

from forebay.testkit.kafka_broker import KafkaBroker

OURS, DEFAULT, SHORT = "forebay_kafka", "Spark's own", "Spark's own, fetch.max.wait.ms=50"
READERS: dict[str, tuple[str, dict[str, str]]] = {
    OURS: ("forebay_kafka", {}),
    DEFAULT: ("kafka", {}),
    SHORT: ("kafka", {"kafka.fetch.max.wait.ms": "50"}),
}
_WARM = 4
"""Records of a turn that do not count: the first ones start workers."""


@dataclass
class Taken:
    """What was measured of one query: seconds of each record, and cores of each idle time."""

    seconds: list[float] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)


class Stream:
    """One query over a topic of its own, and the moments when its records were collected.

    Args:
        spark: The session.
        broker: The broker.
        name: One of `READERS`.
        topic: The topic, which is there.
        checkpoint: A directory.
    """

    def __init__(self, spark: SparkSession, broker: KafkaBroker, name: str, topic: str, checkpoint: Path) -> None:
        self._spark = spark
        self._broker = broker
        self._name = name
        self._topic = topic
        self._checkpoint = checkpoint
        self._count = 0
        self._collected = threading.Event()
        self._at = 0.0

    def start(self) -> StreamingQuery:
        """Start or restart the query."""
        source, options = READERS[self._name]
        reader = self._spark.readStream.format(source).options(**options).option("subscribe", self._topic)
        reader = reader.option("kafka.bootstrap.servers", self._broker.address)
        writer = reader.option("startingOffsets", "earliest").load().writeStream.foreachBatch(self._collect)
        return writer.option("checkpointLocation", str(self._checkpoint)).start()

    def record(self, producer: KafkaProducer) -> float:
        """Send one record; return the seconds until it was collected."""
        self._count += 1
        self._collected.clear()
        began = time.perf_counter()
        producer.send(self._topic, b"record %d" % self._count)
        if not self._collected.wait(120):
            raise TimeoutError(f"{self._name} did not bring record {self._count} within two minutes")
        return self._at - began

    def _collect(self, frame: DataFrame, _batch_id: int) -> None:
        rows = frame.collect()
        if any(bytes(row["value"]) == b"record %d" % self._count for row in rows):
            self._at = time.perf_counter()
            self._collected.set()


def measure(stream: Stream, broker: KafkaBroker, records: int, idle: float) -> Taken:
    """Let one query run alone for a while."""
    taken = Taken()
    query = stream.start()
    with KafkaProducer(bootstrap_servers=broker.address, linger_ms=0) as producer:
        for turn in range(_WARM + records):
            due = time.monotonic() + 1
            seconds = stream.record(producer)
            if turn >= _WARM:
                taken.seconds.append(seconds)
            time.sleep(max(0.0, due - time.monotonic()))
    taken.idle.append(idle_cores(idle, broker.pid))
    query.stop()
    return taken


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each query that count (3)")
    parser.add_argument("--records", type=int, default=12, help="records of a turn (12)")
    parser.add_argument("--idle", type=float, default=10.0, help="seconds that a query idles in a turn (10)")
    given = parser.parse_args()
    spark = both()
    taken = {name: Taken() for name in READERS}
    with KafkaBroker() as broker, tempfile.TemporaryDirectory() as directory:
        streams = {}
        for number, name in enumerate(READERS):
            broker.create_topic(f"latency-{number}")
            streams[name] = Stream(spark, broker, name, f"latency-{number}", Path(directory) / str(number))
        for turn in range(1 + given.rounds):
            for name, stream in streams.items():
                found = measure(stream, broker, given.records, given.idle)
                told = f"median {median(found.seconds) * 1000:.0f} ms, idle {found.idle[0]:.2f} cores"
                told += "" if turn else " (does not count)"
                print(f"  turn {turn}, {name}: {told}", file=sys.stderr, flush=True)
                if turn:
                    taken[name].seconds += found.seconds
                    taken[name].idle += found.idle
        spark.stop()
    ours = taken[OURS]
    publish(
        "kafka_latency",
        [
            Cell(f"one record, beside {name}", name, ours.seconds, found.seconds, ours.idle, found.idle, 1_000_000)
            for name, found in taken.items()
            if name != OURS
        ],
    )
    print("In this table the last two columns are cores used while the query waits alone, caught up.")
    print(f"load average: {' '.join(f'{load:.1f}' for load in os.getloadavg())}")


if __name__ == "__main__":
    main()
