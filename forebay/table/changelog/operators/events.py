# SPDX-License-Identifier: Apache-2.0
"""The events (input changes) of a micro-batch in one shard, checked and as arrays."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import DataError
from forebay.table.changelog.shape import CHANGE_TYPE, CHANGE_TYPES, RowKind
from forebay.table.changelog.state.segments import KEY_HASH, KIND, ORDER, PREFIX, ROW_HASH, TOUCHED, Ints
from forebay.table.changelog.state.shard import Entries

# -- Compares rows exactly, as Spark's `<=>` does: NULL equals NULL, NaN equals NaN, 0.0 equals -0.0.


Bools = npt.NDArray[np.bool_]


def equal_rows(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> Bools:
    """Return for each index whether the two rows are equal in all columns. Both sides have equal types and lengths."""
    result = np.ones(len(left[0]) if left else 0, np.bool_)
    for left_column, right_column in zip(left, right, strict=True):
        result &= _equal(left_column, right_column)
    return result


def _equal(left: pa.Array, right: pa.Array) -> Bools:
    same: Bools
    if isinstance(left, pa.StructArray) and isinstance(right, pa.StructArray):
        same = _bools(left.is_null()) == _bools(right.is_null())
        return same & equal_rows(left.flatten(), right.flatten()) if left.type.num_fields else same
    if pa.types.is_nested(left.type):
        pairs = zip(row_keys([left]), row_keys([right]), strict=True)
        return np.fromiter((one == other for one, other in pairs), np.bool_, len(left))
    if pa.types.is_null(left.type):
        return np.ones(len(left), np.bool_)
    same = _bools(pc.fill_null(pc.equal(left, right), fill_value=False))
    if left.null_count and right.null_count:
        same |= _bools(left.is_null()) & _bools(right.is_null())
    if pa.types.is_floating(left.type):
        same |= _bools(pc.fill_null(pc.is_nan(left), fill_value=False)) & _bools(
            pc.fill_null(pc.is_nan(right), fill_value=False)
        )
    return same


def row_keys(columns: Sequence[pa.Array]) -> list[Hashable]:
    """Return each row as a hashable value: equal if and only if the rows are. Slow: for few rows or nested columns."""
    return [
        tuple(_key(value) for value in row) for row in zip(*(column.to_pylist() for column in columns), strict=True)
    ]


def _key(value: object) -> Hashable:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0  # -0.0 + 0.0 is 0.0
    if isinstance(value, dict):
        return tuple((name, _key(inner)) for name, inner in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(_key(inner) for inner in value)
    other: Hashable = value
    return other


def _bools(array: pa.Array) -> Bools:
    values: Bools = array.to_numpy(zero_copy_only=False)
    return values


# -- Converts the columns that order changes to integers that compare in the same way.


FIRST: Final = np.iinfo(np.int64).min
"""A rank below that of every change."""


def order_ranks(stored: Sequence[pa.Array], arriving: Sequence[pa.Array]) -> Ints:
    """Return a rank for each stored change, followed by each arriving change. NULL ranks first, NaN last.

    Args:
        stored: The ordering columns of entries.
        arriving: The same columns of events.
    """
    ranks = [_ranks(pa.concat_arrays([one, other])) for one, other in zip(stored, arriving, strict=True)]
    if len(ranks) == 1:
        return ranks[0]
    order = np.lexsort(tuple(reversed(ranks)))
    changed = np.zeros(len(order), np.bool_)
    for rank in ranks:
        changed[1:] |= rank[order][1:] != rank[order][:-1]
    combined = np.empty(len(order), np.int64)
    combined[order] = np.cumsum(changed)
    return combined


def _ranks(column: pa.Array) -> Ints:
    kind = column.type
    is_number = pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date32(kind)
    if is_number and not column.null_count:
        whole = column.cast(pa.int32()).cast(pa.int64()) if pa.types.is_date32(kind) else column.cast(pa.int64())
        numbers: Ints = whole.to_numpy()
        return numbers
    # Arrow's default puts NULL at the end. Only then does it rank NaN after all numbers, as Spark does.
    ranked: Ints = pc.rank(column, sort_keys="ascending", tiebreaker="dense").to_numpy().astype(np.int64)
    ranked[column.is_null().to_numpy(zero_copy_only=False)] = 0
    return ranked


def last_of(codes: Ints, size: int, which: Ints, *order: Ints) -> Ints:
    """Return for each code the index of the element that comes last by `order`; -1 if no element counts.

    Args:
        codes: The code (a key or a group) of each element.
        size: The number of codes.
        which: The indexes of the elements that count.
        order: Columns over all elements; the first one decides first.
    """
    newest = np.full(size, -1)
    chosen = codes[which]
    if len(which) > 1 and len(np.unique(chosen)) < len(chosen):
        arranged = np.lexsort((*(column[which] for column in reversed(order)), chosen))
        which, chosen = which[arranged], chosen[arranged]
        last = np.append(chosen[1:] != chosen[:-1], True)
        which, chosen = which[last], chosen[last]
    newest[chosen] = which
    return newest


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
        rows = pa.RecordBatch.from_arrays([pa.nulls(0, column.type) for column in payload], schema=payload)
        orders = [pa.nulls(0, kind) for kind in layout.orders]
        return Events(layout, rows, empty, empty, empty, orders, empty if layout.timed else None)
    whole = pa.concat_batches(batches)

    def ints(name: str) -> Ints:
        values: Ints = whole.column(name).to_numpy()
        return values.astype(np.int64)

    events = Events(
        layout,
        pa.RecordBatch.from_arrays([whole.column(column.name).cast(column.type) for column in payload], schema=payload),
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
        word = whole.column(f"{PREFIX}word")[place].as_py()
        raise DataError(
            f"unknown change kind {word!r} of the key {shown_key(events, place)}",
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


# -- Numbers the keys that a micro-batch touches: the events and entries of a key get the same code (0, 1, 2 …).
#
# Two keys may share a hash. The first key of a hash has ordinal 0; another key with this hash gets the next ordinal,
# which its entries keep.


KEY: Final = 65_536
"""The factor of the key's ordinal in `ORDINAL`."""


@dataclass(frozen=True)
class TouchedKeys:
    """Events and entries of the touched keys. Members are numbered: entries first, then events.

    Args:
        events: The events.
        entries: The entries of their keys, and of keys that expire.
        codes: The code of the key of each member.
        hashes: The key hash of each code.
        ordinals: The ordinal of the key of each code.
    """

    events: Events
    entries: Entries
    codes: Ints
    hashes: Ints
    ordinals: Ints

    def __len__(self) -> int:
        """The number of codes."""
        return len(self.hashes)

    def take(self, members: Ints, names: tuple[str, ...]) -> list[pa.Array]:
        """Return the payload columns `names` of some members, in the order of `members`."""
        stored = members < len(self.entries)
        if stored.all():
            return self.entries.take(members, self.events.layout.fields(names))
        arriving = [
            column.take(pa.array(members[~stored] - len(self.entries))) for column in self.events.columns(names)
        ]
        if not stored.any():
            return arriving
        stored_values = self.entries.take(members[stored], self.events.layout.fields(names))
        places = pa.array(mixed_places(stored))
        return [pa.concat_arrays([one, other]).take(places) for one, other in zip(stored_values, arriving, strict=True)]

    def orders(self, members: Ints, stored: Sequence[pa.Array], arriving: Sequence[pa.Array]) -> list[pa.Array]:
        """Return the ordering columns of some members. `stored` has those of all entries, `arriving` of all events."""
        places = pa.array(members)
        return [pa.concat_arrays([one, other]).take(places) for one, other in zip(stored, arriving, strict=True)]


def mixed_places(first: npt.NDArray[np.bool_]) -> Ints:
    """Return the new index of each element if the elements with True are moved before the others."""
    places = np.empty(len(first), np.int64)
    places[first] = np.arange(first.sum())
    places[~first] = np.arange(first.sum(), len(first))
    return places


def touched_keys(events: Events, entries: Entries) -> TouchedKeys:
    """Return events and entries with a code for each key. Keys with equal hashes are told apart by their columns."""
    stored = len(entries)
    hashes, codes = np.unique(np.concatenate([entries.key_hashes, events.key_hashes]), return_inverse=True)
    codes = codes.astype(np.int64)
    touched = TouchedKeys(events, entries, codes, hashes, np.zeros(len(hashes), np.int64))
    entry_keys = entries.ordinals // KEY
    # If all key ordinals are 0, all entries of a hash have one key, so only the first entry of each hash is compared.
    if not entry_keys.any():
        spoken = np.concatenate([_firsts(codes[:stored]), np.arange(stored, len(codes))])
        leaders = np.full(len(hashes), -1)
        leaders[codes[spoken[::-1]]] = spoken[::-1]  # the first member of each key
        others = spoken[spoken != leaders[codes[spoken]]]
        if not len(others):
            return touched
        names = events.layout.keys
        equal = equal_rows(touched.take(others, names), touched.take(leaders[codes[others]], names))
        if equal.all():
            return touched
    return _told_apart(touched, entry_keys)


def _firsts(codes: Ints) -> Ints:
    """Return the index of the first entry of each key; entries are sorted by key hash."""
    if not len(codes):
        return np.empty(0, np.int64)
    return np.flatnonzero(np.concatenate([[True], codes[1:] != codes[:-1]]))


def _told_apart(touched: TouchedKeys, entry_keys: Ints) -> TouchedKeys:
    """Give keys with equal hashes codes of their own. Rare, so key by key in Python."""
    stored = len(touched.entries)
    keys = row_keys(touched.take(np.arange(len(touched.codes)), touched.events.layout.keys))
    known: dict[tuple[int, Hashable], int] = {}
    hashes: list[int] = []
    ordinals: list[int] = []
    of_hash: dict[int, int] = {}
    codes = np.empty(len(keys), np.int64)
    # Entries first, then events by their keys: a replay with the events in another order gives the same ordinals.
    for member, key in sorted(enumerate(keys), key=lambda entry: (entry[0] >= stored, repr(entry[1]))):
        key_hash = int(touched.hashes[touched.codes[member]])
        code = known.get((key_hash, key))
        if code is None:
            ordinal = int(entry_keys[member]) if member < stored else of_hash.get(key_hash, 0)
            of_hash[key_hash] = max(of_hash.get(key_hash, 0), ordinal + 1)
            code = known[key_hash, key] = len(hashes)
            hashes.append(key_hash)
            ordinals.append(ordinal)
        codes[member] = code
    return TouchedKeys(touched.events, touched.entries, codes, np.array(hashes, np.int64), np.array(ordinals, np.int64))
