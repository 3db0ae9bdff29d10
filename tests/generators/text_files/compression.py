# SPDX-License-Identifier: Apache-2.0
"""Compressed files, by suffix."""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
import zlib
from collections.abc import Callable

import pyarrow as pa


def in_hadoop_blocks(codec: str) -> Callable[[bytes], bytes]:
    """Blocks of several chunks, as Hadoop writes a record longer than its buffer."""

    def compress(data: bytes) -> bytes:
        out = b""
        for at in range(0, len(data), 100_000):
            block = data[at : at + 100_000]
            out += len(block).to_bytes(4, "big")
            for start in range(0, len(block), 30_000):
                chunk = pa.Codec(codec).compress(block[start : start + 30_000], asbytes=True)
                out += len(chunk).to_bytes(4, "big") + chunk
        return out

    return compress


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "deflate": zlib.compress,
    "zst": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
    "lz4": in_hadoop_blocks("lz4_raw"),
    "snappy": in_hadoop_blocks("snappy"),
}
LONG_SUFFIXES = {"gzip": "gz", "zstd": "zst"}
NOT_SPARKS = "xz"
"""The suffix that Spark does not decompress."""


def stored(chance: random.Random, data: bytes, *, bzip2_streams: int = 2) -> tuple[str, bytes]:
    """Return the suffix and the bytes of a compressed file, of one member or two."""
    suffix = chance.choice([*COMPRESS, *LONG_SUFFIXES])
    compress = COMPRESS[LONG_SUFFIXES.get(suffix, suffix)]
    several = chance.random() < 0.2 and (suffix != "bz2" or bzip2_streams > 1)
    cut = chance.randrange(len(data) + 1) if several else 0
    members = [data[:cut], data[cut:]] if cut else [data]
    return chance.choice([suffix, suffix, suffix.upper()]), b"".join(map(compress, members))
