# SPDX-License-Identifier: Apache-2.0
"""The interface of the fast readers ("tiers") of JSON lines, and the tier that parses lines with Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from forebay.formats.json.arrow import (
    UNSAFE_NUMBER,
    ArrowReader,
    NotSafe,
    beyond_limits,
    has_unsafe_number,
    is_utf8,
    regular_lines,
)

BLANKS = b" \t\r\n"

_MAX_TRIES = 64
_FEW_LINES = 32
_MAX_SKIPPED = 32

Part: TypeAlias = pa.RecordBatch | bytes
"""Rows that a tier has read, or a line that it leaves to the next tier."""


class Leftover(NamedTuple):
    """A line that a tier could not read, and its place among the rows that the tier has read.

    Attributes:
        row: The number of rows before the line.
        replaces: Whether the line replaces the next row.
        text: The line.
    """

    row: int
    replaces: bool
    text: bytes


def parts_of(batch: pa.RecordBatch, leftovers: Iterable[Leftover]) -> Iterator[Part]:
    """Yield the slices of `batch`, with each leftover line in its place between them. `leftovers` is sorted by row."""
    start = 0
    for row, replaces, text in leftovers:
        if row > start:
            yield batch.slice(start, row - start)
        yield text
        start = row + replaces
    if start < batch.num_rows:
        yield batch.slice(start)


class Backoff:
    """Counts the blocks for which a fast reader is skipped after it has failed.

    After consecutive failures, these are 1, 3, 7 … blocks, up to a limit.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._skipped = 0
        self.left = 0
        """The number of blocks for which the fast reader is still to be skipped."""

    def skip(self) -> bool:
        """Count one block; return whether to skip the fast reader for it."""
        skipped = self.left > 0
        self.left -= skipped
        return skipped

    def report(self, *, failed: bool) -> None:
        """Record whether the fast reader failed for the last block that was not skipped."""
        self.left = self._skipped = min(self._limit, 2 * self._skipped + 1) if failed else 0


class ArrowTier:
    """Reads lines with Arrow, in runs that are as long as possible. Create one for each read."""

    def __init__(self, reader: ArrowReader) -> None:
        self._reader = reader
        self.backoff = Backoff(_MAX_SKIPPED)

    def read_block(self, data: bytes | bytearray) -> list[Part] | None:
        """Parse a block with one call of Arrow; return None if any line must be read by another tier."""
        count = regular_lines(data)
        if count is None:
            return None
        try:
            batch, unsafe = self._reader.read(data, count)
        except NotSafe:
            return None
        return None if unsafe else [batch]

    def read_lines(self, lines: list[bytes]) -> Iterator[Part]:
        """Parse lines in runs. If Arrow fails for a run, divide the run and try its parts."""
        tries = 0
        for start, end, safe in _runs(lines):
            todo = [(start, end)]
            while todo:
                low, high = todo.pop()
                if not safe or tries >= _MAX_TRIES or high - low <= 1:
                    yield from lines[low:high]
                    continue
                tries += 1
                try:
                    batch, unsafe = self._reader.read(b"\n".join(lines[low:high]), high - low)
                except NotSafe as error:
                    todo += _divided(low, high, error.row)
                    continue
                yield from parts_of(batch, (Leftover(row, True, lines[low + row]) for row in unsafe))
        self.backoff.report(failed=tries >= _MAX_TRIES)


def _runs(lines: list[bytes]) -> Iterator[tuple[int, int, bool]]:
    """Yield runs of consecutive lines as (start, end, whether Arrow may parse them)."""
    block = b"\n".join(lines)
    check_each = has_unsafe_number(block) or not is_utf8(block)
    start, safe = 0, True
    for index, line in enumerate(lines):
        unsafe = beyond_limits(line) or (check_each and (UNSAFE_NUMBER.search(line) or not is_utf8(line)))
        now = _may_be_object(line) and not unsafe
        if now != safe:
            if index > start:
                yield start, index, safe
            start, safe = index, now
    if start < len(lines):
        yield start, len(lines), safe


def _may_be_object(line: bytes) -> bool:
    if line[:1] == b"{" and line[-1:] == b"}":
        return True
    line = line.strip(BLANKS)
    return line.startswith(b"{") and line.endswith(b"}")


def _divided(low: int, high: int, row: int | None) -> list[tuple[int, int]]:
    """Return the parts of the run `[low, high)` to try after Arrow failed, last first.

    `row` is the index in the run at which Arrow failed; None if unknown.
    """
    if row is not None and low + row < high:
        bad = low + row
        return [part for part in ((bad + 1, high), (bad, bad + 1), (low, bad)) if part[0] < part[1]]
    if high - low <= _FEW_LINES:
        return [(index, index + 1) for index in range(high - 1, low - 1, -1)]
    middle = (low + high) // 2
    return [(middle, high), (low, middle)]
