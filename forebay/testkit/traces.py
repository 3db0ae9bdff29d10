# SPDX-License-Identifier: Apache-2.0
"""What an undisturbed read of a split gave: what every other read is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from forebay.framework.split import Position, Split
from forebay.testkit.between import Between


@dataclass(frozen=True, slots=True)
class Trace:
    """What an undisturbed read of one split gave, one record batch after the other.

    Args:
        split: The split as it was read, its end fixed if it can be.
        rows: The rows as text, in order.
        marks: At each border of record batches, the start included: rows so far, and the position.
        whole: Whether the read came to the split's end; a long split is only sampled.
        between: The positions of rows inside record batches, where the rows say them.
    """

    split: Split
    rows: tuple[str, ...]
    marks: tuple[tuple[int, Position | None], ...]
    whole: bool
    between: Between = field(default_factory=Between)

    @property
    def pages(self) -> list[tuple[int, int]]:
        """The numbers of rows before and after each record batch of more than one row."""
        borders = [rows for rows, _ in self.marks]
        return [(first, last) for first, last in pairwise(borders) if last - first > 1]

    @property
    def last(self) -> int:
        """The number of the last mark."""
        return len(self.marks) - 1

    def rest(self, mark: int) -> Split:
        """Return the split from a mark on."""
        return self.split.at(self.marks[mark][1])

    def part(self, start: int, stop: int) -> Split:
        """Return the part of the split between two marks."""
        return self.split.slice(self.marks[start][1], self.marks[stop][1])

    def rows_of(self, start: int, stop: int) -> tuple[str, ...]:
        """Return the rows between two marks."""
        return self.rows[self.marks[start][0] : self.marks[stop][0]]


def difference(got: Sequence[str], wanted: Sequence[str]) -> str:
    """Say where two sequences of rows part: the first row that differs, or what is missing or surplus at the end."""
    at = next((n for n, (one, other) in enumerate(zip(got, wanted, strict=False)) if one != other), None)
    counts = f"{len(got)} rows came, {len(wanted)} were to come"
    if at is not None:
        return f"row {at} is\n{got[at]:.300}\nbut should be\n{wanted[at]:.300}\n({counts})"
    missing = len(got) < len(wanted)
    first = wanted[len(got)] if missing else got[len(wanted)]
    return f"{counts}; the first {'missing' if missing else 'surplus'} one is\n{first:.300}"
