# SPDX-License-Identifier: Apache-2.0
"""Infers a schema from CSV files: names from the header, types as Spark's `CSVInferSchema` finds them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pyarrow as pa

from forebay.formats.base import InputFile
from forebay.formats.csv.header import names_of
from forebay.formats.csv.options import CsvOptions
from forebay.formats.csv.read import CsvReading
from forebay.formats.csv.types import ColumnTypes
from forebay.formats.csv.univocity.rules import within_limits

_ALL = 0.99  # Spark takes a ratio above this for all


def infer_schema(options: CsvOptions, files: Sequence[InputFile]) -> pa.Schema:
    """Return the schema that the files' records and header determine; an empty schema if no file has a record."""
    first = next(filter(None, (_first_record(options, file) for file in files)), None)
    if first is None:
        return pa.schema([])
    tokens, text = first
    names = names_of(tokens, options.null_value) if options.header else [f"_c{index}" for index in range(len(tokens))]
    if not options.infer_schema:
        return pa.schema([pa.field(name, pa.string()) for name in names])
    columns = [ColumnTypes(options) for _ in names]
    for file in files:
        with within_limits(file.path):
            _widen(columns, options, file, names, text)
    return pa.schema([pa.field(name, column.arrow) for name, column in zip(names, columns, strict=True)])


def _first_record(options: CsvOptions, file: InputFile) -> tuple[list[str | None], str] | None:
    with within_limits(file.path):
        return CsvReading(options, file, [], []).first_record()


def _widen(columns: list[ColumnTypes], options: CsvOptions, file: InputFile, names: list[str], header: str) -> None:
    """Widen each column's type until it fits all tokens of a file. Skips string columns, which fit every token."""
    wanted = [index for index, column in enumerate(columns) if not column.resolved]
    by_text = options.header and not options.multi_line
    reading = CsvReading(options, file, names, wanted, inferring=True, without=header if by_text else None)
    chance = random.Random(1)  # the same sample every time
    for tokens, _ in reading.blocks(0, None):
        if tokens is None:
            continue
        sample: pa.Array | None = None
        if options.sampling_ratio <= _ALL:
            sample = pa.array([chance.random() < options.sampling_ratio for _ in range(tokens.rows)], pa.bool_())
        for index, column in zip(wanted, tokens.columns, strict=True):
            columns[index].widen(column if sample is None else column.filter(sample))
