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
from forebay.formats.json.kinds import NULL, STRING, Kind, ListOf, Merging, Struct, arrow_type
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
    try:
        found = _found(files, inference, options, blocks)
    except RecursionError:
        raise DataError(
            "a record is nested too deeply to infer a schema from it",
            option="schema",
            advice="give a schema; a column of strings takes what is nested in it as text",
        ) from None
    schema = pa.schema(list(found) if isinstance(found, pa.StructType) else [])
    check_names(schema, files[0].path if len(files) == 1 else "the files", case_sensitive=False)
    return schema


def _found(
    files: Sequence[InputFile],
    inference: _Inference,
    options: JsonOptions,
    blocks: Callable[[InputFile], Iterator[Block]],
) -> pa.DataType | None:
    for file in files:
        if options.multi_line:
            data, whole = document_bytes(file, options)
            inference.record(data if whole else b"{", file.path)
            continue
        for block in blocks(file):
            inference.block(block, file.path)
    return arrow_type(inference.root, options)


class _Inference:
    """What is known after the records seen so far."""

    def __init__(self, options: JsonOptions) -> None:
        self._options = options
        self._merging = Merging()
        self._names: set[str] = set()
        self._kinds = KindReader(options)
        self._random = random.Random(1)
        self._sampled = options.sampling_ratio <= _ALL

    @property
    def root(self) -> Kind:
        """The kind of all records so far."""
        return self._merging.result()

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
            self._merge(self._corrupt)

    def _merge(self, kind: Kind) -> None:
        """Take in the kind of a record; an array at the root stands for its elements.

        Raises:
            Malformed: The record is no object, and the mode is FAILFAST.
        """
        while isinstance(kind, ListOf):
            kind = kind.element
        if kind == NULL:
            return
        if not isinstance(kind, Struct):
            if self._options.mode == "FAILFAST":
                raise Malformed("a record is no object")
            if self._options.mode == "DROPMALFORMED" or self._options.column_name_of_corrupt_record in self._names:
                return
            kind = self._corrupt
        self._names.update(name for name, _ in kind.fields)
        self._merging.add(kind)

    @property
    def _corrupt(self) -> Struct:
        """What a malformed record adds: the column for such records."""
        return Struct(((self._options.column_name_of_corrupt_record, STRING),))


def _lines(data: bytes | bytearray, options: JsonOptions) -> list[bytes]:
    separator = None if options.line_sep is None else options.line_sep.encode()
    text = bytes(data)
    return text.splitlines() if separator is None else text.split(separator)
