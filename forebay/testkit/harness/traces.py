# SPDX-License-Identifier: Apache-2.0
"""The rows and positions of the plain read, with which every other read is compared."""

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
        split: The split as it was read, its end fixed if possible.
        rows: The rows as text, in order.
        marks: The marks at the borders of record batches, the start included.
        whole: Whether the read reached the split's end; a long split is only sampled.
        between: Positions that the read did not return, calculated from the rows.
    """

    split: Split
    rows: tuple[str, ...]
    marks: tuple[Mark, ...]
    whole: bool
    between: Interpolated = field(default_factory=Interpolated)

    @property
    def has_pages(self) -> bool:
        """Whether a record batch has more than one row."""
        return any(last - first > 1 for (first, _), (last, _) in pairwise(self.marks))

    @property
    def last(self) -> int:
        """The number of the last mark."""
        return len(self.marks) - 1

    def rest(self, mark: int) -> Split:
        """Return the split from a mark on."""
        return self.split.at(self.marks[mark][1])

    def rows_of(self, start: int, stop: int) -> tuple[str, ...]:
        """Return the rows between two marks."""
        return self.rows[self.marks[start][0] : self.marks[stop][0]]


@dataclass(frozen=True, slots=True)
class PlainRead:
    """The plain read of a source.

    Args:
        traces: Of each sampled split.
        rows: The rows of every split, or of the sampled ones of a large input.
        whole: Whether the whole input was read.
    """

    traces: Sequence[Trace]
    rows: Mapping[str, Sequence[str]]
    whole: bool

    @property
    def count(self) -> int:
        """The number of rows."""
        return sum(len(rows) for rows in self.rows.values())

    def __str__(self) -> str:
        return f"{'' if self.whole else 'a sample of '}{self.count} rows of {len(self.rows)} splits"


def difference(got: Sequence[str], wanted: Sequence[str]) -> str:
    """Describe the first difference of two sequences of rows."""
    at = next((n for n, (one, other) in enumerate(zip(got, wanted, strict=False)) if one != other), None)
    counts = f"{len(got)} rows came, {len(wanted)} were expected"
    if at is not None:
        return f"row {at} is\n{got[at]:.300}\nbut should be\n{wanted[at]:.300}\n({counts})"
    missing = len(got) < len(wanted)
    first = wanted[len(got)] if missing else got[len(wanted)]
    return f"{counts}; the first {'missing' if missing else 'surplus'} one is\n{first:.300}"
