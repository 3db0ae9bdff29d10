# SPDX-License-Identifier: Apache-2.0
"""Looks up the entries of keys in all runs of an opened version of a shard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from forebay.table.changelog.state.entries import COUNT, KEY_HASH, ORDER, ORDINAL, ROW_HASH, TOUCHED
from forebay.table.changelog.state.segments import Ints, Segment


@dataclass(frozen=True)
class Entries:
    """Entries that `lookup` found, sorted by key hash, row hash and ordinal; tombstones are left out.

    The fields hold hashes, ordinals, counts and times; `take` reads the other columns.
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
        """Return columns of the entries `which`, in this order. Columns that a segment lacks are NULL."""
        owners, places = self._owners[which], self._places[which]
        by_owner = np.argsort(owners, kind="stable")
        back = np.empty(len(which), np.int64)
        back[by_owner] = np.arange(len(which))
        cuts = np.flatnonzero(np.diff(owners[by_owner])) + 1
        groups = [group for group in np.split(by_owner, cuts) if len(group)]
        taken = []
        for group in groups:
            segment = self._segments[owners[group[0]]]
            taken.append(segment.take(places[group], fields))
            segment.unload()
        if not taken:
            return [pa.nulls(0, field.type) for field in fields]
        order = pa.array(back)
        return [pa.concat_arrays(parts).take(order) for parts in zip(*taken, strict=True)]

    def orders(self, types: Sequence[pa.DataType]) -> list[pa.Array]:
        """Return the columns that order the rows of a key, for all entries."""
        fields = [pa.field(f"{ORDER}{place}", kind) for place, kind in enumerate(types)]
        return self.take(np.arange(len(self)), fields)


def lookup(runs: Sequence[Sequence[Segment]], hashes: Ints, *, timed: bool) -> Entries:
    """Return the newest version of each entry of some keys.

    Args:
        runs: The runs of the shard, oldest first.
        hashes: Key hashes, sorted, without duplicates.
        timed: Whether entries have a time.
    """
    names = [KEY_HASH, ROW_HASH, ORDINAL, COUNT, *([TOUCHED] if timed else [])]
    empty = np.empty(0, np.int64)
    segments: list[Segment] = []
    found: list[list[Ints]] = [[empty] for _ in range(len(names) + 2)]
    for segment in (segment for run in reversed(runs) for segment in run):
        places = segment.find(hashes)[0] if len(hashes) else empty
        if len(places):
            columns = [segment.ints(name)[places] for name in names]
            for column, part in zip(found, [np.full(len(places), len(segments)), places, *columns], strict=True):
                column.append(part)
            segments.append(segment)
        segment.unload()
    owners, places, keys, rows, ordinals, counts, *touched = (
        np.concatenate(column).astype(np.int64, copy=False) for column in found
    )
    kept = newest(keys, rows, ordinals)
    kept = kept[counts[kept] != 0]
    return Entries(
        keys[kept],
        rows[kept],
        ordinals[kept],
        counts[kept],
        touched[0][kept] if timed else None,
        segments,
        owners[kept],
        places[kept],
    )


def newest(keys: Ints, rows: Ints, ordinals: Ints) -> Ints:
    """Return the index of the first, which is the newest, entry of each key, row and ordinal, sorted by these three."""
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
