# SPDX-License-Identifier: Apache-2.0
"""Finds out whether the lines of a block have one form, and which form: `pieces` reads such blocks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from forebay.formats.json.arrow import Doubt, is_utf8
from forebay.formats.json.options import JsonOptions
from forebay.formats.json.pieces import MAX_BYTES, PieceReader
from forebay.formats.json.template import template_of

_MOST_SKIPPED = 64
_FEW = 16
_SHARE = 64


@dataclass(frozen=True, slots=True)
class Formed:
    """A block of which most lines have one form."""

    batch: pa.RecordBatch
    """The rows of the lines of that form."""
    lines: list[bytes]
    """All lines, if some are of other forms; none otherwise."""
    places: list[int]
    """The line of each row, likewise."""
    odd: list[int]
    """The lines that must be read in another way, ascending."""

    def parts(self) -> Iterator[tuple[pa.RecordBatch | None, int]]:
        """Rows in order: batches, and (as None) lines to be read in another way, by their numbers."""
        row = 0
        for line in self.odd:
            before = bisect_left(self.places, line)
            if before > row:
                yield self.batch.slice(row, before - row), 0
            yield None, line
            row = before + (before < len(self.places) and self.places[before] == line)
        if row < self.batch.num_rows:
            yield self.batch.slice(row), 0


class FormReader:
    """Reads blocks whose lines have one form. One object per read; it remembers the form.

    Args:
        fields: The columns to read.
        options: How to read.
    """

    def __init__(self, fields: list[pa.Field], options: JsonOptions) -> None:
        self._fields = fields
        self._options = options
        self._reader: PieceReader | None = None
        self._skip = self._skipped = 0

    def read(self, data: bytes | bytearray) -> Formed | None:
        """The rows of a block of lines; None if its lines have no common form."""
        if self._skip:
            self._skip -= 1
            return None
        if len(data) > MAX_BYTES or b"\\" in data or not is_utf8(data):
            return None
        for reader in self._candidates(data):
            formed = _formed(reader, data)
            if formed is not None:
                self._reader = reader
                self._skipped = 0
                return formed
        # Such files stay such: try less and less often.
        self._skipped = min(_MOST_SKIPPED, 2 * self._skipped + 1)
        self._skip = self._skipped
        return None

    def _candidates(self, data: bytes | bytearray) -> Iterator[PieceReader]:
        """What read the last block, and readers for the form of a line from each half of this one."""
        if self._reader is not None:
            yield self._reader
        for start in (0, data.find(b"\n", len(data) // 2) + 1):
            end = data.find(b"\n", start)
            template = template_of(bytes(data[start : end if end >= 0 else len(data)]).strip())
            if template is not None:
                try:
                    yield PieceReader(self._fields, self._options, template)
                except Doubt:
                    continue


def _formed(reader: PieceReader, data: bytes | bytearray) -> Formed | None:
    try:
        batch, doubtful = reader.read(data)
    except Doubt:
        return None
    if not doubtful and not reader.misfits:
        return Formed(batch, [], [], [])
    if len(doubtful) + reader.misfits > _FEW + batch.num_rows // _SHARE:
        return None
    lines = [line for line in bytes(data).splitlines() if line]
    places = [place for place, line in enumerate(lines) if line.count(b'"') == reader.quotes]
    if len(places) != batch.num_rows or len(lines) != batch.num_rows + reader.misfits:
        return None
    odd = set(range(len(lines))).difference(places).union(places[row] for row in doubtful)
    return Formed(batch, lines, places, sorted(odd))
