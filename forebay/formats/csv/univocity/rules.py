# SPDX-License-Identifier: Apache-2.0
"""The settings of the CSV tokenizer, and the errors for records that break its limits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from forebay.errors import DataError

NUL = "\0"
"""Stands for a character that is not set. As in Spark, if the option `quote` is empty, NUL is the quote character."""


class LimitError(Exception):
    """A record breaks a limit of the tokenizer. The read fails, whatever `mode` is set."""

    option: ClassVar[str]
    what: ClassVar[str]


class TooManyColumns(LimitError):
    """A record has more columns than `maxColumns`."""

    option = "maxColumns"
    what = "a record with more columns than maxColumns"


class TooManyChars(LimitError):
    """A value has more characters than `maxCharsPerColumn`."""

    option = "maxCharsPerColumn"
    what = "a value with more characters than maxCharsPerColumn"


class UnescapedQuote(LimitError):
    """A quoted value contains an unescaped quote, and `unescapedQuoteHandling` is `RAISE_ERROR`."""

    option = "unescapedQuoteHandling"
    what = "an unescaped quote"


@contextmanager
def within_limits(path: str) -> Iterator[None]:
    """Convert a LimitError to a DataError that names the file and the option."""
    try:
        yield
    except LimitError as error:
        advice = f"correct the file, or change the option {error.option}"
        raise DataError(f"the file {path} has {error.what}", source=path, option=error.option, advice=advice) from None


@dataclass(frozen=True, slots=True)
class CsvRules:
    """The settings of the tokenizer. Each character setting is one character; `NUL` means that it is not set."""

    sep: str
    quote: str
    escape: str
    comment: str | None
    null_value: str
    empty_value: str
    trim_leading: bool
    trim_trailing: bool
    stray_quotes: str
    max_columns: int
    max_chars: int
    newline: str
    """The character that ends a record."""
    line_sep: str = "\n"
    """One or two characters that are read as `newline`."""
    newlines_in_quotes: bool = True
    """Whether `line_sep` is read as `newline` inside quotes as well."""
