# SPDX-License-Identifier: Apache-2.0
"""Combines small record batches, because each one costs Spark about as much as a thousand rows."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

_SMALL_ROWS: Final = 5_000
_SMALL_BYTES: Final = 1 << 20
_BURST_SECONDS: Final = 0.05
"""A batch is held back only if it arrives within this time after the last yielded batch."""


def coalesced(batches: Iterable[pa.RecordBatch], *, max_rows: int, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `batches` in order, in fewer record batches. Called on the thread of a task.

    A batch that arrives 0.05 s or more after the last yielded one is yielded at once, and so is the first batch.

    Args:
        batches: Record batches of one schema, each within the two limits.
        max_rows: Maximum rows of a batch.
        max_bytes: Maximum bytes of a batch.
    """
    held: list[pa.RecordBatch] = []
    rows = size = 0
    last = -_BURST_SECONDS
    most_rows, most_bytes = min(max_rows, _SMALL_ROWS), min(max_bytes, _SMALL_BYTES)
    for batch in batches:
        batch_bytes = batch.nbytes
        if held and (rows + batch.num_rows > most_rows or size + batch_bytes > most_bytes):
            yield _combined(held)
            held, rows, size = [], 0, 0
        held.append(batch)
        rows += batch.num_rows
        size += batch_bytes
        if time.monotonic() - last >= _BURST_SECONDS or rows >= most_rows or size >= most_bytes:
            yield _combined(held)
            held, rows, size = [], 0, 0
            last = time.monotonic()
    if held:
        yield _combined(held)


def _combined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (batch,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return batch
