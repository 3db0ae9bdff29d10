# SPDX-License-Identifier: Apache-2.0
"""Lets Arrow split blocks of CSV that are known to be well-formed into columns of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from forebay.formats.csv.grammar import Quoting, stray_starts
from forebay.formats.csv.options import CsvOptions
from forebay.formats.csv.rules import NUL, CsvRules
from forebay.formats.record_blocks import for_arrow
from forebay.formats.stand_ins import StandIns

_BLANK_TEXT = "".join(map(chr, range(33)))
_BLOCK_BYTES = (1 << 31) - 2  # a block is one chunk of one column


@dataclass(slots=True)
class Split:
    """What Arrow made of a block."""

    columns: list[pa.Array]
    rows: int
    odd: list[tuple[int, str]]
    """Records with another number of fields: their index among all records that are not empty, and their text."""
    other_widths: list[int]
    """How many fields each of these has."""


class ArrowSplitter:
    """Splits well-formed blocks. One object per read."""

    def __init__(self, options: CsvOptions, rules: CsvRules, *, newlines_in_quotes: bool) -> None:
        self._rules = rules
        self._newlines_in_quotes = newlines_in_quotes
        self._stray_starts = stray_starts(rules)
        self._trims = rules.trim_leading or rules.trim_trailing
        self._simple_nulls = not options.null_value and not options.empty_value
        self._invalid: list[csv.InvalidRow] = []
        self._parse_options = {
            quoting: csv.ParseOptions(
                delimiter=rules.sep,
                quote_char=False if quoting is Quoting.NONE or rules.quote == NUL else rules.quote,
                double_quote=quoting is Quoting.DOUBLED,
                newlines_in_values=newlines_in_quotes,
                invalid_row_handler=self._note_invalid,
            )
            for quoting in (Quoting.NONE, Quoting.PLAIN, Quoting.DOUBLED)
        }
        self._shapes: dict[tuple[int, tuple[int, ...]], tuple[csv.ReadOptions, csv.ConvertOptions]] = {}

    def _note_invalid(self, row: csv.InvalidRow) -> str:
        self._invalid.append(row)
        return "skip"

    def split(
        self, data: bytes | bytearray, quoting: Quoting, width: int, wanted: Sequence[int], stand_ins: StandIns
    ) -> Split:
        """Split a block into the wanted ones of `width` columns. `data` is valid UTF-8 with newlines as line ends."""
        if quoting is Quoting.ESCAPED:
            data = stand_ins.hide_escapes(data, self._rules.escape, self._rules.quote)
            quoting = Quoting.PLAIN
        elif quoting is Quoting.STRAY:
            data = stand_ins.hide_stray_quotes(data, self._stray_starts, self._rules.sep, self._rules.quote)
            quoting = Quoting.PLAIN
        if not data:
            return Split([pa.nulls(0, pa.string()) for _ in wanted], 0, [], [])
        if not data.endswith(b"\n"):
            data = data + b"\n"  # else Arrow takes an empty value at the end for quoted if the one before it was
        read, convert = self._shape(width, tuple(wanted))
        self._invalid.clear()
        table = csv.read_csv(pa.py_buffer(for_arrow(data)), read, self._parse_options[quoting], convert)
        odd = [(row.number - 1, row.text) for row in self._invalid if row.number is not None]
        columns = [
            self._tokens(table.column(f"f{index}"), stand_ins, last=index == width - 1)
            if index < width
            else pa.nulls(table.num_rows, pa.string())
            for index in wanted
        ]
        return Split(columns, table.num_rows, odd, [row.actual_columns for row in self._invalid])

    def _shape(self, width: int, wanted: tuple[int, ...]) -> tuple[csv.ReadOptions, csv.ConvertOptions]:
        shape = self._shapes.get((width, wanted))
        if shape is None:
            names = [f"f{index}" for index in range(width)]
            shape = self._shapes[width, wanted] = (
                csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES, column_names=names),
                csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.binary()),
                    null_values=[""],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=self._simple_nulls,
                    # An empty list would mean all of them.
                    include_columns=[names[index] for index in dict.fromkeys(wanted) if index < width] or names[:1],
                ),
            )
        return shape

    def _tokens(self, column: pa.ChunkedArray, stand_ins: StandIns, *, last: bool) -> pa.Array:
        """Tokens as Spark's tokenizer gives them, with null for what becomes null."""
        chunks = column.chunks
        tokens = (chunks[0] if len(chunks) == 1 else column.combine_chunks()).view(pa.string())
        if stand_ins.used:
            tokens = stand_ins.restored(tokens)
        if self._trims:
            tokens = self._trimmed(tokens, last=last)
        if not self._simple_nulls:
            tokens = self.nulls_of_options(tokens)
        return tokens

    def _trimmed(self, tokens: pa.Array, *, last: bool) -> pa.Array:
        rules = self._rules
        trim = pc.utf8_rtrim if not rules.trim_leading else pc.utf8_trim if rules.trim_trailing else pc.utf8_ltrim
        trimmed = trim(tokens, characters=_BLANK_TEXT)
        emptied = pc.and_(pc.equal(trimmed, ""), pc.not_equal(tokens, ""))
        # Only at the end of a line, and only if nothing was cut off in front, does the parser see an empty value.
        becomes = rules.empty_value if last and not rules.trim_leading and not self._simple_nulls else None
        return pc.if_else(emptied, pa.scalar(becomes, pa.string()), trimmed)

    def nulls_of_options(self, tokens: pa.Array) -> pa.Array:
        """Apply `emptyValue` to quoted empty fields, then `nullValue` to all."""
        if self._rules.empty_value:
            tokens = pc.if_else(pc.equal(tokens, ""), self._rules.empty_value, tokens)
        return pc.if_else(pc.equal(tokens, self._rules.null_value), pa.scalar(None, pa.string()), tokens)
