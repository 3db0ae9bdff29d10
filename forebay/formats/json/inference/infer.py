# SPDX-License-Identifier: Apache-2.0
"""Infers the schema of JSON files (JsonInferSchema of Spark 4.2.0)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from forebay.errors import ConfigurationError, DataError
from forebay.formats.json.arrow import is_utf8
from forebay.formats.json.blocks import split_lines
from forebay.formats.json.documents import document_bytes
from forebay.formats.json.inference.arrow_types import types_by_arrow
from forebay.formats.json.inference.kinds import NULL, STRING, Kind, ListOf, Merging, Struct, arrow_type, levels
from forebay.formats.json.inference.record_kinds import KindReader
from forebay.formats.json.jackson.text import Malformed
from forebay.formats.json.options import JsonOptions
from forebay.formats.records.record_blocks import Block
from forebay.formats.values.column_names import check_names

if TYPE_CHECKING:
    from forebay.formats.base import InputFile

_ALL = 0.99  # above this `samplingRatio`, Spark reads all records
_SHOWN_BYTES = 200


def infer_schema(
    files: Sequence[InputFile], options: JsonOptions, blocks: Callable[[InputFile], Iterator[Block]]
) -> pa.Schema:
    """Return the schema that Spark infers from all records of the files, or from a sample of them.

    Args:
        files: The files, in the order in which to read them.
        options: The options of the JSON format.
        blocks: A function that returns the blocks of lines of a file.

    Raises:
        DataError: A record is malformed and the mode is FAILFAST.
        ConfigurationError: The names of two columns differ only in case, or a column is nested too deeply.
    """
    inference = _Inference(options)
    place = files[0].path if len(files) == 1 else "the files"
    try:
        for file in files:
            if options.multi_line:
                data, complete = document_bytes(file, options)
                inference.record(data if complete else b"{", file.path)
                continue
            for block in blocks(file):
                inference.block(block, file.path)
        found = arrow_type(inference.root, options)
        schema = pa.schema(list(found) if isinstance(found, pa.StructType) else [])
        check_names(schema, place, case_sensitive=False)
    except RecursionError:
        column = inference.deepest
        raise ConfigurationError(
            f"the column {column!r} of {place} is nested too deeply to infer its type",
            option="schema",
            advice=f"give a schema that leaves the column out, or declares {column!r} as string: its values are then "
            "the JSON text",
        ) from None
    return schema


class _Inference:
    """Reads records and merges their kinds into one."""

    def __init__(self, options: JsonOptions) -> None:
        self._options = options
        self._merging = Merging()
        self._names: set[str] = set()
        self._kinds = KindReader(options)
        self._last: Kind = NULL
        self._random = random.Random(1)
        self._sampled = options.sampling_ratio <= _ALL

    @property
    def root(self) -> Kind:
        """The kind that covers all records so far."""
        return self._merging.result()

    @property
    def deepest(self) -> str:
        """The column that is nested most deeply, also after a merge that failed."""
        records = [kind for kind in (self._last, *self._merging.parts) if isinstance(kind, Struct)]
        fields = [field for record in records for field in record.fields]
        return max(fields, key=lambda field: levels(field[1]), default=("", NULL))[0]

    def block(self, block: Block, path: str) -> None:
        """Add the records of a block of lines. `path` is the path of its file, for errors."""
        data = block.data
        if block.cut:
            self._malformed(bytes(data), path)
            return
        if not self._sampled and self._options.line_sep is None and self._options.encoding is None:
            kind = types_by_arrow(data, self._options)
            if kind is not None:
                self._merge(kind)
                return
        for line in split_lines(data, self._options):
            if not self._sampled or self._random.random() < self._options.sampling_ratio:
                self.record(line, path)

    def record(self, record: bytes, path: str) -> None:
        """Add one record, which may be any JSON text, also a malformed one. `path` is that of its file, for errors."""
        try:
            # Java's readers refuse bytes that are invalid in the encoding of the option.
            if self._options.encoding is None or is_utf8(record):
                self._merge(self._kinds.read(record))
                return
        except Malformed:
            pass
        self._malformed(record, path)

    def _malformed(self, record: bytes, path: str) -> None:
        if self._options.mode == "FAILFAST":
            raise DataError(
                f"a record of {path} is malformed: {record[:_SHOWN_BYTES].decode('utf-8', 'replace')!r}",
                advice="correct the record, or set mode to PERMISSIVE or DROPMALFORMED",
            )
        if self._options.mode == "PERMISSIVE":
            self._merge(self._corrupt)

    def _merge(self, kind: Kind) -> None:
        """Merge in the kind of one record. If it is an array, merge in the kind of its elements.

        Raises:
            Malformed: The record is neither an object nor an array of objects, and the mode is FAILFAST.
        """
        while isinstance(kind, ListOf):
            kind = kind.element
        self._last = kind
        if kind == NULL:
            return
        if not isinstance(kind, Struct):
            if self._options.mode == "FAILFAST":
                raise Malformed("the record is neither a JSON object nor an array of objects")
            if self._options.mode == "DROPMALFORMED" or self._options.column_name_of_corrupt_record in self._names:
                return
            kind = self._corrupt
        self._names.update(name for name, _ in kind.fields)
        self._merging.add(kind)

    @property
    def _corrupt(self) -> Struct:
        """Return the kind of a malformed record: an object whose only field is the column for malformed records."""
        return Struct(((self._options.column_name_of_corrupt_record, STRING),))
