# SPDX-License-Identifier: Apache-2.0
"""What a CSV tokenizer needs to know, and what it gives up at."""

from __future__ import annotations

from dataclasses import dataclass

NUL = "\0"
"""Stands for a character that is not set, as in Spark: a quote of `""` makes NUL the quote."""


class TooManyColumns(Exception):
    """A record has more columns than `maxColumns`."""


class TooManyChars(Exception):
    """A value has more characters than `maxCharsPerColumn`."""


class UnescapedQuote(Exception):
    """A stray quote, under `unescapedQuoteHandling=RAISE_ERROR`."""


@dataclass(frozen=True, slots=True)
class CsvRules:
    """What the tokenizer needs to know, as single characters; `NUL` for one that is not set."""

    sep: str = ","
    quote: str = '"'
    escape: str = "\\"
    escape_escape: str = "\\"
    comment: str | None = None
    null_value: str = ""
    empty_value: str = ""
    trim_leading: bool = False
    trim_trailing: bool = False
    stray_quotes: str = "STOP_AT_DELIMITER"
    max_columns: int = 20480
    max_chars: int = -1
    line_sep: str = "\n"
    """What is turned into `newline`: one or two characters."""
    newline: str = "\n"
    """What ends a record."""
    newlines_in_quotes: bool = True
    """Whether `line_sep` is turned into `newline` inside quotes as well."""
