# SPDX-License-Identifier: Apache-2.0
"""Reads one CSV file, or a slice of it, as blocks of tokens."""

from __future__ import annotations

import itertools
import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import ConfigurationError, DataError
from forebay.formats.base import InputFile
from forebay.formats.compression.codecs import open_decompressed
from forebay.formats.csv.options import WHITESPACE, CsvOptions, plain_tokens, strip_line_end
from forebay.formats.csv.splitting import (
    ArrowRows,
    FallbackRow,
    NoPlaceholder,
    Placeholders,
    Quoting,
    Splitter,
    Tokens,
    matches,
)
from forebay.formats.records import BOM, Block, Window, as_utf8, decoded, valid_utf8

# -- Compares the names of a header with the schema.


_CHECKED_BYTES = 1 << 20
_SMALL_BLOCK = 64 << 10
_BLANKS = WHITESPACE.encode()

_log = logging.getLogger(__name__)


def names_of(tokens: Sequence[str | None], null_value: str) -> list[str]:
    """Return the column names that Spark makes from a header.

    A missing name becomes `_c` and its index. Names that are equal apart from case get their index as a suffix.
    """
    times = Counter(token.lower() for token in tokens if token is not None)
    names = []
    for index, token in enumerate(tokens):
        if not token or token == null_value:
            names.append(f"_c{index}")
        elif times[token.lower()] > 1:
            names.append(f"{token}{index}")
        else:
            names.append(token)
    return names


def _difference(headers: Sequence[str], names: Sequence[str]) -> str | None:
    """Return how the names of a header (`headers`) differ from those of the schema (`names`); None if they do not.

    The text completes a sentence that begins with the path.
    """
    if len(headers) != len(names):
        return f"has {len(headers)} columns in its header, but the schema has {len(names)}"
    for header, name in zip(headers, names, strict=True):
        if header.lower() != name.lower():
            return f"has the column {header!r} in its header where the schema has {name!r}"
    return None


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
        column_indexes: The indexes in `names` of the columns to return.
        inferring: Whether a schema is being inferred. Then the header is not compared with `names`.
        without: Omit every line with this text, instead of only the header line; Spark's inference does this.
    """

    def __init__(
        self,
        options: CsvOptions,
        file: InputFile,
        names: Sequence[str],
        column_indexes: Sequence[int],
        *,
        inferring: bool = False,
        without: str | None = None,
    ) -> None:
        self._options = options
        self._file = file
        self._names = names
        self._selected = column_indexes
        self._inferring = inferring
        self._without = without
        self._blocks = options.blocks()

    def blocks(self, position: int, end: int | None) -> TokenBlocks:
        """Yield the tokens of the records that start in `[position, end)`."""
        return self._of_records(position, end) if self._options.multi_line else self._of_lines(position, end)

    def _of_lines(self, position: int, end: int | None) -> TokenBlocks:
        splitter = LineSplitter(self._options, len(self._names), self._selected)
        awaited = self._options.header and self._without is None
        if awaited and position:
            awaited = not self._header_is_before(position)
        first = awaited or (not position and self._without is None)
        for block in self._blocks.read(self._file, position=position, end=end):
            if block.cut:
                yield None, block
                first = first and awaited
                continue
            if first:
                line = self._first_line(block)
                first = line is None
                if awaited:
                    if line is not None:
                        self._check(self._names_in(line[0]))
                    del block.data[: line[2] if line else len(block.data)]
                    awaited = first
                elif line is not None and block.data.startswith(BOM, line[1]):
                    at = line[1]  # Spark's parser drops a mark before the first record
                    del block.data[at : at + len(BOM)]
            if self._without is not None:
                self._remove_lines(block, self._without)
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
            splitter = RecordSplitter(options, len(self._names), self._selected, line_sep)
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
            for block in self._blocks.read(self._file):
                line = None if block.cut else self._first_line(block)
                if line is not None:
                    return self._names_in(line[0]), line[0]
            return None
        with self._stream() as stream:
            window = Window(stream)
            splitter = RecordSplitter(self._options, 1, [], self._begin(window))
            tokens, _ = self._first_in(window, splitter)
            return None if tokens is None else (tokens, "")

    def _header_is_before(self, position: int) -> bool:
        """Return whether the header line of the file starts before `position`.

        Only blank lines and comments can precede the header. So if `position` is beyond the first 1 MiB, the answer is
        True, and nothing is read.
        """
        if position > _CHECKED_BYTES:
            return True
        small = replace(self._blocks, block_bytes=min(self._blocks.block_bytes, _SMALL_BLOCK))
        return any(self._first_line(block) is not None for block in small.read(self._file, end=position))

    def _first_line(self, block: Block) -> tuple[str, int, int] | None:
        """Return the first line of a block that is neither blank nor a comment, its index, and the index after it.

        Returns None if the block has no such line.
        """
        comment = self._options.comment.encode() or None
        first = 0 if block.data[:1] > b" " else self._after_blank_lines(block.data)
        for line, start, after in self._lines(block.data, first):
            if line.strip(_BLANKS) and not (comment and line.startswith(comment)):
                return decoded(line), start, after
        return None

    def _remove_lines(self, block: Block, text: str) -> None:
        """Remove every line that equals `text` from the data of a block."""
        unwanted = text.encode()
        if unwanted in block.data:
            lines = self._lines(block.data, 0)
            block.data[:] = b"".join([block.data[at:after] for line, at, after in lines if line != unwanted])

    def _names_in(self, line: str) -> list[str | None]:
        """Split a header line into column names. Spark's parser drops a byte order mark before them."""
        splitter, line = LineSplitter(self._options, 1, []), line.removeprefix("\ufeff")
        return plain_tokens(line, splitter.rules) or splitter.tokenizer.line(line) or []

    def _lines(self, data: bytearray, at: int) -> Iterator[tuple[bytes, int, int]]:
        """Yield each line of `data` from index `at` on: its bytes without line end, its start, and the next start."""
        separator = self._blocks.separator
        while at < len(data):
            after = self._blocks.next_start(data, at)
            line = bytes(data[at:after])
            yield line.rstrip(b"\r\n") if separator is None else line.removesuffix(separator), at, after
            at = after

    def _after_blank_lines(self, data: bytearray) -> int:
        """Return where a line starts, at or before the first character that is not white space."""
        separator = self._blocks.separator
        if separator is not None and len(separator) > 1:
            return 0
        blank = len(data) - len(data.lstrip(_BLANKS))
        return max(data.rfind(end, 0, blank) + 1 for end in ([b"\n", b"\r"] if separator is None else [separator]))

    def _begin(self, window: Window) -> str:
        """Skip a byte order mark at the start of the window, and return the line end of the file."""
        line_sep = self._line_sep(window)
        if window.data.startswith(BOM):
            window.drop(len(BOM))
        return line_sep

    def _check(self, header: Sequence[str | None]) -> None:
        """Compare the header of the file with the names of the schema, unless a schema is being inferred.

        With `enforceSchema`, Spark's default, columns match by position, and a difference is logged as a warning.

        Raises:
            ConfigurationError: `enforceSchema` is false, and the names differ in number or in more than case.
        """
        path, names = self._file.path, self._names
        problem = None if self._inferring else _difference([token or "" for token in header], names)
        if problem is None:
            return
        if not self._options.enforce_schema:
            raise ConfigurationError(
                f"{path} {problem}",
                option="enforceSchema",
                advice="correct the schema, or set enforceSchema to true to match columns by position",
            )
        # Compare with the names as inference makes them, because names with an index differ from the header anyway.
        if _difference(names_of(header, self._options.null_value), names) is not None:
            advice = "if that is wrong, correct the schema or the file; enforceSchema=false makes this an error"
            _log.warning("%s %s; columns match by position: %s", path, problem, advice)

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
            separator = self._options.line_sep or detected_line_separator(window.data)
            if separator is not None or window.ended or len(window.data) >= _DETECT_BYTES:
                return separator or ("\r" if b"\r" in window.data else "\n")

    def _stream(self) -> BinaryIO:
        return as_utf8(open_decompressed(self._file), self._blocks.encoding)


# -- Splits CSV for `multiLine=false`, where every line is a record, even inside quotes.


_NEWLINE_INSIDE = "\udc0a"  # no decoded text has a lone surrogate


class LineSplitter(Splitter):
    """Splits blocks of lines: with Arrow if the result is the same as Spark's, else line by line with the tokenizer."""

    def __init__(self, options: CsvOptions, width: int, column_indexes: Sequence[int]) -> None:
        super().__init__(options, width, column_indexes, newlines_in_quotes=False)
        self._line_sep = None if options.line_sep is None else options.line_sep.encode()

    def split(self, data: bytes | bytearray) -> Tokens:
        """Return the records of a block of complete lines."""
        data = valid_utf8(data)
        placeholders = Placeholders()
        try:
            lines = self._with_newlines(data, placeholders)
            if self.rules.comment is not None:
                lines = _without_comments(lines, self.rules.comment.encode())
            lines = without_blank_lines(lines, placeholders)
            arrow_rows, fallback_rows = self._split(lines, placeholders)
        except NoPlaceholder:
            return self._by_tokenizer(data)
        return self.merged(arrow_rows, fallback_rows, lambda: self._raw(lines, placeholders))

    def _by_tokenizer(self, data: bytes | bytearray) -> Tokens:
        none = Placeholders()
        if self._line_sep is None:
            data = self._with_newlines(data, none)
        comment = self.rules.comment and self.rules.comment.encode()
        parts = data.split(self._line_sep or b"\n")
        lines = [line.decode() for line in parts if not (comment and line.startswith(comment))]
        rows = [(index, self._tokens_of(line, none)) for index, line in enumerate(lines)]
        raw = [strip_line_end(line) for line in lines if line.strip(WHITESPACE)]
        return self.merged(self.by_arrow(b"", Quoting.NONE, none), rows, lambda: raw)

    def _with_newlines(self, data: bytes | bytearray, placeholders: Placeholders) -> bytes | bytearray:
        """Return the block with LF as line end, and with placeholders for all other LF and CR characters."""
        if self._line_sep is None:
            return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in data else data
        if self._line_sep == b"\n":
            return placeholders.hide(data, b"\r")
        held = b"\xff"  # never occurs in UTF-8
        data = data.replace(self._line_sep, held)
        return placeholders.hide(placeholders.hide(data, b"\n"), b"\r").replace(held, b"\n")

    def _split(self, data: bytes | bytearray, placeholders: Placeholders) -> tuple[ArrowRows, list[FallbackRow]]:
        """Return the rows that Arrow splits as Spark does, and the rows of all other lines, split by the tokenizer."""
        quoting = self.safe_blocks.quoting(data)
        if quoting is not Quoting.NOT_SAFE:
            arrow_rows = self.by_arrow(data, quoting, placeholders)
            return arrow_rows, [
                (index, self._tokens_of(text, placeholders)) for index, text in arrow_rows.fallback_rows
            ]
        lines = [line for line in data.split(b"\n") if line]
        safe, quoting = self.safe_blocks.safe_lines(pa.array(lines, pa.binary()), data)
        placeholders.avoid(data)
        arrow_rows = self.by_arrow(b"\n".join(itertools.compress(lines, safe.to_pylist())), quoting, placeholders)
        safe_rows = pc.indices_nonzero(safe).to_pylist() if arrow_rows.fallback_rows else []
        texts = [(safe_rows[index], text) for index, text in arrow_rows.fallback_rows]
        texts += [(index, lines[index].decode()) for index in pc.indices_nonzero(pc.invert(safe)).to_pylist()]
        return arrow_rows, [(index, self._tokens_of(text, placeholders)) for index, text in sorted(texts)]

    def _tokens_of(self, text: str, placeholders: Placeholders) -> list[str | None] | None:
        text = placeholders.restored_text(text)
        if not text.strip(WHITESPACE):
            return None
        if "\n" not in text or self.rules.newline != "\n":
            return plain_tokens(text, self.rules) or self.tokenizer.line(text)
        # With a line separator of two characters, a newline is an ordinary character.
        tokens = self.tokenizer.line(text.replace("\n", _NEWLINE_INSIDE))
        return tokens and [token and token.replace(_NEWLINE_INSIDE, "\n") for token in tokens]

    def _raw(self, data: bytes | bytearray, placeholders: Placeholders) -> list[str]:
        lines = (placeholders.restored_text(line) for line in data.decode().split("\n"))
        return [strip_line_end(line) for line in lines if line.strip(WHITESPACE)]


def _without_comments(data: bytes | bytearray, comment: bytes) -> bytes | bytearray:
    if not data.startswith(comment) and b"\n" + comment not in data:
        return data
    return b"\n".join([line for line in data.split(b"\n") if not line.startswith(comment)])


# -- Splits CSV for `multiLine=true`, where quoted values may contain line ends.


_TRIES = 64
_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")


def detected_line_separator(head: bytes | bytearray) -> str | None:
    """Return the first line end in `head`, the start of a file; None if `head` does not determine it.

    Spark's parser takes this line end as the line separator of the whole file.
    """
    feed, carriage = head.find(b"\n"), head.find(b"\r")
    if carriage < 0 or 0 <= feed < carriage:
        return None if feed < 0 else "\n"
    if carriage == len(head) - 1:
        return None
    return "\r\n" if head[carriage + 1 : carriage + 2] == b"\n" else "\r"


class RecordSplitter(Splitter):
    """Splits text that begins at a record: with Arrow if the result is the same as Spark's, else with the tokenizer."""

    def __init__(self, options: CsvOptions, width: int, column_indexes: Sequence[int], line_sep: str) -> None:
        super().__init__(options, width, column_indexes, newlines_in_quotes=True)
        # Spark's parser keeps line ends in quotes unchanged if the option lineSep is set.
        self.rules = replace(self.rules, line_sep=line_sep, newlines_in_quotes=options.line_sep is None)
        self._line_sep = line_sep.encode()
        # Any of these bytes may end a record.
        self._ends = [bytes([end]) for end in {self._line_sep[-1], *self.rules.newline.encode()[-1:]}]

    def first_record(self, data: bytearray, *, final: bool) -> tuple[list[str | None] | None, int]:
        """Return the tokens of the first record, and its size in bytes; None as tokens if no record is complete.

        `final` says whether the file ends with `data`.
        """
        text = data.decode("utf-8", "surrogateescape")
        self.tokenizer.begin(text, final)
        tokens = self.tokenizer.next()
        if tokens is not None:
            tokens = [token and _repaired(token) for token in tokens]
        return tokens, len(text[: self.tokenizer.consumed].encode("utf-8", "surrogateescape"))

    def split(self, data: bytearray, *, final: bool) -> tuple[Tokens, int]:
        """Return the complete records at the start of `data`, and their size in bytes.

        `final` says whether the file ends with `data`.
        """
        border = len(data) if final else self._border(data)
        comment = (self.rules.comment or "").encode()
        commented = comment and any(data.startswith(comment) or end + comment in data for end in (b"\n", b"\r"))
        if border and not commented:
            tokens = self._by_lines(data[:border])
            if tokens is not None:
                return tokens, border
        return self._by_tokenizer(data, final=final)

    def _border(self, data: bytearray) -> int:
        """Return the index after the last line end outside quotes; 0 if none is found near the end of the data."""
        quote = self.rules.quote.encode()
        border = max((data.rfind(end) + 1 for end in self._ends), default=0)
        quotes = data.count(quote, 0, border)
        for _ in range(_TRIES):
            if not border or quotes % 2 == 0:
                return border
            before = max(data.rfind(end, 0, border - 1) + 1 for end in self._ends)
            quotes -= data.count(quote, before, border)
            border = before
        return 0

    def _by_lines(self, block: bytearray) -> Tokens | None:
        """Split a block with Arrow; return None if Arrow cannot split it, or may split it differently from Spark."""
        placeholders = Placeholders()
        try:
            data = self._with_newlines(valid_utf8(block), placeholders)
            if data is None or (self.rules.trim_leading and has_blank_lines(data, placeholders)):
                return None
            quoting = self.safe_blocks.quoting(data)
            if quoting is Quoting.NOT_SAFE:
                return None
            arrow_rows = self.by_arrow(data, quoting, placeholders)
        except NoPlaceholder:
            return None
        fallback_rows: list[FallbackRow] = []
        for index, text in arrow_rows.fallback_rows:
            ends = index < arrow_rows.rows + len(arrow_rows.fallback_rows) - 1 or data.endswith(b"\n")
            self.tokenizer.begin(placeholders.restored_text(text) + self.rules.line_sep * ends, True)
            fallback_rows.append((index, self.tokenizer.next()))
        return self.merged(arrow_rows, fallback_rows, lambda: self._raw(block))

    def _with_newlines(self, data: bytes | bytearray, placeholders: Placeholders) -> bytes | bytearray | None:
        """Return the block with LF as line end; None if replacing the line ends would change values."""
        if self._line_sep != b"\n":
            if not self.rules.newlines_in_quotes and self.rules.quote.encode() in data:
                return None  # line ends in quotes stay as they are
            if self.rules.newline == "\n":
                if data.count(b"\n") != (data.count(self._line_sep) if self._line_sep == b"\r\n" else 0):
                    return None  # at other newlines, the parser ends some values and continues others
            else:
                data = placeholders.hide(data, b"\n")
            data = data.replace(self._line_sep, b"\n")
        return placeholders.hide(data, b"\r")

    def _by_tokenizer(self, data: bytearray, *, final: bool) -> tuple[Tokens, int]:
        text = data.decode("utf-8", "surrogateescape")
        damaged = not data.isascii() and _ESCAPED_BYTE.search(text) is not None
        rows: list[FallbackRow] = []
        raw: list[str] = []
        self.tokenizer.begin(text, final)
        consumed = 0
        while (tokens := self.tokenizer.next()) is not None:
            rows.append((len(rows), [token and _repaired(token) for token in tokens] if damaged else tokens))
            raw.append(_repaired(self.tokenizer.raw) if damaged else self.tokenizer.raw)
            consumed = self.tokenizer.consumed
        size = len(data) if final else len(text[:consumed].encode("utf-8", "surrogateescape"))
        empty = self.by_arrow(b"", Quoting.NONE, Placeholders())
        return self.merged(empty, rows, lambda: raw), size

    def _raw(self, block: bytearray) -> list[str]:
        self.tokenizer.begin(decoded(block), True)
        texts: list[str] = []
        while self.tokenizer.next() is not None:
            texts.append(self.tokenizer.raw)
        return texts


def _repaired(token: str) -> str:
    return decoded(token.encode("utf-8", "surrogateescape"))


# -- Finds the lines of white space in a block of CSV, before it is split.
#
# Such lines are no records. After the splitting it is too late to tell: they look like a record of one field, or of
# several if the separator is white space.


def has_blank_lines(data: bytes | bytearray, placeholders: Placeholders) -> bool:
    """Return whether a block has a line of white space that is not empty.

    Args:
        data: A block with LF as line end. A line inside of quotes counts too.
        placeholders: What stands for other line ends in the block; they are white space.
    """
    blank = placeholders.white_space()
    if data[:1] > b" " and not matches(data, rf"\n{blank}"):  # four times as fast as the search below
        return False
    return matches(data, rf"(?:\A|\n){blank}+(?:\n|\z)")


def without_blank_lines(data: bytes | bytearray, placeholders: Placeholders) -> bytes | bytearray:
    """Return a block without its lines of white space. The arguments are those of `has_blank_lines`."""
    if not has_blank_lines(data, placeholders):
        return data
    return re.sub(rf"\n{placeholders.white_space()}+(?=\n|\Z)".encode(), b"", b"\n" + data)[1:]
