# SPDX-License-Identifier: Apache-2.0
"""The options of the CSV format: Spark's names in snake case, Spark's meanings, Spark's defaults."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from forebay.formats.csv.univocity import NUL, CsvRules
from forebay.formats.records import BLOCK_BYTES, RecordBlocks, RecordOptions
from forebay.options import option

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

    def blocks(self, block_bytes: int | None = None) -> RecordBlocks:
        """See `RecordOptions.blocks`. A byte order mark in another encoding than UTF-8 is left to the first record."""
        blocks = super().blocks(block_bytes)
        return replace(blocks, drops_mark=blocks.encoding == "UTF-8")

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
