# SPDX-License-Identifier: Apache-2.0
"""The options of the JSON format: Spark's names in snake case, Spark's meanings, Spark's defaults."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import Literal

import pyarrow as pa

from forebay.formats.encodings import check_encoding
from forebay.formats.option_names import option_name, wrong_option
from forebay.formats.record_blocks import MAX_RECORD_BYTES
from forebay.formats.time_options import TimeOptions

_FORMAT = "JSON"
_wrong = partial(wrong_option, _FORMAT)
_LIMITS = "the limits are those that Spark has where nothing is set"

Mode = Literal["PERMISSIVE", "DROPMALFORMED", "FAILFAST"]

ALIASES = {"charset": "encoding"}
"""Spark's second names of options → their first names."""

REFUSED = {
    "compression": "it is for writing; a file's suffix says how it is compressed",
    "ignoreNullFields": "it is for writing",
    "maxNestingDepth": _LIMITS,
    "maxNumLen": _LIMITS,
    "maxStringLen": _LIMITS,
    "locale": "numbers and dates are read as in the locale en-US",
    "pretty": "it is for writing",
    "singleVariantColumn": "the variant type cannot be read",
    "sortKeys": "it is for writing",
    "timeFormat": "Spark has no column of type time unless it is switched on",
    "useUnsafeRow": "it is about the inside of Spark",
    "writeNonAsciiCharacterAsCodePoint": "it is for writing",
}
"""Options of Spark's JSON reader that are not honoured → why. The source of this format refuses them by name."""

_MIN_BLOCK_BYTES = 1 << 20
_MAX_BLOCK_BYTES = 4 << 20
_BLOCK_BYTES_OF_COLUMN = 1 << 16
_MARKED_ENCODINGS = ("UTF-16", "UTF-32")


@dataclass(frozen=True, kw_only=True)
class JsonOptions:
    """How to read JSON files. Each field is Spark's option of the same name in camel case.

    Raises:
        ConfigurationError: A value that Spark would not take, or that cannot be honoured exactly.
    """

    multi_line: bool = False
    """A file is one document (an object, or an array of them), not one in each line."""
    line_sep: str | None = None
    encoding: str | None = None
    mode: Mode = "PERMISSIVE"
    column_name_of_corrupt_record: str = "_corrupt_record"
    date_format: str | None = None
    timestamp_format: str | None = None
    timestamp_ntz_format: str | None = None
    enable_date_time_parsing_fallback: bool | None = None
    time_zone: str = "UTC"
    allow_comments: bool = False
    allow_unquoted_field_names: bool = False
    allow_single_quotes: bool = True
    allow_numeric_leading_zeros: bool = False
    allow_non_numeric_numbers: bool = True
    allow_backslash_escaping_any_character: bool = False
    allow_unquoted_control_chars: bool = False
    primitives_as_string: bool = False
    prefers_decimal: bool = False
    infer_timestamp: bool = False
    drop_field_if_all_null: bool = False
    sampling_ratio: float = 1.0
    max_record_bytes: int = MAX_RECORD_BYTES
    """Not Spark's: a line, or with `multiLine` a file, of more bytes is malformed."""
    block_bytes: int | None = None
    """Not Spark's: how much is read and parsed at a time; None for what suits the columns."""

    def __post_init__(self) -> None:
        if self.mode not in ("PERMISSIVE", "DROPMALFORMED", "FAILFAST"):
            raise _wrong("mode", "it must be PERMISSIVE, DROPMALFORMED or FAILFAST")
        if self.line_sep == "":
            raise _wrong("line_sep", "it must not be empty")
        if self.encoding is not None:
            self._check_encoding(check_encoding(self.encoding))
        if not self.sampling_ratio > 0:
            raise _wrong("sampling_ratio", "it must be greater than 0")
        for name in ("max_record_bytes", "block_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise _wrong(name, "it must be at least 1")
        _ = self.times

    def _check_encoding(self, encoding: str) -> None:
        if self.multi_line:
            return
        if encoding in _MARKED_ENCODINGS:
            raise _wrong("encoding", f"{encoding} has a mark at the start of the file only: name it with LE or BE")
        if encoding != "UTF-8" and self.line_sep is None:
            raise _wrong("encoding", f"the option lineSep must be given for {encoding}")

    def bytes_at_once(self, schema: pa.Schema) -> int:
        """How many bytes to read and parse at a time: the option's value, or what suits the columns of the file.

        Small blocks stay in caches, but in each of them every column costs something, however few its values are.
        Measured: 1 MiB is best for 7 columns, by a tenth; 4 MiB for 200, by two fifths.
        """
        if self.block_bytes is not None:
            return self.block_bytes
        return min(max(_MIN_BLOCK_BYTES, _BLOCK_BYTES_OF_COLUMN * _leaves(list(schema))), _MAX_BLOCK_BYTES)

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
            prefer_date=False,
        )


OPTION_NAMES = {option_name(item.name): item.name for item in fields(JsonOptions)}
"""Names of options as users write them → fields of `JsonOptions`."""


def _leaves(fields: list[pa.Field]) -> int:
    inside = ([item.type.field(index) for index in range(item.type.num_fields)] for item in fields)
    return sum(max(1, _leaves(found)) for found in inside)
