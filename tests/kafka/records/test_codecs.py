# SPDX-License-Identifier: Apache-2.0
"""Two libraries decompress zstd: the fast one reads producers' frames, the other decides on all other data."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import cramjam
import pytest

from forebay.sources.kafka.records.selecting import decompress

ZSTD = 4


def packed(data: bytes) -> bytes:
    return bytes(cramjam.zstd.compress(data))


def unpacked(data: bytes) -> bytes:
    return bytes(decompress(ZSTD, memoryview(data), 1 << 30))


@pytest.mark.parametrize("data", [b"", b"x", b"much the same " * 100_000], ids=["nothing", "a byte", "a megabyte"])
def test_a_frame_is_decompressed_whole(data):
    assert unpacked(packed(data)) == data


@pytest.mark.parametrize("more", [packed(b"two"), b"junk"], ids=["frame", "junk"])
def test_data_after_a_frame_is_left_to_the_library_that_reads_all_of_it(more):
    data = packed(b"one") + more
    try:
        expected = bytes(cramjam.zstd.decompress(data))
    except cramjam.DecompressionError:
        with pytest.raises(ValueError, match="zstd cannot decompress the records"):
            unpacked(data)
    else:
        assert unpacked(data) == expected


def test_a_frame_that_is_cut_off_is_refused_and_the_next_one_read():
    data = packed(random.Random(7).randbytes(10_000))
    for size in (1, 5, 100, len(data) - 1):
        with pytest.raises(ValueError, match="zstd cannot decompress the records"):
            unpacked(data[:size])
        assert unpacked(packed(b"whole")) == b"whole"


def test_threads_do_not_disturb_one_another():
    made = [random.Random(seed).randbytes(5_000) * 40 for seed in range(32)]
    frames = [packed(one) for one in made]
    with ThreadPoolExecutor(16) as pool:
        for _ in range(5):
            assert list(pool.map(unpacked, frames)) == made
