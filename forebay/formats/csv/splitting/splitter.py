# SPDX-License-Identifier: Apache-2.0
"""The base class of CSV splitters: it merges rows split by Arrow with rows split by the tokenizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc

from forebay.formats.csv.options import CsvOptions
from forebay.formats.csv.splitting.arrow import ArrowRows, ArrowSplitter
from forebay.formats.csv.splitting.placeholders import Placeholders
from forebay.formats.csv.splitting.safe_blocks import Quoting, SafeBlocks
from forebay.formats.csv.univocity.rules import TooManyChars
from forebay.formats.csv.univocity.tokenizer import CsvTokenizer

_FEW = 64

FallbackRow = tuple[int, "list[str | None] | None"]
"""A record that the tokenizer split: its index among all records, and its tokens; None if it has no tokens."""


@dataclass(slots=True)
class Tokens:
    """The records of a block, as one column of tokens for each selected column; null where Spark has no value."""

    columns: list[pa.Array]
    rows: int
    malformed: Sequence[int]
    """Rows that have more or fewer tokens than the schema has columns, ascending."""
    raw: Callable[[], Sequence[str]]
    """Returns the text of every row; costs as much as splitting."""


class Splitter:
    """The base class for splitting blocks of CSV text into columns of tokens.

    Create one for each read, because it learns how many fields the file's records have.
    """

    def __init__(self, options: CsvOptions, width: int, wanted: Sequence[int], *, newlines_in_quotes: bool) -> None:
        self.width = width
        self.wanted = wanted
        self.rules = options.rules()
        self.tokenizer = CsvTokenizer(self.rules)
        self.safe_blocks = SafeBlocks(self.rules, newlines_in_quotes=newlines_in_quotes)
        self._arrow = ArrowSplitter(self.rules, wanted, newlines_in_quotes=newlines_in_quotes)
        self._arrow_width = max(1, width)

    def by_arrow(self, data: bytes | bytearray, quoting: Quoting, placeholders: Placeholders) -> ArrowRows:
        """Split a safe block with Arrow.

        If most records do not have the expected number of fields, expect their most common number and split again.
        """
        found = self._arrow.split(data, quoting, self._arrow_width, placeholders)
        if len(found.fallback_rows) > max(_FEW, found.rows):
            # Most records have another number of fields than the schema: expect that number from now on.
            self._arrow_width = Counter(found.other_widths).most_common(1)[0][0]
            found = self._arrow.split(data, quoting, self._arrow_width, placeholders)
        self._check_chars(found)
        return found

    def merged(self, found: ArrowRows, fallback_rows: list[FallbackRow], raw: Callable[[], Sequence[str]]) -> Tokens:
        """Merge the rows that Arrow split with the rows that the tokenizer split, in the order of the records.

        `raw` returns the texts of all records.
        """
        kept = [tokens for _, tokens in fallback_rows if tokens is not None]
        other_width = self._arrow_width != self.width
        if not kept:
            return Tokens(found.columns, found.rows, range(found.rows) if other_width else (), raw)
        # For each row kept: the number of Arrow's rows before it.
        before = [index - number for number, (index, tokens) in enumerate(fallback_rows) if tokens is not None]
        runs = [(stop, len(list(group))) for stop, group in groupby(before)]
        columns = [
            _merged_column(column, pa.array([self._value(tokens, index) for tokens in kept], pa.string()), runs)
            for column, index in zip(found.columns, self.wanted, strict=True)
        ]
        rows = found.rows + len(kept)
        places = [number + count for number, count in enumerate(before)]
        wrong = [row for row, tokens in zip(places, kept, strict=True) if len(tokens) != self.width]
        if other_width:
            wrong = sorted({*range(rows)} - {*places} | {*wrong})
        return Tokens(columns, rows, wrong, raw)

    def _value(self, tokens: list[str | None], index: int) -> str | None:
        token = tokens[index] if index < len(tokens) else None
        return None if token == self.rules.null_value else token

    def _check_chars(self, found: ArrowRows) -> None:
        limit = self.rules.max_chars
        if limit >= 0:
            for column in found.columns:
                longest = pc.max(pc.utf8_length(column)).as_py()
                if longest is not None and longest > limit:
                    raise TooManyChars


def _merged_column(column: pa.Array, others: pa.Array, runs: list[tuple[int, int]]) -> pa.Array:
    """Insert `others` into a column. Each run is an index in the column and the number of values inserted before it."""
    parts: list[pa.Array] = []
    at = other = 0
    for stop, count in runs:
        parts += [column.slice(at, stop - at), others.slice(other, count)]
        at, other = stop, other + count
    return pa.concat_arrays([*parts, column.slice(at)])
