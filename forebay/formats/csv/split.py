# SPDX-License-Identifier: Apache-2.0
"""What the two ways of splitting CSV into records share: Arrow's part, and putting odd rows in their places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from forebay.formats.csv.arrow import ArrowSplitter, Split
from forebay.formats.csv.grammar import CsvGrammar, Quoting
from forebay.formats.csv.options import CsvOptions
from forebay.formats.csv.rules import TooManyChars
from forebay.formats.csv.tokenizer import CsvTokenizer
from forebay.formats.stand_ins import StandIns

BLANKS = bytes(range(33))
"""What Java's `trim` takes off: every character up to the space."""

BLANK_TEXT = BLANKS.decode()

_FEW = 64

OddRow = tuple[int, "list[str | None] | None"]
"""A record that was tokenised on its own: its index among all records, and its tokens; None if it is no record."""


@dataclass(slots=True)
class Tokens:
    """The records of a block, as one column of tokens for each column wanted; null where Spark sees no value."""

    columns: list[pa.Array]
    rows: int
    malformed: Sequence[int]
    """Rows that have more or fewer tokens than the schema has columns, ascending."""
    raw: Callable[[], Sequence[str]]
    """Gives the text of every row; costs as much as splitting."""


class Splitter:
    """One object per read; it learns from block to block how many fields records really have."""

    def __init__(self, options: CsvOptions, width: int, wanted: Sequence[int], *, newlines_in_quotes: bool) -> None:
        self.width = width
        self.wanted = wanted
        self.rules = options.rules()
        self.tokenizer = CsvTokenizer(self.rules)
        self.grammar = CsvGrammar(self.rules, newlines_in_quotes=newlines_in_quotes)
        self._arrow = ArrowSplitter(options, self.rules, newlines_in_quotes=newlines_in_quotes)
        self._arrow_width = max(1, width)

    def by_arrow(self, data: bytes | bytearray, quoting: Quoting, stand_ins: StandIns) -> Split:
        """Split what is surely well-formed."""
        good = self._arrow.split(data, quoting, self._arrow_width, self.wanted, stand_ins)
        if len(good.odd) > max(_FEW, good.rows):
            # Most records have another width than the schema: expect that one from now on.
            self._arrow_width = Counter(good.other_widths).most_common(1)[0][0]
            good = self._arrow.split(data, quoting, self._arrow_width, self.wanted, stand_ins)
        self._check_chars(good)
        return good

    def merged(self, good: Split, odd: list[OddRow], raw: Callable[[], Sequence[str]]) -> Tokens:
        """All rows in their order."""
        kept = [tokens for _, tokens in odd if tokens is not None]
        if not kept:
            malformed = range(good.rows) if self._arrow_width != self.width else ()
            return Tokens(good.columns, good.rows, malformed, raw)
        order = _Order(good.rows, odd)
        columns = [
            order.merged(column, [self._value(tokens, index) for tokens in kept])
            for column, index in zip(good.columns, self.wanted, strict=True)
        ]
        wrong = [row for row, tokens in zip(order.odd_rows, kept, strict=True) if len(tokens) != self.width]
        if self._arrow_width != self.width:
            wrong = sorted({*range(order.rows)} - {*order.odd_rows} | {*wrong})
        return Tokens(columns, order.rows, wrong, raw)

    def _value(self, tokens: list[str | None], index: int) -> str | None:
        token = tokens[index] if index < len(tokens) else None
        return None if token == self.rules.null_value else token

    def _check_chars(self, good: Split) -> None:
        limit = self.rules.max_chars
        if limit >= 0:
            for column in good.columns:
                longest = pc.max(pc.utf8_length(column)).as_py()
                if longest is not None and longest > limit:
                    raise TooManyChars


class _Order:
    """Where the rows that were tokenised one by one go among those that Arrow split."""

    def __init__(self, good_rows: int, odd: list[OddRow]) -> None:
        self.odd_rows: list[int] = []
        # Runs of rows: how many of Arrow's, then how many of the others.
        self._runs: list[tuple[int, int]] = []
        taken = run = 0
        for number, (index, tokens) in enumerate(odd):
            before = index - number - taken
            if before or not self._runs:
                self._runs.append((before, 0))
                taken += before
            if tokens is not None:
                run += 1
                self._runs[-1] = (self._runs[-1][0], self._runs[-1][1] + 1)
                self.odd_rows.append(taken + run - 1)
        self._runs.append((good_rows - taken, 0))
        self.rows = good_rows + run

    def merged(self, good: pa.Array, odd: list[str | None]) -> pa.Array:
        """One column of all rows in their order."""
        others = pa.array(odd, pa.string())
        pieces: list[pa.Array] = []
        at = other = 0
        for count, other_count in self._runs:
            pieces += [good.slice(at, count), others.slice(other, other_count)]
            at, other = at + count, other + other_count
        return pa.concat_arrays(pieces)


def may_have_blank_rows(good: Split) -> bool:
    """Whether some row has nothing but white space in every column."""
    blank: pa.BooleanArray | None = None
    for column in good.columns:
        empty = pc.fill_null(pc.match_substring_regex(column, r"\A[\x00-\x20]*\z"), True)
        blank = empty if blank is None else pc.and_(blank, empty)
        if not blank.true_count:
            return False
    return blank is not None
