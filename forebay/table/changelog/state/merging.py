# SPDX-License-Identifier: Apache-2.0
"""Merges runs of segments into one run, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from forebay.table.changelog.state.entries import COUNT, KEY_HASH, ORDINAL, ROW_HASH
from forebay.table.changelog.state.manifest import SegmentInfo
from forebay.table.changelog.state.segments import BYTES, ROWS, Segment, split_rows
from forebay.table.changelog.state.snapshot import newest


@dataclass(frozen=True)
class Part:
    """A segment of a run to merge, opened only while its range is merged.

    Args:
        first: The least key hash of the segment.
        last: The greatest key hash.
        open: Opens the segment.
    """

    first: int
    last: int
    open: Callable[[], Segment]


def merge(
    runs: Sequence[Sequence[Part]],
    schema: pa.Schema,
    write: Callable[[pa.RecordBatch], SegmentInfo],
    *,
    keep_tombstones: bool,
) -> tuple[SegmentInfo, ...]:
    """Merge several runs into one, and return the segments that were written.

    Args:
        runs: The runs to merge, newest first.
        schema: The columns to write; columns that a segment lacks become NULL.
        write: Writes a segment.
        keep_tombstones: Whether to write tombstones, because an older run may still have the entries that they hide.
    """
    written: list[SegmentInfo] = []
    waiting: list[pa.RecordBatch] = []

    def flush() -> None:
        if waiting:
            written.extend(write(part) for part in split_rows(pa.concat_batches(waiting)))
            waiting.clear()

    for piece in _ranges(runs, schema):
        kept = _merged(piece, keep_tombstones=keep_tombstones)
        if kept.num_rows:
            waiting.append(kept)
        if sum(part.num_rows for part in waiting) >= ROWS or sum(part.nbytes for part in waiting) >= BYTES:
            flush()
    flush()
    return tuple(written)


def _ranges(runs: Sequence[Sequence[Part]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the entries of all runs by ranges of key hashes. Within a range, the newest entries come first."""
    cuts = sorted({part.first for run in runs for part in run})[1:]
    for low, high in zip([None, *cuts], [*cuts, None], strict=True):
        pieces = []
        for part in (part for run in runs for part in run):
            if (low is not None and part.last < low) or (high is not None and part.first >= high):
                continue
            segment = part.open()
            start = 0 if low is None else int(np.searchsorted(segment.hashes, low, side="left"))
            stop = len(segment.hashes) if high is None else int(np.searchsorted(segment.hashes, high, side="left"))
            columns = [segment.column(field).slice(start, stop - start) for field in schema]
            pieces.append(pa.RecordBatch.from_arrays(columns, schema=schema))
        if pieces:
            yield pa.concat_batches(pieces)


def _merged(entries: pa.RecordBatch, *, keep_tombstones: bool) -> pa.RecordBatch:
    """Return the newest version of each entry, sorted."""
    keys, rows, ordinals = (entries.column(name).to_numpy() for name in (KEY_HASH, ROW_HASH, ORDINAL))
    kept = newest(keys, rows, ordinals)
    if not keep_tombstones:
        kept = kept[entries.column(COUNT).to_numpy()[kept] != 0]
    return entries.take(pa.array(kept))
