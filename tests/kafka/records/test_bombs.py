# SPDX-License-Identifier: Apache-2.0
"""A record batch that decompresses to more than `maxRecordBytes` is refused without decompressing it whole."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import cramjam
import pytest
import zstandard

from forebay.sources.kafka.records.selecting import TooLargeError, decompress

DATA = b"some text, and then " * 5000
UNSIZED = zstandard.ZstdCompressor(write_content_size=False).compressobj()
PACKED = {
    "gzip": (1, gzip.compress(DATA)),
    "gzip of two members": (1, gzip.compress(DATA[:40]) + gzip.compress(DATA[40:])),
    "snappy": (2, bytes(cramjam.snappy.compress_raw(DATA))),
    "lz4": (3, bytes(cramjam.lz4.compress(DATA))),
    "zstd": (4, zstandard.ZstdCompressor().compress(DATA)),
    "zstd without a size": (4, UNSIZED.compress(DATA) + UNSIZED.flush()),
    "zstd of two frames": (4, zstandard.ZstdCompressor().compress(DATA[:40]) + zstandard.compress(DATA[40:])),
    "none": (0, DATA),
}


@pytest.mark.parametrize("name", PACKED)
def test_the_limit_is_exact(name):
    codec, packed = PACKED[name]
    assert bytes(decompress(codec, memoryview(packed), len(DATA))) == DATA
    assert bytes(decompress(codec, memoryview(packed), 1 << 27)) == DATA
    for limit in (len(DATA) - 1, 1000, 1):
        with pytest.raises(TooLargeError):
            decompress(codec, memoryview(packed), limit)


@pytest.mark.parametrize("name", [name for name in PACKED if name != "none"])
def test_damage_is_an_error_however_small_the_limit_is(name):
    codec, packed = PACKED[name]
    for limit in (1 << 27, len(DATA)):
        with pytest.raises(ValueError, match="cannot decompress") as caught:
            decompress(codec, memoryview(packed[: len(packed) // 2]), limit)
        assert not isinstance(caught.value, TooLargeError)


OTHERS = [pytest.param(name, marks=pytest.mark.soak) for name in ("snappy", "snappy in blocks", "zstd")]
BOMBS = ["gzip", "lz4", "zstd without a size", *OTHERS]


@pytest.mark.soak(but=["zstd without a size"])
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_takes_no_more_memory_than_the_limit(name, record_property):
    """600 MB in one message; the limit is 128 MiB, and decompressed pieces are joined only below it."""
    program = Path(__file__).with_name("bomb_program.py")
    done = subprocess.run([sys.executable, "-P", program, name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    text, size, megabytes = done.stdout.strip().split(",")
    record_property("report", f"{name}: {int(size):,} bytes, {megabytes} MB")
    assert text == "maxRecordBytes"
    assert int(megabytes) < 300
