# SPDX-License-Identifier: Apache-2.0
"""The options of the CSV format: Spark's names in snake case, Spark's meanings, Spark's defaults."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from forebay.errors import DataError
from forebay.formats.records import BLOCK_BYTES, RecordOptions
from forebay.options import option

# -- The settings of the CSV tokenizer, and the error for records that break its limits.


NUL = "\0"
"""Stands for a character that is not set. As in Spark, if the option `quote` is empty, NUL is the quote character."""

WHITESPACE = "".join(map(chr, range(33)))
"""The characters that count as white space for the parser and for Java's `String.trim`."""

TOO_MANY_COLUMNS = "maxColumns", "a record with more columns than maxColumns"
TOO_MANY_CHARS = "maxCharsPerColumn", "a value with more characters than maxCharsPerColumn"
"""Options that limit a record, and what breaks the limit."""


class LimitError(Exception):
    """A record breaks a limit of the tokenizer, which `option` names. The read fails, whatever `mode` is set."""

    def __init__(self, option: str, what: str) -> None:
        super().__init__(what)
        self.option = option


@contextmanager
def within_limits(path: str) -> Iterator[None]:
    """Convert a LimitError to a DataError that names the file and the option."""
    try:
        yield
    except LimitError as error:
        advice = f"correct the file, or change the option {error.option}"
        raise DataError(f"the file {path} has {error}", source=path, option=error.option, advice=advice) from None


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
    line_sep: str
    """One or two characters that are read as `newline`."""
    newlines_in_quotes: bool = True
    """Whether `line_sep` is read as `newline` inside quotes as well."""


def plain_tokens(line: str, rules: CsvRules) -> list[str | None] | None:
    """Return the tokens of a line without quotes; None if only `CsvTokenizer` can split it."""
    limited = rules.max_chars >= 0 or rules.trim_leading or rules.trim_trailing
    special = {rules.quote, rules.newline, rules.line_sep}
    if limited or line[:1] in ("", rules.comment) or any(text in line for text in special):
        return None
    tokens: list[str | None] = [field or rules.null_value for field in line.split(rules.sep)]
    if len(tokens) > rules.max_columns:
        raise LimitError(*TOO_MANY_COLUMNS)
    return tokens


def strip_line_end(text: str) -> str:
    """Remove one trailing line end, as Scala's `stripLineEnd` does."""
    if text.endswith("\r\n"):
        return text[:-2]
    return text[:-1] if text.endswith(("\n", "\r")) else text


# -- The options.


REFUSED = {
    "charToEscapeQuoteEscaping": "the character that escapes the escape character cannot be chosen",
    "codec": "it is for writing; a file's suffix says how it is compressed",
    "columnPruning": "records are always parsed as a whole; select columns with the option `columns`",
    "compression": "it is for writing; a file's suffix says how it is compressed",
    "escapeQuotes": "it is for writing",
    "extension": "it is for writing",
    "inputBufferSize": "use blockBytes instead",
    "locale": "numbers and dates are always read by the rules of the locale en-US",
    "quoteAll": "it is for writing",
    "singleVariantColumn": "the variant type cannot be read",
    "timeFormat": "Spark's CSV reader has no time type",
}
"""Maps each option of Spark's CSV reader that is refused to the reason."""

_STRAY_QUOTES = ("STOP_AT_DELIMITER", "STOP_AT_CLOSING_QUOTE", "BACK_TO_DELIMITER", "SKIP_VALUE", "RAISE_ERROR")
_SEP_ESCAPES = {"t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "'": "'", "\\": "\\"}


@dataclass(frozen=True, kw_only=True)
class CsvOptions(RecordOptions):
    """The options for reading CSV files, beside those of `RecordOptions`."""

    format_name: ClassVar[str] = "CSV"
    drops_all_marks: ClassVar[bool] = False

    header: bool = False
    sep: str = option(",", aliases="delimiter")
    encoding: str = option("UTF-8", aliases="charset")
    quote: str = '"'
    escape: str = "\\"
    comment: str = ""
    null_value: str = ""
    empty_value: str = ""
    nan_value: str = "NaN"
    positive_inf: str = "Inf"
    negative_inf: str = "-Inf"
    prefer_date: bool = True
    ignore_leading_white_space: bool = False
    ignore_trailing_white_space: bool = False
    infer_schema: bool = False
    enforce_schema: bool = True
    max_columns: int = 20480
    max_chars_per_column: int = -1
    unescaped_quote_handling: str = "STOP_AT_DELIMITER"
    block_bytes: int = BLOCK_BYTES

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("quote", "escape", "comment"):
            if len(getattr(self, name)) > 1 or not getattr(self, name).isascii():
                raise self._wrong(name, "it must be one ASCII character, or empty for none")
        _ = self.separator
        if self.line_sep is not None and not 1 <= len(self.line_sep) <= 2:
            raise self._wrong("line_sep", "it must be one or two characters")
        if self.unescaped_quote_handling.upper() not in _STRAY_QUOTES:
            raise self._wrong("unescaped_quote_handling", "it must be one of " + ", ".join(_STRAY_QUOTES))
        self._check_positive("max_columns")

    @property
    def separator(self) -> str:
        """The character that separates columns: `sep`, where an escape sequence is replaced by its character."""
        sep = self.sep
        if len(sep) == 2 and sep[0] == "\\" and sep[1] in _SEP_ESCAPES:
            sep = _SEP_ESCAPES[sep[1]]
        elif sep == "\\":
            raise self._wrong("sep", "a backslash must be written as two backslashes")
        if sep == "\\u0000":
            sep = NUL
        if len(sep) != 1 or not sep.isascii():
            raise self._wrong("sep", "only a single ASCII character can separate columns")
        if sep in "\n\r":
            raise self._wrong("sep", "a line end cannot separate columns")
        return sep

    def rules(self) -> CsvRules:
        """Return the settings of the CSV tokenizer that follow from these options."""
        # The parser uses a line separator of one character as its newline; "\n" is then an ordinary character.
        newline = self.line_sep if self.line_sep is not None and len(self.line_sep) == 1 else "\n"
        return CsvRules(
            sep=self.separator,
            quote=self.quote or NUL,
            escape=self.escape or NUL,
            comment=self.comment or None,
            null_value=self.null_value,
            empty_value=self.empty_value,
            trim_leading=self.ignore_leading_white_space,
            trim_trailing=self.ignore_trailing_white_space,
            stray_quotes=self.unescaped_quote_handling.upper(),
            max_columns=self.max_columns,
            max_chars=self.max_chars_per_column,
            newline=newline,
            line_sep=newline,
        )
