# SPDX-License-Identifier: Apache-2.0
"""Turns blocks of JSON lines into record batches.

Three readers ("tiers") try each block, the fastest first. A tier returns record batches, and the lines that it leaves
to the next tier.

1. `UniformTier`: lines with the same names in the same order.
2. `ArrowTier`: Arrow's JSON reader.
3. `RecordReader`: Python's `json`, or the port of Jackson where Python differs from Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from forebay.errors import ConfigurationError, DataError
from forebay.formats.json.arrow import (
    BLANKS,
    ArrowReader,
    ArrowTier,
    Backoff,
    Leftover,
    NotSafe,
    Part,
    is_utf8,
    parts_of,
)
from forebay.formats.json.jackson import Outcome, Reasons, check_type
from forebay.formats.json.options import JsonOptions
from forebay.formats.json.stdlib_reader import RecordReader
from forebay.formats.json.template import template_of
from forebay.formats.records import valid_utf8

if TYPE_CHECKING:
    from forebay.formats.json.uniform import UniformReader


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


# -- Builds Arrow columns and record batches from the values that the record readers return.


class BatchBuilder:
    """Collects the rows of a block as record batches and as lists of values, and returns them as one batch."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._batches: list[pa.RecordBatch] = []
        self._count = 0
        self.rows: list[list[Any]] = []
        """The rows after the last record batch, as lists of values."""
        self.malformed: dict[int, bytes] = {}
        """Maps the number of each row that comes from a malformed record to the text of the record."""

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Append the rows of a record batch."""
        self._flush()
        self._batches.append(batch)
        self._count += batch.num_rows

    def add_malformed(self, rows: list[list[Any]], text: bytes) -> None:
        """Append the rows of a malformed record. `text` is the text of the record."""
        start = self._count + len(self.rows)
        self.malformed.update(dict.fromkeys(range(start, start + len(rows)), text))
        self.rows += rows

    def batch(self) -> pa.RecordBatch:
        """Return all rows as one record batch."""
        self._flush()
        if len(self._batches) == 1:
            return self._batches[0]
        columns = [pa.concat_arrays(parts) for parts in zip(*(batch.columns for batch in self._batches), strict=True)]
        return batch_of(columns, self._schema, self._count)

    def _flush(self) -> None:
        if self.rows:
            columns = [column([row[place] for row in self.rows], item.type) for place, item in enumerate(self._schema)]
            self._batches.append(batch_of(columns, self._schema, len(self.rows)))
            self._count += len(self.rows)
            self.rows = []


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


# -- The tier for blocks in which nearly all lines have the same names in the same order ("form").


_MAX_BYTES = 16 << 20  # bounds the memory for the positions of quotes
_MAX_SKIPPED = 64
# The most leftovers of a block: a few, and one for every so many rows.
_FEW_LEFTOVERS = 16
_LINES_PER_LEFTOVER = 64


class UniformTier:
    """Reads blocks in which nearly all lines have one form. Tries the form of the last block first.

    Create one for each read.
    """

    def __init__(self, fields: list[pa.Field], options: JsonOptions) -> None:
        self._fields = fields
        self._options = options
        self._reader_class = _reader_class()
        self._reader: UniformReader | None = None
        self._backoff = Backoff(_MAX_SKIPPED)

    def read_block(self, data: bytes | bytearray) -> list[Part] | None:
        """Return the rows and leftover lines of a block; None if too few of its lines have a common form."""
        if self._backoff.skip() or len(data) > _MAX_BYTES or b"\\" in data or not is_utf8(data):
            return None
        for reader in self._candidates(data):
            parts = _parts(reader, data)
            if parts is not None:
                self._reader = reader
                self._backoff.report(failed=False)
                return parts
        self._backoff.report(failed=True)
        return None

    def _candidates(self, data: bytes | bytearray) -> Iterator[UniformReader]:
        """Yield the reader of the last block, then readers for the form of the first and of a middle line."""
        if self._reader_class is None:
            return
        if self._reader is not None:
            yield self._reader
        for start in (0, data.find(b"\n", len(data) // 2) + 1):
            end = data.find(b"\n", start)
            template = template_of(bytes(data[start : end if end >= 0 else len(data)]).strip())
            if template is not None:
                try:
                    yield self._reader_class(self._fields, self._options, template)
                except NotSafe:
                    continue


def _reader_class() -> type[UniformReader] | None:
    """Return the reader class; None if numpy, an optional dependency, is not installed."""
    try:
        from forebay.formats.json.uniform import UniformReader
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        return None
    return UniformReader


def _parts(reader: UniformReader, data: bytes | bytearray) -> list[Part] | None:
    values = reader.splitter.split(data)
    if values is None:
        return None
    rows, others = values.rows, values.others
    most = _FEW_LEFTOVERS + len(rows.starts) // _LINES_PER_LEFTOVER
    if len(others.starts) > most:
        return None
    try:
        batch, unsafe = reader.read(values)
    except NotSafe:
        return None
    if len(others.starts) + len(unsafe) > most:
        return None
    leftovers = [
        Leftover(row, False, bytes(data[start:end]))
        for row, start, end in zip(values.before_others.tolist(), others.starts, others.ends, strict=True)
    ]
    leftovers += [Leftover(row, True, bytes(data[rows.starts[row] : rows.ends[row]])) for row in unsafe]
    return list(parts_of(batch, sorted(leftovers, key=lambda line: line[:2])))
