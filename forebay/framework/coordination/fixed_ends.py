# SPDX-License-Identifier: Apache-2.0
"""Fixes the ends of splits for a read that ends, before any record is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forebay.framework.source import Source
from forebay.framework.split import Position, Split, before, normalise


def fixed_ends(source: Source, splits: Sequence[Split], ends: Mapping[str, Position]) -> Sequence[Split]:
    """Return each split with the end of this read: its own end, or its present end in `ends` if that comes first.

    A split with an own end keeps it if the source is bounded or `Split.ends_itself` is True. A split that is not in
    `ends` stays unchanged.
    """
    if not ends:
        return splits
    result = []
    for split in splits:
        if (end := ends.get(split.id)) is None:
            result.append(split)
            continue
        latest = normalise(end, split.id)
        own, bounded = split.end, source.bounded or split.ends_itself
        reachable = own if own is not None and (bounded or before(source, own, latest, split.id)) else latest
        result.append(split.slice(split.position, reachable))
    return result


def unread(source: Source, splits: Sequence[Split]) -> Sequence[Split]:
    """Return the splits that are not read to their end.

    In an unbounded source, a split whose position is after its end also counts as read.
    """

    def done(split: Split) -> bool:
        position, end = split.position, split.end
        if position is None or end is None:
            return False
        return position == end or (not source.bounded and before(source, end, position, split.id))

    return [split for split in splits if not done(split)] if any(map(done, splits)) else splits
