# SPDX-License-Identifier: Apache-2.0
"""Slices record batches so that none exceeds `maxRowsPerBatch` or `maxBytesPerBatch`."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa


def slices_within(batch: pa.RecordBatch, *, max_rows: int, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield slices of `batch` with at most `max_rows` rows and `max_bytes` bytes; none if the batch has no rows.

    A single row of more than `max_bytes` is a slice of its own. No data is copied.
    """
    if 0 < batch.num_rows <= max_rows and batch.nbytes <= max_bytes:
        yield batch
        return
    start, rows = 0, max(1, batch.num_rows * max_bytes // max(1, batch.nbytes))
    while start < batch.num_rows:
        part = batch.slice(start, max_rows)
        if part.nbytes > max_bytes:
            rows = _rows_within(part, max_bytes, rows)
            part = part.slice(0, rows)
        yield part
        start += part.num_rows


def _rows_within(batch: pa.RecordBatch, max_bytes: int, guess: int) -> int:
    """Return how many of the first rows of a batch fit, at least 1. Requires that the batch exceeds `max_bytes`.

    The search begins near `guess`, the number of the slice before, because the size of a batch takes time in proportion
    to its columns: rows of equal size take two steps.
    """
    low, high, step = 1, max(2, batch.num_rows), 1
    middle = min(max(guess, 1), high - 1)
    while high - low > 1:
        if batch.slice(0, middle).nbytes <= max_bytes:
            low, middle = middle, middle + step
        else:
            high, middle = middle, middle - step
        step *= 2
        if not low < middle < high:
            middle = (low + high) // 2
    return low
