# SPDX-License-Identifier: Apache-2.0
"""Topics to measure with: record batches as Java's producer makes them, written as they are."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass

import cramjam
import crc32c

from forebay.testkit.kafka_broker import KafkaBroker

BATCH_BYTES = 16_384
"""What Java's producer puts into a batch by default."""
_AT_ONCE = 50
"""Partitions that are written to with one request: a busy broker has to answer it within half a minute."""
_VARIETY = 400
"""So many different batches make a topic."""
_CODECS = {None: 0, "lz4": 3, "zstd": 4}


@dataclass(frozen=True)
class Kind:
    """What records of a topic are like.

    Args:
        name: Of the kind, for tables.
        size: Bytes of a value, on average.
        keyed: Whether they have keys.
        codec: How batches are compressed; None: not at all.
        headers: Whether they have two headers each.
    """

    name: str
    size: int
    keyed: bool = False
    codec: str | None = None
    headers: bool = False


KINDS = {
    one.name: one
    for one in (
        Kind("100 B", 100),
        Kind("100 B keyed lz4", 100, keyed=True, codec="lz4"),
        Kind("1 KB keyed", 1000, keyed=True),
        Kind("1 KB keyed zstd", 1000, keyed=True, codec="zstd"),
        Kind("100 B headers", 100, keyed=True, headers=True),
    )
}


def fill(broker: KafkaBroker, topic: str, kind: Kind, rows: int, partitions: int, *, fixed: bool = False) -> int:
    """Make a topic of about so many rows, evenly over its partitions; return how many each partition has."""
    made, each = batches(kind, rows, fixed=fixed)
    broker.create_topic(topic, partitions, {"retention.ms": "-1"})  # the time stamps are old
    rounds = max(1, rows // (each * partitions))
    with broker.appending() as append:
        for turn in range(rounds):
            for first in range(0, partitions, _AT_ONCE):
                some = range(first, min(first + _AT_ONCE, partitions))
                append(topic, {at: made[(turn * partitions + at) % len(made)] for at in some})
    return rounds * each


def batches(kind: Kind, rows: int, *, fixed: bool = False) -> tuple[list[bytes], int]:
    """Return a few hundred different batches, and how many rows each has; values have one size where it is fixed."""
    chance = random.Random(7)
    each = BATCH_BYTES // (kind.size + 10)
    return [_batch(each, kind, chance, fixed) for _ in range(max(1, min(_VARIETY, rows // each)))], each


def _batch(rows: int, kind: Kind, chance: random.Random, fixed: bool) -> bytes:
    size = kind.size
    records = []
    for row in range(rows):
        length = size if fixed else chance.randrange(size * 9 // 10, size * 11 // 10)
        # Half of the bytes are chance as text, the rest repeats: zstd makes about a third of it.
        text = b'{"id": %d, "name": "customer-%d", "data": "%s' % (
            row,
            row * 7919,
            chance.randbytes(size // 4).hex().encode(),
        )
        value = text[:length].ljust(length, b"lorem ipsum "[row % 12 : row % 12 + 1])
        key = _number(12) + b"key-%08d" % (row * 31) if kind.keyed else b"\x01"
        inner = b"\0" + _number(row // 8) + _number(row) + key + _number(length) + value + _headers(kind, row)
        records.append(_number(len(inner)) + inner)
    body = _compressed(b"".join(records), kind.codec)
    now = 1_700_000_000_000
    facts = (_CODECS[kind.codec], rows - 1, now, now + rows // 8, -1, -1, -1, rows)
    covered = struct.pack(">hiqqqhii", *facts) + body
    return struct.pack(">qiibI", 0, len(covered) + 9, 0, 2, crc32c.crc32c(covered)) + covered


def _headers(kind: Kind, row: int) -> bytes:
    if not kind.headers:
        return b"\0"
    trace = b"%016x" % (row * 7919)
    return _number(2) + _number(6) + b"source" + _number(4) + b"shop" + _number(5) + b"trace" + _number(16) + trace


def _number(value: int) -> bytes:
    left, out = value << 1, bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])


def _compressed(data: bytes, codec: str | None) -> bytes:
    if codec is None:
        return data
    if codec == "zstd":
        return bytes(cramjam.zstd.compress(data))
    # One independent block, which is all that a broker takes.
    block = bytes(cramjam.lz4.compress_block(data, store_size=False))
    return bytes.fromhex("04224d18604082") + struct.pack("<I", len(block)) + block + bytes(4)
