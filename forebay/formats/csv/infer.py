# SPDX-License-Identifier: Apache-2.0
"""Infers a schema from CSV files: names from the header, types as Spark's `CSVInferSchema` finds them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pyarrow as pa

from forebay.formats.csv.header import names_of
from forebay.formats.csv.limits import within_limits
from forebay.formats.csv.options import CsvOptions
from forebay.formats.csv.read import CsvReading
from forebay.formats.csv.types import ColumnTypes
from forebay.formats.input_file import InputFile

_ALL = 0.99  # Spark takes a ratio above this for all


class CsvInference:
    """One inference over some files."""

    def __init__(self, options: CsvOptions) -> None:
        self._options = options

    def schema(self, files: Sequence[InputFile]) -> pa.Schema:
        """The schema: an empty one if no file has a record."""
        first = next(filter(None, map(self._first_record, files)), None)
        if first is None:
            return pa.schema([])
        tokens, text = first
        names = self._names(tokens)
        if not self._options.infer_schema:
            return pa.schema([pa.field(name, pa.string()) for name in names])
        columns = [ColumnTypes(self._options) for _ in names]
        for file in files:
            with within_limits(file.path):
                self._widen(columns, file, names, text)
        return pa.schema([pa.field(name, column.arrow) for name, column in zip(names, columns, strict=True)])

    def _first_record(self, file: InputFile) -> tuple[list[str | None], str] | None:
        with within_limits(file.path):
            return CsvReading(self._options, file, [], []).first_record()

    def _names(self, tokens: Sequence[str | None]) -> list[str]:
        """The names of the columns, without a header those that Spark gives."""
        if not self._options.header:
            return [f"_c{index}" for index in range(len(tokens))]
        return names_of(tokens, self._options.null_value)

    def _widen(self, columns: list[ColumnTypes], file: InputFile, names: list[str], header: str) -> None:
        """Look at every record of a file, and at each column that is not a string already."""
        wanted = [index for index, column in enumerate(columns) if not column.settled]
        by_text = self._options.header and not self._options.multi_line
        reading = CsvReading(self._options, file, names, wanted, inferring=True, without=header if by_text else None)
        chance = random.Random(1)  # the same sample every time
        for tokens, _ in reading.pieces(0, None):
            if tokens is None:
                continue
            sample = self._sample(tokens.rows, chance)
            for index, column in zip(wanted, tokens.columns, strict=True):
                columns[index].see(column if sample is None else column.filter(sample))

    def _sample(self, rows: int, chance: random.Random) -> pa.Array | None:
        ratio = self._options.sampling_ratio
        if ratio > _ALL:
            return None
        return pa.array([chance.random() < ratio for _ in range(rows)], pa.bool_())
