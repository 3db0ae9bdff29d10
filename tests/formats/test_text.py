# SPDX-License-Identifier: Apache-2.0
"""Text files: lines and whole files, in any slices."""

from __future__ import annotations

import gzip
import io
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import BinaryIO

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import ConfigurationError, DataError
from forebay.formats.text import TEXT_SCHEMA, TextFormat, TextOptions

PIECES = [b"a", b"\n", b"\r", b"\r\n", "é".encode(), b"xyz", b"\xff", b"", b";;", b"\xef\xbb\xbf"]


@dataclass(frozen=True)
class Memory:
    data: bytes
    path: str = "x.txt"

    @property
    def size(self) -> int:
        return len(self.data)

    def open(self) -> BinaryIO:
        return io.BytesIO(self.data)


def rows(fmt: TextFormat, file: Memory, position: int = 0, end: int | None = None) -> list[str]:
    found = fmt.read(file, TEXT_SCHEMA, position=position, end=end)
    return [value for batch, _ in found for value in batch.column(0).to_pylist()]


@given(st.lists(st.sampled_from(PIECES), max_size=30).map(b"".join), st.lists(st.integers(0, 60)), st.integers(1, 40))
def test_any_slices_give_every_line_once_in_order(data: bytes, cuts: list[int], block_bytes: int) -> None:
    expected = re.split(rb"\r\n|\n|\r", data.removeprefix(b"\xef\xbb\xbf"))
    lines = [line.decode("utf-8", "replace") for line in expected[: None if expected[-1] else -1]]
    fmt = TextFormat(TextOptions(block_bytes=block_bytes))
    borders = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    assert [row for start, end in pairwise(borders) for row in rows(fmt, Memory(data), start, end)] == lines
    assert rows(fmt, Memory(data)) == lines


@given(st.lists(st.sampled_from(PIECES), max_size=30).map(b"".join), st.integers(1, 20))
def test_what_was_read_and_the_rest_are_the_file(data: bytes, block_bytes: int) -> None:
    fmt = TextFormat(TextOptions(block_bytes=block_bytes))
    whole = rows(fmt, Memory(data))
    read: list[str] = []
    for batch, position in fmt.read(Memory(data), TEXT_SCHEMA):
        read += batch.column(0).to_pylist()
        assert read + rows(fmt, Memory(data), position) == whole


def test_a_line_separator_of_ones_own() -> None:
    assert rows(TextFormat(TextOptions(line_sep=";;")), Memory(b"a;;b\nc;;")) == ["a", "b\nc"]
    with pytest.raises(ConfigurationError, match="the option lineSep is empty"):
        TextOptions(line_sep="")


def test_a_whole_file_is_one_row_and_is_not_cut() -> None:
    fmt = TextFormat(TextOptions(wholetext=True))
    file = Memory(b"a\nb\r\n")
    assert rows(fmt, file) == ["a\nb\r\n"]
    assert rows(fmt, file, 5) == []
    assert not fmt.sliceable(file)


def test_a_compressed_file_is_read_in_one_slice_and_resumed() -> None:
    fmt = TextFormat(TextOptions(block_bytes=4))
    file = Memory(gzip.compress(b"one\ntwo\nthree\n"), "x.txt.gz")
    assert not fmt.sliceable(file)
    assert fmt.borders(file, 2) == []
    assert rows(fmt, file) == ["one", "two", "three"]
    assert rows(fmt, file, 4) == ["two", "three"]


def test_what_is_too_long_is_named_with_its_place() -> None:
    for options in (TextOptions(max_record_bytes=10), TextOptions(max_record_bytes=10, wholetext=True)):
        with pytest.raises(DataError, match="longer than maxRecordBytes .10 bytes") as raised:
            rows(TextFormat(options), Memory(b"a\n" + b"x" * 50 + b"\nb\n"))
        assert raised.value.option == "maxRecordBytes"


@pytest.mark.parametrize(
    "schema", [pa.schema({"a": "string", "b": "string"}), pa.schema({"a": "int64"}), pa.schema([])]
)
def test_the_schema_is_one_column_of_strings(schema: pa.Schema) -> None:
    with pytest.raises(ConfigurationError, match="one column of strings"):
        next(TextFormat(TextOptions()).read(Memory(b"a"), schema))
