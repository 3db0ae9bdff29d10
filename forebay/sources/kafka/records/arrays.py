# SPDX-License-Identifier: Apache-2.0
"""Builds Arrow columns from the positions of values in a buffer."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.sources.kafka.records.numbers import Bytes, Ints

_INLINE = 12
"""Maximum bytes that an Arrow view stores inline. For longer values, a view stores a pointer."""


def binary(source: Bytes, at: Ints, lengths: Ints, nulls: npt.NDArray[np.bool_]) -> pa.Array:
    """Return a binary column whose values are slices of `source` with the begins `at` and `lengths` (0 for nulls).

    It creates a column of views, and Arrow copies the bytes once into a plain column. Arrow raises an error for columns
    of more than 2 GiB.
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
    return pa.Array.from_buffers(pa.binary_view(), rows, buffers).cast(pa.binary())


def _inline(source: Bytes, at: Ints, lengths: Ints) -> npt.NDArray[np.int32]:
    """Return for each short slice the twelve bytes that its Arrow view stores inline.

    Arrow ignores the bytes beyond the length of the slice.
    """
    inside = np.minimum(at, source.size - _INLINE)
    held = np.empty((len(at), 3), np.int32)
    held[:, :2] = source.u64[inside].view(np.int32).reshape(-1, 2)
    held[:, 2] = source.u32[inside + 8].view(np.int32)
    for row in np.flatnonzero(inside != at).tolist():  # fewer than twelve bytes of the buffer are left
        begin = int(at[row])
        piece = bytes(source.data[begin : begin + int(lengths[row])]).ljust(_INLINE, b"\0")
        held[row] = np.frombuffer(piece, np.int32)
    return held


def bitmap(present: npt.NDArray[np.bool_]) -> pa.Buffer:
    """Return Arrow's validity bitmap for a mask of the values that are not null."""
    return _buffer(np.packbits(present, bitorder="little"))


def _buffer(values: npt.NDArray[Any]) -> pa.Buffer:
    return pa.py_buffer(np.ascontiguousarray(values).data)


def column(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Return a column of fixed-width values without copying them."""
    return pa.Array.from_buffers(kind, len(values), [None, _buffer(values)])


class Constants:
    """Caches columns of one repeated value, and returns slices of them."""

    def __init__(self) -> None:
        self._kept: dict[int | str, pa.Array] = {}

    def column(self, value: int | str, rows: int) -> pa.Array:
        """Return a column of `rows` equal values: a string or a 32-bit number."""
        kept = self._kept.get(value)
        if kept is None or len(kept) < rows:
            kept = self._kept[value] = _repeated(value, rows)
        return kept.slice(0, rows)


def _repeated(value: int | str, rows: int) -> pa.Array:
    if isinstance(value, int):
        return column(np.full(rows, value, np.int32), pa.int32())
    data = value.encode()
    positions = np.arange(rows + 1, dtype=np.int32) * len(data)
    return pa.Array.from_buffers(pa.string(), rows, [None, _buffer(positions), pa.py_buffer(data * rows)])
