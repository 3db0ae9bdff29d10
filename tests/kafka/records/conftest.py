# SPDX-License-Identifier: Apache-2.0
"""A small encoder of record batches that no producer writes."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import cramjam
import crc32c
import pytest

LOG_APPEND, TRANSACTIONAL, CONTROL = 0x08, 0x10, 0x20


def varint(number: int) -> bytes:
    """Zigzag, then seven bits a byte."""
    left = (number << 1) ^ (number >> 63)
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])


def blob(value: bytes | None) -> bytes:
    return varint(-1) if value is None else varint(len(value)) + value


def record(delta: int, stamp: int = 0, key: bytes | None = None, value: bytes | None = b"", headers=()) -> bytes:
    pairs = b"".join(blob(name) + blob(held) for name, held in headers)
    inner = b"\0" + varint(stamp) + varint(delta) + blob(key) + blob(value) + varint(len(headers)) + pairs
    return varint(len(inner)) + inner


def xerial(data: bytes, block: int = 1000) -> bytes:
    pieces = [bytes(cramjam.snappy.compress_raw(data[at : at + block])) for at in range(0, len(data), block)]
    framed = b"".join(struct.pack(">i", len(piece)) + piece for piece in pieces)
    return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + framed


CODECS = {
    "none": (0, bytes),
    "gzip": (1, lambda data: bytes(cramjam.gzip.compress(data))),
    "snappy": (2, lambda data: bytes(cramjam.snappy.compress_raw(data))),
    "xerial": (2, xerial),
    "lz4": (3, lambda data: bytes(cramjam.lz4.compress(data))),
    "zstd": (4, lambda data: bytes(cramjam.zstd.compress(data))),
}


@dataclass
class Batch:
    """A record batch to write; records are (delta, stamp, key, value, headers)."""

    records: list = field(default_factory=list)
    base: int = 0
    last: int | None = None
    codec: str = "none"
    attributes: int = 0
    first: int = 1_700_000_000_000
    latest: int = 1_700_000_000_999
    producer: int = -1
    count: int | None = None
    body: bytes | None = None
    crc: int | None = None

    def encode(self) -> bytes:
        number, pack = CODECS[self.codec]
        plain = b"".join(record(*one) for one in self.records) if self.body is None else self.body
        deltas = [one[0] for one in self.records] or [0]
        delta = max(deltas) if self.last is None else self.last - self.base
        count = len(self.records) if self.count is None else self.count
        stamps = (self.first, self.latest, self.producer, 0, -1, count)
        covered = struct.pack(">hiqqqhii", number | self.attributes, delta, *stamps) + pack(plain)
        crc = crc32c.crc32c(covered) if self.crc is None else self.crc
        return struct.pack(">qiibI", self.base, len(covered) + 9, 0, 2, crc) + covered


def mark(base: int, producer: int, *, abort: bool) -> Batch:
    """The control batch at the end of a transaction."""
    key = struct.pack(">hh", 0, 0 if abort else 1)
    one = (0, 0, key, struct.pack(">hi", 0, 0), ())
    return Batch([one], base, producer=producer, attributes=TRANSACTIONAL | CONTROL)


class Encoder:
    Batch = Batch
    LOG_APPEND, TRANSACTIONAL, CONTROL = LOG_APPEND, TRANSACTIONAL, CONTROL
    codecs = tuple(CODECS)
    packers = CODECS
    varint = staticmethod(varint)
    record = staticmethod(record)
    mark = staticmethod(mark)

    @staticmethod
    def join(*batches) -> memoryview:
        return memoryview(b"".join(one if isinstance(one, bytes) else one.encode() for one in batches))


@pytest.fixture(scope="session")
def wire() -> type[Encoder]:
    """The encoder."""
    return Encoder
