# SPDX-License-Identifier: Apache-2.0
"""Groups of equal rows of a key: the entry that is stored, if any, and the events that add or retract the row."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from forebay.table.changelog.operators.equality import equal_rows, row_keys
from forebay.table.changelog.operators.touched_keys import KEY, TouchedKeys
from forebay.table.changelog.state.segments import Ints


@dataclass(frozen=True)
class RowGroups:
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


def row_groups(keys: TouchedKeys) -> RowGroups:
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
    found = RowGroups(groups, keys.codes[leaders], hashes[leaders], ordinals, entries)
    return _told_apart(keys, found, bad) if len(bad) else found


def _told_apart(keys: TouchedKeys, found: RowGroups, bad: Ints) -> RowGroups:
    """Divide groups whose rows have equal hashes but differ. Rare, so row by row in Python."""
    stored = len(keys.entries)
    members = np.flatnonzero(np.isin(found.groups, bad))  # entries first
    rows = row_keys(keys.take(members, keys.events.layout.identity))
    groups, codes, hashes = found.groups.copy(), found.codes.tolist(), found.row_hashes.tolist()
    ordinals, entries = found.ordinals.tolist(), found.entries.tolist()
    known: dict[tuple[int, Hashable], int] = {}
    taken: dict[int, set[int]] = {}
    # Entries first, then events by their rows: a replay with the events in another order gives the same ordinals.
    by_row = sorted(zip(members.tolist(), rows, strict=True), key=lambda one: (one[0] >= stored, repr(one[1])))
    for member, row in by_row:
        shared = int(found.groups[member])
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
    return RowGroups(groups, *(np.array(column, np.int64) for column in (codes, hashes, ordinals, entries)))


def _free(used: set[int]) -> int:
    return next(ordinal for ordinal in range(KEY) if ordinal not in used)
