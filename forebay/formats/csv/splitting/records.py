# SPDX-License-Identifier: Apache-2.0
"""Splits CSV for `multiLine=true`, where quoted values may contain line ends."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from forebay.formats.csv.options import CsvOptions
from forebay.formats.csv.splitting.blank_lines import has_blank_lines
from forebay.formats.csv.splitting.placeholders import NoPlaceholder, Placeholders
from forebay.formats.csv.splitting.safe_blocks import Quoting
from forebay.formats.csv.splitting.splitter import FallbackRow, Splitter, Tokens
from forebay.formats.csv.univocity.tokenizer import CsvTokenizer
from forebay.formats.records.encodings import decoded, valid_utf8

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

    def __init__(self, options: CsvOptions, width: int, wanted: Sequence[int], line_sep: str) -> None:
        super().__init__(options, width, wanted, newlines_in_quotes=True)
        # Spark's parser keeps line ends in quotes unchanged if the option lineSep is set.
        self.rules = replace(self.rules, line_sep=line_sep, newlines_in_quotes=options.line_sep is None)
        self.tokenizer = CsvTokenizer(self.rules)
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
            found = self.by_arrow(data, quoting, placeholders)
        except NoPlaceholder:
            return None
        fallback_rows: list[FallbackRow] = []
        for index, text in found.fallback_rows:
            ends = index < found.rows + len(found.fallback_rows) - 1 or data.endswith(b"\n")
            self.tokenizer.begin(placeholders.restored_text(text) + self.rules.line_sep * ends, True)
            fallback_rows.append((index, self.tokenizer.next()))
        return self.merged(found, fallback_rows, lambda: self._raw(block))

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
