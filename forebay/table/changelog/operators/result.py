# SPDX-License-Identifier: Apache-2.0
"""The result of operators: changes for the output, and entries for the state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay.table.changelog.operators.events import Layout
from forebay.table.changelog.operators.touched_keys import TouchedKeys
from forebay.table.changelog.row_kind import CHANGE_TYPES, RowKind
from forebay.table.changelog.shape import CHANGE_TYPE, COMMIT_VERSION
from forebay.table.changelog.state.entries import entry_schema
from forebay.table.changelog.state.segments import Ints


@dataclass(frozen=True)
class Result:
    """The result of a micro-batch in one shard.

    Args:
        changes: The output: the payload, `_change_type` and `_commit_version`.
        entries: The entries that changed.
        clock: The greatest time seen so far in microseconds; None without a time to live.
        counts: Counters of the operator, by name, such as `expired`.
    """

    changes: pa.RecordBatch
    entries: pa.RecordBatch
    clock: int | None = None
    counts: dict[str, int] = field(default_factory=dict)


def output_schema(payload: pa.Schema) -> pa.Schema:
    """Return the schema of the changes that operators put out."""
    return pa.schema([*payload, pa.field(CHANGE_TYPE, pa.string()), pa.field(COMMIT_VERSION, pa.int64())])


def change_batch(payload: pa.Schema, columns: Sequence[pa.Array], kinds: Ints, version: int) -> pa.RecordBatch:
    """Return the record batch of changes with these payload columns and `RowKind`s. `version` is the micro-batch id."""
    words = pa.array(CHANGE_TYPES).take(pa.array(kinds))
    versions = pa.array(np.full(len(kinds), version))
    return pa.RecordBatch.from_arrays([*columns, words, versions], schema=output_schema(payload))


def changes_of_winners(
    keys: TouchedKeys, before: Ints, after: Ints, same: np.ndarray, *, version: int, preimages: bool
) -> pa.RecordBatch:
    """Return the changes from the row of each key before a micro-batch to the row after it.

    Args:
        keys: The touched keys.
        before: The member that holds the row of each key before; -1 if there is no row.
        after: The member that holds the row of each key after; -1 if there is no row.
        same: Whether both rows of each key are equal, so that nothing changed.
        version: The id of the micro-batch.
        preimages: Whether an update also gives the old row, as `update_preimage`.
    """
    inserted = np.flatnonzero((before < 0) & (after >= 0))
    deleted = np.flatnonzero((before >= 0) & (after < 0))
    updated = np.flatnonzero((before >= 0) & (after >= 0) & ~same)
    parts = [
        (inserted, after, RowKind.INSERT),
        (updated, before, RowKind.UPDATE_BEFORE),
        (updated, after, RowKind.UPDATE_AFTER),
        (deleted, before, RowKind.DELETE),
    ]
    parts = [part for part in parts if preimages or part[2] is not RowKind.UPDATE_BEFORE]
    codes = np.concatenate([which for which, _, _ in parts])
    members = np.concatenate([source[which] for which, source, _ in parts])
    kinds = np.concatenate([np.full(len(which), int(kind)) for which, _, kind in parts])
    order = np.lexsort((kinds, codes))
    layout = keys.events.layout
    columns = keys.take(members[order], tuple(layout.payload.names))
    return change_batch(layout.payload, columns, kinds[order], version)


def entry_batch(
    layout: Layout, orders: Sequence[pa.Array], columns: Sequence[pa.Array], *numbers: Ints | None
) -> pa.RecordBatch:
    """Return a record batch of entries for the state.

    Args:
        layout: The layout of the events.
        orders: The ordering columns.
        columns: The payload.
        numbers: Key hashes, row hashes, ordinals, counts, and times (None without a time to live).
    """
    schema = entry_schema(layout.payload, [order.type for order in orders], timed=layout.timed)
    fixed = [pa.array(column) for column in numbers if column is not None]
    arrays: Iterable[pa.Array] = [*fixed, *orders, *columns]
    cast = [pc.cast(array, wanted.type) for array, wanted in zip(arrays, schema, strict=True)]
    return pa.RecordBatch.from_arrays(cast, schema=schema)
