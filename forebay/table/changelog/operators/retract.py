# SPDX-License-Identifier: Apache-2.0
"""The signed multiset: correct for any order of arrival (C8–C11, C15, P2).

The state counts each row of a key: an ADD counts 1, a retraction -1. A retraction that arrives before its ADD leaves a
negative count, which the ADD cancels. A row whose count is positive is live; of several live rows the last one in the
order of changes is the row of the key.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Literal

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
    row_keys,
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

# -- Groups of equal rows of a key: the entry that is stored, if any, and the events that add or retract the row.


@dataclass(frozen=True)
class EqualRows:
    """Groups of members (entries and events, see `TouchedKeys`) that are the same row of a key.

    Args:
        groups: The group of each member.
        codes: The code of the key of each group.
        row_hashes: The row hash of each group.
        ordinals: The ordinal of the row of each group.
        entries: The stored entry of each group; -1 if there is none.
    """

    groups: Ints
    codes: Ints
    row_hashes: Ints
    ordinals: Ints
    entries: Ints

    def __len__(self) -> int:
        """The number of groups."""
        return len(self.codes)

    def ordinal_column(self, keys: TouchedKeys) -> Ints:
        """Return the column `ORDINAL` of the entries of the groups."""
        return keys.ordinals[self.codes] * KEY + self.ordinals


def row_groups(keys: TouchedKeys) -> EqualRows:
    """Group members by key and identity. Rows with equal hashes are compared column by column."""
    stored = len(keys.entries)
    hashes = np.concatenate([keys.entries.row_hashes, keys.events.row_hashes])
    order = np.lexsort((hashes, keys.codes))  # stable: an entry comes before its events
    codes, arranged = keys.codes[order], hashes[order]
    starts = np.ones(len(order), np.bool_)
    if len(order):
        starts[1:] = (codes[1:] != codes[:-1]) | (arranged[1:] != arranged[:-1])
    numbers = np.cumsum(starts) - 1
    groups = np.empty(len(order), np.int64)
    groups[order] = numbers
    leaders = order[starts]
    followers = order[~starts]
    names = keys.events.layout.identity
    bad = np.empty(0, np.int64)
    if len(followers):
        led = leaders[groups[followers]]
        equal = equal_rows(keys.take(followers, names), keys.take(led, names))
        bad = np.unique(groups[followers[~equal]])
    entries = np.full(len(leaders), -1)
    entries[groups[:stored]] = np.arange(stored)
    ordinals = np.zeros(len(leaders), np.int64)
    has = entries >= 0
    ordinals[has] = keys.entries.ordinals[entries[has]] % KEY
    grouped = EqualRows(groups, keys.codes[leaders], hashes[leaders], ordinals, entries)
    return _told_apart(keys, grouped, bad) if len(bad) else grouped


def _told_apart(keys: TouchedKeys, grouped: EqualRows, bad: Ints) -> EqualRows:
    """Divide groups whose rows have equal hashes but differ. Rare, so row by row in Python."""
    stored = len(keys.entries)
    members = np.flatnonzero(np.isin(grouped.groups, bad))  # entries first
    rows = row_keys(keys.take(members, keys.events.layout.identity))
    groups, codes, hashes = grouped.groups.copy(), grouped.codes.tolist(), grouped.row_hashes.tolist()
    ordinals, entries = grouped.ordinals.tolist(), grouped.entries.tolist()
    known: dict[tuple[int, Hashable], int] = {}
    taken: dict[int, set[int]] = {}
    # Entries first, then events by their rows: a replay with the events in another order gives the same ordinals.
    by_row = sorted(zip(members.tolist(), rows, strict=True), key=lambda entry: (entry[0] >= stored, repr(entry[1])))
    for member, row in by_row:
        shared = int(grouped.groups[member])
        group = known.get((shared, row))
        if group is None:
            used = taken.setdefault(shared, set())
            if not used:
                group = shared
            else:
                group = len(codes)
                codes.append(codes[shared])
                hashes.append(hashes[shared])
                ordinals.append(0)
                entries.append(-1)
            ordinal = int(keys.entries.ordinals[member] % KEY) if member < stored else _free(used)
            used.add(ordinal)
            ordinals[group] = ordinal
            entries[group] = member if member < stored else -1
            known[shared, row] = group
        groups[member] = group
    return EqualRows(groups, *(np.array(column, np.int64) for column in (codes, hashes, ordinals, entries)))


def _free(used: set[int]) -> int:
    return next(ordinal for ordinal in range(KEY) if ordinal not in used)


# -- A signed multiset: how often each row of the touched keys was added minus how often it was retracted.


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
        groups: EqualRows,
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


_log = logging.getLogger(__name__)

UNMATCHED = "retractions_unmatched"
CONFLICTS = "conflicts"


@dataclass(frozen=True)
class Retract:
    """The operator of `materialize` with the strategies `retract` and `barrier`.

    Args:
        preimages: Whether an update also gives the old row, as `update_preimage`.
        on_missing: For a retraction that has no row at the end of a micro-batch: `warn` holds it and logs a warning,
            `error` fails, `hold` holds it silently.
        on_conflict: For a key with several live rows: `deduplicate` takes the last one, `nothing` the first one,
            `error` fails.
    """

    preimages: bool = False
    on_missing: Literal["warn", "error", "hold"] = "warn"
    on_conflict: Literal["deduplicate", "nothing", "error"] = "deduplicate"

    def apply(self, events: Events, entries: Entries, expiry: Expiry, version: int) -> OperatorResult:
        """Return the changes and new entries of a micro-batch.

        Args:
            events: The events of the micro-batch in this shard.
            entries: The entries of the keys of the events, and of keys that may expire.
            expiry: Decides which entries are too old.
            version: The id of the micro-batch.

        Raises:
            DataError: A retraction has no row and `on_missing` is `error`, or a key has several rows and `on_conflict`
                is `error`.
        """
        keys = touched_keys(events, entries)
        groups = row_groups(keys)
        expired = expiry.expired(keys.codes, entries, events)
        counted = CountedRows(keys, groups, expired, version, by_first=self.on_conflict == "nothing")
        before = self._winners(counted, counted.before, counted.order_before)
        after = self._winners(counted, counted.after, counted.order_after)
        if self.on_conflict == "error":
            self._refuse_conflicts(counted)
        source_before = np.where(before >= 0, groups.entries[before], -1)
        source_after = np.where(after >= 0, counted.source[after], -1)
        same = before == after
        if events.layout.identity != tuple(events.layout.payload.names):
            in_both = np.flatnonzero(same & (before >= 0) & (source_before != source_after))
            names = tuple(events.layout.payload.names)
            same[in_both] = equal_rows(
                keys.take(source_before[in_both], names), keys.take(source_after[in_both], names)
            )
        changes = changes_of_winners(keys, source_before, source_after, same, version=version, preimages=self.preimages)
        counts = {
            UNMATCHED: self._unmatched(counted),
            CONFLICTS: int((np.bincount(groups.codes[counted.after > 0], minlength=len(keys)) > 1).sum()),
            "expired": counted.expired,
        }
        return OperatorResult(changes, counted.entries(), expiry.clock(events), counts)

    def _winners(self, counted: CountedRows, counts: Ints, order: Ints) -> Ints:
        """Return the group that is the current row of each key; -1 if the key has no live row."""
        live = np.flatnonzero(counts > 0)
        sign = -1 if self.on_conflict == "nothing" else 1
        groups = counted.groups
        return last_of(groups.codes, len(counted.keys), live, sign * order, groups.row_hashes, groups.ordinals)

    def _unmatched(self, counted: CountedRows) -> int:
        """Return how many retractions this micro-batch adds to those without a row; warn or raise by `on_missing`."""
        missing = np.maximum(-counted.after, 0) - np.maximum(-counted.before, 0)
        places = np.flatnonzero(missing > 0)
        total = int(missing[places].sum())
        if total and self.on_missing != "hold":
            key = shown_key(counted.keys.events, int(counted.any_event[places[0]]))
            if self.on_missing == "error":
                raise DataError(
                    f"{total} retractions have no row to retract; the first one is of the key {key}",
                    advice="if changes may arrive in any order or over several micro-batches, give "
                    'strategy="retract" and on_missing_retraction="hold"; if not, find the source that lost rows',
                )
            _log.warning(
                "%d retractions have no row to retract yet, and are held until their rows arrive; the first key is %s",
                total,
                key,
            )
        return total

    def _refuse_conflicts(self, counted: CountedRows) -> None:
        rows = np.maximum(counted.after, 0)  # a row that was added twice is two rows
        live = np.bincount(counted.groups.codes, weights=rows, minlength=len(counted.keys))
        many = np.flatnonzero(live > 1)
        if not len(many):
            return
        member = int(np.flatnonzero(counted.keys.codes[len(counted.keys.entries) :] == many[0])[0])
        raise DataError(
            f"{len(many)} keys have several rows at the end of the micro-batch; the first one is "
            f"{shown_key(counted.keys.events, member)} with {int(live[many[0]])} rows",
            advice='give on_conflict="deduplicate" to keep the last row or "nothing" to keep the first row; or '
            "choose key columns that identify a row",
        )


# -- The join of two changelogs (C18): its output gives a table that is the join of the tables that the inputs give.
# The state has the rows of both inputs by the columns of the join, each with its count. If `_b` and `_a` mean before
# and after a micro-batch, the count of a pair of rows changes by `left_a * right_a - left_b * right_b`. Only pairs
# with a changed row are formed. A negative count, from a retraction that arrives before its row, is taken as 0.

How = Literal["inner", "left", "semi", "anti"]

LEFT: Final = "left"
"""The struct column with the rows of the left input; NULL for rows of the right one. `RIGHT` is the opposite."""

RIGHT: Final = "right"


@dataclass(frozen=True)
class Join:
    """The operator of `changelog_join`. The lowest bit of a row hash tells the input: 0 for left, 1 for right.

    Args:
        how: The type of the join.
    """

    how: How = "inner"

    def apply(self, events: Events, entries: Entries, expiry: Expiry, version: int) -> OperatorResult:
        """Return the changes and new entries of a micro-batch; see `Retract.apply`."""
        keys = touched_keys(events, entries)
        groups = row_groups(keys)
        rows = CountedRows(keys, groups, expiry.expired(keys.codes, entries, events), version)
        before, after = np.maximum(rows.before, 0), np.maximum(rows.after, 0)
        left = np.flatnonzero(groups.row_hashes & 1 == 0)
        right = np.flatnonzero(groups.row_hashes & 1 == 1)
        parts: list[tuple[Ints, Ints, Ints]] = []
        if self.how in ("inner", "left"):
            parts.append(_pairs(groups, left, right, before, after))
        if self.how != "inner":
            parts.append(self._alone(groups, left, right, before, after))
        lefts, rights, counts = (np.concatenate(column) for column in zip(*parts, strict=True))
        # Retractions first, so that a pair's row leaves before another one takes its place.
        order = np.lexsort((lefts, counts > 0, groups.codes[lefts]))
        times = np.abs(counts[order])
        lefts, rights, signs = (np.repeat(column[order], times) for column in (lefts, rights, np.sign(counts)))
        member = np.where(rows.source >= 0, rows.source, groups.entries)
        names = events.layout.keys
        columns = keys.take(member[lefts], (*names, LEFT))
        columns.append(_or_null(keys.take(member[np.maximum(rights, 0)], (RIGHT,))[0], rights < 0))
        kinds = np.where(signs > 0, int(RowKind.INSERT), int(RowKind.DELETE))
        changes = change_batch(events.layout.payload, columns, kinds, version)
        counted = {"held": int((rows.after < 0).sum()), "expired": rows.expired}
        return OperatorResult(changes, rows.entries(), expiry.clock(events), counted)

    def _alone(self, groups: EqualRows, left: Ints, right: Ints, before: Ints, after: Ints) -> tuple[Ints, Ints, Ints]:
        """Return left rows that the result has without a right row, -1 for each, and the change of each count.

        For `left` and `anti`, these are the left rows without a match; for `semi`, those with a match.
        """
        size = int(groups.codes.max()) + 1 if len(groups) else 0
        matched = []
        for counts in (before, after):
            live = np.zeros(size, np.bool_)
            live[groups.codes[right[counts[right] > 0]]] = True
            matched.append(live[groups.codes[left]] == (self.how == "semi"))
        change = after[left] * matched[1] - before[left] * matched[0]
        chosen = np.flatnonzero(change)
        return left[chosen], np.full(len(chosen), -1), change[chosen]


def _pairs(groups: EqualRows, left: Ints, right: Ints, before: Ints, after: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the left and right rows of pairs whose count changes, and the change of each count."""
    moved = before != after
    live = (before > 0) | (after > 0)
    left_moves = _cross(groups.codes, left[moved[left]], right[live[right]])
    right_moves = _cross(groups.codes, left[(live & ~moved)[left]], right[moved[right]])
    lefts, rights = (np.concatenate(column) for column in zip(left_moves, right_moves, strict=True))
    change = after[lefts] * after[rights] - before[lefts] * before[rights]
    chosen = np.flatnonzero(change)
    return lefts[chosen], rights[chosen], change[chosen]


def _cross(codes: Ints, left: Ints, right: Ints) -> tuple[Ints, Ints]:
    """Return all pairs of left and right groups of one key."""
    right = right[np.argsort(codes[right], kind="stable")]
    first = np.searchsorted(codes[right], codes[left], side="left")
    counts = np.searchsorted(codes[right], codes[left], side="right") - first
    lefts = np.repeat(left, counts)
    starts = np.cumsum(counts) - counts
    return lefts, right[np.arange(len(lefts)) - np.repeat(starts - first, counts)]


def _or_null(column: pa.Array, absent: npt.NDArray[np.bool_]) -> pa.Array:
    """Return a column with NULL where a row is absent."""
    places = pa.array(np.arange(len(column)), mask=absent)
    return column.take(places)
