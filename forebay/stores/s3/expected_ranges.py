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
"""Maximum bytes of a group that is fetched as a whole, together with the next group. Neighbouring groups are joined up
to this size. Of a larger group, only the bytes to be read next are fetched."""
GAP: Final = 512 << 10
"""Maximum gap in bytes between ranges of one request. At 80 MB/s the gap costs 6 ms; a request costs 30 ms."""
PIECE: Final = 8 << 20
"""Maximum bytes of one request."""


class Range(NamedTuple):
    """The bytes `[start, end)`."""

    start: int
    end: int


class Pending(NamedTuple):
    """A range that is requested, and its bytes as soon as they have arrived."""

    where: Range
    data: Background[bytearray]


class ExpectedRanges:
    """Fetches groups of announced ranges; each group may be read in any order. For one thread at a time.

    Args:
        reader: Reads the ranges of the object.
        groups: The ranges `(start, end)` of each group. Ranges outside the object are ignored.
        whole: Maximum bytes of a group that is fetched as a whole; `GROUP` by default.
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
        """Return the range and bytes of a block that contains a position; None if no announced range has it. May block.

        A large group is fetched in blocks of `wanted` bytes.

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
        """Return the fetched range of a group that contains a position, or None; request this group and the next one.

        Neighbouring groups stay in memory, because the columns of a file do not reach the next group together.
        """
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
        """Return the next bytes of one range, and request the same number of bytes after them."""
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
    """Return the groups with neighbours joined up to `GROUP` bytes: Arrow reads many small row groups at a time."""
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
    """Return the ranges to request: ranges with small gaps are joined, and long ones are cut."""
    joined: list[Range] = []
    for start, end in group:
        if joined and start - joined[-1].end <= GAP:
            joined[-1] = Range(joined[-1].start, max(end, joined[-1].end))
        else:
            joined.append(Range(start, end))
    return [Range(at, min(at + PIECE, end)) for start, end in joined for at in range(start, end, PIECE)]
