# SPDX-License-Identifier: Apache-2.0
"""A version of a shard, opened: looks up the entries of keys in all runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from forebay.changelog.state.entries import COUNT, KEY_HASH, ORDER, ORDINAL, ROW_HASH, TOUCHED
from forebay.changelog.state.segments import Ints, Segment


@dataclass(frozen=True)
class Entries:
    """Entries that were found, sorted by key hash, row hash and ordinal; tombstones are left out.

    Their numbers are at hand; their other columns are read with `take`.
    """

    key_hashes: Ints
    row_hashes: Ints
    ordinals: Ints
    counts: Ints
    touched: Ints | None
    _segments: Sequence[Segment]
    _owners: Ints
    _places: Ints

    def __len__(self) -> int:
        return len(self.key_hashes)

    def take(self, which: Ints, fields: Sequence[pa.Field]) -> list[pa.Array]:
        """Return columns of some entries, in the order of `which`. Columns that a segment lacks are NULL."""
        owners, places = self._owners[which], self._places[which]
        by_owner = np.argsort(owners, kind="stable")
        back = np.empty(len(which), np.int64)
        back[by_owner] = np.arange(len(which))
        cuts = np.flatnonzero(np.diff(owners[by_owner])) + 1
        groups = [group for group in np.split(by_owner, cuts) if len(group)]
        found = []
        for field in fields:
            parts = [
                self._segments[owners[group[0]]].column(field).take(pa.array(places[group])).cast(field.type)
                for group in groups
            ]
            column = pa.concat_arrays(parts) if parts else pa.nulls(0, field.type)
            found.append(column if len(groups) <= 1 else column.take(pa.array(back)))
        return found if len(groups) != 1 else [column.take(pa.array(back)) for column in found]

    def orders(self, types: Sequence[pa.DataType]) -> list[pa.Array]:
        """Return the columns that order the rows of a key."""
        fields = [pa.field(f"{ORDER}{place}", kind) for place, kind in enumerate(types)]
        return self.take(np.arange(len(self)), fields)


def lookup(runs: Sequence[Sequence[Segment]], hashes: Ints, *, timed: bool) -> Entries:
    """Return the entries of keys in their newest version.

    Args:
        runs: Oldest first.
        hashes: Key hashes, sorted, without duplicates.
        timed: Whether entries have a time.
    """
    segments: list[Segment] = []
    owners: list[Ints] = []
    places: list[Ints] = []
    for run in reversed(runs):
        for segment in run:
            found, _ = segment.find(hashes) if len(hashes) else (np.empty(0, np.int64), None)
            if len(found):
                owners.append(np.full(len(found), len(segments)))
                places.append(found)
                segments.append(segment)

    def gather(name: str) -> Ints:
        parts = [segments[group[0]].ints(name)[place] for group, place in zip(owners, places, strict=True)]
        return np.concatenate(parts).astype(np.int64) if parts else np.empty(0, np.int64)

    keys, rows, ordinals, counts = (gather(name) for name in (KEY_HASH, ROW_HASH, ORDINAL, COUNT))
    kept = newest(keys, rows, ordinals)
    kept = kept[counts[kept] != 0]
    empty = np.empty(0, np.int64)
    return Entries(
        keys[kept],
        rows[kept],
        ordinals[kept],
        counts[kept],
        gather(TOUCHED)[kept] if timed else None,
        segments,
        (np.concatenate(owners) if owners else empty)[kept],
        (np.concatenate(places) if places else empty)[kept],
    )


def newest(keys: Ints, rows: Ints, ordinals: Ints) -> Ints:
    """Return the places of the first of all entries with the same identity, sorted by it. Newer entries come first."""
    by_identity = (ordinals, rows, keys) if ordinals.any() else (rows, keys)
    order = np.lexsort(by_identity)  # stable
    if not len(order):
        return order
    first = np.ones(len(order), np.bool_)
    first[1:] = False
    for column in by_identity:
        arranged = column[order]
        first[1:] |= arranged[1:] != arranged[:-1]
    return order[first]
