# SPDX-License-Identifier: Apache-2.0
"""The options of the JSON format: Spark's names in snake case, Spark's meanings, Spark's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from forebay.formats.records import RecordOptions
from forebay.options import class_options, parse_options

_LIMITS = "only Spark's default limits are supported"

REFUSED = {
    "compression": "it is for writing; a file's suffix says how it is compressed",
    "ignoreNullFields": "it is for writing",
    "maxNestingDepth": _LIMITS,
    "maxNumLen": _LIMITS,
    "maxStringLen": _LIMITS,
    "locale": "numbers and dates are always read by the rules of the locale en-US",
    "pretty": "it is for writing",
    "singleVariantColumn": "the variant type cannot be read",
    "sortKeys": "it is for writing",
    "timeFormat": "Spark has no time type unless it is switched on",
    "useUnsafeRow": "it only affects Spark's own rows",
    "writeNonAsciiCharacterAsCodePoint": "it is for writing",
}
"""Maps each option of Spark's JSON reader that is refused to the reason."""

_TEXT_OPTIONS = (
    "date_format",
    "timestamp_format",
    "timestamp_ntz_format",
    "enable_date_time_parsing_fallback",
    "allow_comments",
    "allow_unquoted_field_names",
    "allow_single_quotes",
    "allow_numeric_leading_zeros",
    "allow_non_numeric_numbers",
    "allow_backslash_escaping_any_character",
    "allow_unquoted_control_chars",
)
"""The options that apply to a single JSON text with a known schema."""

_MIN_BLOCK_BYTES = 1 << 20
_MAX_BLOCK_BYTES = 4 << 20
_BLOCK_BYTES_OF_COLUMN = 1 << 16
_WITHOUT_MULTI_LINE = {
    "UTF-16": "give the byte order, UTF-16LE or UTF-16BE, and lineSep",
    "UTF-32": "convert the files to UTF-8 first",
}
"""The encodings that need `multi_line`, and what to do without it."""


@dataclass(frozen=True, kw_only=True)
class JsonOptions(RecordOptions):
    """The options for reading JSON files, beside those of `RecordOptions`.

    With `multi_line`, a file is one JSON document: an object or an array of objects. Without `block_bytes`, the size of
    a block depends on the schema's columns.
    """

    format_name: ClassVar[str] = "JSON"
    numeric_timestamps: ClassVar[bool] = True
    """Whether a number is a TIMESTAMP, in seconds since 1970, as in Spark."""

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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.line_sep == "":
            raise self._wrong("line_sep", "it must not be empty")
        encoding = (self.encoding or "UTF-8").upper()
        if self.multi_line or encoding == "UTF-8":
            return
        if instead := _WITHOUT_MULTI_LINE.get(encoding):
            raise self._wrong("encoding", f"{encoding} needs multiLine; for JSON lines, {instead}")
        if self.line_sep is None:
            raise self._wrong("encoding", f"{encoding} also needs the option lineSep")

    def bytes_at_once(self, schema: pa.Schema) -> int:
        """Return how many bytes to read and parse at a time: `block_bytes` or, if it is not set, a size for `schema`.

        Small blocks stay in caches, but each block has a cost for each column. Measured: for 7 columns 1 MiB is best,
        by 10 %; for 200 columns 4 MiB, by 40 %.
        """
        if self.block_bytes is not None:
            return self.block_bytes
        return min(max(_MIN_BLOCK_BYTES, _BLOCK_BYTES_OF_COLUMN * _leaves(list(schema))), _MAX_BLOCK_BYTES)


def _leaves(fields: list[pa.Field]) -> int:
    inside = ([item.type.field(index) for index in range(item.type.num_fields)] for item in fields)
    return sum(max(1, _leaves(child)) for child in inside)


def text_options(options: Mapping[str, str], *, source: str, **fixed: Any) -> JsonOptions:  # noqa: ANN401 - any option
    """Return the options for a column of JSON texts with a known schema.

    Args:
        options: The options of the user, by Spark's names.
        source: The name of the source, for errors.
        fixed: Other options, by their Python names.

    Raises:
        ConfigurationError: An option does not exist, does not apply to such texts, or has a wrong value.
    """
    specs = [spec for spec in class_options(JsonOptions) if spec.python_name in _TEXT_OPTIONS]
    return JsonOptions(**parse_options(specs, options, source=source), **fixed)
