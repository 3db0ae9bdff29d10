# SPDX-License-Identifier: Apache-2.0
"""Reads the keyed states of datasources: the rows of some keys, and all rows by ranges of key hashes."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from forebay.state.state_store import StateStore
from forebay.table.changelog.state.facts import SegmentInfo
from forebay.table.changelog.state.segments import COUNT, FIXED, KIND, ORDER, PREFIX, Ints, StoredSegments
from forebay.table.changelog.state.shard import Entries, MergeInput, entries_between, lookup, newest_entries
from forebay.table.index.log import Run

KEY: Final = "k_"
"""Prefix of the key columns of an entry; the names are those of the object type's keys."""

VALUE: Final = "v_"
"""Prefix of the other columns; the names are those of the datasource."""

SEQUENCE: Final = f"{ORDER}0"
"""The column with the sequence of the change that wrote the entry."""

LANE: Final = f"{ORDER}1"
"""The log in which the sequence counts; NULL fits every log."""

UNCHANGED: Final = -1
"""The kind of an entry that only keeps a newer sequence."""


def entry_fields(payload: pa.Schema, sequence: pa.DataType | None) -> pa.Schema:
    """Return the schema of the entries of a state."""
    return pa.schema([*FIXED, *order_fields(sequence), *payload])


def order_fields(sequence: pa.DataType | None) -> list[pa.Field]:
    """Return the columns that order the changes of a key: the sequence, and the log in which it counts."""
    return [] if sequence is None else [pa.field(SEQUENCE, sequence), pa.field(LANE, pa.string())]


def change_fields(payload: pa.Schema, sequence: pa.DataType | None) -> pa.Schema:
    """Return the schema of changes: entries with their kind."""
    return pa.schema([*entry_fields(payload, sequence), pa.field(KIND, pa.int8(), nullable=False)])


def schema_text(schema: pa.Schema) -> str:
    """Return a schema as text, for the log."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def schema_of(text: str) -> pa.Schema:
    """Return the schema of `schema_text`."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def payload_of(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a row: the fields of an entry without the state's own."""
    return pa.schema([field for field in schema if not field.name.startswith(PREFIX)])


class StateReader:
    """Reads runs of keyed state.

    A process that first reads a segment whole compares it with its digest, so that damage until then is not written
    again under a new digest. To look up some keys reads few bytes, so it would cost more than a small transaction.

    Args:
        store: The store.
    """

    def __init__(self, store: StateStore) -> None:
        self.files = StoredSegments(store)
        self._unchecked = StoredSegments(store, verified=False)

    def parts(self, runs: Sequence[Run]) -> list[list[MergeInput]]:
        """Return runs to merge, newest first. A segment is opened only while its range is read."""
        opened = self.files.open
        return [[MergeInput(each.first, each.last, partial(opened, each)) for each in run] for run in reversed(runs)]

    def lookup(self, runs: Sequence[Run], hashes: Ints) -> Entries:
        """Return the entries of keys with these hashes; only segments that may have one are opened.

        Args:
            runs: The runs of a shard, oldest first.
            hashes: Key hashes, sorted, without duplicates.
        """
        opened = [[self._unchecked.open(each) for each in run if _hits(each, hashes)] for run in runs]
        return lookup(opened, hashes, timed=False)

    def live(self, runs: Sequence[Run], hashes: Ints, schema: pa.Schema) -> pa.RecordBatch:
        """Return the rows of keys with these hashes, with the columns of `schema`."""
        entries = self.lookup(runs, hashes)
        which = np.flatnonzero(entries.counts > 0)
        return entry_rows(entries, which, schema)

    def live_between(self, runs: Sequence[Run], low: int | None, high: int | None, schema: pa.Schema) -> pa.RecordBatch:
        """Return the rows with key hashes in a range, with the columns of `schema`, in the order of key hashes."""
        entries = newest_entries(entries_between(self.parts(runs), low, high, schema), keep_tombstones=False)
        return entries.filter(pa.array(entries.column(COUNT).to_numpy() > 0))


def entry_rows(entries: Entries, which: Ints, schema: pa.Schema) -> pa.RecordBatch:
    """Return entries as rows with the columns of `schema`."""
    own = (entries.key_hashes, entries.row_hashes, entries.ordinals, entries.counts)
    fixed = {field.name: pa.array(values[which], field.type) for field, values in zip(FIXED, own, strict=True)}
    others = [field for field in schema if field.name not in fixed]
    taken = dict(zip((field.name for field in others), entries.take(which, others), strict=True))
    return pa.RecordBatch.from_arrays([(fixed | taken)[field.name] for field in schema], schema=schema)


def _hits(segment: SegmentInfo, hashes: Ints) -> bool:
    """Return whether a key hash is within the range of a segment."""
    return bool(np.searchsorted(hashes, segment.first, "left") < np.searchsorted(hashes, segment.last, "right"))
