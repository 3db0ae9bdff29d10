# SPDX-License-Identifier: Apache-2.0
"""The events (input changes) of a micro-batch in one shard, checked and as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa

from forebay.errors import DataError
from forebay.table.changelog.row_kind import CHANGE_TYPES, RowKind
from forebay.table.changelog.shape import CHANGE_TYPE
from forebay.table.changelog.state.entries import KEY_HASH, KIND, ORDER, PREFIX, ROW_HASH, TOUCHED
from forebay.table.changelog.state.segments import Ints

_MIX: Final = tuple(np.uint64(odd) for odd in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9))


@dataclass(frozen=True)
class Layout:
    """The meaning of the columns of events; the same on the driver and in every task.

    Args:
        keys: The key columns.
        identity: The columns that identify a row within its key: all, or those of an upsert key.
        payload: The columns of a row, in the order of the output.
        orders: The types of the columns that order changes.
        by_version: Whether the micro-batch id orders changes before `orders`, because these columns are not comparable
            over splits, or there are none.
        timed: Whether events have a time (`state_ttl`).
        null_keys: Whether NULL is a value of the key, rather than an error.
    """

    keys: tuple[str, ...]
    identity: tuple[str, ...]
    payload: pa.Schema
    orders: tuple[pa.DataType, ...] = ()
    by_version: bool = True
    timed: bool = False
    null_keys: bool = False

    @property
    def order_types(self) -> list[pa.DataType]:
        """The types of the columns that order events; the first one is the micro-batch id if `by_version`."""
        return [*([pa.int64()] if self.by_version else []), *self.orders]

    def order_columns(self, orders: Sequence[pa.Array], size: int, version: int) -> list[pa.Array]:
        """Return the columns of `order_types` for `size` events. `version` is the micro-batch id."""
        first = [pa.array(np.full(size, version))] if self.by_version else []
        return [*first, *orders]

    def fields(self, names: Sequence[str]) -> list[pa.Field]:
        """Return the payload fields with these names."""
        return [self.payload.field(name) for name in names]


@dataclass(frozen=True)
class Events:
    """The events of a micro-batch in one shard.

    Args:
        layout: The meaning of the columns.
        rows: The payload of each event.
        key_hashes: A 64-bit hash of the key of each event.
        row_hashes: A 64-bit hash of the columns `layout.identity` of each event.
        kinds: The `RowKind` of each event.
        orders: The columns that order changes.
        touched: The time of each event in microseconds since 1970; None without a time to live.
    """

    layout: Layout
    rows: pa.RecordBatch
    key_hashes: Ints
    row_hashes: Ints
    kinds: Ints
    orders: list[pa.Array] = field(default_factory=list)
    touched: Ints | None = None

    def __len__(self) -> int:
        return len(self.key_hashes)

    @cached_property
    def signs(self) -> Ints:
        """1 for each event that adds its row, -1 for each event that retracts it."""
        adds = (self.kinds == RowKind.INSERT) | (self.kinds == RowKind.UPDATE_AFTER)
        return np.where(adds, 1, -1)

    @property
    def digest(self) -> int:
        """A checksum of all events, which does not depend on their order."""
        mixed = self.key_hashes.view(np.uint64) * _MIX[0] ^ self.row_hashes.view(np.uint64) * _MIX[1]
        mixed = (mixed ^ (self.kinds.astype(np.uint64) + np.uint64(1)) * _MIX[2]) * _MIX[0]
        return int(np.bitwise_xor(mixed, mixed >> np.uint64(29)).sum(dtype=np.uint64))

    def columns(self, names: Sequence[str]) -> list[pa.Array]:
        """Return the payload columns with these names."""
        return [self.rows.column(name) for name in names]


def collect(batches: Iterable[pa.RecordBatch], layout: Layout) -> Events:
    """Return the record batches of a task as `Events`, after a check.

    Raises:
        DataError: A change kind is unknown, or a key column is NULL.
    """
    batches = list(batches)
    payload = pa.schema(layout.payload)
    if not batches:
        empty = np.empty(0, np.int64)
        rows = pa.RecordBatch.from_arrays([pa.nulls(0, one.type) for one in payload], schema=payload)
        orders = [pa.nulls(0, kind) for kind in layout.orders]
        return Events(layout, rows, empty, empty, empty, orders, empty if layout.timed else None)
    whole = pa.concat_batches(batches)

    def ints(name: str) -> Ints:
        values: Ints = whole.column(name).to_numpy()
        return values.astype(np.int64)

    events = Events(
        layout,
        pa.RecordBatch.from_arrays([whole.column(one.name).cast(one.type) for one in payload], schema=payload),
        ints(KEY_HASH),
        ints(ROW_HASH),
        ints(KIND),
        [whole.column(f"{ORDER}{place}").cast(kind) for place, kind in enumerate(layout.orders)],
        ints(TOUCHED) if layout.timed else None,
    )
    _check(events, whole)
    return events


def _check(events: Events, whole: pa.RecordBatch) -> None:
    unknown = np.flatnonzero(events.kinds < 0)
    if len(unknown):
        place = int(unknown[0])
        found = whole.column(f"{PREFIX}word")[place].as_py()
        raise DataError(
            f"unknown change kind {found!r} of the key {shown_key(events, place)}",
            position=shown_position(whole, place),
            advice=f"{CHANGE_TYPE} is one of {', '.join(CHANGE_TYPES)}; convert other words first",
        )
    for name in () if events.layout.null_keys else events.layout.keys:
        column = events.rows.column(name)
        if column.null_count:
            place = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise DataError(
                f"the key column {name!r} is NULL in the row {shown_key(events, place)}",
                position=shown_position(whole, place),
                advice="filter out such rows first; materialize can also take NULL as a value of the key, with "
                'null_keys="allow"',
            )


def shown_key(events: Events, place: int) -> str:
    """Return the key of an event as text for an error. `place` is the index of the event."""
    values = (f"{name}={events.rows.column(name)[place].as_py()!r}" for name in events.layout.keys)
    return f"({', '.join(values)})"


def shown_position(whole: pa.RecordBatch, place: int) -> str | None:
    """Return `_split` and `_pos` of an event as text for an error; None if the input has neither."""
    names = [name for name in whole.schema.names if name.startswith(f"{PREFIX}at")]
    values = [str(whole.column(name)[place].as_py()) for name in names]
    return " ".join(values) or None
