# SPDX-License-Identifier: Apache-2.0
"""Splits blocks of CSV into columns of tokens with Arrow. `safe_blocks` finds the blocks for which this is correct."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from forebay.formats.csv.splitting.placeholders import Placeholders
from forebay.formats.csv.splitting.safe_blocks import Quoting, stray_starts
from forebay.formats.csv.univocity.cursor import WHITESPACE
from forebay.formats.csv.univocity.rules import NUL, CsvRules
from forebay.formats.records.record_blocks import BOM

_BLOCK_BYTES = (1 << 31) - 2  # a block is one chunk of one column


@dataclass(slots=True)
class ArrowRows:
    """The result of splitting a block with Arrow: `rows` rows, and the records that Arrow skipped."""

    columns: list[pa.Array]
    rows: int
    fallback_rows: list[tuple[int, str]]
    """Records that do not have the expected number of fields: their index among all non-empty records, and text."""
    other_widths: list[int]
    """The number of fields of each of the `fallback_rows`."""


class ArrowSplitter:
    """Splits blocks that Arrow splits as Spark does. Create one for each read."""

    def __init__(self, rules: CsvRules, wanted: Sequence[int], *, newlines_in_quotes: bool) -> None:
        self._rules = rules
        self._wanted = wanted
        self._stray_starts = stray_starts(rules)
        self._trims = rules.trim_leading or rules.trim_trailing
        self._simple_nulls = not rules.null_value and not rules.empty_value
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
        self._options: dict[int, tuple[csv.ReadOptions, csv.ConvertOptions]] = {}

    def _note_invalid(self, row: csv.InvalidRow) -> str:
        self._invalid.append(row)
        return "skip"

    def split(self, data: bytes | bytearray, quoting: Quoting, width: int, placeholders: Placeholders) -> ArrowRows:
        """Split a block into `width` columns. `data` must be valid UTF-8 with LF as line end.

        `quoting` says how the fields of the block are quoted. `placeholders` holds the characters that were replaced in
        `data`.
        """
        if quoting is Quoting.ESCAPED:
            data = placeholders.hide_escapes(data, self._rules.escape, self._rules.quote)
            quoting = Quoting.PLAIN
        elif quoting is Quoting.STRAY:
            data = placeholders.hide_stray_quotes(data, self._stray_starts, self._rules.sep, self._rules.quote)
            quoting = Quoting.PLAIN
        if not data:
            return ArrowRows([pa.nulls(0, pa.string()) for _ in self._wanted], 0, [], [])
        if not data.endswith(b"\n"):
            data = data + b"\n"  # else Arrow treats an empty value at the end as quoted if the value before it is
        read, convert = self._options_for(width)
        self._invalid.clear()
        if data.startswith(BOM):
            data = BOM + data  # Arrow drops a byte order mark at the start of a block
        table = csv.read_csv(pa.py_buffer(data), read, self._parse_options[quoting], convert)
        fallback_rows = [(row.number - 1, row.text) for row in self._invalid if row.number is not None]
        columns = [
            self._tokens(table.column(f"f{index}"), placeholders, last=index == width - 1)
            if index < width
            else pa.nulls(table.num_rows, pa.string())
            for index in self._wanted
        ]
        return ArrowRows(columns, table.num_rows, fallback_rows, [row.actual_columns for row in self._invalid])

    def _options_for(self, width: int) -> tuple[csv.ReadOptions, csv.ConvertOptions]:
        if width not in self._options:
            names = [f"f{index}" for index in range(width)]
            self._options[width] = (
                csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES, column_names=names),
                csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.binary()),
                    null_values=[""],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=self._simple_nulls,
                    # An empty list would mean all columns.
                    include_columns=[names[index] for index in dict.fromkeys(self._wanted) if index < width]
                    or names[:1],
                ),
            )
        return self._options[width]

    def _tokens(self, column: pa.ChunkedArray, placeholders: Placeholders, *, last: bool) -> pa.Array:
        """Return a column of Arrow's values as the tokens of Spark's parser, with null where Spark has null.

        `last` says whether it is the last column of the file.
        """
        chunks = column.chunks
        tokens = (chunks[0] if len(chunks) == 1 else column.combine_chunks()).view(pa.string())
        if placeholders.used:
            tokens = placeholders.restored(tokens)
        if self._trims:
            tokens = self._trimmed(tokens, last=last)
        if not self._simple_nulls:
            # First `emptyValue` for quoted empty fields, then `nullValue` for all.
            if self._rules.empty_value:
                tokens = pc.if_else(pc.equal(tokens, ""), self._rules.empty_value, tokens)
            tokens = pc.if_else(pc.equal(tokens, self._rules.null_value), pa.scalar(None, pa.string()), tokens)
        return tokens

    def _trimmed(self, tokens: pa.Array, *, last: bool) -> pa.Array:
        rules = self._rules
        trim = pc.utf8_rtrim if not rules.trim_leading else pc.utf8_trim if rules.trim_trailing else pc.utf8_ltrim
        trimmed = trim(tokens, characters=WHITESPACE)
        emptied = pc.and_(pc.equal(trimmed, ""), pc.not_equal(tokens, ""))
        # The parser sees an empty value only at the end of a line, and only if it does not trim leading white space.
        becomes = rules.empty_value if last and not rules.trim_leading and not self._simple_nulls else None
        return pc.if_else(emptied, pa.scalar(becomes, pa.string()), trimmed)
