# SPDX-License-Identifier: Apache-2.0
"""Rows a second of reading Kafka without Spark: decoding alone, and fetching with decoding, on an embedded broker.

Run it: ``PYTHONPATH=benchmarks python -P benchmarks/kafka_reading.py --rows 2000000``. Needs Java.
"""

from __future__ import annotations

import argparse
import random
import struct
import time
from collections.abc import Callable, Iterator
from statistics import median

import cramjam
import crc32c
from cpu import tree_cpu_seconds

from forebay.looking.tables import text_table
from forebay.sources.kafka.fetching import FETCH_BYTES, PartitionFetcher
from forebay.sources.kafka.records.columnar import ColumnarDecoder
from forebay.sources.kafka.records.decoding import record_schema
from forebay.sources.kafka.records.raw import RawFetch
from forebay.testkit.kafka_broker import KafkaBroker

PARTITIONS = 4
BATCH_BYTES = 16_384
"""What Java's producer puts into a batch by default."""
# Name: bytes of a value on average, with keys, compressed.
CELLS = {"100 B": (100, False, False), "100 B keyed lz4": (100, True, True), "1 KB keyed": (1000, True, False)}


def number(value: int) -> bytes:
    left, out = value << 1, bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])


def lz4(data: bytes) -> bytes:
    """Compress as Java's producer does: one independent block, which is all that a broker takes."""
    block = bytes(cramjam.lz4.compress_block(data, store_size=False))
    return bytes.fromhex("04224d18604082") + struct.pack("<I", len(block)) + block + bytes(4)


def batch(rows: int, size: int, keyed: bool, compressed: bool, chance: random.Random, fixed: bool) -> bytes:
    """Encode one record batch as a producer would; sizes of values vary by a tenth, unless fixed."""
    noise = chance.randbytes(size)
    records = []
    for row in range(rows):
        length = size if fixed else chance.randrange(size * 9 // 10, size * 11 // 10)
        value = (b'{"id": %d, "name": "customer-%d", "data": "' % (row, row * 7919) + noise.hex().encode())[:length]
        value = value.ljust(length, b"x")
        key = number(12) + b"key-%08d" % (row * 31) if keyed else b"\x01"
        inner = b"\0" + number(row // 8) + number(row) + key + number(length) + value + b"\0"
        records.append(number(len(inner)) + inner)
    body = b"".join(records)
    if compressed:
        body = lz4(body)
    now = 1_700_000_000_000
    covered = struct.pack(">hiqqqhii", 3 if compressed else 0, rows - 1, now, now + rows // 8, -1, -1, -1, rows) + body
    return struct.pack(">qiibI", 0, len(covered) + 9, 0, 2, crc32c.crc32c(covered)) + covered


def batches(rows: int, cell: str, fixed: bool) -> tuple[list[bytes], int]:
    """Return a few hundred different batches, and how many rows each has."""
    size, keyed, compressed = CELLS[cell]
    chance = random.Random(7)
    each = BATCH_BYTES // (size + 10)
    return [batch(each, size, keyed, compressed, chance, fixed) for _ in range(min(400, rows // each))], each


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


def fill(broker: KafkaBroker, topic: str, rows: int, made: list[bytes], each: int) -> int:
    """Write about so many rows into a new topic; return how many each partition has."""
    broker.create_topic(topic, PARTITIONS, {"retention.ms": "-1"})  # the time stamps are old
    rounds = max(1, rows // (each * PARTITIONS))
    with broker.appending() as append:
        for turn in range(rounds):
            append(topic, {at: made[(turn * PARTITIONS + at) % len(made)] for at in range(PARTITIONS)})
    return rounds * each


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
        fetcher.assign(topic, partition, 0, ends)
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
        cpu, began = tree_cpu_seconds(), time.perf_counter()
        rows = sum(work() for _ in range(often))
        speeds.append(rows / (time.perf_counter() - began) / 1e6)
        costs.append((tree_cpu_seconds() - cpu) / rows * 1e6)
    return f"{median(speeds):.2f} ({min(speeds):.2f}-{max(speeds):.2f})", f"{median(costs):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--columns", help="only these, between commas")
    parser.add_argument("--cells", default=",".join(CELLS))
    parser.add_argument("--fixed", action="store_true", help="values of one size")
    args = parser.parse_args()
    columns = args.columns.split(",") if args.columns else None
    table = []
    with KafkaBroker() as broker:
        for count, cell in enumerate(args.cells.split(",")):
            rows = args.rows * 100 // CELLS[cell][0] if CELLS[cell][0] > 500 else args.rows
            made, each = batches(rows, cell, args.fixed)
            alone, alone_cpu = rate(decoding(made, each, columns), args.repeats)
            ends = fill(broker, f"cell-{count}", rows, made, each)
            whole, whole_cpu = rate(fetching(broker, f"cell-{count}", ends, columns), args.repeats)
            table.append([cell, alone, alone_cpu, whole, whole_cpu])
            broker.delete_topic(f"cell-{count}")
    print(text_table(["cell", "decode, M rows/s", "CPU s/M rows", "fetch + decode", "CPU s/M rows with broker"], table))


if __name__ == "__main__":
    main()
