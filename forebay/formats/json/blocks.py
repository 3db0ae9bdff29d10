# SPDX-License-Identifier: Apache-2.0
"""Turns blocks of JSON lines into record batches.

Three readers ("tiers") try each block, the fastest first. A tier returns record batches, and the lines that it leaves
to the next tier.

1. `UniformTier`: lines with the same names in the same order.
2. `ArrowTier`: Arrow's JSON reader.
3. `RecordReader`: Python's `json`, or the port of Jackson where Python differs from Spark.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from forebay.errors import ConfigurationError, DataError
from forebay.formats.json.arrow import ArrowReader, is_utf8
from forebay.formats.json.build import BatchBuilder, batch_of, column
from forebay.formats.json.jackson.reasons import Reasons
from forebay.formats.json.jackson.record_parser import Outcome
from forebay.formats.json.jackson.values import check_type
from forebay.formats.json.options import JsonOptions
from forebay.formats.json.stdlib_reader import RecordReader
from forebay.formats.json.tiers import BLANKS, ArrowTier, Part
from forebay.formats.json.uniform.uniform_lines import UniformTier
from forebay.formats.records.encodings import valid_utf8

_SHOWN_BYTES = 200
_EXPLAINED_BYTES = 1 << 20  # for longer records, finding the reason takes too long
_MAX_STRING_BYTES = (1 << 31) - 1  # in one column


def split_lines(data: bytes | bytearray, options: JsonOptions) -> list[bytes]:
    """Return the lines of a block, without their line ends."""
    block = bytes(data)
    return block.splitlines() if options.line_sep is None else block.split(options.line_sep.encode())


class BlockReader:
    """Reads blocks of JSON lines of one file into record batches. Create one for each read.

    Args:
        schema: The columns.
        options: The options of the JSON format.
        path: The path of the file, for errors.
        embedded: Whether each record is the text of one cell of a column. Then it gives one row, or none if it is
            blank. See `JacksonParser`.

    Raises:
        ConfigurationError: JSON cannot be read as the type of a column.
    """

    def __init__(self, schema: pa.Schema, options: JsonOptions, path: str, *, embedded: bool = False) -> None:
        self._schema = schema
        self._options = options
        self._path = path
        self._corrupt = options.column_name_of_corrupt_record
        self._fields = [item for item in schema if item.name != self._corrupt]
        for item in schema:
            if item.name == self._corrupt and not pa.types.is_string(item.type):
                raise ConfigurationError(
                    f"the column {self._corrupt!r} for malformed records must be a string, not {item.type}",
                    option="columnNameOfCorruptRecord",
                    advice="declare the column as string in the schema, or give another columnNameOfCorruptRecord",
                )
        for item in self._fields:
            check_type(item.type, item.name, options)
        self._data_schema = pa.schema(self._fields)
        self._records = RecordReader(self._fields, options, embedded=embedded)
        self._uniform = UniformTier(self._fields, options)
        arrow = ArrowReader(self._fields, options)
        self._arrow = ArrowTier(arrow) if arrow.able else None
        self.malformed_records = 0
        """The number of malformed records so far."""

    def read(self, data: bytes | bytearray, offset: int) -> pa.RecordBatch:
        """Return the rows of a block of complete lines. `offset` is the byte offset of the block in the file.

        Raises:
            DataError: A record is malformed and the mode is FAILFAST.
        """
        batch = self.read_block(data, offset)
        if batch is not None:
            return batch
        lines = [line for line in split_lines(data, self._options) if line.strip(BLANKS)]
        return self.read_lines(lines, offset)

    def read_block(self, data: bytes | bytearray, offset: int) -> pa.RecordBatch | None:
        """Return the rows of a block if a fast tier reads it without splitting it into lines; None if no tier can."""
        if self._arrow is None or self._options.line_sep is not None or self._arrow.backoff.left:
            return None
        for tier in (self._uniform, self._arrow):
            parts = tier.read_block(data)
            if parts is not None:
                return self._read_parts(parts, offset)
        return None

    def read_lines(self, lines: list[bytes], offset: int) -> pa.RecordBatch:
        """Return the rows of `lines`, none of which is blank.

        `offset` is the byte offset of the first line in the file.
        """
        if not len(self._schema) and self._options.mode == "PERMISSIVE":
            # Spark only counts lines then.
            return batch_of([], self._schema, len(lines))
        if self._arrow is None or self._arrow.backoff.skip():
            return self._read_parts(lines, offset)
        return self._read_parts(self._arrow.read_lines(lines), offset)

    def read_record(self, record: bytes, offset: int) -> pa.RecordBatch:
        """Return the rows of one record, which may be any JSON text, also a malformed one.

        `offset` is the byte offset of the record in the file.
        """
        return self._read_parts([record], offset)

    def malformed(self, record: bytes, offset: int) -> pa.RecordBatch:
        """Return the rows of a malformed record. `offset` is the byte offset of the record in the file."""
        builder = BatchBuilder(self._data_schema)
        self._add_malformed(Outcome([], bad=True), record, builder, offset)
        return self._with_malformed(builder)

    def _read_parts(self, parts: Iterable[Part], offset: int) -> pa.RecordBatch:
        builder = BatchBuilder(self._data_schema)
        for part in parts:
            if isinstance(part, pa.RecordBatch):
                builder.add_batch(part)
                continue
            if self._options.encoding is not None and not is_utf8(part):
                # Java's readers refuse bytes that are invalid in the encoding of the option.
                outcome = Outcome([], bad=True)
            else:
                outcome = self._records.read(part)
            if outcome.bad:
                self._add_malformed(outcome, part, builder, offset)
            else:
                builder.rows += outcome.rows
        return self._with_malformed(builder)

    def _add_malformed(self, outcome: Outcome, record: bytes, builder: BatchBuilder, offset: int) -> None:
        self.malformed_records += 1
        if self._options.mode == "FAILFAST":
            shown = repr(record[:_SHOWN_BYTES].decode("utf-8", "replace")) + ("…" if len(record) > _SHOWN_BYTES else "")
            if len(record) <= _EXPLAINED_BYTES:
                shown += f": {Reasons(self._fields, self._options).of_record(record)}"
            raise DataError(
                f"a record of {self._path} is malformed or does not fit the schema: {shown}",
                position=offset,
                advice="correct the record or the schema, or set mode to PERMISSIVE to keep such records, or to "
                "DROPMALFORMED to drop them",
            )
        if self._options.mode == "PERMISSIVE":
            builder.add_malformed(outcome.rows or [[None] * len(self._fields)], bytes(valid_utf8(record)))

    def _with_malformed(self, builder: BatchBuilder) -> pa.RecordBatch:
        """Return the batch of all collected rows.

        Add the column for malformed records if the schema has it.
        """
        batch = builder.batch()
        columns = batch.columns
        for place, item in enumerate(self._schema):
            if item.name == self._corrupt:
                columns.insert(place, self._texts(builder.malformed, batch.num_rows))
        return batch if len(columns) == batch.num_columns else batch_of(columns, self._schema, batch.num_rows)

    def _texts(self, malformed: dict[int, bytes], rows: int) -> pa.Array:
        """Return the column for malformed records: the text in the rows of malformed records, null in the others.

        As in Spark, each row of a malformed array has the text of the whole array.
        """
        if not malformed:
            return pa.nulls(rows, pa.string())
        size = sum(map(len, malformed.values()))
        if size > _MAX_STRING_BYTES:
            raise DataError(
                f"a malformed array of {self._path} would fill the column {self._corrupt!r} with {size:,} bytes, "
                f"because each of its {len(malformed):,} rows gets the whole text of the array, as in Spark",
                option="columnNameOfCorruptRecord",
                advice=f"correct the file, leave {self._corrupt!r} out of the schema, or set mode to DROPMALFORMED",
            )
        return column([malformed.get(row) for row in range(rows)], pa.string())
