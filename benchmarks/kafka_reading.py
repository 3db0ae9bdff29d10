# SPDX-License-Identifier: Apache-2.0
"""Rows a second of reading Kafka without Spark: decoding alone, and fetching with decoding, on an embedded broker.

Run it: ``PYTHONPATH=benchmarks python -P benchmarks/kafka_reading.py --rows 2000000``. Needs Java.
"""

from __future__ import annotations

import argparse
import struct
import time
from collections.abc import Callable, Iterator
from statistics import median

from cpu import seconds_since, tree
from kafka_topics import KINDS, batches, fill

from forebay.sources.kafka.fetching import FETCH_BYTES, PartitionFetcher
from forebay.sources.kafka.records.batches import RawFetch, record_schema
from forebay.sources.kafka.records.columnar import ColumnarDecoder
from forebay.sources.kafka.split import KafkaSplit
from forebay.testkit.kafka_broker import KafkaBroker
from forebay.text_tables import text_table

PARTITIONS = 4


def decoding(made: list[bytes], each: int, columns: list[str] | None) -> Callable[[], int]:
    """Return the decoding of fetches as big as the fetcher's."""
    data, offset = bytearray(), 0
    at = 0
    while len(data) < FETCH_BYTES:
        one = bytearray(made[at % len(made)])
        struct.pack_into(">q", one, 0, offset)
        data += one
        offset += each
        at += 1
    fetch = RawFetch("orders", 0, memoryview(bytes(data)), 0)
    decoder = ColumnarDecoder(record_schema(columns))
    return lambda: sum(part.batch.num_rows for part in decoder.decode(fetch) if part.batch is not None)


def fetching(broker: KafkaBroker, topic: str, ends: int, columns: list[str] | None) -> Callable[[], int]:
    """Return the reading of a whole topic by one consumer."""

    def run() -> int:
        fetcher = PartitionFetcher({"bootstrap_servers": broker.address}, record_schema(columns))
        try:
            return sum(_rows(fetcher, topic, ends))
        finally:
            fetcher.close()

    return run


def _rows(fetcher: PartitionFetcher, topic: str, ends: int) -> Iterator[int]:
    for partition in range(PARTITIONS):
        fetcher.assign(KafkaSplit(id=f"{topic}/{partition}", position=0, end=ends))
    left = PARTITIONS
    while left:
        for part in fetcher.fetch(10):
            left -= part.finished
            yield part.batch.num_rows if part.batch is not None else 0


def rate(work: Callable[[], int], repeats: int) -> tuple[str, str]:
    """Return millions of rows a second, and CPU seconds (the broker's too) for a million rows; both as text."""
    began = time.perf_counter()
    work()
    often = max(1, int(0.5 / (time.perf_counter() - began)))  # CPU time is told in hundredths of a second
    speeds, costs = [], []
    for _ in range(repeats):
        before, began = tree(), time.perf_counter()
        rows = sum(work() for _ in range(often))
        speeds.append(rows / (time.perf_counter() - began) / 1e6)
        costs.append(seconds_since(before) / rows * 1e6)
    return f"{median(speeds):.2f} ({min(speeds):.2f}-{max(speeds):.2f})", f"{median(costs):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--columns", help="only these, between commas")
    parser.add_argument("--cells", default=",".join(KINDS))
    parser.add_argument("--fixed", action="store_true", help="values of one size")
    args = parser.parse_args()
    columns = args.columns.split(",") if args.columns else None
    table = []
    with KafkaBroker() as broker:
        for count, cell in enumerate(args.cells.split(",")):
            kind = KINDS[cell]
            rows = args.rows * 100 // kind.size
            made, each = batches(kind, rows, fixed=args.fixed)
            alone, alone_cpu = rate(decoding(made, each, columns), args.repeats)
            ends = fill(broker, f"cell-{count}", kind, rows, PARTITIONS, fixed=args.fixed)
            whole, whole_cpu = rate(fetching(broker, f"cell-{count}", ends, columns), args.repeats)
            table.append([cell, alone, alone_cpu, whole, whole_cpu])
            broker.delete_topic(f"cell-{count}")
    print(text_table(["cell", "decode, M rows/s", "CPU s/M rows", "fetch + decode", "CPU s/M rows with broker"], table))


if __name__ == "__main__":
    main()
