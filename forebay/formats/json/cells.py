# SPDX-License-Identifier: Apache-2.0
"""Reads a column of JSON texts, such as the values of messages, as a column of structs, like Spark's `from_json`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from forebay.formats.json.arrow import BLANKS, is_utf8
from forebay.formats.json.blocks import BlockReader
from forebay.formats.json.jackson import Reasons
from forebay.formats.json.options import JsonOptions
from forebay.formats.records import with_valid_utf8


@dataclass(frozen=True, slots=True)
class Cells:
    """The structs that were read from a column of JSON texts, and which of the texts are bad."""

    values: pa.Array
    """A struct with the fields that could be read; null for null and for blank texts."""
    bad: list[int]
    """The rows whose text is malformed or does not fit the schema, ascending."""


class CellReader:
    """Reads columns of JSON texts into structs of one schema. Not thread-safe.

    As with `from_json`, a text that is not a JSON object gives a struct of nulls, a value that does not fit its type is
    null, and invalid UTF-8 is decoded as by Java. Unlike with `from_json`, a text with invalid UTF-8 counts as bad.

    Args:
        schema: The fields. A string field named as `columnNameOfCorruptRecord` says gets the bad texts.
        options: The options of the JSON format; `mode` is ignored.

    Raises:
        ConfigurationError: JSON cannot be read as the type of a field.
    """

    def __init__(self, schema: pa.Schema, options: JsonOptions) -> None:
        self._fields = list(schema)
        self._type = pa.struct(self._fields)
        corrupt = options.column_name_of_corrupt_record
        read = self._fields if corrupt in schema.names else [*self._fields, pa.field(corrupt, pa.string())]
        self._corrupt = [field.name for field in read].index(corrupt)
        options = replace(options, mode="PERMISSIVE", multi_line=False, line_sep=None, encoding=None)
        self._blocks = BlockReader(pa.schema(read), options, "", embedded=True)
        self._block_bytes = options.bytes_at_once(schema)
        self._reasons = Reasons([field for field in self._fields if field.name != corrupt], options)

    def read(self, texts: pa.Array) -> Cells:
        """Return the structs for a column of JSON texts. The type of the column is binary."""
        lengths = pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(lengths)
        if len(rows) < len(texts):
            return _scattered(self._read_blocks(texts.take(pa.array(rows)), lengths[rows]), rows, len(texts))
        return self._read_blocks(texts, lengths)

    def reason(self, text: bytes) -> str:
        """Return why `read` counts a text as bad, for an error message."""
        return self._reasons.of(text)

    def _read_blocks(self, texts: pa.Array, lengths: npt.NDArray[np.int32]) -> Cells:
        """Read texts that are neither null nor empty, in blocks small enough for the CPU's caches."""
        parts: list[pa.Array] = [pa.nulls(0, self._type)]
        bad: list[int] = []
        ends = np.cumsum(lengths, dtype=np.int64)
        at = 0
        while at < len(texts):
            most = self._block_bytes + (int(ends[at - 1]) if at else 0)
            after = max(at + 1, int(np.searchsorted(ends, most, "right")))
            part = self._read_block(texts.slice(at, after - at))
            parts.append(part.values)
            bad += [at + row for row in part.bad]
            at = after
        return Cells(parts[1] if len(parts) == 2 else pa.concat_arrays(parts), bad)

    def _read_block(self, texts: pa.Array) -> Cells:
        data = _lines(texts)
        invalid: list[int] = []
        if not is_utf8(data):
            texts, invalid = with_valid_utf8(texts)
            data = _lines(texts)
        cells: Cells | None = None
        if data.count(b"\n") == len(texts) and b"\r" not in data:
            batch = self._blocks.read_block(data, 0)
            # A blank text has no row, and no text has two.
            if batch is not None and batch.num_rows == len(texts):
                cells = self._structs(batch)
        cells = cells or self._read_texts(texts.to_pylist())
        return Cells(cells.values, sorted({*cells.bad, *invalid})) if invalid else cells

    def _read_texts(self, texts: list[bytes]) -> Cells:
        """Read texts one by one. Some may be blank or have more than one line."""
        rows = [row for row, text in enumerate(texts) if text.strip(BLANKS)]
        batch = self._blocks.read_lines([texts[row] for row in rows], 0)
        cells = self._structs(batch)
        if batch.num_rows < len(rows):  # with `allowComments` some of them are blank
            each = [(row, self._blocks.read_record(texts[row], 0)) for row in rows]
            rows = [row for row, record in each if record.num_rows]
            structs = [self._structs(record) for _, record in each if record.num_rows]
            values = pa.concat_arrays([pa.nulls(0, self._type), *(part.values for part in structs)])
            cells = Cells(values, [place for place, part in enumerate(structs) if part.bad])
        return cells if len(rows) == len(texts) else _scattered(cells, rows, len(texts))

    def _structs(self, batch: pa.RecordBatch) -> Cells:
        corrupt = batch.column(self._corrupt)
        columns = [batch.column(place) for place in range(len(self._fields))]
        bad = pc.indices_nonzero(corrupt.is_valid()).to_pylist() if corrupt.null_count < len(corrupt) else []
        return Cells(pa.StructArray.from_arrays(columns, fields=self._fields), bad)


def _scattered(cells: Cells, rows: Sequence[int] | npt.NDArray[np.int64], count: int) -> Cells:
    """Return a column of `count` structs with `cells` at the indexes `rows`, and null elsewhere."""
    places = np.full(count, -1)
    places[rows] = np.arange(len(rows))
    return Cells(spread(cells.values, places), [int(rows[row]) for row in cells.bad])


def _lines(texts: pa.Array) -> bytes:
    """Return the texts as lines: concatenated, each with a line end."""
    empty, end = pa.scalar(b"", pa.binary()), pa.scalar(b"\n", pa.binary())
    data = cast("pa.Array", pc.call_function("binary_join_element_wise", [texts, empty, end])).buffers()[2]
    return b"" if data is None else data.to_pybytes()


def spread(values: pa.Array, places: npt.NDArray[np.int64]) -> pa.Array:
    """Return a column with `values[i]` for each index i in `places`, and null for the index -1."""
    return values.take(pa.array(places, mask=places < 0))
