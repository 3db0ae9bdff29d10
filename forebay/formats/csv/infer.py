# SPDX-License-Identifier: Apache-2.0
"""Infers a schema from CSV files: names from the header, types as Spark's `CSVInferSchema` finds them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.formats.base import InputFile
from forebay.formats.csv.header import names_of
from forebay.formats.csv.options import CsvOptions
from forebay.formats.csv.read import CsvReading
from forebay.formats.csv.types import ColumnTypes
from forebay.formats.csv.univocity.rules import within_limits

_ALL = 0.99  # above this sampling ratio, Spark uses all records


def infer_schema(options: CsvOptions, files: Sequence[InputFile]) -> pa.Schema:
    """Infer the schema: names from the first file with a record, types from all files; empty if there is no record."""
    first = next(filter(None, (_first_record(options, file) for file in files)), None)
    if first is None:
        return pa.schema([])
    tokens, text = first
    return _typed(options, _names(options, tokens), [(file, text) for file in files])


def merged_schema(options: CsvOptions, files: Sequence[InputFile]) -> pa.Schema:
    """Infer the schema: names from the longest header, types from all files; empty if no file has a record.

    Raises:
        ConfigurationError: A header is not the beginning of the longest one, `mode` is not PERMISSIVE, or
            `enforceSchema` is false.
    """
    if options.mode != "PERMISSIVE" or not options.enforce_schema:
        raise ConfigurationError(
            "to infer one schema from CSV files that may differ in the number of columns, forebay needs "
            "mode=PERMISSIVE and enforceSchema=true",
            option="enforceSchema" if options.mode == "PERMISSIVE" else "mode",
            advice="leave out either mode and enforceSchema, or schemaEvolution",
        )
    found = [(file, first) for file in files if (first := _first_record(options, file)) is not None]
    headers = [(_names(options, tokens), file.path) for file, (tokens, _) in found]
    names, longest = max(headers, key=lambda one: len(one[0]), default=([], ""))
    for header, path in headers:
        if [name.lower() for name in header] != [name.lower() for name in names[: len(header)]]:
            raise ConfigurationError(
                f"{path} has the columns {', '.join(header)}, and {longest} has {', '.join(names)}: columns of CSV "
                "files match by position, so new ones must come last",
                option="header",
                advice="exclude one kind of files with pathGlobFilter, or give a schema and leave schemaEvolution out",
            )
    return _typed(options, names, [(file, text) for file, (_, text) in found])


def _names(options: CsvOptions, tokens: list[str | None]) -> list[str]:
    return names_of(tokens, options.null_value) if options.header else [f"_c{index}" for index in range(len(tokens))]


def _typed(options: CsvOptions, names: list[str], files: Sequence[tuple[InputFile, str]]) -> pa.Schema:
    """Return a schema whose types fit all records. `files` are pairs of a file and the text of its first record."""
    if not options.infer_schema:
        return pa.schema([pa.field(name, pa.string()) for name in names])
    columns = [ColumnTypes(options) for _ in names]
    for file, text in files:
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
