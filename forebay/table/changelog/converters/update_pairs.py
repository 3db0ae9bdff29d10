# SPDX-License-Identifier: Apache-2.0
"""Finds the two rows of an update in consecutive record batches of a changelog."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import ConfigurationError
from forebay.table.changelog.converters.change_events import refuse_event
from forebay.table.changelog.converters.json_writer import payload_names
from forebay.table.changelog.operators.equality import equal_rows
from forebay.table.changelog.row_kind import CHANGE_TYPES, RowKind
from forebay.table.changelog.shape import CHANGE_TYPE, COMMIT_TIMESTAMP, POSITION, SPLIT, TRANSACTION

_WORDS: Final = pa.array(CHANGE_TYPES, pa.string())


@dataclass(frozen=True, slots=True)
class PairedRows:
    """Rows of a changelog, with a mark on the two rows of each update.

    Args:
        batch: The rows.
        kinds: The `RowKind` of each row.
        pairs: Whether a row is one of the two rows of an update: an `update_preimage` directly before the
            `update_postimage` of the same key and position.
    """

    batch: pa.RecordBatch
    kinds: npt.NDArray[np.int8]
    pairs: npt.NDArray[np.bool_]

    def filter(self, kept: npt.NDArray[np.bool_]) -> PairedRows:
        """Return the rows where `kept` is True."""
        return PairedRows(self.batch.filter(pa.array(kept)), self.kinds[kept], self.pairs[kept])

    def columns(self, names: Sequence[str]) -> dict[str, pa.Array]:
        """Return the columns `names`, by name."""
        return {name: self.batch.column(name) for name in names}

    def payload(self) -> dict[str, pa.Array]:
        """Return the payload columns, by name."""
        return self.columns(payload_names(self.batch.schema))

    def commit_micros(self) -> list[Any]:
        """Return `_commit_timestamp` in microseconds since 1970, or None, for each row."""
        return self._optional(COMMIT_TIMESTAMP, pa.int64())

    def transactions(self) -> list[Any]:
        """Return `_transaction`, or None, for each row."""
        return self._optional(TRANSACTION, pa.string())

    def _optional(self, name: str, kind: pa.DataType) -> list[Any]:
        there = name in self.batch.schema.names
        return self.batch.column(name).cast(kind).to_pylist() if there else [None] * self.batch.num_rows


def paired(batches: Iterable[pa.RecordBatch], key: Sequence[str]) -> Iterator[PairedRows]:
    """Yield the rows of consecutive record batches. Both rows of an update are in the same `PairedRows`.

    Args:
        batches: The record batches.
        key: The columns that are equal in both rows of an update; if empty, adjacent rows count as one update.

    Raises:
        DataError: A kind is unknown or NULL.
    """
    held: pa.RecordBatch | None = None
    for one in batches:
        batch = one if held is None else pa.concat_batches([held, one])
        kinds = _kinds(batch)
        held = None
        if batch.num_rows and kinds[-1] == RowKind.UPDATE_BEFORE:
            held, batch, kinds = batch.slice(batch.num_rows - 1), batch.slice(0, batch.num_rows - 1), kinds[:-1]
        if batch.num_rows:
            yield PairedRows(batch, kinds, _pairs(batch, kinds, key))
    if held is not None:
        yield PairedRows(held, _kinds(held), np.zeros(1, np.bool_))


def rows_have(schema: pa.Schema, key: Sequence[str]) -> None:
    """Check that a changelog has `_change_type` and all columns of the key.

    Raises:
        ConfigurationError: A column is missing.
    """
    missing = next((name for name in (*key, CHANGE_TYPE) if name not in schema.names), None)
    if missing is not None:
        raise ConfigurationError(
            f"the changelog has no column {missing!r}",
            option="key",
            advice=f"give a changelog and key columns of it; the columns are {', '.join(schema.names)}",
        )


def _kinds(batch: pa.RecordBatch) -> npt.NDArray[np.int8]:
    words = batch.column(CHANGE_TYPE)
    codes = pc.index_in(words, _WORDS)
    if codes.null_count:
        row = codes.is_null().to_pylist().index(True)
        raise refuse_event(
            batch,
            row,
            f"unknown change kind {words[row].as_py()!r}",
            f"a kind is one of {', '.join(CHANGE_TYPES)}; filter out malformed events, whose kind is NULL, first",
        )
    return cast("npt.NDArray[np.int8]", codes.to_numpy().astype(np.int8))


def _pairs(batch: pa.RecordBatch, kinds: npt.NDArray[np.int8], key: Sequence[str]) -> npt.NDArray[np.bool_]:
    second = np.zeros(len(kinds), np.bool_)
    second[1:] = (kinds[:-1] == RowKind.UPDATE_BEFORE) & (kinds[1:] == RowKind.UPDATE_AFTER)
    for name in (*key, SPLIT, POSITION):
        if name in batch.schema.names:
            second[1:] &= _equal_to_next(batch.column(name))
    first = np.append(second[1:], False)
    return first | second


def _equal_to_next(column: pa.Array) -> npt.NDArray[np.bool_]:
    return equal_rows([column.slice(0, len(column) - 1)], [column.slice(1)])
