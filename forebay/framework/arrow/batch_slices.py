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
    start = 0
    while start < batch.num_rows:
        part = batch.slice(start, max_rows)
        if part.nbytes > max_bytes:
            part = part.slice(0, _rows_within(part, max_bytes))
        yield part
        start += part.num_rows


def _rows_within(batch: pa.RecordBatch, max_bytes: int) -> int:
    """Return how many of the first rows of a batch fit, at least 1. Requires that the batch exceeds `max_bytes`."""
    low, high = 1, max(2, batch.num_rows)
    while high - low > 1:
        middle = (low + high) // 2
        if batch.slice(0, middle).nbytes <= max_bytes:
            low = middle
        else:
            high = middle
    return low
