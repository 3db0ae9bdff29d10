# SPDX-License-Identifier: Apache-2.0
"""Builds Arrow columns from positions in a buffer."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.sources.kafka.records.numbers import Bytes, Ints

_INLINE = 12
"""Maximum bytes that an Arrow view stores inline; it points to longer values."""


def binary(
    source: Bytes, at: Ints, lengths: Ints, nulls: npt.NDArray[np.bool_], kind: pa.DataType | None = None
) -> pa.Array:
    """Return a binary (or string) column of slices of the bytes.

    It makes views without prefixes on the slices, and Arrow copies them once into a plain column.

    Args:
        source: The bytes.
        at: The begin of each slice.
        lengths: The length of each slice; 0 for nulls.
        nulls: Which entries are null.
        kind: Another type than binary.

    Raises:
        pyarrow.ArrowInvalid: The column exceeds 2 GiB, or a string is invalid UTF-8.
    """
    rows = len(at)
    views = np.zeros((rows, 4), np.int32)
    views[:, 0] = lengths
    views[:, 3] = at
    short = np.flatnonzero((lengths <= _INLINE) & (lengths > 0))
    if short.size == rows:
        views[:, 1:] = _inline(source, at, lengths)
    elif short.size:
        views[short, 1:] = _inline(source, at[short], lengths[short])
    validity = bitmap(~nulls) if nulls.any() else None
    buffers = [validity, _buffer(views), pa.py_buffer(source.data)]
    column = pa.Array.from_buffers(pa.binary_view(), rows, buffers).cast(pa.binary())
    return column if kind is None else column.cast(kind)


def _inline(source: Bytes, at: Ints, lengths: Ints) -> npt.NDArray[np.int32]:
    """Return the twelve inline bytes of short slices; bytes beyond the length are ignored."""
    inside = np.minimum(at, source.size - _INLINE)
    held = np.empty((len(at), 3), np.int32)
    held[:, :2] = source.u64[inside].view(np.int32).reshape(-1, 2)
    held[:, 2] = source.u32[inside + 8].view(np.int32)
    for row in np.flatnonzero(inside != at).tolist():  # fewer than twelve bytes are left
        begin = int(at[row])
        piece = bytes(source.data[begin : begin + int(lengths[row])]).ljust(_INLINE, b"\0")
        held[row] = np.frombuffer(piece, np.int32)
    return held


def bitmap(present: npt.NDArray[np.bool_]) -> pa.Buffer:
    """Return Arrow's validity bitmap."""
    return _buffer(np.packbits(present, bitorder="little"))


def _buffer(values: npt.NDArray[Any]) -> pa.Buffer:
    return pa.py_buffer(np.ascontiguousarray(values).data)


def longs(values: Ints, kind: pa.DataType | None = None) -> pa.Array:
    """Return a column of 64-bit values without copying them."""
    return pa.Array.from_buffers(kind or pa.int64(), len(values), [None, _buffer(values)])


def ints(values: npt.NDArray[np.int32]) -> pa.Array:
    """Return a column of 32-bit numbers without copying them."""
    return pa.Array.from_buffers(pa.int32(), len(values), [None, _buffer(values)])


class Constants:
    """Columns of one repeated value; caches the longest of each value, and slices it for shorter ones."""

    def __init__(self) -> None:
        self._ints: dict[int, pa.Array] = {}
        self._texts: dict[str, pa.Array] = {}

    def ints(self, value: int, rows: int) -> pa.Array:
        """Return a column of one 32-bit number."""
        kept = self._ints.get(value)
        if kept is None or len(kept) < rows:
            kept = self._ints[value] = ints(np.full(rows, value, np.int32))
        return kept.slice(0, rows)

    def text(self, value: str, rows: int) -> pa.Array:
        """Return a column of one string."""
        kept = self._texts.get(value)
        if kept is None or len(kept) < rows:
            data = value.encode()
            positions = np.arange(rows + 1, dtype=np.int32) * len(data)
            buffers = [None, _buffer(positions), pa.py_buffer(data * rows)]
            kept = self._texts[value] = pa.Array.from_buffers(pa.string(), rows, buffers)
        return kept.slice(0, rows)
