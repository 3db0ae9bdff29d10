# SPDX-License-Identifier: Apache-2.0
"""Turns blocks of JSON lines into record batches.

Three readers ("tiers") try each block, the fastest first. A tier returns the rows that it has read, and the lines that
it leaves to the next tier.

1. `UniformTier`: lines with the same names in the same order.
2. `ArrowTier`: Arrow's JSON reader.
3. `RecordReader`: Python's `json`, or the port of Jackson where Python differs from Spark.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from forebay.errors import ConfigurationError, DataError
from forebay.formats.compression.codecs import open_decompressed
from forebay.formats.json.arrow import (
    BLANKS,
    ArrowTier,
    Rows,
    all_left,
    is_utf8,
)
from forebay.formats.json.jackson import Outcome, Reasons, RecordReader, check_type
from forebay.formats.json.options import JsonOptions
from forebay.formats.records import as_utf8, valid_utf8

if TYPE_CHECKING:
    from forebay.formats.base import InputFile
    from forebay.formats.json.uniform import UniformTier


_STEP_BYTES = 4 << 20
_SHOWN_BYTES = 200
_EXPLAINED_BYTES = 1 << 20  # for longer records, finding the reason takes too long
_MAX_STRING_BYTES = (1 << 31) - 1  # in one column


def split_lines(data: bytes | bytearray, options: JsonOptions) -> list[bytes]:
    """Return the lines of a block, without their line ends."""
    block = bytes(data)
    return block.splitlines() if options.line_sep is None else block.split(options.line_sep.encode())


def document_bytes(file: InputFile, options: JsonOptions) -> tuple[bytes, bool]:
    """Return the bytes of the file, decoded to UTF-8 with the option `encoding`, and whether they are complete.

    If the file is longer than `maxRecordBytes`, return only its start.
    """
    parts: list[bytes] = []
    size = 0
    with as_utf8(open_decompressed(file), options.encoding or "UTF-8") as stream:
        while size <= options.max_record_bytes and (part := stream.read(_STEP_BYTES)):
            parts.append(part)
            size += len(part)
    data = b"".join(parts)
    # A document's bytes that are invalid in the encoding of the option are replaced; those of a line make it malformed.
    return data if options.encoding is None else bytes(valid_utf8(data)), size <= options.max_record_bytes


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
        self._uniform = _uniform_tier(self._fields, options)
        arrow = ArrowTier(self._fields, options)
        self._arrow = arrow if arrow.able else None
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
        rows = (self._uniform and self._uniform.read_block(data)) or self._arrow.read_block(data)
        return None if rows is None else self._with_leftovers(rows, offset)

    def read_lines(self, lines: list[bytes], offset: int) -> pa.RecordBatch:
        """Return the rows of `lines`, none of which is blank.

        `offset` is the byte offset of the first line in the file.
        """
        if not len(self._schema) and self._options.mode == "PERMISSIVE":
            # Spark only counts lines then.
            return batch_of([], self._schema, len(lines))
        alone = self._arrow is None or self._arrow.backoff.skip()
        rows = all_left(lines) if self._arrow is None or alone else self._arrow.read_lines(lines)
        return self._with_leftovers(rows, offset)

    def read_record(self, record: bytes, offset: int) -> pa.RecordBatch:
        """Return the rows of one record, which may be any JSON text, also a malformed one.

        `offset` is the byte offset of the record in the file.
        """
        return self._with_leftovers(all_left([record]), offset)

    def malformed(self, record: bytes, offset: int) -> pa.RecordBatch:
        """Return the rows of a malformed record. `offset` is the byte offset of the record in the file."""
        values = self._malformed_rows([], record, offset)
        texts = dict.fromkeys(range(len(values)), bytes(valid_utf8(record)))
        return self._with_texts(self._batch(values), texts)

    def _with_leftovers(self, rows: Rows, offset: int) -> pa.RecordBatch:
        """Return the rows of a tier with those of the lines that it left, each of which is read alone."""
        batch, leftovers = rows
        count = 0 if batch is None else batch.num_rows
        values: list[list[Any]] = []
        order: list[int] = []
        malformed: dict[int, bytes] = {}
        start = 0
        for row, replaces, line in leftovers:
            order += range(start, row)
            start = row + replaces
            # Java's readers refuse bytes that are invalid in the encoding of the option.
            refused = self._options.encoding is not None and not is_utf8(line)
            outcome = Outcome([], bad=True) if refused else self._records.read(line)
            line_rows = outcome.rows
            if outcome.bad:
                line_rows = self._malformed_rows(outcome.rows, line, offset)
                text = bytes(valid_utf8(line))
                malformed.update(dict.fromkeys(range(len(order), len(order) + len(line_rows)), text))
            order += range(count + len(values), count + len(values) + len(line_rows))
            values += line_rows
        if batch is None or not leftovers:
            return self._with_texts(self._batch(values) if batch is None else batch, malformed)
        order += range(start, count)
        pairs = zip(batch.columns, self._batch(values).columns, strict=True)
        places = pa.array(order, pa.int32())
        columns = [pa.concat_arrays(pair).take(places) for pair in pairs]
        return self._with_texts(batch_of(columns, self._data_schema, len(order)), malformed)

    def _malformed_rows(self, rows: list[list[Any]], record: bytes, offset: int) -> list[list[Any]]:
        """Return the rows to keep of a malformed record, of which `rows` could be read.

        Raises:
            DataError: The mode is FAILFAST.
        """
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
        return (rows or [[None] * len(self._fields)]) if self._options.mode == "PERMISSIVE" else []

    def _batch(self, values: list[list[Any]]) -> pa.RecordBatch:
        columns = [column([row[place] for row in values], item.type) for place, item in enumerate(self._fields)]
        return batch_of(columns, self._data_schema, len(values))

    def _with_texts(self, batch: pa.RecordBatch, malformed: dict[int, bytes]) -> pa.RecordBatch:
        """Add the column for malformed records if the schema has it."""
        columns = batch.columns
        for place, item in enumerate(self._schema):
            if item.name == self._corrupt:
                columns.insert(place, self._texts(malformed, batch.num_rows))
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


def _uniform_tier(fields: list[pa.Field], options: JsonOptions) -> UniformTier | None:
    """Return the tier for lines of one form; None if numpy, an optional dependency, is not installed."""
    try:
        from forebay.formats.json.uniform import UniformTier
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        return None
    return UniformTier(fields, options)


# -- Builds Arrow columns and record batches from the values that the record readers return.


def batch_of(columns: list[pa.Array], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """Return a record batch of `columns`; without them, an empty batch of `schema`, or `rows` rows without columns."""
    if columns:
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    if len(schema):
        return pa.RecordBatch.from_arrays([pa.nulls(0, item.type) for item in schema], schema=schema)
    return pa.RecordBatch.from_arrays([pa.nulls(rows)], names=[""]).select([])


def column(values: list[Any], data_type: pa.DataType) -> pa.Array:
    """Return an Arrow array of the values of a column.

    The values have these forms: strings are bytes, dates are days since 1970, timestamps are microseconds since 1970,
    structs are lists of their fields' values, and maps are lists of pairs.
    """
    types = pa.types
    if isinstance(data_type, pa.StructType):
        return _structs(values, data_type)
    if isinstance(data_type, pa.ListType):
        items = [item for value in values if value is not None for item in value]
        inside = column(items, data_type.value_type)
        return pa.ListArray.from_arrays(_offsets(values), inside, type=data_type)
    if isinstance(data_type, pa.MapType):
        pairs = [pair for value in values if value is not None for pair in value]
        keys = column([key for key, _ in pairs], data_type.key_type)
        inside = column([item for _, item in pairs], data_type.item_type)
        return pa.MapArray.from_arrays(_offsets(values), keys, inside, type=data_type)
    if types.is_string(data_type):
        return pa.array(values, pa.binary()).view(data_type)
    if types.is_date32(data_type):
        return pa.array(values, pa.int32()).view(data_type)
    if types.is_timestamp(data_type):
        return pa.array(values, pa.int64()).view(data_type)
    return pa.array(values, data_type)


def _offsets(values: list[Any]) -> pa.Array:
    """Return the offsets that an Arrow list array of these lists needs. The offset of a null list is null."""
    starts = accumulate((len(value) if value is not None else 0 for value in values), initial=0)
    known: list[Any] = [*values, ()]
    return pa.array([None if value is None else start for value, start in zip(known, starts, strict=True)], pa.int32())


def _structs(values: list[Any], data_type: pa.StructType) -> pa.Array:
    mask = pa.array([value is None for value in values], pa.bool_())
    if not data_type.num_fields:
        return pa.array([None if value is None else {} for value in values], data_type)
    inside = [
        column([None if value is None else value[place] for value in values], field.type)
        for place, field in enumerate(data_type)
    ]
    return pa.StructArray.from_arrays(inside, fields=list(data_type), mask=mask)
