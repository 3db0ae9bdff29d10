# SPDX-License-Identifier: Apache-2.0
"""The options of the CSV format: Spark's names in snake case, Spark's meanings, Spark's defaults."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import Literal

from forebay.formats.csv.rules import NUL, CsvRules
from forebay.formats.encodings import check_encoding
from forebay.formats.option_names import option_name, wrong_option
from forebay.formats.record_blocks import BLOCK_BYTES, MAX_RECORD_BYTES, RecordBlocks
from forebay.formats.time_options import TimeOptions

_FORMAT = "CSV"
_wrong = partial(wrong_option, _FORMAT)

Mode = Literal["PERMISSIVE", "DROPMALFORMED", "FAILFAST"]

ALIASES = {"delimiter": "sep", "charset": "encoding"}
"""Spark's second names of options → their first names."""

REFUSED = {
    "charToEscapeQuoteEscaping": "the character that escapes the escape character cannot be chosen",
    "codec": "it is for writing; a file's suffix says how it is compressed",
    "columnPruning": "a record is always judged as a whole; name the columns wanted with the option columns",
    "compression": "it is for writing; a file's suffix says how it is compressed",
    "escapeQuotes": "it is for writing",
    "extension": "it is for writing",
    "inputBufferSize": "blocks have their own size",
    "locale": "numbers and dates are read as in the locale en-US",
    "quoteAll": "it is for writing",
    "singleVariantColumn": "the variant type cannot be read",
    "timeFormat": "Spark's CSV has no column of type time",
}
"""Options of Spark's CSV that are not honoured → why. The source that offers this format refuses them by name."""

_STRAY_QUOTES = ("STOP_AT_DELIMITER", "STOP_AT_CLOSING_QUOTE", "BACK_TO_DELIMITER", "SKIP_VALUE", "RAISE_ERROR")
_SEP_ESCAPES = {"t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "'": "'", "\\": "\\"}


@dataclass(frozen=True, kw_only=True)
class CsvOptions:
    """How to read CSV files. Each field is Spark's option of the same name in camel case.

    Raises:
        ConfigurationError: A value that Spark would not take, or that cannot be honoured exactly.
    """

    header: bool = False
    sep: str = ","
    quote: str = '"'
    escape: str = "\\"
    comment: str = ""
    null_value: str = ""
    empty_value: str = ""
    nan_value: str = "NaN"
    positive_inf: str = "Inf"
    negative_inf: str = "-Inf"
    date_format: str | None = None
    timestamp_format: str | None = None
    timestamp_ntz_format: str | None = None
    enable_date_time_parsing_fallback: bool | None = None
    prefer_date: bool = True
    encoding: str = "UTF-8"
    line_sep: str | None = None
    multi_line: bool = False
    ignore_leading_white_space: bool = False
    ignore_trailing_white_space: bool = False
    mode: Mode = "PERMISSIVE"
    column_name_of_corrupt_record: str = "_corrupt_record"
    infer_schema: bool = False
    sampling_ratio: float = 1.0
    enforce_schema: bool = True
    max_columns: int = 20480
    max_chars_per_column: int = -1
    unescaped_quote_handling: str = "STOP_AT_DELIMITER"
    time_zone: str = "UTC"
    max_record_bytes: int = MAX_RECORD_BYTES
    """Not Spark's: a record of more bytes is malformed."""
    block_bytes: int = BLOCK_BYTES
    """Not Spark's: how much is read and parsed at a time."""

    def __post_init__(self) -> None:
        for name in ("quote", "escape", "comment"):
            if len(getattr(self, name)) > 1 or not getattr(self, name).isascii():
                raise _wrong(name, "it must be one ASCII character, or empty for none")
        _ = self.separator, self.times, self.line_separator
        check_encoding(self.encoding)
        if self.mode not in ("PERMISSIVE", "DROPMALFORMED", "FAILFAST"):
            raise _wrong("mode", "it must be PERMISSIVE, DROPMALFORMED or FAILFAST")
        if self.unescaped_quote_handling.upper() not in _STRAY_QUOTES:
            raise _wrong("unescaped_quote_handling", "it must be one of " + ", ".join(_STRAY_QUOTES))
        if not self.sampling_ratio > 0:
            raise _wrong("sampling_ratio", "it must be greater than 0")
        for name in ("max_columns", "max_record_bytes", "block_bytes"):
            if getattr(self, name) < 1:
                raise _wrong(name, "it must be at least 1")

    @property
    def separator(self) -> str:
        """The character between columns; `sep` may write it as backslash and t, and the like."""
        sep = self.sep
        if len(sep) == 2 and sep[0] == "\\" and sep[1] in _SEP_ESCAPES:
            sep = _SEP_ESCAPES[sep[1]]
        elif sep == "\\":
            raise _wrong("sep", "a backslash is written as two of them")
        if sep == "\\u0000":
            sep = NUL
        if len(sep) != 1 or not sep.isascii():
            raise _wrong("sep", "only a single ASCII character can separate columns")
        if sep in "\n\r":
            raise _wrong("sep", "a line end cannot separate columns")
        return sep

    @property
    def times(self) -> TimeOptions:
        """The options about dates and times."""
        return TimeOptions(
            file_format=_FORMAT,
            date_format=self.date_format,
            timestamp_format=self.timestamp_format,
            timestamp_ntz_format=self.timestamp_ntz_format,
            enable_date_time_parsing_fallback=self.enable_date_time_parsing_fallback,
            time_zone=self.time_zone,
            prefer_date=self.prefer_date,
        )

    @property
    def line_separator(self) -> str | None:
        """What ends a line; None for any usual line end."""
        if self.line_sep is not None and not 1 <= len(self.line_sep) <= 2:
            raise _wrong("line_sep", "it must be one or two characters")
        return self.line_sep

    def blocks(self) -> RecordBlocks:
        """How files are cut into blocks of lines."""
        separator = self.line_separator
        return RecordBlocks(
            separator=None if separator is None else separator.encode(),
            block_bytes=self.block_bytes,
            max_record_bytes=self.max_record_bytes,
            encoding=check_encoding(self.encoding),
        )

    def rules(self) -> CsvRules:
        """What the tokenizer needs of these options."""
        quote, escape = self.quote or NUL, self.escape or NUL
        return CsvRules(
            sep=self.separator,
            quote=quote,
            escape=escape,
            escape_escape=NUL if quote == escape else escape,
            comment=self.comment or None,
            null_value=self.null_value,
            empty_value=self.empty_value,
            trim_leading=self.ignore_leading_white_space,
            trim_trailing=self.ignore_trailing_white_space,
            stray_quotes=self.unescaped_quote_handling.upper(),
            max_columns=self.max_columns,
            max_chars=self.max_chars_per_column,
            # A line separator of one character is what the parser looks for, and newlines are nothing special then.
            newline=self.line_sep if self.line_sep is not None and len(self.line_sep) == 1 else "\n",
        )


OPTION_NAMES = {option_name(item.name): item.name for item in fields(CsvOptions)}
"""Names of options as users write them → fields of `CsvOptions`."""
