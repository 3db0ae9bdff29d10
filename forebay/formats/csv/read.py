# SPDX-License-Identifier: Apache-2.0
"""Reads one CSV file, or a slice of it, as blocks of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import BinaryIO

from forebay.errors import DataError
from forebay.formats.base import InputFile
from forebay.formats.compression.codecs import open_decompressed
from forebay.formats.csv.header import CsvHeader, check_header
from forebay.formats.csv.options import CsvOptions
from forebay.formats.csv.splitting.lines import LineSplitter
from forebay.formats.csv.splitting.records import RecordSplitter, detected_line_separator
from forebay.formats.csv.splitting.splitter import Tokens
from forebay.formats.records.encodings import as_utf8
from forebay.formats.records.record_blocks import BOM, Block, Window

_MAX_ROWS = 1 << 16
_HEAD_BYTES = 64 << 10
_DETECT_BYTES = 1 << 20  # the bytes that Spark's parser checks

TokenBlocks = Iterator[tuple["Tokens | None", Block]]
"""Pairs of tokens and their block; None as tokens if the block is the start of a record above `maxRecordBytes`."""


class CsvReading:
    """Reads the tokens of one file, once.

    Args:
        options: The options of the CSV format.
        file: The file.
        names: The names of the file's columns.
        wanted: The indexes in `names` of the columns to return.
        inferring: Whether a schema is being inferred. Then the header is not compared with `names`.
        without: Omit every line with this text, instead of only the header line; Spark's inference does this.
    """

    def __init__(
        self,
        options: CsvOptions,
        file: InputFile,
        names: Sequence[str],
        wanted: Sequence[int],
        *,
        inferring: bool = False,
        without: str | None = None,
    ) -> None:
        self._options = options
        self._file = file
        self._names = names
        self._wanted = wanted
        self._inferring = inferring
        self._without = without
        self._blocks = options.blocks()

    def blocks(self, position: int, end: int | None) -> TokenBlocks:
        """Yield the tokens of the records that start in `[position, end)`."""
        return self._of_records(position, end) if self._options.multi_line else self._of_lines(position, end)

    def _of_lines(self, position: int, end: int | None) -> TokenBlocks:
        splitter = LineSplitter(self._options, len(self._names), self._wanted)
        header = CsvHeader(self._options, self._blocks)
        awaited = self._options.header and self._without is None
        if awaited and position:
            awaited = not header.is_before(self._file, position)
        first = awaited or (not position and self._without is None)
        for block in self._blocks.read(self._file, position=position, end=end):
            if block.cut:
                yield None, block
                first = first and awaited
                continue
            if first:
                found = header.line(block)
                first = found is None
                if awaited:
                    if found is not None:
                        self._check(header.tokens(found[0]))
                    del block.data[: found[2] if found else len(block.data)]
                    awaited = first
                elif found is not None and block.data.startswith(BOM, found[1]):
                    at = found[1]  # Spark's parser drops a mark before the first record
                    del block.data[at : at + len(BOM)]
            if self._without is not None:
                header.remove_lines(block, self._without)
            for part in self._blocks.parts(block, _MAX_ROWS):
                yield splitter.split(part.data), part

    def _of_records(self, position: int, end: int | None) -> TokenBlocks:
        options = self._options
        with self._stream() as stream:
            window = Window(stream)
            if position:
                with self._stream() as head:
                    line_sep = self._line_sep(Window(head))
                window.skip_to(position, seekable=self._blocks.seekable(self._file))
            else:
                line_sep = self._begin(window)
            splitter = RecordSplitter(options, len(self._names), self._wanted, line_sep)
            if options.header and not position:
                header, size = self._first_in(window, splitter)
                if header is not None:
                    self._check(header)
                window.drop(size)
            while end is None or window.base < end:
                if not window.ended and len(window.data) < options.block_bytes:
                    window.fill(options.block_bytes)
                if not window.data:
                    return
                tokens, size = splitter.split(window.data, final=window.ended)
                if size:
                    yield tokens, Block(window.take(size), window.base)
                else:
                    self._grow(window)

    def first_record(self) -> tuple[list[str | None], str] | None:
        """Return the tokens and the text of the first record that is not a comment; None if the file has none.

        With `multiLine` the text is empty.
        """
        if not self._options.multi_line:
            header = CsvHeader(self._options, self._blocks)
            for block in self._blocks.read(self._file):
                found = None if block.cut else header.line(block)
                if found is not None:
                    return header.tokens(found[0]), found[0]
            return None
        with self._stream() as stream:
            window = Window(stream)
            splitter = RecordSplitter(self._options, 1, [], self._begin(window))
            tokens, _ = self._first_in(window, splitter)
            return None if tokens is None else (tokens, "")

    def _begin(self, window: Window) -> str:
        """Skip a byte order mark at the start of the window, and return the line end of the file."""
        line_sep = self._line_sep(window)
        if window.data.startswith(BOM):
            window.drop(len(BOM))
        return line_sep

    def _check(self, header: Sequence[str | None]) -> None:
        if not self._inferring:
            check_header(self._options, header, self._names, self._file.path)

    def _first_in(self, window: Window, splitter: RecordSplitter) -> tuple[list[str | None] | None, int]:
        while True:
            tokens, size = splitter.first_record(window.data, final=window.ended)
            if tokens is not None:
                return tokens, size
            if window.ended:
                return None, len(window.data)
            self._grow(window)

    def _grow(self, window: Window) -> None:
        if len(window.data) > self._options.max_record_bytes:
            raise DataError(
                f"a record of {self._file.path} is longer than maxRecordBytes ({self._options.max_record_bytes} bytes)",
                source=self._file.path,
                position=f"byte {window.base}",
                option="maxRecordBytes",
                advice="if the record that begins at this position has a quote that is not closed, correct the file; "
                "else raise maxRecordBytes, or set multiLine to false",
            )
        window.fill(max(self._options.block_bytes, len(window.data)))

    def _line_sep(self, window: Window) -> str:
        """Return the line separator: the option `lineSep`, or the one that the file begins with.

        `window` must be at the start of the file. This reads into it as much as the detection needs.
        """
        while True:
            window.fill(_HEAD_BYTES)
            found = self._options.line_sep or detected_line_separator(window.data)
            if found is not None or window.ended or len(window.data) >= _DETECT_BYTES:
                return found or ("\r" if b"\r" in window.data else "\n")

    def _stream(self) -> BinaryIO:
        return as_utf8(open_decompressed(self._file), self._blocks.encoding)
