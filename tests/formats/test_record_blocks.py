# SPDX-License-Identifier: Apache-2.0
"""Blocks of whole records: from any slices the same records, in bounded memory."""

from __future__ import annotations

import gzip
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.formats.base import even_borders
from forebay.formats.records import Block, RecordBlocks

USUAL = [b"a", b"bc", b"\n", b"\r", b"\r\n", b"\n\n", "é".encode(), b"\xff", b""]
SEPARATORS = [None, b"\n", b"\r\n", b";", b"ab", b"aba", b"aa"]


def records(data: bytes, separator: bytes | None) -> list[bytes]:
    """The records, by an independent method."""
    if separator is None:
        return re.findall(rb"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z", data)
    pieces = data.split(separator)
    return [piece + separator for piece in pieces[:-1]] + ([pieces[-1]] if pieces[-1] else [])


def data_for(separator: bytes | None) -> st.SearchStrategy[bytes]:
    pieces = USUAL if separator is None else [b"a", b"b", b"x", b"\n", b"\r", separator, separator[:1]]
    return st.lists(st.sampled_from(pieces), max_size=25).map(b"".join)


files_and_separators = st.sampled_from(SEPARATORS).flatmap(
    lambda separator: st.tuples(st.just(separator), data_for(separator))
)


@given(files_and_separators, st.lists(st.integers(0, 70), max_size=5), st.integers(1, 30))
def test_the_union_of_any_slices_is_the_file_each_record_once_and_in_order(
    memory_file, case, cuts, block_bytes
) -> None:
    separator, data = case
    blocks, file = RecordBlocks(separator, block_bytes), memory_file(data, "/data/x.txt")
    if not blocks.sliceable(file):
        cuts = []
    borders = [0, *sorted(cut for cut in cuts if cut > 0), None]
    found: list[Block] = []
    for start, end in pairwise(borders):
        slice_blocks = list(blocks.read(file, position=start, end=end))
        starts = [block.offset(0) for block in slice_blocks]
        assert all(start <= at and (end is None or at < end) for at in starts)
        found += slice_blocks
    assert b"".join(block.data for block in found) == data
    whole = records(data, separator)
    ends = {sum(map(len, whole[:count])) for count in range(len(whole) + 1)}
    assert {block.end for block in found} <= ends


@given(files_and_separators, st.integers(1, 30))
def test_what_was_read_and_the_rest_from_there_are_the_file(memory_file, case, block_bytes) -> None:
    separator, data = case
    blocks = RecordBlocks(separator, block_bytes)
    for file in (memory_file(data, "/data/x.txt"), memory_file(gzip.compress(data), "/data/x.txt.gz")):
        before = b""
        for block in blocks.read(file):
            before += block.data
            rest = b"".join(after.data for after in blocks.read(file, position=block.end))
            assert before + rest == data


@given(st.lists(st.integers(0, 30), max_size=12), st.integers(2, 20), st.integers(1, 30), st.lists(st.integers(1, 200)))
def test_exactly_the_records_over_the_limit_are_cut_whatever_the_blocks(
    memory_file, sizes, limit, block_bytes, cuts
) -> None:
    data = b"".join(b"x" * size + b"\n" for size in sizes)
    blocks, file = RecordBlocks(None, block_bytes, limit), memory_file(data, "/data/x.txt")
    found: list[int | None] = []
    for start, end in pairwise([0, *sorted(cuts), None]):
        for block in blocks.read(file, position=start, end=end):
            found += [None] if block.cut else [len(line) for line in records(bytes(block.data), None)]
    assert found == [size + 1 if size + 1 <= limit else None for size in sizes]


def test_a_record_longer_than_a_block_comes_whole(memory_file) -> None:
    data = b"a\n" + b"x" * 100_000 + b"\nb\n"
    found = list(RecordBlocks(None, 1000).read(memory_file(data)))
    assert b"".join(block.data for block in found) == data
    assert max(len(block.data) for block in found) < 103_000


def test_blocks_stay_near_the_wanted_size(memory_file) -> None:
    data = b"0123456789\n" * 10_000
    assert max(len(block.data) for block in RecordBlocks(None, 1000).read(memory_file(data))) <= 2000


def test_a_carriage_return_at_the_end_of_a_slice_is_one_line_end_with_the_feed_behind_it(memory_file) -> None:
    file = memory_file(b"a\r\nb\r\n")
    for cut in range(1, 7):
        slices = [list(RecordBlocks().read(file, position=0, end=cut)), list(RecordBlocks().read(file, position=cut))]
        assert [b"".join(block.data for block in found) for found in slices] == {
            1: [b"a\r\n", b"b\r\n"],
            2: [b"a\r\n", b"b\r\n"],
            3: [b"a\r\n", b"b\r\n"],
        }.get(cut, [b"a\r\nb\r\n", b""])


def test_a_byte_order_mark_is_left_out_and_counted(memory_file) -> None:
    (block,) = RecordBlocks().read(memory_file(b"\xef\xbb\xbfab\ncd\n"))
    assert (bytes(block.data), block.end, block.offset(3)) == (b"ab\ncd\n", 9, 6)
    assert list(RecordBlocks().read(memory_file(b"\xef\xbb\xbf"))) == []  # as in Spark


@pytest.mark.parametrize(
    ("separator", "sliceable"), [(None, True), (b"\r\n", True), (b"ab", True), (b"aa", False), (b"aba", False)]
)
def test_a_separator_that_can_overlap_itself_keeps_a_file_whole(memory_file, separator, sliceable) -> None:
    file = memory_file(b"x" * 1000, "/data/x.txt")
    assert RecordBlocks(separator).sliceable(file) is sliceable


def test_compressed_and_transcoded_files_are_kept_whole(memory_file) -> None:
    assert not RecordBlocks().sliceable(memory_file(b"", "/data/x.csv.gz"))
    assert not RecordBlocks(encoding="UTF-16").sliceable(memory_file(b"", "/data/x.csv"))


@given(st.integers(0, 10_000), st.integers(1, 5000))
def test_even_borders_are_inner_and_no_slice_is_too_large(size, target) -> None:
    borders = [0, *even_borders(size, target), size]
    assert all(0 < end - start <= target for start, end in pairwise(borders)) or size == 0
    assert len(borders) - 1 == max(1, -(-size // target))


@given(data_for(None), st.integers(1, 5))
def test_parts_of_a_block_are_its_records_with_their_positions(memory_file, data, most) -> None:
    blocks = RecordBlocks()
    for block in blocks.read(memory_file(data)):
        pieces = list(blocks.parts(block, most))
        assert b"".join(piece.data for piece in pieces) == block.data
        assert pieces[-1].end == block.end
        assert all(piece.offset(0) == before.end for before, piece in pairwise(pieces))
        starts = {block.offset(sum(map(len, records(bytes(block.data), None)[:count]))) for count in range(40)}
        assert {piece.end for piece in pieces} <= starts


@pytest.mark.parametrize("short", [range(20), range(7, 12), (3, 16), ()])
def test_a_block_with_regions_of_many_short_records_is_cut(memory_file, short) -> None:
    region = 50_000
    parts = [b"\n" * region if at in short else (b"x" * 99 + b"\n") * (region // 100) for at in range(20)]
    (block,) = RecordBlocks().read(memory_file(b"".join(parts)))
    pieces = list(RecordBlocks().parts(block, 20_000))
    assert len(pieces) == -(-block.data.count(b"\n") // 20_000)


@pytest.mark.parametrize("begin", range(0, 32_768, 4096))
def test_a_block_that_repeats_itself_as_the_samples_do_is_cut(memory_file, begin) -> None:
    stretch = b"x" * begin + b"\n" * 4096 + b"x" * (32_768 - begin - 4097) + b"\n"
    (block,) = RecordBlocks().read(memory_file(stretch[:32_768] * 64))
    assert len(list(RecordBlocks().parts(block, 50_000))) == -(-block.data.count(b"\n") // 50_000)
