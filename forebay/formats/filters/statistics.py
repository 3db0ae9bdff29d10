# SPDX-License-Identifier: Apache-2.0
"""Decides from the statistics of a column which parts of a file may have rows that match a filter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from forebay.formats.filters.expressions import Constant, IsNull, Leaf, Outcomes, Value, range_outcomes

_NULL: Outcomes = frozenset({None})


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of a column in one part of a file, such as a row group.

    Args:
        rows: The number of rows in the part.
        nulls: The number of nulls; None if unknown.
        least: A lower bound of the values, in the form of a bound literal (`Value`); None if unknown.
        greatest: An upper bound of the values, in the same form; None if unknown.
        nan: Whether there may be NaN. NaN is greater than every number, and may lie outside the bounds.
    """

    rows: int
    nulls: int | None
    least: Value | None = None
    greatest: Value | None = None
    nan: bool = False


def outcomes(leaf: Leaf, column: Statistics) -> Outcomes:
    """Return the outcomes that a comparison may have for the rows of the part."""
    nulls, rows = column.nulls, column.rows
    if isinstance(leaf, IsNull):
        return frozenset([*([True] if nulls != 0 else []), *([False] if nulls != rows else [])])
    if nulls == rows:
        return _NULL
    if isinstance(leaf, Constant):
        found: Outcomes = frozenset({leaf.outcome})
    else:
        found = range_outcomes(leaf, column.least, column.greatest)
        if column.nan:
            found |= {">" in leaf.operator}
    return found if nulls == 0 else found | _NULL


def kept_ranges(
    keep: Sequence[bool], starts: Sequence[int], position: int, end: int | None
) -> list[tuple[int, int | None]]:
    """Return the ranges of rows in `[position, end)` that belong to parts to keep. Adjacent ranges are merged.

    Args:
        keep: Whether to keep each part.
        starts: The first row of each part, followed by the number of rows in the file.
        position: The first row to read.
        end: The row after the last one to read; None for the end of the file.
    """
    last = starts[-1] if end is None else end
    found: list[tuple[int, int | None]] = []
    for kept, (first, following) in zip(keep, pairwise(starts), strict=True):
        start, stop = max(first, position), min(following, last)
        if not kept or start >= stop:
            continue
        if found and found[-1][1] == start:
            start = found.pop()[0]
        found.append((start, stop))
    return found
