# SPDX-License-Identifier: Apache-2.0
"""A signed multiset: how often each row of the touched keys was added minus how often it was retracted."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.table.changelog.operators.ordering import FIRST, last_of, order_ranks
from forebay.table.changelog.operators.result import entry_batch
from forebay.table.changelog.operators.row_groups import RowGroups
from forebay.table.changelog.operators.times import entry_times
from forebay.table.changelog.operators.touched_keys import TouchedKeys


class CountedRows:
    """The rows of the touched keys with their counts, before and after the events of a micro-batch.

    Args:
        keys: The touched keys.
        groups: The rows, each as a group of equal members (stored entries and events).
        expired: Whether each entry has expired; an expired entry counts 0.
        version: The id of the micro-batch.
        by_first: Whether a row takes its place in the order of changes from its first ADD, instead of its last one.

    Attributes:
        before: The count of each row before the micro-batch.
        after: The count of each row after it.
        order_before: The rank of each row in the order of changes before the micro-batch.
        order_after: The rank of each row after it.
        source: The member to read each row from: its last (or first) ADD, else its entry, else a retraction.
        any_event: The first event of each row; -1 if it has none.
        expired: How many rows expired.
    """

    def __init__(
        self,
        keys: TouchedKeys,
        groups: RowGroups,
        expired: npt.NDArray[np.bool_],
        version: int,
        *,
        by_first: bool = False,
    ) -> None:
        self.keys, self.groups = keys, groups
        entries, events = keys.entries, keys.events
        stored, has = len(entries), groups.entries >= 0
        of_events = groups.groups[stored:]
        size = len(groups)
        self.before = np.zeros(size, np.int64)
        self.before[has] = entries.counts[groups.entries[has]]
        gone = np.zeros(size, np.bool_)
        gone[has] = expired[groups.entries[has]]
        self.expired = int(gone.sum())
        added = np.bincount(of_events, weights=events.signs, minlength=size).astype(np.int64)
        self.after = np.where(gone, 0, self.before) + added
        self._orders = events.layout.order_columns(events.orders, len(events), version)
        self._stored_orders = entries.orders([column.type for column in self._orders])
        ranks = order_ranks(self._stored_orders, self._orders)
        self.order_before = np.full(size, FIRST)
        self.order_before[has] = ranks[:stored][groups.entries[has]]
        # The member whose payload and order count: the ADD, else the entry, else a retraction.
        places = np.arange(len(events))
        adds = np.flatnonzero(events.signs > 0)
        arriving = ranks[stored:]
        add = last_of(of_events, size, adds, ~arriving if by_first else arriving, events.row_hashes)
        self.order_after = np.where(gone, FIRST, self.order_before)
        place = np.where(add >= 0, arriving[add] if len(arriving) else FIRST, FIRST)
        better = place < self.order_after if by_first else place >= self.order_after
        newer = (add >= 0) & (better | gone | (self.before <= 0))
        self.source = np.where(gone, -1, groups.entries)
        self.source[newer] = add[newer] + stored
        self.order_after[newer] = arriving[add[newer]]
        bare = np.flatnonzero(self.source < 0)
        any_event = np.full(size, -1)
        any_event[of_events[::-1]] = places[::-1]
        held = bare[any_event[bare] >= 0]
        self.source[held] = any_event[held] + stored
        self.order_after[held] = arriving[any_event[held]]
        self._gone, self._has, self.any_event, self._expired = gone, has, any_event, expired

    def entries(self) -> pa.RecordBatch:
        """Return the entries that changed, for the state."""
        keys, groups = self.keys, self.groups
        events = keys.events
        touched = self.any_event >= 0
        moved = self.source != groups.entries
        changed = (self.after != self.before) | (moved & (self.after != 0))
        if events.layout.timed:
            changed |= touched
        changed |= self._gone
        changed &= self._has | (self.after != 0)
        which = np.flatnonzero(changed)
        source = np.where(self.source[which] >= 0, self.source[which], groups.entries[which])
        times = None
        if events.layout.timed:
            times = entry_times(keys, groups.groups, len(groups), self._expired)[which]
        return entry_batch(
            events.layout,
            keys.orders(source, self._stored_orders, self._orders),
            keys.take(source, tuple(events.layout.payload.names)),
            keys.hashes[groups.codes[which]],
            groups.row_hashes[which],
            groups.ordinal_column(keys)[which],
            self.after[which],
            times,
        )
