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
        rows: The rows of the part.
        nulls: The number of nulls; None = unknown.
        least: A lower bound, as a value of the filter's literals; None = unknown.
        greatest: An upper bound; None = unknown.
        nan: Whether there may be NaN, which is greater than every number and outside the bounds.
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
    """Return the rows of `[position, end)` in the parts to keep; adjacent parts become one range.

    Args:
        keep: Whether to keep each part.
        starts: The first row of each part, then the number of all rows.
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
