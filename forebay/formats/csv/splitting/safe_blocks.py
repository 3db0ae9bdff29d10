# SPDX-License-Identifier: Apache-2.0
"""Finds "safe" blocks of CSV, which Arrow and Spark split the same way, with one regular expression per block."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum

import pyarrow as pa
import pyarrow.compute as pc

from forebay.formats.csv.univocity.rules import NUL, CsvRules
from forebay.formats.records.encodings import one_value


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
        self._quote = rules.quote.encode()
        self._escape = b"" if rules.escape in (NUL, rules.quote) else rules.escape.encode()
        self._doubled = rules.escape == rules.quote
        # An escape changes what white space at the end of the line becomes when it is trimmed.
        self._trims = rules.trim_leading or rules.trim_trailing
        self._fields = {
            quoting: _field(rules, quoting, "" if newlines_in_quotes else "\n")
            for quoting in (Quoting.PLAIN, Quoting.DOUBLED, Quoting.ESCAPED, Quoting.STRAY)
        }
        self._pair = self._quote * 2
        self._sep = rules.sep.encode()
        # If newlines may be quoted, a record with a stray quote may end elsewhere than at the end of its line.
        self._strays = self._escape != b"" and rules.stray_quotes == "STOP_AT_DELIMITER" and not newlines_in_quotes
        self._separators = f"[{_codes(rules.sep)}\\n]"

    def quoting(self, data: bytes | bytearray) -> Quoting:
        """Return how the fields of a block of complete records are quoted.

        Returns `NOT_SAFE` if Arrow may split the block differently from Spark.
        """
        if self._quote not in data:
            return Quoting.NONE
        if self._quote == NUL.encode():
            return Quoting.NOT_SAFE
        for quoting in self._candidates(data):
            field = self._fields[quoting]
            if matches(data, rf"\A(?:{field}{self._separators})*{field}\z"):
                return quoting
        return Quoting.NOT_SAFE

    def safe_lines(self, lines: pa.Array, data: bytes | bytearray) -> tuple[pa.BooleanArray, Quoting]:
        """Return which lines Arrow splits as Spark does, and how their fields are quoted.

        `data` is the block that consists of `lines`. As a whole, the block is `NOT_SAFE`.
        """
        if self._quote == NUL.encode():
            return pc.match_substring_regex(lines, rf"\A[^{_codes(NUL)}]*\z"), Quoting.NONE
        *_, quoting = self._candidates(data)
        field = self._fields[quoting]
        return pc.match_substring_regex(lines, rf"\A(?:{field}{self._separators})*{field}\z"), quoting

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


def stray_starts(rules: CsvRules) -> re.Pattern[bytes]:
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
