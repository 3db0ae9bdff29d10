# SPDX-License-Identifier: Apache-2.0
"""The rows and positions of the plain read: one read without disturbance, with which checks compare all others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from forebay.framework.split import Position, Split
from forebay.testkit.harness.interpolation import Interpolated

Mark = tuple[int, Position | None]
"""A number of rows, and the position after them."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The result of the plain read of one split.

    Args:
        split: The split that was read, with a fixed end if the source knows one.
        rows: The rows as text, in order.
        marks: The row number and position at the start of the split and after each record batch.
        whole: Whether the read reached the split's end. The read of a long split stops earlier.
        between: Positions inside record batches, which the read did not return: a read in smaller pages returned them,
            or they are calculated from the rows.
        full: The split as a host reads it, although the read of a long split stopped earlier.
    """

    split: Split
    rows: tuple[str, ...]
    marks: tuple[Mark, ...]
    whole: bool
    between: Interpolated = field(default_factory=Interpolated)
    full: Split | None = None

    @property
    def has_pages(self) -> bool:
        """Whether at least one record batch has more than one row."""
        return any(last - first > 1 for (first, _), (last, _) in pairwise(self.marks))

    @property
    def last(self) -> int:
        """The index of the last mark."""
        return len(self.marks) - 1

    def rest(self, mark: int) -> Split:
        """Return the split, starting at the position of the mark with index `mark`."""
        return self.split.at(self.marks[mark][1])

    def rows_of(self, start: int, stop: int) -> tuple[str, ...]:
        """Return the rows between the marks with the indexes `start` and `stop`."""
        return self.rows[self.marks[start][0] : self.marks[stop][0]]


@dataclass(frozen=True, slots=True)
class PlainRead:
    """The result of the plain read of a source.

    Args:
        traces: One trace for each sampled split.
        rows: The rows as text, by split id. Of a large input, only the rows of the sampled splits.
        whole: Whether the read covered the whole input.
    """

    traces: Sequence[Trace]
    rows: Mapping[str, Sequence[str]]
    whole: bool

    @property
    def count(self) -> int:
        """The number of rows of all splits together."""
        return sum(len(rows) for rows in self.rows.values())

    def __str__(self) -> str:
        splits = f"{len(self.rows)} split{'s' * (len(self.rows) != 1)}"
        resumed = sum(len(trace.rows) for trace in self.traces)
        what = f"{'' if self.whole else 'a sample of '}{self.count} row{'s' * (self.count != 1)} of {splits}"
        return what if resumed >= self.count else f"{what}, stopped and resumed in {resumed} of them"


def difference(got: Sequence[str], wanted: Sequence[str]) -> str:
    """Describe the first difference between the rows `got` and the rows `wanted`, with both row counts."""
    at = next((n for n, (one, other) in enumerate(zip(got, wanted, strict=False)) if one != other), None)
    counts = f"{len(got)} rows came, {len(wanted)} were expected"
    if at is not None:
        return f"row {at} is\n{got[at]:.300}\nbut should be\n{wanted[at]:.300}\n({counts})"
    missing = len(got) < len(wanted)
    first = wanted[len(got)] if missing else got[len(wanted)]
    return f"{counts}; the first {'missing' if missing else 'surplus'} one is\n{first:.300}"
