# SPDX-License-Identifier: Apache-2.0
"""Fetches ranges that a reader has announced, such as the column chunks of Parquet row groups, before it reads them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from forebay.stores.s3.background import Background
from forebay.stores.s3.object_reader import ObjectReader

GROUP: Final = 8 << 20
"""Bytes of a group that is fetched as a whole, with the next one behind it. Smaller groups are joined up to it; of a
larger one only what is read next is fetched."""
GAP: Final = 512 << 10
"""Unwanted bytes between two ranges that are fetched with them: at 80 MB/s they cost 6 ms, a request 30."""
PIECE: Final = 8 << 20
"""Bytes of one request."""


class Range(NamedTuple):
    """The bytes `[start, end)`."""

    start: int
    end: int


class Pending(NamedTuple):
    """A range that is being fetched."""

    where: Range
    data: Background[bytearray]


class ExpectedRanges:
    """The groups of ranges that will be read, each group in any order. For one thread at a time.

    Args:
        reader: The reader.
        groups: Ranges of each group; those outside the object are ignored.
        whole: Bytes of a group that is fetched as a whole; `GROUP` by default.
    """

    def __init__(
        self, reader: ObjectReader, groups: Sequence[Sequence[tuple[int, int]]], whole: int | None = None
    ) -> None:
        self._reader = reader
        self._whole = GROUP if whole is None else whole
        size = reader.file.size
        inside = [sorted(Range(*found) for found in group if 0 <= found[0] < found[1] <= size) for group in groups]
        self._groups = _joined(sorted(group for group in inside if group))
        self._starts = [group[0].start for group in self._groups]
        self._fetched: dict[int, list[Pending]] = {}
        self._ahead: dict[int, Pending] = {}

    def block(self, position: int, wanted: int) -> tuple[Range, bytearray] | None:
        """Return bytes with the one at a position; None if it is not in an announced range. May block.

        Raises:
            ForebayError: See `ObjectReader.read`.
        """
        number = bisect_right(self._starts, position) - 1
        if number < 0:
            return None
        if self._is_small(number):
            return self._of_group(number, position)
        return self._of_range(number, position, wanted)

    def _is_small(self, number: int) -> bool:
        return _bytes(self._groups[number]) <= self._whole

    def _of_group(self, number: int, position: int) -> tuple[Range, bytearray] | None:
        """Fetch a group and the next one. Keep their neighbours: columns do not cross a border at the same time."""
        kept = {each: pieces for each, pieces in self._fetched.items() if number - 1 <= each <= number + 2}
        for each in (number, number + 1):
            if each < len(self._groups) and each not in kept and self._is_small(each):
                kept[each] = [self._fetch(piece) for piece in _pieces(self._groups[each])]
        self._fetched = kept
        for where, data in self._fetched[number]:
            if where.start <= position < where.end:
                return where, data.result()
        return None

    def _of_range(self, number: int, position: int, wanted: int) -> tuple[Range, bytearray] | None:
        """Return the next bytes of one range, and fetch as many again behind them."""
        group = self._groups[number]
        inside = group[bisect_right(group, position, key=lambda found: found.start) - 1]
        if position >= inside.end:
            return None
        pending = self._ahead.pop(position, None)
        where = Range(position, min(position + wanted, inside.end)) if pending is None else pending.where
        if where.end < inside.end:
            if len(self._ahead) > len(group):  # left over from ranges that were read in another way
                self._ahead.clear()
            self._ahead[where.end] = self._fetch(Range(where.end, min(where.end + wanted, inside.end)))
        return where, self._reader.read(*where) if pending is None else pending.data.result()

    def _fetch(self, where: Range) -> Pending:
        return Pending(where, Background(partial(self._reader.read, *where), "forebay-s3-read"))


def _bytes(group: Sequence[Range]) -> int:
    return sum(end - start for start, end in group)


def _joined(groups: Sequence[list[Range]]) -> list[list[Range]]:
    """Join neighbours, as long as they are small together: Arrow reads small row groups many at a time."""
    found: list[list[Range]] = []
    total = 0
    for group in groups:
        size = _bytes(group)
        if found and total + size <= GROUP:
            found[-1] += group
            total += size
        else:
            found.append(list(group))
            total = size
    return [sorted(group) for group in found]


def _pieces(group: Sequence[Range]) -> list[Range]:
    """Join ranges that lie close to one another, and cut long ones."""
    joined: list[Range] = []
    for start, end in group:
        if joined and start - joined[-1].end <= GAP:
            joined[-1] = Range(joined[-1].start, max(end, joined[-1].end))
        else:
            joined.append(Range(start, end))
    return [Range(at, min(at + PIECE, end)) for start, end in joined for at in range(start, end, PIECE)]
