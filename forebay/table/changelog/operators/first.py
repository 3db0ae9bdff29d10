# SPDX-License-Identifier: Apache-2.0
"""The first row of each key: deduplication of an append-only input."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forebay.errors import DataError
from forebay.table.changelog.operators.events import Events, shown_key
from forebay.table.changelog.operators.expiry import Expiry
from forebay.table.changelog.operators.ordering import last_of, order_ranks
from forebay.table.changelog.operators.result import Result, change_batch, entry_batch
from forebay.table.changelog.operators.times import entry_times
from forebay.table.changelog.operators.touched_keys import KEY, touched_keys
from forebay.table.changelog.row_kind import RowKind
from forebay.table.changelog.state.snapshot import Entries


@dataclass(frozen=True)
class First:
    """The operator of `deduplicate`: keeps the row of a key that arrives first, and drops the later rows.

    Within a micro-batch, the first row in the order of changes counts; at equal places, that with the lower row hash.
    """

    def apply(self, events: Events, entries: Entries, expiry: Expiry, version: int) -> Result:
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
        return Result(changes, batch, expiry.clock(events), {"expired": int(expired.sum())})
