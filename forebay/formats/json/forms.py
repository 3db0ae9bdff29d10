# SPDX-License-Identifier: Apache-2.0
"""Finds out whether the lines of a block have one form, and which form: `pieces` reads such blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from forebay.formats.json.arrow import Doubt, is_utf8
from forebay.formats.json.options import JsonOptions
from forebay.formats.json.template import template_of

if TYPE_CHECKING:
    from forebay.formats.json.pieces import PieceReader
    from forebay.formats.json.splitting import Values

_MAX_BYTES = 16 << 20  # of a larger block the places of quotes may take too much memory
_MOST_SKIPPED = 64
_FEW = 16
_SHARE = 64


@dataclass(frozen=True, slots=True)
class OddLine:
    """A line that must be read in another way."""

    text: bytes
    row: int
    """How many rows there are before it."""
    instead: bool = False
    """Whether it is to be read instead of the row that follows these."""


@dataclass(frozen=True, slots=True)
class Formed:
    """A block of which most lines have one form."""

    batch: pa.RecordBatch
    """A row for each line that may have that form."""
    odd: list[OddLine]
    """In order."""

    def parts(self) -> Iterator[pa.RecordBatch | bytes]:
        """Rows in order: as batches, and lines that must be read in another way."""
        row = 0
        for line in self.odd:
            if line.row > row:
                yield self.batch.slice(row, line.row - row)
            yield line.text
            row = line.row + line.instead
        if row < self.batch.num_rows:
            yield self.batch.slice(row)


class FormReader:
    """Reads blocks whose lines have one form. One object per read; it remembers the form.

    Args:
        fields: The columns to read.
        options: How to read.
    """

    def __init__(self, fields: list[pa.Field], options: JsonOptions) -> None:
        self._fields = fields
        self._options = options
        self._reader_class = _reader_class()
        self._reader: PieceReader | None = None
        self._skip = self._skipped = 0

    def read(self, data: bytes | bytearray) -> Formed | None:
        """The rows of a block of lines; None if its lines have no common form."""
        if self._skip:
            self._skip -= 1
            return None
        if len(data) > _MAX_BYTES or b"\\" in data or not is_utf8(data):
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
        if self._reader_class is None:
            return
        if self._reader is not None:
            yield self._reader
        for start in (0, data.find(b"\n", len(data) // 2) + 1):
            end = data.find(b"\n", start)
            template = template_of(bytes(data[start : end if end >= 0 else len(data)]).strip())
            if template is not None:
                try:
                    yield self._reader_class(self._fields, self._options, template)
                except Doubt:
                    continue


def _reader_class() -> type[PieceReader] | None:
    """What reads lines of one form; None without numpy, which the core does not need."""
    try:
        from forebay.formats.json.pieces import PieceReader
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        return None
    return PieceReader


def _formed(reader: PieceReader, data: bytes | bytearray) -> Formed | None:
    values = reader.splitter.split(data)
    if values is None:
        return None
    others, most = len(values.others.starts), _FEW + len(values.rows.starts) // _SHARE
    if others > most:
        return None
    try:
        batch, doubtful = reader.read(values)
    except Doubt:
        return None
    if others + len(doubtful) > most:
        return None
    return Formed(batch, _odd_lines(data, values, doubtful))


def _odd_lines(data: bytes | bytearray, values: Values, doubtful: list[int]) -> list[OddLine]:
    rows, others = values.rows, values.others
    odd = [
        OddLine(bytes(data[start:end]), row)
        for start, end, row in zip(
            others.starts.tolist(), others.ends.tolist(), values.before_others.tolist(), strict=True
        )
    ]
    odd += [OddLine(bytes(data[rows.starts[row] : rows.ends[row]]), row, instead=True) for row in doubtful]
    return sorted(odd, key=lambda line: (line.row, line.instead))
