# SPDX-License-Identifier: Apache-2.0
"""The tier for blocks in which nearly all lines have the same names in the same order ("form")."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from forebay.formats.json.arrow import NotSafe, is_utf8
from forebay.formats.json.options import JsonOptions
from forebay.formats.json.tiers import Backoff, Leftover, Part, parts_of
from forebay.formats.json.uniform.template import template_of

if TYPE_CHECKING:
    from forebay.formats.json.uniform.uniform_reader import UniformReader

_MAX_BYTES = 16 << 20  # bounds the memory for the positions of quotes
_MAX_SKIPPED = 64
# The most leftovers of a block: a few, and one for every so many rows.
_FEW_LEFTOVERS = 16
_LINES_PER_LEFTOVER = 64


class UniformTier:
    """Reads blocks in which nearly all lines have one form. Tries the form of the last block first.

    Create one for each read.
    """

    def __init__(self, fields: list[pa.Field], options: JsonOptions) -> None:
        self._fields = fields
        self._options = options
        self._reader_class = _reader_class()
        self._reader: UniformReader | None = None
        self._backoff = Backoff(_MAX_SKIPPED)

    def read_block(self, data: bytes | bytearray) -> list[Part] | None:
        """Return the rows and leftover lines of a block; None if too few of its lines have a common form."""
        if self._backoff.skip() or len(data) > _MAX_BYTES or b"\\" in data or not is_utf8(data):
            return None
        for reader in self._candidates(data):
            parts = _parts(reader, data)
            if parts is not None:
                self._reader = reader
                self._backoff.report(failed=False)
                return parts
        self._backoff.report(failed=True)
        return None

    def _candidates(self, data: bytes | bytearray) -> Iterator[UniformReader]:
        """Yield the reader of the last block, then readers for the form of the first and of a middle line."""
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
                except NotSafe:
                    continue


def _reader_class() -> type[UniformReader] | None:
    """Return the reader class; None if numpy, an optional dependency, is not installed."""
    try:
        from forebay.formats.json.uniform.uniform_reader import UniformReader
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        return None
    return UniformReader


def _parts(reader: UniformReader, data: bytes | bytearray) -> list[Part] | None:
    values = reader.splitter.split(data)
    if values is None:
        return None
    rows, others = values.rows, values.others
    most = _FEW_LEFTOVERS + len(rows.starts) // _LINES_PER_LEFTOVER
    if len(others.starts) > most:
        return None
    try:
        batch, unsafe = reader.read(values)
    except NotSafe:
        return None
    if len(others.starts) + len(unsafe) > most:
        return None
    leftovers = [
        Leftover(row, False, bytes(data[start:end]))
        for row, start, end in zip(values.before_others.tolist(), others.starts, others.ends, strict=True)
    ]
    leftovers += [Leftover(row, True, bytes(data[rows.starts[row] : rows.ends[row]])) for row in unsafe]
    return list(parts_of(batch, sorted(leftovers, key=lambda line: line[:2])))
