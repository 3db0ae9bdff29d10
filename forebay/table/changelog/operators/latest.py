# SPDX-License-Identifier: Apache-2.0
"""The last change of each key in an order of changes (strategies `position` and `sequence`, C16, K7, F5).

The state keeps the last change of each key: its row with count 1, or with count -1 if it retracted the row, so that an
older change that arrives later does not bring the row back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.errors import DataError
from forebay.table.changelog.operators.events import (
    FIRST,
    KEY,
    Events,
    TouchedKeys,
    equal_rows,
    last_of,
    order_ranks,
    shown_key,
    touched_keys,
)
from forebay.table.changelog.operators.micro_batch import (
    Expiry,
    OperatorResult,
    change_batch,
    changes_of_winners,
    entry_batch,
    entry_times,
)
from forebay.table.changelog.shape import RowKind
from forebay.table.changelog.state.segments import Ints
from forebay.table.changelog.state.shard import Entries

# -- The first row of each key: deduplication of an append-only input.


@dataclass(frozen=True)
class First:
    """The operator of `deduplicate`: keeps the row of a key that arrives first, and drops the later rows.

    Within a micro-batch, the first row in the order of changes counts; at equal places, that with the lower row hash.
    """

    def apply(self, events: Events, entries: Entries, expiry: Expiry, version: int) -> OperatorResult:
        """Return the first rows of new keys as changes, and the new entries; see `Retract.apply`.

        Raises:
            DataError: The input retracts a row (C14).
        """
        retracted = np.flatnonzero(events.signs < 0)
        if len(retracted):
            raise DataError(
                "deduplicate takes rows that are only added, but a row of the key "
                f"{shown_key(events, int(retracted[0]))} is retracted",
                advice="use latest_per_key or materialize for input with updates and deletes",
            )
        keys = touched_keys(events, entries)
        stored, size = len(entries), len(keys)
        orders = events.layout.order_columns(events.orders, len(events), version)
        ranks = order_ranks(entries.orders([column.type for column in orders]), orders)[stored:]
        expired = expiry.expired(keys.codes, entries, events)
        first = last_of(keys.codes[stored:], size, np.arange(len(events)), ~ranks, ~events.row_hashes)
        known = np.zeros(size, np.bool_)
        known[keys.codes[:stored][~expired]] = True
        gone = np.zeros(size, np.bool_)
        gone[keys.codes[:stored][expired]] = True
        new = np.flatnonzero((first >= 0) & ~known)
        names = tuple(events.layout.payload.names)
        kinds = np.full(len(new), int(RowKind.INSERT))
        changes = change_batch(events.layout.payload, keys.take(first[new] + stored, names), kinds, version)

        changed = gone | (first >= 0) if events.layout.timed else (first >= 0) & ~known
        which = np.flatnonzero(changed)
        entry_of = np.full(size, -1)
        entry_of[keys.codes[:stored]] = np.arange(stored)
        source = np.where(known[which] | (first[which] < 0), entry_of[which], first[which] + stored)
        batch = entry_batch(
            events.layout,
            keys.orders(source, entries.orders([column.type for column in orders]), orders),
            keys.take(source, names),
            keys.hashes[which],
            np.zeros(len(which), np.int64),
            keys.ordinals[which] * KEY,
            np.where(known[which] | (first[which] >= 0), 1, 0),
            entry_times(keys, keys.codes, size, expired)[which] if events.layout.timed else None,
        )
        return OperatorResult(changes, batch, expiry.clock(events), {"expired": int(expired.sum())})


@dataclass(frozen=True)
class Latest:
    """The operator of `latest_per_key`, and of `materialize` with the strategies `position` and `sequence`.

    Args:
        preimages: Whether an update also gives the old row, as `update_preimage`.
        lanes: Whether the first column of the order is a lane, such as the split: places in two lanes have no order.
            NULL fits every lane.
    """

    preimages: bool = False
    lanes: bool = False

    def apply(self, events: Events, entries: Entries, expiry: Expiry, version: int) -> OperatorResult:
        """Return the changes and new entries of a micro-batch; see `Retract.apply`.

        Raises:
            DataError: Two different rows of a key have the same place in the order (K8), or its changes come from two
                lanes.
        """
        keys = touched_keys(events, entries)
        stored, size = len(entries), len(keys)
        of_entries, of_events = keys.codes[:stored], keys.codes[stored:]
        orders = events.layout.order_columns(events.orders, len(events), version)
        stored_orders = entries.orders([column.type for column in orders])
        first = 1 if self.lanes else 0
        ranks = order_ranks(stored_orders[first:], orders[first:])
        adds = np.concatenate([entries.counts > 0, events.signs > 0]).astype(np.int64)
        expired = expiry.expired(keys.codes, entries, events)
        members = np.concatenate([np.flatnonzero(~expired), np.arange(stored, stored + len(events))])
        if self.lanes:
            _refuse_lanes(keys, members, stored_orders[0], orders[0])
        hashes = np.concatenate([entries.row_hashes, events.row_hashes])
        last = last_of(keys.codes, size, members, ranks, adds, hashes, -np.arange(len(keys.codes)))
        _refuse_ties(keys, members, last, ranks, adds)
        if events.layout.by_version and not events.layout.orders:
            _refuse_unordered_deletes(keys, last)

        entry_of = np.full(size, -1)
        entry_of[of_entries] = np.arange(stored)
        before = np.where((entry_of >= 0) & _at(entries.counts, entry_of, 1), entry_of, -1)
        after = np.where((last >= 0) & _at(adds, last, 1), last, -1)
        same = before == after
        in_both = np.flatnonzero((before >= 0) & (after >= 0) & ~same)
        names = tuple(events.layout.payload.names)
        same[in_both] = equal_rows(keys.take(before[in_both], names), keys.take(after[in_both], names))
        changes = changes_of_winners(keys, before, after, same, version=version, preimages=self.preimages)

        gone = np.zeros(size, np.bool_)
        gone[of_entries[expired]] = True
        touched = np.zeros(size, np.bool_)
        touched[of_events] = True
        changed = gone | (last >= stored) | (touched if events.layout.timed else False)
        which = np.flatnonzero(changed & ((last >= 0) | (entry_of >= 0)))
        source = np.where(last[which] >= 0, last[which], entry_of[which])
        counts = np.where(last[which] < 0, 0, np.where(adds[source] > 0, 1, -1))
        batch = entry_batch(
            events.layout,
            keys.orders(source, stored_orders, orders),
            keys.take(source, names),
            keys.hashes[which],
            np.zeros(len(which), np.int64),
            keys.ordinals[which] * KEY,
            counts,
            entry_times(keys, keys.codes, size, expired)[which] if events.layout.timed else None,
        )
        return OperatorResult(changes, batch, expiry.clock(events), {"expired": int(expired.sum())})


def _at(values: Ints, places: Ints, value: int) -> npt.NDArray[np.bool_]:
    """Return for each place whether `values` has `value` there; False for the place -1."""
    equal: npt.NDArray[np.bool_] = np.append(values, 0)[places] == value
    return equal


def _refuse_unordered_deletes(keys: TouchedKeys, last: Ints) -> None:
    """Raise a DataError if a key is deleted and gets a row in one micro-batch, and no column says which comes last.

    The delete of the row that the key had before comes first, if it differs from the new one.
    """
    events, stored = keys.events, len(keys.entries)
    deletes = np.flatnonzero(events.kinds == RowKind.DELETE) + stored
    winners = last[keys.codes[deletes]]
    deletes, winners = deletes[winners >= stored], winners[winners >= stored]
    deletes, winners = deletes[deletes != winners], winners[deletes != winners]
    if not len(deletes):
        return
    names = tuple(events.layout.payload.names)
    before = np.full(len(keys), -1)
    before[keys.codes[:stored]] = np.where(keys.entries.counts > 0, np.arange(stored), -1)
    old = before[keys.codes[deletes]]
    first = np.zeros(len(deletes), np.bool_)
    known = np.flatnonzero(old >= 0)
    first[known] = equal_rows(keys.take(deletes[known], names), keys.take(old[known], names))
    first &= ~equal_rows(keys.take(deletes, names), keys.take(winners, names))
    if first.all():
        return
    place = int(deletes[~first][0]) - stored
    raise DataError(
        f"the key {shown_key(events, place)} is deleted and gets a row in one micro-batch, and no column says which "
        "change is the last one",
        advice="give sequence_by columns that order all changes of a key, or keep `_split` and `_pos` of the source",
    )


def _refuse_lanes(keys: TouchedKeys, members: Ints, stored: pa.Array, arriving: pa.Array) -> None:
    """Raise a DataError if the changes of a key come from two lanes."""
    lanes = pa.concat_arrays([stored, arriving])
    ranks = order_ranks([stored], [arriving])
    low, high = np.full(len(keys), np.iinfo(np.int64).max), np.full(len(keys), FIRST)
    known = members[np.asarray(lanes.is_valid())[members]]
    np.minimum.at(low, keys.codes[known], ranks[known])
    np.maximum.at(high, keys.codes[known], ranks[known])
    several = np.flatnonzero(low < high)
    if not len(several):
        return
    places = np.flatnonzero(keys.codes == several[0])
    named = lanes.take(pa.array(places)).drop_null().unique().to_pylist()
    place = int(np.flatnonzero(keys.codes[len(keys.entries) :] == several[0])[0])
    raise DataError(
        f"the changes of the key {shown_key(keys.events, place)} come from {' and '.join(map(str, named))}, which have "
        "no order between them",
        advice="give sequence_by columns that order all changes of a key, over all splits and logs; or, if each change "
        "comes exactly once with whole old rows, strategy='retract'; both with a new state location",
    )


def _refuse_ties(keys: TouchedKeys, members: Ints, last: Ints, ranks: Ints, adds: Ints) -> None:
    """Raise a DataError if two different rows of a key have the same place in the order, and both are the last one."""
    winner = last[keys.codes[members]]
    tied = members[(members != winner) & (ranks[members] == ranks[winner]) & (adds[members] & adds[winner] == 1)]
    if not len(tied):
        return
    names = tuple(keys.events.layout.payload.names)
    equal = equal_rows(keys.take(tied, names), keys.take(last[keys.codes[tied]], names))
    if equal.all():
        return
    code = keys.codes[tied[~equal][0]]
    place = int(np.flatnonzero(keys.codes[len(keys.entries) :] == code)[0])
    raise DataError(
        f"two different rows of the key {shown_key(keys.events, place)} have the same place in the order of changes",
        advice="give sequence_by columns that order all changes of a key, such as a log position; or `_pos` of a "
        "Kafka source (rowPositions=true), if all changes of a key come from one split",
    )
