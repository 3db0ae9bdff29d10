# SPDX-License-Identifier: Apache-2.0
"""The signed multiset: right for any order of arrival (C8–C11, C15, P2).

The state counts each row of a key: an ADD counts 1, a retraction -1. A retraction that arrives before its ADD leaves a
negative count, which the ADD cancels. A row whose count is positive is live; of several live rows the last one in the
order of changes is the row of the key.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from forebay.changelog.operators.equality import equal_rows
from forebay.changelog.operators.events import Events, shown_key
from forebay.changelog.operators.expiry import Expiry
from forebay.changelog.operators.ordering import FIRST, last_of, order_ranks
from forebay.changelog.operators.result import Result, changes_of_winners, entry_batch
from forebay.changelog.operators.row_groups import RowGroups, row_groups
from forebay.changelog.operators.times import entry_times
from forebay.changelog.operators.touched_keys import TouchedKeys, touched_keys
from forebay.changelog.state.segments import Ints
from forebay.changelog.state.snapshot import Entries
from forebay.errors import DataError

_log = logging.getLogger(__name__)

UNMATCHED = "retractions_unmatched"
CONFLICTS = "conflicts"


@dataclass(frozen=True)
class Retract:
    """The operator.

    Args:
        preimages: Whether an update gives the row before it too.
        on_missing: What a retraction without its row does at the end of a micro-batch: it is held and a warning says
            so, it is an error, or it is held silently.
        on_conflict: Which of several live rows is the row of the key: the last one (`deduplicate`), the first one
            (`nothing`), or none, which is an error.
    """

    preimages: bool = False
    on_missing: Literal["warn", "error", "hold"] = "warn"
    on_conflict: Literal["deduplicate", "nothing", "error"] = "deduplicate"

    def apply(self, events: Events, entries: Entries, expiry: Expiry, version: int) -> Result:
        """Return the changes and new entries of a micro-batch.

        Args:
            events: Its events in this shard.
            entries: The entries of the keys of the events, and of keys that may expire.
            expiry: Which entries are too old.
            version: The micro-batch.

        Raises:
            DataError: A retraction has no row, or a key has several, and that is an error.
        """
        keys = touched_keys(events, entries)
        groups = row_groups(keys)
        counted = _Counted(keys, groups, expiry.expired(keys.codes[: len(entries)], entries, events), version)
        before = self._winners(counted, counted.before, counted.order_before)
        after = self._winners(counted, counted.after, counted.order_after)
        if self.on_conflict == "error":
            self._refuse_conflicts(counted)
        source_before = np.where(before >= 0, groups.entries[before], -1)
        source_after = np.where(after >= 0, counted.source[after], -1)
        same = before == after
        if events.layout.identity != tuple(events.layout.payload.names):
            both = np.flatnonzero(same & (before >= 0) & (source_before != source_after))
            names = tuple(events.layout.payload.names)
            same[both] = equal_rows(keys.take(source_before[both], names), keys.take(source_after[both], names))
        changes = changes_of_winners(keys, source_before, source_after, same, version=version, preimages=self.preimages)
        counts = {
            UNMATCHED: self._unmatched(counted),
            CONFLICTS: int((np.bincount(groups.codes[counted.after > 0], minlength=len(keys)) > 1).sum()),
            "expired": counted.expired,
        }
        return Result(changes, counted.entries(), expiry.clock(events), counts)

    def _winners(self, counted: _Counted, counts: Ints, order: Ints) -> Ints:
        """Return the group that is the row of each code, or -1."""
        live = np.flatnonzero(counts > 0)
        sign = -1 if self.on_conflict == "nothing" else 1
        groups = counted.groups
        return last_of(groups.codes, len(counted.keys), live, sign * order, groups.row_hashes, groups.ordinals)

    def _unmatched(self, counted: _Counted) -> int:
        """Count retractions that have no row after this micro-batch and had none before it."""
        missing = np.maximum(-counted.after, 0) - np.maximum(-counted.before, 0)
        places = np.flatnonzero(missing > 0)
        total = int(missing[places].sum())
        if total and self.on_missing != "hold":
            members = counted.source[places]
            place = int(members[0]) - len(counted.keys.entries)
            key = shown_key(counted.keys.events, place)
            if self.on_missing == "error":
                raise DataError(
                    f"{total} retractions have no row to retract; the first one is of the key {key}",
                    advice="if changes may arrive in any order or over several micro-batches, give "
                    'on_missing_retraction="hold"; if not, look for a source that lost rows',
                )
            _log.warning(
                "%d retractions have no row to retract yet; they are held until it arrives; the first key is %s",
                total,
                key,
            )
        return total

    def _refuse_conflicts(self, counted: _Counted) -> None:
        live = np.bincount(counted.groups.codes[counted.after > 0], minlength=len(counted.keys))
        many = np.flatnonzero(live > 1)
        if not len(many):
            return
        member = int(np.flatnonzero(counted.keys.codes[len(counted.keys.entries) :] == many[0])[0])
        raise DataError(
            f"{len(many)} keys have several rows at the end of the micro-batch; the first one is "
            f"{shown_key(counted.keys.events, member)} with {int(live[many[0]])} rows",
            advice='give on_conflict="deduplicate" to keep the last one or "nothing" to keep the first one; or '
            "choose key columns that identify a row",
        )


class _Counted:
    """Counts, orders and sources of the row groups, before and after the events."""

    def __init__(self, keys: TouchedKeys, groups: RowGroups, expired: np.ndarray, version: int) -> None:
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
        # The member whose payload and order count: the last ADD, else the entry, else a retraction.
        places = np.arange(len(events))
        adds = np.flatnonzero(events.signs > 0)
        arriving = ranks[stored:]
        last_add = last_of(of_events, size, adds, arriving, events.row_hashes)
        self.order_after = np.where(gone, FIRST, self.order_before)
        newer = (last_add >= 0) & (
            np.where(last_add >= 0, arriving[last_add] if len(arriving) else FIRST, FIRST) >= self.order_after
        )
        self.source = np.where(gone, -1, groups.entries)
        self.source[newer] = last_add[newer] + stored
        self.order_after[newer] = arriving[last_add[newer]]
        bare = np.flatnonzero(self.source < 0)
        any_event = np.full(size, -1)
        any_event[of_events[::-1]] = places[::-1]
        held = bare[any_event[bare] >= 0]
        self.source[held] = any_event[held] + stored
        self.order_after[held] = arriving[any_event[held]]
        self._gone, self._has, self._any_event, self._expired = gone, has, any_event, expired

    def entries(self) -> pa.RecordBatch:
        """Return the entries that changed."""
        keys, groups = self.keys, self.groups
        events = keys.events
        touched = self._any_event >= 0
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
