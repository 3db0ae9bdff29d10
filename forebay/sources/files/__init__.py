# SPDX-License-Identifier: Apache-2.0
"""Format `forebay_files`: CSV, JSON lines, Parquet, ORC, Avro, text and binary files in any store."""

from __future__ import annotations

from forebay.sources.files.source import FileSource
from forebay.sources.files.split import FileSplit

__all__ = ["FileSource", "FileSplit"]
