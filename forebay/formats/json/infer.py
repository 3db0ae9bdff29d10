# SPDX-License-Identifier: Apache-2.0
"""The schema of JSON files, as Spark infers it (JsonInferSchema of Spark 4.2.0)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from forebay.errors import DataError
from forebay.formats.column_names import check_names
from forebay.formats.json.arrow import is_utf8
from forebay.formats.json.arrow_types import types_by_arrow
from forebay.formats.json.documents import document_bytes
from forebay.formats.json.kinds import EMPTY, NULL, Kind, Struct, arrow_type, merged_roots, with_corrupt
from forebay.formats.json.options import JsonOptions
from forebay.formats.json.record_kinds import KindReader
from forebay.formats.json.text import Malformed
from forebay.formats.record_blocks import Block

if TYPE_CHECKING:
    from forebay.formats.input_file import InputFile

_ALL = 0.99
_SHOWN = 200


def infer_schema(
    files: Sequence[InputFile], options: JsonOptions, blocks: Callable[[InputFile], Iterator[Block]]
) -> pa.Schema:
    """The schema of all records of the files, or of a sample of them.

    Args:
        files: Read in this order.
        options: How to read.
        blocks: Gives the blocks of lines of a file.

    Raises:
        DataError: A record is malformed and the mode is FAILFAST.
        ConfigurationError: Two columns have one name but for case.
    """
    inference = _Inference(options)
    for file in files:
        if options.multi_line:
            data, whole = document_bytes(file, options)
            inference.record(data if whole else b"{", file.path)
            continue
        for block in blocks(file):
            inference.block(block, file.path)
    found = arrow_type(inference.root, options)
    schema = pa.schema(list(found) if isinstance(found, pa.StructType) else [])
    check_names(schema, files[0].path if len(files) == 1 else "the files", case_sensitive=False)
    return schema


class _Inference:
    """What is known after the records seen so far."""

    def __init__(self, options: JsonOptions) -> None:
        self.root: Kind = EMPTY
        self._options = options
        self._kinds = KindReader(options)
        self._random = random.Random(1)
        self._sampled = options.sampling_ratio <= _ALL

    def block(self, block: Block, path: str) -> None:
        """Take in a block of lines."""
        data = block.data
        if block.cut:
            self._malformed(bytes(data), path)
            return
        if not self._sampled and self._options.line_sep is None and self._options.encoding is None:
            kind = types_by_arrow(data, self._options)
            if kind is not None:
                self._merge(kind)
                return
        for line in _lines(data, self._options):
            if not self._sampled or self._random.random() < self._options.sampling_ratio:
                self.record(line, path)

    def record(self, record: bytes, path: str) -> None:
        """Take in a record of any form."""
        try:
            # Java's readers refuse what is not in the encoding that was named.
            kind = self._kinds.read(record) if self._options.encoding is None or is_utf8(record) else None
            if kind is not None:
                self._merge(kind)
                return
        except Malformed:
            pass
        self._malformed(record, path)

    def _malformed(self, record: bytes, path: str) -> None:
        if self._options.mode == "FAILFAST":
            raise DataError(
                f"a record of {path} is malformed: {record[:_SHOWN].decode('utf-8', 'replace')!r}",
                advice="set mode to PERMISSIVE or DROPMALFORMED, or give a schema",
            )
        if self._options.mode == "PERMISSIVE":
            self._merge(with_corrupt(EMPTY, self._options))

    def _merge(self, kind: Kind) -> None:
        if kind != NULL or isinstance(self.root, Struct):
            self.root = merged_roots(self.root, kind, self._options)


def _lines(data: bytes | bytearray, options: JsonOptions) -> list[bytes]:
    separator = None if options.line_sep is None else options.line_sep.encode()
    text = bytes(data)
    return text.splitlines() if separator is None else text.split(separator)
