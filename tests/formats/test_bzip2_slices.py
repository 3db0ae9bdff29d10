# SPDX-License-Identifier: Apache-2.0
"""Slices of bzip2 files give the rows of the whole file, wherever they are cut; damage is an error."""

from __future__ import annotations

import bz2
import io
import random
from itertools import pairwise

import pytest

from forebay.errors import DataError
from forebay.formats.compression.slices import Bzip2Blocks, slice_borders
from forebay.formats.records import RecordBlocks
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.split import Split
from forebay.sources.files import FileSource, FileSplit
from forebay.sources.files.enumerator import FileEnumerator
from forebay.sources.files.split_reader import FileSplitReader

SLICE = 10**15
RANDOM = random.Random(7)
LINES = [b"%d,%x" % (number, RANDOM.getrandbits(RANDOM.choice([8, 400]))) for number in range(9_000)]


def compressed(text: bytes) -> dict[str, bytes]:
    """Several blocks; several streams, one of them empty; a line that is longer than a block."""
    third = len(text) // 3
    return {
        "blocks": bz2.compress(text, 1),
        "streams": bz2.compress(text[:third], 1) + bz2.compress(b"") + b"\0\0" + bz2.compress(text[third:], 1),
    }


@pytest.mark.parametrize("separator", [None, pytest.param(b"\n", marks=pytest.mark.soak), b"\r\n", b"ab"])
@pytest.mark.parametrize("kind", ["blocks", "streams"])
@pytest.mark.parametrize("long_line", [pytest.param(False, marks=pytest.mark.soak), True])
@pytest.mark.soak(but=["blocks-\\r\\n", "streams-None", "streams-ab"])
def test_any_cuts_give_each_record_once_and_resume_exactly(memory_file, separator, kind, long_line) -> None:
    lines = [*LINES[:4000], b"x" * 300_000, *LINES[4000:]] if long_line else LINES
    text = (separator or b"\r\n").join(lines)
    file = memory_file(compressed(text)[kind], "/data/x.txt.bz2")
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


def test_a_magic_that_occurs_by_chance_inside_a_block_ends_nothing(monkeypatch) -> None:
    text = b"\n".join(LINES)
    data = bz2.compress(text, 1)
    decoder = Bzip2Blocks(io.BytesIO(data).read, 0, None)
    found = decoder._magic_after

    def with_chance_magics(bit: int) -> int | None:
        """As if a magic were in the middle of what is searched, before each true one."""
        true = found(bit)
        return true if true is None or true - bit < 1000 else (true + bit) // 2

    monkeypatch.setattr(decoder, "_magic_after", with_chance_magics)
    assert b"".join(decoder.decode()) == text


def test_a_slice_skips_a_chance_magic_at_its_start() -> None:
    text = b"\n".join(LINES)
    data = bz2.compress(text, 1)
    planted = b"\x31\x41\x59\x26\x53\x59" + b"not a block" + data
    assert b"".join(Bzip2Blocks(io.BytesIO(planted).read, 1, None).decode()) == text


@pytest.mark.parametrize("damage", ["cut", "cut in the checksum", "flipped"])
def test_a_damaged_file_is_an_error_of_some_slice_with_its_name(memory_file, damage) -> None:
    data = bytearray(compressed(b"\n".join(LINES))["blocks"])
    if damage == "flipped":
        data[len(data) * 2 // 3] ^= 16
    else:
        del data[-2 if damage == "cut in the checksum" else len(data) * 2 // 3 :]
    for cut in (len(data) // 4, len(data) // 2, len(data) * 2 // 3 - 50_000, len(data) - 30):
        file = memory_file(bytes(data), "/data/x.txt.bz2")
        with pytest.raises(DataError, match=r"/data/x\.txt\.bz2 is not a complete bz2 file"):
            for start, end in pairwise([0, cut * SLICE + 1, None]):
                list(RecordBlocks().read(file, position=start, end=end))


@pytest.mark.parametrize("start", [0, 10])
def test_damage_is_noticed_before_much_is_read(start) -> None:
    head = bz2.compress(b"\n".join(LINES), 1)[: -(1 << 10)]
    raw = io.BytesIO(head + bytes(range(97, 122)) * (1 << 20))
    raw.seek(start)
    with pytest.raises(ValueError, match="damaged"):
        list(Bzip2Blocks(raw.read, start, None).decode())
    assert raw.tell() < len(head) + (4 << 20)


def test_an_empty_file_has_no_records_in_any_slice(memory_file) -> None:
    file = memory_file(bz2.compress(b""), "/data/x.txt.bz2")
    for start, end in pairwise([0, 5 * SLICE + 1, None]):
        assert list(RecordBlocks().read(file, position=start, end=end)) == []


def test_only_bzip2_is_cut_and_slices_are_not_small(memory_file) -> None:
    assert slice_borders(memory_file(b"x" * (3 << 20), "/data/x.bz2"), 1) == [(1 << 20) * SLICE, (2 << 20) * SLICE]
    assert slice_borders(memory_file(b"x" * (3 << 20), "/data/x.gz"), 1) == []
    assert RecordBlocks(b"aa").borders(memory_file(b"x" * (3 << 20), "/data/x.bz2"), 1) == []
    assert RecordBlocks(encoding="UTF-16").borders(memory_file(b"x" * (3 << 20), "/data/x.bz2"), 1) == []


def rows(source: FileSource, splits: list[Split]) -> list[dict[str, object]]:
    reader = FileSplitReader(source, HostOptions(max_rows_per_batch=5000))
    reader.add_splits(splits)
    found: list[dict[str, object]] = []
    while parts := reader.fetch():
        found += [row for part in parts if part.batch is not None for row in part.batch.to_pylist()]
    reader.close()
    return found


@pytest.mark.soak
@pytest.mark.parametrize("suffix", ["csv", "jsonl", "txt"])
def test_the_file_source_cuts_a_big_file_and_reads_the_same_rows(tmp_path, suffix) -> None:
    lines = (b'{"v": "%x"}' % RANDOM.getrandbits(4000) for _ in range(5000))
    (tmp_path / f"f.{suffix}.bz2").write_bytes(bz2.compress(b"\n".join(lines), 1))
    source = FileSource(path=str(tmp_path), format_options={"header": True} if suffix == "csv" else {})
    source = source.with_schema(source.schema())
    enumerator = FileEnumerator(source)
    (split,) = enumerator.discover({}, True).splits
    slices = list(enumerator.slices(split, 8))
    assert len(slices) > 2
    assert all(isinstance(one, FileSplit) for one in slices)
    found = rows(source, slices)
    assert found == rows(source, [split])
    assert len(found) == 4999 + (suffix != "csv")
