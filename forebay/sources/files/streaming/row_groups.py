# SPDX-License-Identifier: Apache-2.0
"""The row groups of a Parquet file, between which a byte limit cuts the file."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Self

from forebay.formats.parquet.groups import group_bytes, row_starts
from forebay.formats.parquet.open import opened
from forebay.stores.stored_file import StoredFile


@dataclass(frozen=True, slots=True)
class RowGroups:
    """The first rows and the sizes of the row groups of one file.

    Args:
        starts: The number of the first row of each row group, then the number of rows of the file.
        before: The bytes before each row group, then the bytes of all row groups.
    """

    starts: tuple[int, ...]
    before: tuple[int, ...]

    @classmethod
    def of(cls, file: StoredFile) -> Self:
        """Read the footer of a file, and return its row groups.

        Raises:
            DataError: The file no longer exists, has changed since it was listed, or is damaged.
            RetriableError: The store did not answer.
        """
        with opened(file) as parquet:
            starts = row_starts(parquet)
            sizes = group_bytes(parquet, file.size)
        filled = [(start, size) for (start, end), size in zip(pairwise(starts), sizes, strict=True) if end > start]
        before = accumulate((size for _, size in filled), initial=0)
        return cls((*(start for start, _ in filled), starts[-1]), tuple(before))

    def bytes_between(self, start: int, end: int | None) -> int:
        """Return the total bytes of the row groups whose first row is in `[start, end)`."""
        first = bisect_left(self.starts, start)
        last = len(self.starts) - 1 if end is None else bisect_left(self.starts, end)
        return max(0, self.before[min(last, len(self.before) - 1)] - self.before[min(first, len(self.before) - 1)])

    def advance(self, start: int, byte_budget: int) -> int | None:
        """Return the end (a row number) of the row groups from row `start` that fit into `byte_budget` bytes.

        None if they reach the end of the file.
        """
        first = bisect_right(self.starts, start) - 1
        last = bisect_right(self.before, self.before[first] + byte_budget) - 1
        return max(start, self.starts[last]) if last < len(self.starts) - 1 else None
