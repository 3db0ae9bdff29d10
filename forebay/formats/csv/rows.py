# SPDX-License-Identifier: Apache-2.0
"""Converts CSV tokens to record batches, and handles malformed records as the option `mode` says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa

from forebay.errors import ConfigurationError, DataError
from forebay.formats.base import batch_of
from forebay.formats.csv.options import CsvOptions
from forebay.formats.csv.splitting.splitter import Tokens
from forebay.formats.csv.values import converter
from forebay.formats.records.encodings import decoded
from forebay.formats.records.record_blocks import Block

_SHOWN_CHARS = 200


class RowMaker:
    """Converts the tokens of one read to record batches.

    `columns` are the names of the selected columns; None selects all.

    Raises:
        ConfigurationError: The format does not support the schema or the selected columns.
    """

    def __init__(
        self, options: CsvOptions, schema: pa.Schema, columns: Sequence[str] | None, path: str, *, position: int = 0
    ) -> None:
        self._mode = options.mode
        self._path = path
        self._position = position
        self._rows = 0
        corrupt = options.column_name_of_corrupt_record
        _refuse_twice(schema.names)
        names = dict.fromkeys(schema.names)
        wanted = list(names if columns is None else columns)
        missing = [name for name in wanted if name not in names]
        if missing:
            raise ConfigurationError(
                f"{missing[0]!r} in the option `columns` is not a column of the schema",
                option="columns",
                advice=f"select only columns of the schema: {', '.join(map(repr, names))}",
            )
        self.schema = pa.schema([schema.field(name) for name in wanted])
        self.names = [name for name in names if name != corrupt]
        """The names of the data columns: all columns of the schema but the one for corrupt records."""
        places = {name: place for place, name in enumerate(self.names)}
        self.wanted = [places[name] for name in wanted if name != corrupt]
        """The indexes in `names` of the selected columns."""
        self._corrupt_at = wanted.index(corrupt) if corrupt in wanted else None
        if corrupt in names and schema.field(corrupt).type not in (pa.string(), pa.large_string()):
            raise ConfigurationError(
                f"the column {corrupt!r} for corrupt records must be a string, not {schema.field(corrupt).type}",
                option="columnNameOfCorruptRecord",
                advice="declare the column as string in the schema, or set columnNameOfCorruptRecord to another name",
            )
        self._converters = [converter(schema.field(name), options) for name in wanted if name != corrupt]

    def batch(self, tokens: Tokens, block: Block) -> pa.RecordBatch:
        """Return the record batch for the tokens of a block.

        Raises:
            DataError: A record is malformed and the mode is FAILFAST.
        """
        arrays: list[pa.Array] = []
        bad: set[int] = set(tokens.malformed)
        malformed: list[tuple[int, str]] = []
        for convert, column in zip(self._converters, tokens.columns, strict=True):
            values, wrong = convert(column)
            arrays.append(values)
            bad.update(wrong)
            if wrong and self._mode == "FAILFAST":
                malformed.append((min(wrong), self.names[self.wanted[len(arrays) - 1]]))
        if bad and self._mode == "FAILFAST":
            raise self._malformed(tokens, block, min(bad), malformed)
        self._rows += tokens.rows
        if self._corrupt_at is not None:
            arrays.insert(self._corrupt_at, self._corrupt(tokens, bad))
        batch = batch_of(arrays, self.schema, tokens.rows)
        if bad and self._mode == "DROPMALFORMED":
            kept = [row not in bad for row in range(tokens.rows)]
            batch = batch.filter(pa.array(kept, pa.bool_()))
        return batch

    def oversized(self, block: Block) -> pa.RecordBatch:
        """Return the record batch for a record longer than `maxRecordBytes`; `block` holds only the record's start.

        Raises:
            DataError: The mode is FAILFAST.
        """
        text = decoded(block.data)
        if self._mode == "FAILFAST":
            raise self._failure(text, block, 0, " is longer than maxRecordBytes")
        self._rows += 1
        rows = 0 if self._mode == "DROPMALFORMED" else 1
        arrays = [
            pa.array([text] * rows, field.type) if at == self._corrupt_at else pa.nulls(rows, field.type)
            for at, field in enumerate(self.schema)
        ]
        return batch_of(arrays, self.schema, rows)

    def _corrupt(self, tokens: Tokens, bad: set[int]) -> pa.Array:
        texts: list[str | None] = [None] * tokens.rows
        if bad:
            raw = tokens.raw()
            for row in bad:
                texts[row] = raw[row]
        return pa.array(texts, self.schema.field(self._corrupt_at or 0).type)

    def _malformed(self, tokens: Tokens, block: Block, row: int, malformed: Sequence[tuple[int, str]]) -> DataError:
        """Return the DataError for the malformed record at index `row` of the block.

        It names the columns whose values are malformed. `malformed` has, for each such column, the first row with a
        malformed value and the column's name.
        """
        columns = [name for first, name in malformed if first == row]
        if columns:
            kinds = ", ".join(f"{name!r} ({self.schema.field(name).type})" for name in columns)
            why = f" does not fit the schema in the column{'' if len(columns) == 1 else 's'} {kinds}"
        else:
            why = f" does not fit the schema: it does not have {len(self.names)} values"
        return self._failure(tokens.raw()[row], block, row, why)

    def _failure(self, text: str, block: Block, row: int, why: str) -> DataError:
        shown = text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"
        # The records before the start of a slice or of a resumed read are not counted.
        after = f" after byte {self._position}" if self._position else ""
        return DataError(
            f"a record of {self._path}{why}: {shown}",
            source=self._path,
            position=f"record {self._rows + row + 1}{after}, between bytes {block.offset(0)} and {block.end}",
            option="mode",
            advice="correct the file or the schema, or set mode to PERMISSIVE or DROPMALFORMED",
        )


def _refuse_twice(names: Sequence[str]) -> None:
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise ConfigurationError(
            f"the schema has the column {twice[0]!r} twice",
            advice="give the columns different names in the schema; the names in the file do not matter",
        )
