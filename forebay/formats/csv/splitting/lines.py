# SPDX-License-Identifier: Apache-2.0
"""Splits CSV for `multiLine=false`, where every line is a record, even inside quotes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from forebay.formats.csv.options import CsvOptions
from forebay.formats.csv.splitting.arrow import ArrowRows
from forebay.formats.csv.splitting.blank_lines import without_blank_lines
from forebay.formats.csv.splitting.placeholders import NoPlaceholder, Placeholders
from forebay.formats.csv.splitting.safe_blocks import Quoting
from forebay.formats.csv.splitting.splitter import FallbackRow, Splitter, Tokens
from forebay.formats.csv.univocity.cursor import WHITESPACE, strip_line_end
from forebay.formats.csv.univocity.tokenizer import CsvTokenizer
from forebay.formats.records.encodings import valid_utf8

_NEWLINE_INSIDE = "\udc0a"  # no decoded text has a lone surrogate


class LineSplitter(Splitter):
    """Splits blocks of lines: with Arrow if the result is the same as Spark's, else line by line with the tokenizer."""

    def __init__(self, options: CsvOptions, width: int, wanted: Sequence[int]) -> None:
        super().__init__(options, width, wanted, newlines_in_quotes=False)
        self._line_sep = None if options.line_sep is None else options.line_sep.encode()
        if options.line_sep is not None and len(options.line_sep) == 1:
            # LF is then an ordinary character, also in quotes.
            self.tokenizer = CsvTokenizer(replace(self.rules, line_sep=self.rules.newline))

    def split(self, data: bytes | bytearray) -> Tokens:
        """Return the records of a block of complete lines."""
        data = valid_utf8(data)
        try:
            return self._by_arrow(data)
        except NoPlaceholder:
            return self._by_tokenizer(data)

    def _by_arrow(self, data: bytes | bytearray) -> Tokens:
        placeholders = Placeholders()
        data = self._without_comments(self._with_newlines(data, placeholders))
        data = without_blank_lines(data, placeholders)
        found, fallback_rows = self._split(data, placeholders)
        return self.merged(found, fallback_rows, lambda: self._raw(data, placeholders))

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

    def _without_comments(self, data: bytes | bytearray) -> bytes | bytearray:
        if self.rules.comment is None:
            return data
        comment = self.rules.comment.encode()
        if not data.startswith(comment) and b"\n" + comment not in data:
            return data
        return b"\n".join([line for line in data.split(b"\n") if not line.startswith(comment)])

    def _split(self, data: bytes | bytearray, placeholders: Placeholders) -> tuple[ArrowRows, list[FallbackRow]]:
        """Return the rows that Arrow splits as Spark does, and the rows of all other lines, split by the tokenizer."""
        quoting = self.safe_blocks.quoting(data)
        if quoting is not Quoting.NOT_SAFE:
            found = self.by_arrow(data, quoting, placeholders)
            return found, [(index, self._tokens_of(text, placeholders)) for index, text in found.fallback_rows]
        lines = [line for line in data.split(b"\n") if line]
        safe, quoting = self.safe_blocks.safe_lines(pa.array(lines, pa.binary()), data)
        placeholders.avoid(data)
        found = self.by_arrow(b"\n".join(itertools.compress(lines, safe.to_pylist())), quoting, placeholders)
        safe_rows = pc.indices_nonzero(safe).to_pylist() if found.fallback_rows else []
        texts = [(safe_rows[index], text) for index, text in found.fallback_rows]
        texts += [(index, lines[index].decode()) for index in pc.indices_nonzero(pc.invert(safe)).to_pylist()]
        return found, [(index, self._tokens_of(text, placeholders)) for index, text in sorted(texts)]

    def _tokens_of(self, text: str, placeholders: Placeholders) -> list[str | None] | None:
        text = placeholders.restored_text(text)
        if not text.strip(WHITESPACE):
            return None
        if "\n" not in text or self.rules.newline != "\n":
            return self.tokenizer.line(text)
        # With a line separator of two characters, a newline is an ordinary character.
        tokens = self.tokenizer.line(text.replace("\n", _NEWLINE_INSIDE))
        return tokens and [token and token.replace(_NEWLINE_INSIDE, "\n") for token in tokens]

    def _raw(self, data: bytes | bytearray, placeholders: Placeholders) -> list[str]:
        lines = (placeholders.restored_text(line) for line in data.decode().split("\n"))
        return [strip_line_end(line) for line in lines if line.strip(WHITESPACE)]
