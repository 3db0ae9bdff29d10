# SPDX-License-Identifier: Apache-2.0
"""Infers a schema from CSV files: names from the header, types as Spark's `CSVInferSchema` finds them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pyarrow as pa

from forebay.formats.csv.options import CsvOptions
from forebay.formats.csv.read import CsvReading
from forebay.formats.csv.types import ColumnTypes
from forebay.storage.input_file import InputFile

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
            self._widen(columns, file, names, text)
        return pa.schema([pa.field(name, column.arrow) for name, column in zip(names, columns, strict=True)])

    def _first_record(self, file: InputFile) -> tuple[list[str | None], str] | None:
        return CsvReading(self._options, file, [], []).first_record()

    def _names(self, tokens: Sequence[str | None]) -> list[str]:
        """Names as Spark makes them: numbered where there is none, or where one comes twice in any case."""
        if not self._options.header:
            return [f"_c{index}" for index in range(len(tokens))]
        lower = [None if token is None else token.lower() for token in tokens]
        names = []
        for index, token in enumerate(tokens):
            if not token or token == self._options.null_value:
                names.append(f"_c{index}")
            elif lower.count(token.lower()) > 1:
                names.append(f"{token}{index}")
            else:
                names.append(token)
        return names

    def _widen(self, columns: list[ColumnTypes], file: InputFile, names: list[str], header: str) -> None:
        """Look at every record of a file, and at each column that is not a string already."""
        wanted = [index for index, column in enumerate(columns) if not column.settled]
        by_text = self._options.header and not self._options.multi_line
        reading = CsvReading(self._options, file, names, wanted, without=header if by_text else None)
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
