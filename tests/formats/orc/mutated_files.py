# SPDX-License-Identifier: Apache-2.0
"""Reads damaged ORC files, in a process of its own: what ends the process cannot be caught inside it.

Called by test_mutated_files.py with the first and the last number of a file. Prints each number before it reads the
file, and JSON at the end. Run alone with one number, it reads that file.
"""

from __future__ import annotations

import io
import json
import random
import re
import sys
import time
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
from pyarrow import orc

from forebay.errors import ForebayError
from forebay.formats.orc.format import OrcFormat

ROWS = 700
CODECS = ("uncompressed", "zlib", "snappy", "lz4", "zstd")


class MemoryFile:
    def __init__(self, data: bytes, path: str = "/data/f.orc") -> None:
        self.data = data
        self.path = path
        self.size = len(data)

    def open(self) -> BinaryIO:
        return io.BytesIO(self.data)


def whole(chosen: random.Random, number: int) -> bytes:
    """An ORC file with every kind of stream."""
    some = chosen.random
    columns = {
        "i": pa.array([chosen.randrange(2 ** chosen.randrange(1, 62)) if some() > 0.1 else None for _ in range(ROWS)]),
        "n": pa.array(range(ROWS), pa.int32()),
        "s": pa.array([chosen.choice(["x", "yy", f"text {chosen.randrange(50)}", None]) for _ in range(ROWS)]),
        "b": pa.array([chosen.randbytes(chosen.randrange(9)) for _ in range(ROWS)]),
        "t": pa.array([chosen.randrange(10**15) if some() > 0.1 else None for _ in range(ROWS)], pa.timestamp("us")),
        "z": pa.array([chosen.randrange(10**15) for _ in range(ROWS)], pa.timestamp("us", "UTC")),
        "d": pa.array([chosen.randrange(-300_000, 50_000) for _ in range(ROWS)], pa.int32()).cast(pa.date32()),
        "w": pa.array([Decimal(chosen.randrange(10**10)).scaleb(-2) for _ in range(ROWS)], pa.decimal128(38, 4)),
        "e": pa.array([Decimal(chosen.randrange(10**10)).scaleb(-2) for _ in range(ROWS)], pa.decimal128(14, 2)),
        "f": pa.array([some() for _ in range(ROWS)], pa.float32()),
        "g": pa.array([some() for _ in range(ROWS)]),
        "o": pa.array([some() > 0.5 for _ in range(ROWS)]),
        "y": pa.array([chosen.randrange(-128, 128) for _ in range(ROWS)], pa.int8()),
        "l": pa.array([[1, 2][: chosen.randrange(3)] if some() > 0.1 else None for _ in range(ROWS)]),
        "r": pa.array([{"x": chosen.randrange(100), "y": "q"} if some() > 0.2 else None for _ in range(ROWS)]),
        "m": pa.array(
            [[(key, 1) for key in "abc"[: chosen.randrange(4)]] for _ in range(ROWS)], pa.map_(pa.string(), pa.int64())
        ),
        "k": pa.array([[["a"], ["b", "c"]][: chosen.randrange(3)] for _ in range(ROWS)]),
    }
    sink = io.BytesIO()
    orc.write_table(
        pa.table(columns),
        sink,
        compression=CODECS[number % len(CODECS)],
        dictionary_key_size_threshold=number % 2,
        file_version="0.11" if number % 7 == 0 else "0.12",
        stripe_size=1 << 14 if number % 3 else 1 << 26,
        batch_size=100,
    )
    return sink.getvalue()


def mutated(chosen: random.Random, data: bytes) -> bytes:
    """The file with bits or bytes changed, in one place or in several, or cut off."""
    changed = bytearray(data)
    # The footers are small, and matter most.
    size = len(changed)
    low = chosen.choice([0, 0, size - 2_000, size - 60])
    match chosen.randrange(7):
        case 0 | 1:
            for _ in range(chosen.choice([1, 1, 2, 8])):
                changed[chosen.randrange(max(0, low), size)] ^= 1 << chosen.randrange(8)
        case 2 | 3:
            for _ in range(chosen.choice([1, 2, 20])):
                changed[chosen.randrange(max(0, low), size)] = chosen.choice([0, 127, 255, chosen.randrange(256)])
        case 4:
            del changed[chosen.randrange(size) :]
        case 5:
            start = chosen.randrange(max(0, low), size)
            changed[start : start + chosen.randrange(1, 30)] = chosen.randbytes(chosen.randrange(30))
        case _:
            start = chosen.randrange(size)
            part = changed[start : start + chosen.randrange(1, 200)]
            at = chosen.randrange(size)
            changed[at : at + len(part)] = part
    return bytes(changed)


def read(data: bytes) -> str:
    """Read a file; return how that ended."""
    reader, file = OrcFormat(), MemoryFile(data)
    try:
        schema = reader.infer_schema([file])
        reader.borders(file, 10_000)
        for batch, _ in reader.read(file, schema):
            batch.validate(full=True)
    except ForebayError as error:
        if not error.message or "/data/f.orc" not in str(error):
            return f"an error that does not name the file: {error!r}"
        return type(error).__name__
    return "read"


def main(first: int, last: int) -> None:
    ends: Counter[str] = Counter()
    slowest = 0.0
    seeds: dict[int, bytes] = {}
    for number in range(first, last):
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
        seed = number % 210
        if seed not in seeds:
            seeds[seed] = whole(random.Random(seed), seed)
        data = mutated(random.Random(number), seeds[seed])
        began = time.perf_counter()
        ends[read(data)] += 1
        slowest = max(slowest, time.perf_counter() - began)
    # Not ru_maxrss: that of a started process begins with the size of the process that started it.
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    memory = int(peak) >> 10
    sys.stdout.write(json.dumps({"ends": ends, "slowest": slowest, "megabytes": memory}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else int(sys.argv[1]) + 1)
