# SPDX-License-Identifier: Apache-2.0
"""Turns blocks of JSON lines into record batches: by Arrow where that is safe, record by record where it is not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from forebay.errors import ConfigurationError, DataError
from forebay.formats.encodings import utf8_problem, valid_utf8
from forebay.formats.json.arrow import (
    ODD_NUMBER,
    ArrowReader,
    Doubt,
    beyond_limits,
    has_odd_number,
    is_utf8,
    regular_lines,
)
from forebay.formats.json.build import column
from forebay.formats.json.exact import Outcome, as_utf8
from forebay.formats.json.forms import Formed, FormReader
from forebay.formats.json.options import JsonOptions
from forebay.formats.json.quick import RecordReader
from forebay.formats.json.reasons import MALFORMED, NO_OBJECT, Reasons
from forebay.formats.json.values import check_type

_BLANKS = b" \t\r\n"
_LINE_ENDS = re.compile(rb"\r\n|\r|\n")
_MOST_TRIES = 64
_FEW_LINES = 32
_MOST_SKIPPED = 32
_SHOWN = 200
_EXPLAINED_BYTES = 1 << 20
_MOST_TEXT = (1 << 31) - 1
"""Bytes of one column of strings."""


@dataclass(slots=True)
class _Pieces:
    """What was read of a block so far, in order."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: list[list[Any]] = field(default_factory=list)
    """Rows read one by one, after the last batch."""
    corrupt: list[bytes | None] = field(default_factory=list)
    """The text of each row that is malformed, for all rows."""


class BlockReader:
    """Reads blocks for one file: the columns wanted, in the order wanted. One object per read.

    Args:
        schema: The columns wanted.
        options: How to read.
        path: The file, for errors.
        embedded: Records are texts in a column; see `ExactReader`. Each has one row then, or none if it is blank.

    Raises:
        ConfigurationError: A column has a type that JSON cannot be read as.
    """

    def __init__(self, schema: pa.Schema, options: JsonOptions, path: str, *, embedded: bool = False) -> None:
        self._schema = schema
        self._options = options
        self._path = path
        corrupt = options.column_name_of_corrupt_record
        self._fields = [item for item in schema if item.name != corrupt]
        for item in schema:
            if item.name == corrupt and not pa.types.is_string(item.type):
                raise ConfigurationError(
                    f"the column {corrupt!r} for malformed records must be a string, not {item.type}",
                    option="columnNameOfCorruptRecord",
                    advice="make it a string in the schema, or name another column",
                )
        for item in self._fields:
            check_type(item.type, item.name, options)
        self._data_schema = pa.schema(self._fields)
        self._records = RecordReader(self._fields, options, embedded=embedded)
        self._arrow = ArrowReader(self._fields, options)
        self._separator = None if options.line_sep is None else options.line_sep.encode()
        self._forms = FormReader(self._fields, options)
        self._able = self._arrow.able and bool(self._fields)
        self._skip = self._skipped = 0
        self.malformed_records = 0
        """How many malformed records there were so far."""

    def read(self, data: bytes | bytearray, offset: int) -> pa.RecordBatch:
        """The rows of a block of whole lines that begins at a byte offset of the file.

        Raises:
            DataError: A record is malformed and the mode is FAILFAST.
        """
        batch = self.whole(data, offset)
        if batch is not None:
            return batch
        return self.read_lines(self._lines(data), offset)

    def read_lines(self, lines: list[bytes], offset: int) -> pa.RecordBatch:
        """The rows of records that are not blank; `offset` is where the first begins."""
        if not len(self._schema) and self._options.mode == "PERMISSIVE":
            # Spark only counts lines then.
            return _batch([], self._schema, len(lines))
        pieces = _Pieces()
        if self._able and not self._skip:
            self._by_arrow(lines, pieces, offset)
        else:
            self._skip = max(0, self._skip - 1)
            self._one_by_one(lines, range(len(lines)), pieces, offset)
        return self._assembled(pieces)

    def read_record(self, record: bytes, offset: int) -> pa.RecordBatch:
        """The rows of one record, which may have any form."""
        pieces = _Pieces()
        self._one_by_one([record], range(1), pieces, offset)
        return self._assembled(pieces)

    def malformed(self, record: bytes, offset: int) -> pa.RecordBatch:
        """The rows of a record that is known to be malformed."""
        pieces = _Pieces()
        self._add(Outcome([], bad=True), record, pieces, offset)
        return self._assembled(pieces)

    def whole(self, data: bytes | bytearray, offset: int) -> pa.RecordBatch | None:
        """The rows of a block if it can be read at once; None if not.

        Raises:
            DataError: A record is malformed and the mode is FAILFAST.
        """
        if not self._able or self._separator is not None or self._skip:
            return None
        formed = self._forms.read(data)
        if formed is not None:
            return self._formed(formed, offset)
        count = regular_lines(data)
        if count is None:
            return None
        try:
            batch, doubtful = self._arrow.read(data, count)
        except Doubt:
            return None
        return None if doubtful else self._with_corrupt(batch, None)

    def _formed(self, formed: Formed, offset: int) -> pa.RecordBatch:
        """A block whose lines have one form, but for a few."""
        if not formed.odd:
            return self._with_corrupt(formed.batch, None)
        pieces = _Pieces()
        for part in formed.parts():
            if isinstance(part, pa.RecordBatch):
                self._add_batch(part, pieces)
            else:
                self._one_by_one([part], range(1), pieces, offset)
        return self._assembled(pieces)

    def _lines(self, data: bytes | bytearray) -> list[bytes]:
        """The lines of a block without their ends, blank ones left out."""
        whole = bytes(data)
        parts = whole.split(b"\n") if self._separator is None and b"\r" not in whole else self._split(whole)
        return [line for line in parts if line.strip(_BLANKS)]

    def _split(self, data: bytes) -> list[bytes]:
        return _LINE_ENDS.split(data) if self._separator is None else data.split(self._separator)

    def _by_arrow(self, lines: list[bytes], pieces: _Pieces, offset: int) -> None:
        """Let Arrow read as much as it can; what it cannot is read one by one."""
        tries = 0
        for start, end, safe in self._runs(lines):
            todo = [(start, end)]
            while todo:
                low, high = todo.pop()
                if not safe or tries >= _MOST_TRIES or high - low <= 1:
                    self._one_by_one(lines, range(low, high), pieces, offset)
                    continue
                tries += 1
                try:
                    batch, doubtful = self._arrow.read(b"\n".join(lines[low:high]), high - low)
                except Doubt as doubt:
                    todo += _parts(low, high, doubt.row)
                    continue
                self._patched(lines, low, batch, doubtful, pieces, offset)
        if tries >= _MOST_TRIES:
            # Such files stay such: try less and less often.
            self._skipped = min(_MOST_SKIPPED, 2 * self._skipped + 1)
            self._skip = self._skipped
        else:
            self._skipped = 0

    def _runs(self, lines: list[bytes]) -> Iterator[tuple[int, int, bool]]:
        """Runs of neighbouring lines that Arrow may see, or may not."""
        whole = b"\n".join(lines)
        careful = has_odd_number(whole) or not is_utf8(whole)
        start, safe = 0, True
        for index, line in enumerate(lines):
            odd = beyond_limits(line) or (careful and (ODD_NUMBER.search(line) or not is_utf8(line)))
            now = _may_be_object(line) and not odd
            if now != safe:
                if index > start:
                    yield start, index, safe
                start, safe = index, now
        if start < len(lines):
            yield start, len(lines), safe

    def _patched(
        self,
        lines: list[bytes],
        low: int,
        batch: pa.RecordBatch,
        doubtful: list[int],
        pieces: _Pieces,
        offset: int,
    ) -> None:
        at = 0
        for row in [*doubtful, batch.num_rows]:
            if row > at:
                self._add_batch(batch.slice(at, row - at), pieces)
            if row < batch.num_rows:
                self._one_by_one(lines, range(low + row, low + row + 1), pieces, offset)
            at = row + 1

    def _one_by_one(self, lines: list[bytes], places: range, pieces: _Pieces, offset: int) -> None:
        for place in places:
            if self._options.encoding is not None and not is_utf8(lines[place]):
                # Java's readers refuse what is not in the encoding that was named.
                self._add(Outcome([], bad=True), lines[place], pieces, offset)
                continue
            outcome = self._records.read(lines[place])
            if not outcome.bad:
                pieces.rows += outcome.rows
                pieces.corrupt += [None] * len(outcome.rows)
            else:
                self._add(outcome, lines[place], pieces, offset)

    def _add(self, outcome: Outcome, record: bytes, pieces: _Pieces, offset: int) -> None:
        """Do with a malformed record what the mode says."""
        self.malformed_records += 1
        if self._options.mode == "DROPMALFORMED":
            return
        if self._options.mode == "FAILFAST":
            shown = _shown(record) + self._why(record)
            raise DataError(
                f"a record of {self._path} is malformed or does not fit the schema: {shown}",
                position=offset,
                advice="set mode to PERMISSIVE to keep such records, or to DROPMALFORMED to leave them out",
            )
        rows = outcome.rows or [[None] * len(self._fields)]
        pieces.rows += rows
        pieces.corrupt += [bytes(valid_utf8(record))] * len(rows)

    def _why(self, record: bytes) -> str:
        """The reason, after a colon; none for what is so long that looking for it would take long."""
        if len(record) > _EXPLAINED_BYTES:
            return ""
        if self._options.encoding is not None and (problem := utf8_problem(record)):
            return f": {problem}"
        given = as_utf8(record)
        text = bytes(valid_utf8(given))  # bytes after the record, for example, are not what is wrong with it
        why = Reasons(self._fields, self._options).of(text)
        if why == MALFORMED and (problem := utf8_problem(given)):
            return f": {problem}"
        if why == NO_OBJECT and text.lstrip(_BLANKS).startswith(b"["):  # for Spark, several records
            return ": something in this array is no object, or does not fit"
        return f": {why}"

    def _add_batch(self, batch: pa.RecordBatch, pieces: _Pieces) -> None:
        self._flush(pieces)
        pieces.batches.append(batch)
        pieces.corrupt += [None] * batch.num_rows

    def _flush(self, pieces: _Pieces) -> None:
        if pieces.rows:
            columns = [
                column([row[place] for row in pieces.rows], item.type) for place, item in enumerate(self._fields)
            ]
            pieces.batches.append(_batch(columns, self._data_schema, len(pieces.rows)))
            pieces.rows = []

    def _assembled(self, pieces: _Pieces) -> pa.RecordBatch:
        self._flush(pieces)
        if not pieces.batches:
            return self._with_corrupt(_batch([], self._data_schema, 0), [])
        one = pieces.batches[0] if len(pieces.batches) == 1 else _joined(pieces.batches, self._data_schema)
        return self._with_corrupt(one, pieces.corrupt)

    def _with_corrupt(self, batch: pa.RecordBatch, corrupt: list[bytes | None] | None) -> pa.RecordBatch:
        """The batch with the column for malformed records in its place, if the schema has one."""
        if len(self._fields) == len(self._schema):
            return batch
        columns: list[pa.Array] = []
        place = 0
        for item in self._schema:
            if item.name == self._options.column_name_of_corrupt_record:
                columns.append(pa.nulls(batch.num_rows, item.type) if corrupt is None else self._texts(corrupt))
            else:
                columns.append(batch.column(place))
                place += 1
        return _batch(columns, self._schema, batch.num_rows)

    def _texts(self, corrupt: list[bytes | None]) -> pa.Array:
        """The column for malformed records. Each row of a malformed array has the text of the whole array, as in Spark.

        Raises:
            DataError: That is more than a column can hold.
        """
        size = sum(len(text) for text in corrupt if text is not None)
        if size > _MOST_TEXT:
            name = self._options.column_name_of_corrupt_record
            raise DataError(
                f"a malformed array of {self._path} would fill the column {name!r} with {size:,} bytes: its whole text "
                f"for each of its {len(corrupt):,} rows, as in Spark",
                option="columnNameOfCorruptRecord",
                advice=f"correct the file, leave {name!r} out of the schema, or set mode to DROPMALFORMED",
            )
        return column(list(corrupt), pa.string())


def _may_be_object(line: bytes) -> bool:
    if line[:1] == b"{" and line[-1:] == b"}":
        return True
    line = line.strip(_BLANKS)
    return line.startswith(b"{") and line.endswith(b"}")


def _parts(low: int, high: int, row: int | None) -> list[tuple[int, int]]:
    """What to try next after a doubt, last first."""
    if row is not None and low + row < high:
        bad = low + row
        return [part for part in ((bad + 1, high), (bad, bad + 1), (low, bad)) if part[0] < part[1]]
    if high - low <= _FEW_LINES:
        return [(place, place + 1) for place in range(high - 1, low - 1, -1)]
    middle = (low + high) // 2
    return [(middle, high), (low, middle)]


def _batch(columns: list[pa.Array], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    if columns:
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    if len(schema):
        return pa.RecordBatch.from_arrays([pa.nulls(0, item.type) for item in schema], schema=schema)
    counted = pa.RecordBatch.from_arrays([pa.nulls(rows)], names=[""])
    return counted.select([])


def _joined(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if not len(schema):
        return _batch([], schema, sum(batch.num_rows for batch in batches))
    return pa.RecordBatch.from_arrays(
        [pa.concat_arrays([batch.column(place) for batch in batches]) for place in range(len(schema))], schema=schema
    )


def _shown(record: bytes) -> str:
    return repr(record[:_SHOWN].decode("utf-8", "replace")) + ("…" if len(record) > _SHOWN else "")
