# SPDX-License-Identifier: Apache-2.0
"""Splits CSV for `multiLine=false`, where every line is a record, whatever its quotes say."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from forebay.formats.csv.arrow import Split
from forebay.formats.csv.cursor import strip_line_end
from forebay.formats.csv.grammar import Quoting
from forebay.formats.csv.options import CsvOptions
from forebay.formats.csv.split import BLANK_TEXT, BLANKS, OddRow, Splitter, Tokens, may_have_blank_rows
from forebay.formats.encodings import valid_utf8
from forebay.formats.stand_ins import StandIns

_NEWLINE_INSIDE = "\udc0a"  # no decoded text has a lone surrogate


class LineSplitter(Splitter):
    """Splits blocks of lines: with Arrow what is surely right, line by line what is doubtful."""

    def __init__(self, options: CsvOptions, width: int, wanted: Sequence[int]) -> None:
        super().__init__(options, width, wanted, newlines_in_quotes=False)
        self._line_sep = None if options.line_separator is None else options.line_separator.encode()
        # With these a line of white space is not seen by its number of fields.
        self._blank_lines_hide = width <= 1 or self.rules.sep <= " "

    def split(self, data: bytes | bytearray) -> Tokens:
        """The records of a block of whole lines."""
        stand_ins = StandIns()
        data = self._without_comments(self._with_newlines(valid_utf8(data), stand_ins))
        good, odd = self._good_and_odd(data, stand_ins)
        if self._blank_lines_hide and may_have_blank_rows(good):
            kept = [line for line in data.split(b"\n") if stand_ins.restored_bytes(line).strip(BLANKS)]
            data = b"\n".join(kept)
            good, odd = self._good_and_odd(data, stand_ins)
        return self.merged(good, odd, lambda: self._raw(data, stand_ins))

    def _with_newlines(self, data: bytes | bytearray, stand_ins: StandIns) -> bytes | bytearray:
        """The block with a newline, and nothing else that looks like one, at the end of each line."""
        if self._line_sep is None:
            return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in data else data
        if self._line_sep == b"\n":
            return stand_ins.hide(data, b"\r")
        held = b"\xff"  # in no UTF-8
        data = data.replace(self._line_sep, held)
        return stand_ins.hide(stand_ins.hide(data, b"\n"), b"\r").replace(held, b"\n")

    def _without_comments(self, data: bytes | bytearray) -> bytes | bytearray:
        if self.rules.comment is None:
            return data
        comment = self.rules.comment.encode()
        if not data.startswith(comment) and b"\n" + comment not in data:
            return data
        return b"\n".join([line for line in data.split(b"\n") if not line.startswith(comment)])

    def _good_and_odd(self, data: bytes | bytearray, stand_ins: StandIns) -> tuple[Split, list[OddRow]]:
        """What Arrow can split, and the lines that are tokenised one by one."""
        quoting = self.grammar.quoting(data)
        if quoting is not Quoting.DOUBTFUL:
            good = self.by_arrow(data, quoting, stand_ins)
            return good, [(index, self._tokens_of(text, stand_ins)) for index, text in good.odd]
        lines = [line for line in data.split(b"\n") if line]
        clean, quoting = self.grammar.clean(pa.array(lines, pa.binary()), data)
        stand_ins.avoid(data)
        good = self.by_arrow(b"\n".join(itertools.compress(lines, clean.to_pylist())), quoting, stand_ins)
        clean_rows = pc.indices_nonzero(clean).to_pylist() if good.odd else []
        odd = [(clean_rows[index], self._tokens_of(text, stand_ins)) for index, text in good.odd]
        doubtful = pc.indices_nonzero(pc.invert(clean)).to_pylist()
        odd += [(index, self._tokens_of(lines[index].decode(), stand_ins)) for index in doubtful]
        odd.sort(key=lambda row: row[0])
        return good, odd

    def _tokens_of(self, text: str, stand_ins: StandIns) -> list[str | None] | None:
        text = stand_ins.restored_text(text)
        if not text.strip(BLANK_TEXT):
            return None
        if "\n" not in text or self.rules.newline != "\n":
            return self.tokenizer.line(text)
        # With a line separator of two characters, a newline is a character like others.
        tokens = self.tokenizer.line(text.replace("\n", _NEWLINE_INSIDE))
        return tokens and [token and token.replace(_NEWLINE_INSIDE, "\n") for token in tokens]

    def _raw(self, data: bytes | bytearray, stand_ins: StandIns) -> list[str]:
        lines = (stand_ins.restored_text(line) for line in data.decode().split("\n"))
        return [strip_line_end(line) for line in lines if line.strip(BLANK_TEXT)]
