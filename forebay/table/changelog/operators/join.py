# SPDX-License-Identifier: Apache-2.0
"""The join of two changelogs (C18): its output gives a table that is the join of the tables that the inputs give.

The state has the rows of both inputs by the columns of the join, each with its count. If `_b` and `_a` mean before and
after a micro-batch, the count of a pair of rows changes by `left_a * right_a - left_b * right_b`. Only pairs with a
changed row are formed. A negative count, from a retraction that arrives before its row, is taken as 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.table.changelog.operators.events import Events, touched_keys
from forebay.table.changelog.operators.expiry import Expiry
from forebay.table.changelog.operators.micro_batch import OperatorResult, change_batch
from forebay.table.changelog.operators.retract import CountedRows, EqualRows, row_groups
from forebay.table.changelog.shape import RowKind
from forebay.table.changelog.state.segments import Ints
from forebay.table.changelog.state.shard import Entries

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
