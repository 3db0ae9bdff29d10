# SPDX-License-Identifier: Apache-2.0
"""Decodes the column `headers`, the lists of all records at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.sources.kafka.records import arrays
from forebay.sources.kafka.records.decoding import COLUMNS
from forebay.sources.kafka.records.numbers import Bytes, Ints, numbers
from forebay.sources.kafka.records.parsing import MalformedError

_MOST_STEPS = 1000
"""Maximum headers of a record; the plain decoder reads groups with more."""


def headers_column(source: Bytes, at: Ints, stops: Ints, without: npt.NDArray[np.bool_]) -> pa.Array:
    """Return the column; null where a record has no headers.

    Args:
        source: The bytes.
        at: The position of each record's header count.
        stops: The end of each record.
        without: Which records have no headers.

    Raises:
        MalformedError: Headers are damaged, or one record has too many.
    """
    rows = len(at)
    having = np.flatnonzero(~without)
    counts = np.zeros(rows, np.int64)
    counts[having], positions = numbers(source, at[having])
    stops = stops[having]
    if (counts < 0).any() or (counts[having] > stops - positions).any() or counts.max(initial=0) > _MOST_STEPS:
        raise MalformedError("a header count is invalid")
    lists = np.zeros(rows + 1, np.int32)
    np.cumsum(counts, out=lists[1:])
    parts = _walk(source, positions, stops, counts[having], lists[:-1][having].astype(np.int64))
    values = _pairs(source, parts)
    validity = arrays.bitmap(counts > 0)
    return pa.Array.from_buffers(COLUMNS["headers"], rows, [validity, pa.py_buffer(lists.data)], children=[values])


def _walk(source: Bytes, at: Ints, stops: Ints, counts: Ints, first: Ints) -> Ints:
    """Read the n-th header of all records in one step; return positions and lengths of keys and values."""
    parts = np.zeros((4, int(counts.sum())), np.int64)
    left = np.arange(len(at))
    for step in range(int(counts.max(initial=0))):
        left = left[counts[left] > step]
        where, limit = first[left] + step, stops[left]
        length, here = numbers(source, at[left])
        _check(length, here, limit, 0)
        parts[0, where], parts[1, where] = here, length
        length, here = numbers(source, here + length)
        _check(length, here, limit, -1)
        parts[2, where], parts[3, where] = here, length
        at[left] = here + np.maximum(length, 0)
    if (at != stops).any():
        raise MalformedError("bytes are left after a record's headers")
    return parts


def _check(length: Ints, here: Ints, limit: Ints, least: int) -> None:
    if (length < least).any() or (length > limit - here).any():
        raise MalformedError("a header reaches beyond its record")


def _pairs(source: Bytes, parts: Ints) -> pa.Array:
    none = np.zeros(parts.shape[1], np.bool_)
    keys = arrays.binary(source, parts[0], parts[1], none)
    try:
        names = keys.cast(pa.string())
    except pa.ArrowInvalid:  # U+FFFD for invalid UTF-8, as in Java
        names = pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.string())
    nulls = parts[3] < 0
    values = arrays.binary(source, parts[2], np.where(nulls, 0, parts[3]), nulls)
    return pa.StructArray.from_arrays([names, values], names=["key", "value"])
