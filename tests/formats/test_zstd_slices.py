# SPDX-License-Identifier: Apache-2.0
"""Slices of seekable zstd files give the rows of the whole file, wherever they are cut; damage is an error."""

from __future__ import annotations

import random
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay.errors import DataError
from forebay.formats.compression.codecs import open_decompressed
from forebay.formats.compression.slices import ZstdFrames, slice_borders
from forebay.formats.records import RecordBlocks
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.split import Split
from forebay.sources.files import FileSource
from forebay.sources.files.enumerator import FileEnumerator
from forebay.sources.files.split_reader import FileSplitReader

SLICE = 10**15
RANDOM = random.Random(7)
LINES = [b"%d,%x" % (number, RANDOM.getrandbits(RANDOM.choice([8, 400]))) for number in range(9_000)]


def seekable(text: bytes, frame_bytes: int, *, checksums: bool = False, lie: int = 0) -> bytes:
    """Return a file in the seekable format. With `lie`, the second frame has so many bytes less than its entry says."""
    parts = [text[at : at + frame_bytes] for at in range(0, len(text), frame_bytes)]
    frames = [pa.compress(part, codec="zstd", asbytes=True) for part in parts]
    entries = b""
    for number, (frame, part) in enumerate(zip(frames, parts, strict=True)):
        entries += struct.pack("<II", len(frame), len(part) + lie * (number == 1)) + b"\7\7\7\7" * checksums
    footer = struct.pack("<IB", len(parts), 0x80 * checksums) + b"\xb1\xea\x92\x8f"
    return b"".join(frames) + struct.pack("<II", 0x184D2A5E, len(entries) + 9) + entries + footer


def compressed(text: bytes) -> dict[str, bytes]:
    half = len(text) // 2
    return {
        "frames": seekable(text, 40_000),
        "checksums": seekable(text, 30_000, checksums=True),
        "no table": bytes(pa.compress(text, codec="zstd", asbytes=True)),
        "concatenated": seekable(text[:half], 40_000) + seekable(text[half:], 40_000),
    }


KINDS = ["frames", "checksums", "no table", "concatenated"]


@pytest.mark.parametrize("kind", KINDS)
def test_decoders_that_do_not_know_seek_tables_read_the_same(memory_file: Any, kind: str) -> None:
    text = b"\n".join(LINES)
    with open_decompressed(memory_file(compressed(text)[kind], "/data/x.zst")) as stream:
        assert stream.read() == text


@pytest.mark.parametrize("separator", [None, b"\n", b"ab"])
@pytest.mark.parametrize("kind", KINDS)
def test_any_cuts_give_each_record_once_and_resume_exactly(
    memory_file: Any, separator: bytes | None, kind: str
) -> None:
    text = (separator or b"\r\n").join([*LINES[:4000], b"x" * 100_000, *LINES[4000:]])
    file = memory_file(compressed(text)[kind], "/data/x.txt.zst")
    blocks = RecordBlocks(separator, 50_000)
    width = len(separator or b"\n")
    for count in (1, 2, 5):
        cuts = sorted(RANDOM.sample(range(1, file.size), count))
        borders = [0, *(cut * SLICE + width for cut in cuts), None]
        slices = [list(blocks.read(file, position=start, end=end)) for start, end in pairwise(borders)]
        assert b"".join(block.data for found in slices for block in found) == text
        for found, (start, end) in zip(slices, pairwise(borders), strict=True):
            assert all((start or 0) <= block.offset(0) < block.end for block in found)
            assert end is None or all(block.end < end for block in found)
            for place in sorted({0, len(found) // 2, len(found) - 1} & set(range(len(found)))):
                rest = blocks.read(file, position=found[place].end, end=end)
                assert b"".join(block.data for block in rest) == b"".join(block.data for block in found[place + 1 :])


@pytest.mark.parametrize("seeds", [range(200), pytest.param(range(200, 10_000), marks=pytest.mark.soak)], ids=len)
def test_a_mutated_file_is_an_error_or_has_the_rows_of_one_slice(memory_file: Any, seeds: range) -> None:
    """Frames have no checksum here, so a flipped bit may go unnoticed, by zstd itself too."""
    text = b"\n".join(LINES[:1500])
    data = compressed(text)["frames"]
    errors = 0
    for seed in seeds:
        rng = random.Random(seed)
        mutated = bytearray(data)
        if rng.random() < 0.3:
            del mutated[rng.randrange(len(mutated)) :]
        else:
            place = rng.choice([rng.randrange(len(data)), len(data) - 1 - rng.randrange(60)])
            mutated[place] ^= 1 << rng.randrange(8)
        file = memory_file(bytes(mutated), "/data/x.txt.zst")
        cut = rng.randrange(1, len(data)) * SLICE + 1
        try:
            found = [RecordBlocks().read(file, position=start, end=end) for start, end in pairwise([0, cut, None])]
            read = b"".join(bytes(block.data) for blocks in found for block in blocks)
        except DataError as error:
            assert "/data/x.txt.zst is not a complete zst file" in str(error)  # noqa: PT017 - only some seeds fail
            errors += 1
        else:
            with open_decompressed(file) as stream:
                assert stream.read() == read, seed
    assert errors > len(seeds) // 4


@pytest.mark.parametrize("lie", [-1, 1])
def test_a_seek_table_with_another_size_than_the_frame_is_an_error(memory_file: Any, lie: int) -> None:
    file = memory_file(seekable(b"\n".join(LINES), 40_000, lie=lie), "/data/x.txt.zst")
    with pytest.raises(DataError, match=r"/data/x\.txt\.zst is not a complete zst file: a frame has another size"):
        list(RecordBlocks().read(file, end=file.size // 2 * SLICE + 1))


def test_a_slice_reads_its_own_frames_and_the_table_only() -> None:
    data = seekable(b"\n".join(LINES), 40_000)
    read = 0

    def read_at(place: int, count: int) -> bytes:
        nonlocal read
        read += count
        return data[place : place + count]

    start = len(data) * 9 // 10
    assert b"".join(ZstdFrames(read_at, len(data), start, None).decode())
    assert read < len(data) // 10 + (4 << 10)


def test_only_files_with_a_seek_table_are_cut(memory_file: Any) -> None:
    plain = b"x" * (3 << 20)
    assert slice_borders(memory_file(plain, "/data/x.zst"), 1) == []
    table = plain[:-9] + seekable(b"x", 1)[-9:]
    assert slice_borders(memory_file(table, "/data/x.zst"), 1) == [(1 << 20) * SLICE, (2 << 20) * SLICE]


def rows(source: FileSource, splits: list[Split]) -> list[dict[str, object]]:
    reader = FileSplitReader(source, HostOptions(max_rows_per_batch=5000))
    reader.add_splits(splits)
    found: list[dict[str, object]] = []
    while parts := reader.fetch():
        found += [row for part in parts if part.batch is not None for row in part.batch.to_pylist()]
    reader.close()
    return found


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "txt"])
def test_the_file_source_cuts_a_big_file_and_reads_the_same_rows(tmp_path: Path, suffix: str) -> None:
    lines = b"\n".join(b'{"v": "%x"}' % RANDOM.getrandbits(4000) for _ in range(5000))
    (tmp_path / f"f.{suffix}.zst").write_bytes(seekable(lines, 500_000))
    source = FileSource(path=str(tmp_path), format_options={"header": True} if suffix == "csv" else {})
    source = source.with_schema(source.schema())
    enumerator = FileEnumerator(source)
    (split,) = enumerator.discover({}, True).splits
    slices = list(enumerator.slices(split, 8))
    assert len(slices) > 2
    assert rows(source, slices) == rows(source, [split])
    assert len(rows(source, slices)) == 4999 + (suffix != "csv")
