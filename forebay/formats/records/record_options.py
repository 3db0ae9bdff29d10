# SPDX-License-Identifier: Apache-2.0
"""The options that CSV and JSON share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from forebay.formats.records.encodings import check_encoding
from forebay.formats.records.record_blocks import BLOCK_BYTES, MAX_RECORD_BYTES, RecordBlocks
from forebay.formats.values.time_options import TimeOptions
from forebay.options import option

Mode = Literal["PERMISSIVE", "DROPMALFORMED", "FAILFAST"]


@dataclass(frozen=True, kw_only=True)
class RecordOptions(TimeOptions):
    """The options that CSV and JSON share: those of Spark, with names in snake case.

    Raises:
        ConfigurationError: A value is invalid.
    """

    multi_line: bool = False
    line_sep: str | None = None
    encoding: str | None = option(default=None, aliases="charset")
    mode: Mode = "PERMISSIVE"
    column_name_of_corrupt_record: str = "_corrupt_record"
    sampling_ratio: float = 1.0
    max_record_bytes: int = MAX_RECORD_BYTES
    """Bytes; a longer record is malformed, or an error in CSV with `multiLine`. Not an option of Spark."""
    block_bytes: int | None = None
    """How many bytes to read and parse at a time. Not an option of Spark."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.encoding is not None:
            check_encoding(self.encoding)
        if self.mode not in ("PERMISSIVE", "DROPMALFORMED", "FAILFAST"):
            raise self._wrong("mode", "it must be PERMISSIVE, DROPMALFORMED or FAILFAST")
        if not self.sampling_ratio > 0:
            raise self._wrong("sampling_ratio", "it must be greater than 0")
        self._check_positive("max_record_bytes", "block_bytes")

    def blocks(self, block_bytes: int | None = None) -> RecordBlocks:
        """Return the settings for cutting a file into blocks of lines. `block_bytes` replaces the option."""
        return RecordBlocks(
            separator=None if self.line_sep is None else self.line_sep.encode(),
            block_bytes=block_bytes or self.block_bytes or BLOCK_BYTES,
            max_record_bytes=self.max_record_bytes,
            encoding=check_encoding(self.encoding or "UTF-8"),
        )

    def _check_positive(self, *fields: str) -> None:
        for field in fields:
            value = getattr(self, field)
            if value is not None and value < 1:
                raise self._wrong(field, "it must be at least 1")
