# SPDX-License-Identifier: Apache-2.0
"""Where the time of reading Kafka goes, each part measured alone on the same bytes.

Run it: ``PYTHONPATH=benchmarks python -P benchmarks/kafka_breakdown.py``, or as the end of ``make bench-kafka``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from statistics import median

import crc32c
import pyarrow as pa
from handing_over import hand_over
from kafka import KafkaConsumer, TopicPartition
from kafka_topics import KINDS, Kind, fill

from forebay.sources.kafka.client import kafka_internals
from forebay.sources.kafka.fetching import ALL_BYTES, FETCH_BYTES
from forebay.sources.kafka.records.batches import CRC_BEGIN, RawFetch, headers, record_schema
from forebay.sources.kafka.records.columnar import ColumnarDecoder
from forebay.sources.kafka.records.selecting import decompress
from forebay.testkit.kafka_broker import KafkaBroker
from forebay.text_tables import text_table

PARTITIONS = 4
REPEATS = 5
_MANY = 1 << 30


def fetched(broker: KafkaBroker, topic: str, end: int) -> list[RawFetch]:
    """Return all of a topic, as the source fetches it, undecoded."""
    consumer = KafkaConsumer(
        bootstrap_servers=broker.address,
        max_partition_fetch_bytes=FETCH_BYTES,
        fetch_max_bytes=ALL_BYTES,
        metrics_enabled=False,
        auto_offset_reset="none",
        check_crcs=False,
        kafka_client=kafka_internals.network,
    )
    partitions = [TopicPartition(topic, at) for at in range(PARTITIONS)]
    kafka_internals.give_raw(
        consumer, lambda topic, partition, offset: RawFetch(topic, partition, memoryview(b""), offset, end)
    )
    try:
        consumer.assign(partitions)
        for partition in partitions:
            consumer.seek(partition, 0)
        found: list[RawFetch] = []
        while any(consumer.position(partition) < end for partition in partitions):
            for fetches in consumer.poll(timeout_ms=1000, max_records=_MANY).values():
                kafka_internals.ask_ahead(consumer)
                found += fetches
        return found
    finally:
        consumer.close(autocommit=False)


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Return the median wall and CPU seconds of this process."""
    work()
    taken = []
    for _ in range(REPEATS):
        cpu, began = time.process_time(), time.perf_counter()
        work()
        taken.append((time.perf_counter() - began, time.process_time() - cpu))
    return median(wall for wall, _ in taken), median(cpu for _, cpu in taken)


def check(fetches: list[RawFetch]) -> None:
    """Compute every checksum."""
    for fetch in fetches:
        for header in headers(fetch.data, fetch.topic_partition):
            crc32c.crc32c(fetch.data[header.begin + CRC_BEGIN : header.end])


def unpack(fetches: list[RawFetch]) -> None:
    """Decompress every batch that is compressed."""
    for fetch in fetches:
        for header in headers(fetch.data, fetch.topic_partition):
            if header.codec:
                decompress(header.codec, fetch.data[header.body : header.end], 1 << 30)


def measured(broker: KafkaBroker, kind: Kind, megabytes: int) -> list[str]:
    """Return a row of the table."""
    topic = "breakdown-" + kind.name.replace(" ", "-")
    end = fill(broker, topic, kind, megabytes * 1_000_000 // kind.size, PARTITIONS)
    decoder = ColumnarDecoder(record_schema(include_headers=kind.headers))
    got: list[RawFetch] = []

    def fetch() -> None:
        got[:] = fetched(broker, topic, end)

    def decode() -> list[pa.RecordBatch]:
        return [part.batch for one in got for part in decoder.decode(one) if part.batch is not None]

    network = seconds(fetch)
    broker.delete_topic(topic)
    crc, codec, whole = seconds(lambda: check(got)), seconds(lambda: unpack(got)), seconds(decode)
    parts = decode()
    rows = sum(part.num_rows for part in parts)
    given = median(hand_over(parts, parts[0].schema) for _ in range(REPEATS))
    alone = (whole[0] - crc[0] - codec[0], whole[1] - crc[1] - codec[1])
    million = 1e6 / rows
    return [kind.name, *(f"{cpu * million:.3f}" for cpu in (network[1], crc[1], codec[1], alone[1], given))]


def breakdown(broker: KafkaBroker, megabytes: int) -> None:
    """Print the table."""
    print("\nWhere the Python side's CPU time goes, in seconds for a million rows; each part measured alone:")
    rows = []
    for kind in KINDS.values():
        print(f"  measuring {kind.name}", file=sys.stderr, flush=True)
        rows.append(measured(broker, kind, min(100, megabytes)))
    print(text_table(["topic", "network", "CRC", "decompress", "decode", "hand-over"], rows))


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=100, help="values of each topic (100)")
    args = parser.parse_args()
    with KafkaBroker() as broker:
        breakdown(broker, args.megabytes)


if __name__ == "__main__":
    main()
