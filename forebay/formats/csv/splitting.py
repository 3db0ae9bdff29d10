# SPDX-License-Identifier: Apache-2.0
"""Splits CSV text into columns of tokens: with Arrow if the result equals Spark's, else with the tokenizer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from forebay.formats.csv.options import NUL, TOO_MANY_CHARS, WHITESPACE, CsvOptions, CsvRules, LimitError
from forebay.formats.records import BOM, one_value

if TYPE_CHECKING:
    from forebay.formats.csv.univocity import CsvTokenizer

# -- Replaces characters that are special to Arrow's CSV parser but not to Spark's, and restores them after parsing.


# Unicode reserves these characters for use inside programs. One that occurs in the block is not used.
_CANDIDATES = [chr(code).encode() for code in range(0xFDD0, 0xFDF0)]


class NoPlaceholder(Exception):
    """Raised if a block contains all characters that could be placeholders."""


class Placeholders:
    """Replaces characters in one block by placeholders, and keeps the originals.

    Methods that replace characters raise `NoPlaceholder` if the block contains all possible placeholders.
    """

    def __init__(self) -> None:
        # placeholder → the original text in a token, the original text in a raw record
        self._originals: dict[bytes, tuple[bytes, bytes]] = {}
        self._avoided: bytes | bytearray = b""

    @property
    def used(self) -> bool:
        """Whether any character was replaced."""
        return bool(self._originals)

    def white_space(self) -> str:
        """Return the regular expression for one character of white space that does not end a line."""
        marks = "".join([f"|{mark.decode()}" for mark in self._originals])
        return rf"(?:[\x00-\x09\x0b-\x20]{marks})"

    def avoid(self, data: bytes | bytearray) -> None:
        """Exclude the characters that occur in `data` from use as placeholders.

        Call this with the whole block before the other methods if they get only parts of the block.
        """
        self._avoided = data

    def hide(self, data: bytes | bytearray, original: bytes) -> bytes | bytearray:
        """Return `data` with a placeholder instead of each `original`."""
        if original not in data:
            return data
        return data.replace(original, self._new(data, original, original))

    def hide_escapes(self, data: bytes | bytearray, escape: str, quote: str) -> bytes | bytearray:
        """Return `data` with placeholders instead of escaped escape characters and escaped quotes."""
        for escaped in (escape, quote):
            pair = (escape + escaped).encode()
            if pair in data:
                data = data.replace(pair, self._new(data, escaped.encode(), pair))
        return data

    def hide_stray_quotes(self, data: bytes | bytearray, rules: CsvRules) -> bytes:
        """In each field with a stray quote, replace the opening quote and the separators before the stray quote.

        Return `data` with the placeholders.
        """
        sep_byte, quote_byte = rules.sep.encode(), rules.quote.encode()
        opening = self._new(data, quote_byte, quote_byte)
        inner = self._new(data, sep_byte, sep_byte)
        pair = quote_byte * 2
        return _stray_starts(rules).sub(lambda match: opening + match[1].replace(sep_byte, inner) + pair, data)

    def restored(self, tokens: pa.Array) -> pa.Array:
        """Return the tokens with the original characters instead of the placeholders.

        Escaped characters lose their escape.
        """
        for placeholder, (original, _) in self._originals.items():
            tokens = pc.replace_substring(tokens, placeholder.decode(), original.decode())
        return tokens

    def restored_text(self, text: str) -> str:
        """Return the text of a record with its original characters and escapes instead of the placeholders."""
        for placeholder, (_, original) in self._originals.items():
            text = text.replace(placeholder.decode(), original.decode())
        return text

    def _new(self, data: bytes | bytearray, original: bytes, raw: bytes) -> bytes:
        for candidate in _CANDIDATES:
            if candidate not in self._originals and candidate not in data and candidate not in self._avoided:
                self._originals[candidate] = (original, raw)
                return candidate
        raise NoPlaceholder


# -- Finds "safe" blocks of CSV, which Arrow and Spark split the same way, with one regular expression per block.


class Quoting(Enum):
    """How the quoted fields of a block are written."""

    NONE = 0
    """There is no quote in the block."""
    PLAIN = 1
    """Fields are quoted as a whole, without a quote or an escape inside."""
    DOUBLED = 2
    """Like PLAIN, but quotes inside are doubled (the escape character is the quote)."""
    ESCAPED = 3
    """Like PLAIN, but with escape characters, which occur only inside quotes."""
    STRAY = 4
    """Like PLAIN, but some fields contain a doubled quote, and the escape character is not the quote. Spark's parser
    treats it as a stray quote, and keeps the text after it unchanged up to the next separator."""
    NOT_SAFE = 5
    """Any other form: Arrow may split the block differently from Spark."""


class SafeBlocks:
    """The regular expressions that match safe blocks, for one set of tokenizer rules."""

    def __init__(self, rules: CsvRules, *, newlines_in_quotes: bool) -> None:
        self._rules = rules
        self._quote = rules.quote.encode()
        self._escape = b"" if rules.escape in (NUL, rules.quote) else rules.escape.encode()
        self._doubled = rules.escape == rules.quote
        # An escape changes what white space at the end of the line becomes when it is trimmed.
        self._trims = rules.trim_leading or rules.trim_trailing
        self._never_quoted = "" if newlines_in_quotes else "\n"
        self._pair = self._quote * 2
        self._sep = rules.sep.encode()
        # If newlines may be quoted, a record with a stray quote may end elsewhere than at the end of its line.
        self._strays = self._escape != b"" and rules.stray_quotes == "STOP_AT_DELIMITER" and not newlines_in_quotes
        self._expressions: dict[Quoting, str] = {}

    def quoting(self, data: bytes | bytearray) -> Quoting:
        """Return how the fields of a block of complete records are quoted.

        Returns `NOT_SAFE` if Arrow may split the block differently from Spark.
        """
        if self._quote not in data:
            return Quoting.NONE
        if self._quote == NUL.encode():
            return Quoting.NOT_SAFE
        for quoting in self._candidates(data):
            if matches(data, self._expression(quoting)):
                return quoting
        return Quoting.NOT_SAFE

    def safe_lines(self, lines: pa.Array, data: bytes | bytearray) -> tuple[pa.BooleanArray, Quoting]:
        """Return which lines Arrow splits as Spark does, and how their fields are quoted.

        `data` is the block that consists of `lines`. As a whole, the block is `NOT_SAFE`.
        """
        if self._quote == NUL.encode():
            return pc.match_substring_regex(lines, rf"\A[^{_codes(NUL)}]*\z"), Quoting.NONE
        *_, quoting = self._candidates(data)
        return pc.match_substring_regex(lines, self._expression(quoting)), quoting

    def _expression(self, quoting: Quoting) -> str:
        """Return the regular expression for text whose fields are all quoted in one way."""
        if quoting not in self._expressions:
            field = _field(self._rules, quoting, self._never_quoted)
            self._expressions[quoting] = rf"\A(?:{field}[{_codes(self._rules.sep)}\n])*{field}\z"
        return self._expressions[quoting]

    def _candidates(self, data: bytes | bytearray) -> Iterator[Quoting]:
        """Yield the `Quoting`s to try for a block, cheapest first.

        If the block is not safe, the last one fits most of its lines.
        """
        if self._trims:
            yield Quoting.PLAIN
            return
        if self._doubled:
            yield Quoting.DOUBLED
            return
        yield Quoting.PLAIN
        escaped = self._escape != b"" and self._escape in data
        if not (self._strays and self._pair in data):
            if escaped:
                yield Quoting.ESCAPED
        elif not escaped:
            yield Quoting.STRAY
        else:
            # Behind a separator a pair is an empty value rather than a quote.
            pairs = data.count(self._pair) - data.count(self._sep + self._pair)
            more_pairs = pairs > data.count(self._escape)
            yield from (Quoting.ESCAPED, Quoting.STRAY) if more_pairs else (Quoting.STRAY, Quoting.ESCAPED)


def matches(data: bytes | bytearray, expression: str) -> bool:
    """Return whether an RE2 expression matches somewhere in the data. It matches bytes, not characters."""
    return bool(pc.match_substring_regex(one_value(data, pa.large_binary()), expression)[0].as_py())


def _stray_starts(rules: CsvRules) -> re.Pattern[bytes]:
    """Return an expression for the start of a `Quoting.STRAY` field, through its stray quote.

    Group 1 is the text between the opening quote and the stray quote.
    """
    quote, sep = _codes(rules.quote), _codes(rules.sep)
    inside = f"[^{_codes(rules.quote + rules.escape)}\\n]*"
    # The expression begins with the quote, because searching for one byte is fast. A lookbehind checks the text before.
    return re.compile(rf"{quote}(?<![^{sep}\n]{quote})({inside}){quote}{quote}".encode())


def _field(rules: CsvRules, quoting: Quoting, never_quoted: str) -> str:
    """Return the regular expression for one field. It also matches an empty field."""
    quote, escape, sep = rules.quote, rules.escape, rules.sep
    bare = sep + "\n" + (escape if quoting is Quoting.ESCAPED else "")
    # Leading white space that is trimmed may uncover a quote.
    first = f"[^{_codes(quote + bare)}]"
    unquoted = first + "+" if rules.trim_leading else f"{first}[^{_codes(bare)}]*"
    inside = f"[^{_codes(quote + escape + never_quoted + NUL)}]"
    if quoting is Quoting.DOUBLED:
        inside = f"(?:{inside}|{_codes(quote + quote)})"
    elif quoting is Quoting.ESCAPED:
        inside = f"(?:{inside}|{_codes(escape)}[^{_codes(never_quoted + NUL)}])"
    content = inside
    if rules.trim_leading or rules.trim_trailing:
        # Values are trimmed after splitting, when it is unknown which values were quoted.
        edge = rf"[^{_codes(quote + escape)}\x00-\x20]"
        content = f"{edge}(?:{inside}*{edge})?"
    if quoting is Quoting.STRAY:
        return _field_of_strays(rules, f"(?:{unquoted}", inside)
    # Without an escape character, NUL is the escape character. Then a pair of quotes at the end of a line is a quote.
    content = f"(?:{content})+" if escape == NUL else f"(?:{content})*"
    return f"(?:{unquoted}|{_codes(quote)}{content}{_codes(quote)})?"


def _field_of_strays(rules: CsvRules, unquoted: str, inside: str) -> str:
    """Return the regular expression for one field of a `Quoting.STRAY` block. Its first alternative is `unquoted`."""
    quote, sep = _codes(rules.quote), _codes(rules.sep)
    # No closing quote behind a separator, or it would look like an opening one.
    plain = f"{quote}(?:{inside}*[^{_codes(rules.quote + rules.escape + rules.sep + NUL)}\\n])?{quote}"
    # A closing quote may stand before white space and a separator; \xef begins the placeholder of a line end.
    some = f"[^{_codes(rules.quote + rules.escape + rules.sep)}\\x00-\\x20\\xef]"
    blank = f"[^{sep}\\x00\\n\\x21-\\xff]"
    after = f"(?:{some}|{blank}+{some}{some})[^{sep}\\x00\\n]*"
    return f"{unquoted}|{plain}|{quote}{inside}*{quote}{quote}{after})?"


def _codes(text: str) -> str:
    return "".join(f"\\x{ord(char):02x}" for char in text)


# -- The base class of CSV splitters: splits safe blocks into columns of tokens with Arrow, and merges their rows with
# those that the tokenizer split.


_BLOCK_BYTES = (1 << 31) - 2  # a block is one chunk of one column
_FEW = 64

ArrowOptions = tuple[csv.ReadOptions, csv.ParseOptions, csv.ConvertOptions]
FallbackRow = tuple[int, "list[str | None] | None"]
"""A record that the tokenizer split: its index among all records, and its tokens; None if it has no tokens."""


@dataclass(slots=True)
class ArrowRows:
    """The result of splitting a block with Arrow: `rows` rows, and the records that Arrow skipped."""

    columns: list[pa.Array]
    rows: int
    fallback_rows: list[tuple[int, str]]
    """Records that do not have the expected number of fields: their index among all non-empty records, and text."""
    other_widths: list[int]
    """The number of fields of each of the `fallback_rows`."""


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

    def __init__(
        self, options: CsvOptions, width: int, column_indexes: Sequence[int], *, newlines_in_quotes: bool
    ) -> None:
        self.width = width
        self.column_indexes = column_indexes
        self.rules = options.rules()
        self.safe_blocks = SafeBlocks(self.rules, newlines_in_quotes=newlines_in_quotes)
        self._newlines_in_quotes = newlines_in_quotes
        self._trims = self.rules.trim_leading or self.rules.trim_trailing
        self._simple_nulls = not self.rules.null_value and not self.rules.empty_value
        self._arrow_width = max(1, width)
        self._invalid: list[csv.InvalidRow] = []
        self._options: dict[tuple[Quoting, int], ArrowOptions] = {}

    @cached_property
    def tokenizer(self) -> CsvTokenizer:
        """The tokenizer for what Arrow splits differently from Spark; most files need none."""
        from forebay.formats.csv.univocity import CsvTokenizer

        return CsvTokenizer(self.rules)

    def by_arrow(self, data: bytes | bytearray, quoting: Quoting, placeholders: Placeholders) -> ArrowRows:
        """Split a safe block with Arrow. `data` must be valid UTF-8 with LF as line end.

        If most records do not have the expected number of fields, expect their most common number and split again.
        `quoting` says how the fields of the block are quoted. `placeholders` holds the characters that were replaced in
        `data`.
        """
        if quoting is Quoting.ESCAPED:
            data = placeholders.hide_escapes(data, self.rules.escape, self.rules.quote)
            quoting = Quoting.PLAIN
        elif quoting is Quoting.STRAY:
            data = placeholders.hide_stray_quotes(data, self.rules)
            quoting = Quoting.PLAIN
        if not data:
            return ArrowRows([pa.nulls(0, pa.string()) for _ in self.column_indexes], 0, [], [])
        if not data.endswith(b"\n"):
            data = data + b"\n"  # else Arrow treats an empty value at the end as quoted if the value before it is
        if data.startswith(BOM):
            data = BOM + data  # Arrow drops a byte order mark at the start of a block
        arrow_rows = self._split_by_arrow(data, quoting, placeholders)
        if len(arrow_rows.fallback_rows) > max(_FEW, arrow_rows.rows):
            # Most records have another number of fields than the schema: expect that number from now on.
            self._arrow_width = Counter(arrow_rows.other_widths).most_common(1)[0][0]
            arrow_rows = self._split_by_arrow(data, quoting, placeholders)
        limit = self.rules.max_chars
        if limit >= 0 and any((pc.max(pc.utf8_length(column)).as_py() or 0) > limit for column in arrow_rows.columns):
            raise LimitError(*TOO_MANY_CHARS)
        return arrow_rows

    def merged(
        self, arrow_rows: ArrowRows, fallback_rows: list[FallbackRow], raw: Callable[[], Sequence[str]]
    ) -> Tokens:
        """Merge the rows that Arrow split with the rows that the tokenizer split, in the order of the records.

        `raw` returns the texts of all records.
        """
        other_width = self._arrow_width != self.width
        parsed = [tokens for _, tokens in fallback_rows if tokens is not None] if fallback_rows else []
        if not parsed:
            return Tokens(arrow_rows.columns, arrow_rows.rows, range(arrow_rows.rows) if other_width else (), raw)
        # For each row kept: the number of Arrow's rows before it.
        before = [index - number for number, (index, tokens) in enumerate(fallback_rows) if tokens is not None]
        runs = [(stop, len(list(group))) for stop, group in groupby(before)]
        columns = [
            _merged_column(column, pa.array([self._value(tokens, index) for tokens in parsed], pa.string()), runs)
            for column, index in zip(arrow_rows.columns, self.column_indexes, strict=True)
        ]
        rows = arrow_rows.rows + len(parsed)
        places = [number + count for number, count in enumerate(before)]
        wrong = [row for row, tokens in zip(places, parsed, strict=True) if len(tokens) != self.width]
        if other_width:
            wrong = sorted({*range(rows)} - {*places} | {*wrong})
        return Tokens(columns, rows, wrong, raw)

    def _value(self, tokens: list[str | None], index: int) -> str | None:
        token = tokens[index] if index < len(tokens) else None
        return None if token == self.rules.null_value else token

    def _split_by_arrow(self, data: bytes | bytearray, quoting: Quoting, placeholders: Placeholders) -> ArrowRows:
        width = self._arrow_width
        self._invalid.clear()
        read, parse, convert = self._options_for(quoting, width)
        table = csv.read_csv(pa.py_buffer(data), read, parse, convert)
        fallback_rows = [(row.number - 1, row.text) for row in self._invalid if row.number is not None]
        columns = [
            self._tokens(table.column(f"f{index}"), placeholders, last=index == width - 1)
            if index < width
            else pa.nulls(table.num_rows, pa.string())
            for index in self.column_indexes
        ]
        return ArrowRows(columns, table.num_rows, fallback_rows, [row.actual_columns for row in self._invalid])

    def _options_for(self, quoting: Quoting, width: int) -> ArrowOptions:
        if (quoting, width) not in self._options:
            names = [f"f{index}" for index in range(width)]
            plain = quoting is Quoting.NONE or self.rules.quote == NUL
            self._options[quoting, width] = (
                csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES, column_names=names),
                csv.ParseOptions(
                    delimiter=self.rules.sep,
                    quote_char=False if plain else self.rules.quote,
                    double_quote=quoting is Quoting.DOUBLED,
                    newlines_in_values=self._newlines_in_quotes,
                    invalid_row_handler=self._skip_invalid,
                ),
                csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.binary()),
                    null_values=[""],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=self._simple_nulls,
                    # An empty list would mean all columns.
                    include_columns=[names[index] for index in dict.fromkeys(self.column_indexes) if index < width]
                    or names[:1],
                ),
            )
        return self._options[quoting, width]

    def _skip_invalid(self, row: csv.InvalidRow) -> str:
        self._invalid.append(row)
        return "skip"

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
            if self.rules.empty_value:
                tokens = pc.if_else(pc.equal(tokens, ""), self.rules.empty_value, tokens)
            tokens = pc.if_else(pc.equal(tokens, self.rules.null_value), pa.scalar(None, pa.string()), tokens)
        return tokens

    def _trimmed(self, tokens: pa.Array, *, last: bool) -> pa.Array:
        rules = self.rules
        trim = pc.utf8_rtrim if not rules.trim_leading else pc.utf8_trim if rules.trim_trailing else pc.utf8_ltrim
        trimmed = trim(tokens, characters=WHITESPACE)
        emptied = pc.and_(pc.equal(trimmed, ""), pc.not_equal(tokens, ""))
        # The parser sees an empty value only at the end of a line, and only if it does not trim leading white space.
        becomes = rules.empty_value if last and not rules.trim_leading and not self._simple_nulls else None
        return pc.if_else(emptied, pa.scalar(becomes, pa.string()), trimmed)


def _merged_column(column: pa.Array, others: pa.Array, runs: list[tuple[int, int]]) -> pa.Array:
    """Insert `others` into a column. Each run is an index in the column and the number of values inserted before it."""
    parts: list[pa.Array] = []
    at = other = 0
    for stop, count in runs:
        parts += [column.slice(at, stop - at), others.slice(other, count)]
        at, other = stop, other + count
    return pa.concat_arrays([*parts, column.slice(at)])
