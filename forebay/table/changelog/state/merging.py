# SPDX-License-Identifier: Apache-2.0
"""Merges runs of segments into one run, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from forebay.table.changelog.state.entries import COUNT, KEY_HASH, ORDINAL, ROW_HASH
from forebay.table.changelog.state.facts import SegmentInfo
from forebay.table.changelog.state.segments import BYTES, ROWS, Segment, split_rows
from forebay.table.changelog.state.snapshot import newest

SMALL: Final = 4096
"""Runs of at most this many entries are merged with each new run, so that small micro-batches leave few runs."""

SMALL_BYTES: Final = 4 << 20
"""Runs with more bytes than this are not small, even if they have few entries."""


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

    for low, high in key_ranges(runs):
        kept = newest_entries(entries_between(runs, low, high, schema), keep_tombstones=keep_tombstones)
        if kept.num_rows:
            waiting.append(kept)
        if sum(part.num_rows for part in waiting) >= ROWS or sum(part.nbytes for part in waiting) >= BYTES:
            flush()
    flush()
    return tuple(written)


def key_ranges(runs: Sequence[Sequence[Part]]) -> Iterator[tuple[int | None, int | None]]:
    """Yield ranges of key hashes `[low, high)` that cover all entries, in ascending order; None is no bound.

    A range holds at most one segment of each run, so a caller that reads the entries of one range after another needs
    memory for one segment of each run.
    """
    cuts = sorted({part.first for run in runs for part in run})
    if cuts:
        yield from zip([None, *cuts[1:]], [*cuts[1:], None], strict=True)


def entries_between(
    runs: Sequence[Sequence[Part]], low: int | None, high: int | None, schema: pa.Schema
) -> pa.RecordBatch:
    """Return the entries of all runs whose key hashes are in a range; those of the first run come first.

    Args:
        runs: The runs, newest first.
        low: The least key hash; None is no bound.
        high: The key hash above the greatest one; None is no bound.
        schema: The columns; those that a segment lacks become NULL.
    """
    pieces = []
    for part in (part for run in runs for part in run):
        if (low is not None and part.last < low) or (high is not None and part.first >= high):
            continue
        segment = part.open()
        start = 0 if low is None else int(np.searchsorted(segment.hashes, low, side="left"))
        stop = len(segment.hashes) if high is None else int(np.searchsorted(segment.hashes, high, side="left"))
        columns = [segment.column(field).slice(start, stop - start) for field in schema]
        pieces.append(pa.RecordBatch.from_arrays(columns, schema=schema))
    return pa.concat_batches(pieces) if pieces else pa.RecordBatch.from_pylist([], schema)


def newest_entries(entries: pa.RecordBatch, *, keep_tombstones: bool) -> pa.RecordBatch:
    """Return the newest version of each entry, sorted. Newer entries come first in `entries`."""
    keys, rows, ordinals = (entries.column(name).to_numpy() for name in (KEY_HASH, ROW_HASH, ORDINAL))
    kept = newest(keys, rows, ordinals)
    if not keep_tombstones:
        kept = kept[entries.column(COUNT).to_numpy()[kept] != 0]
    return entries.take(pa.array(kept))


def in_memory_run(entries: pa.RecordBatch) -> list[Part]:
    """Return sorted entries as a run of one segment that is not a file."""
    segment = Segment(entries)
    return [Part(int(segment.hashes[0]), int(segment.hashes[-1]), lambda: segment)]


def is_merged(run: Sequence[SegmentInfo], rows: int) -> bool:
    """Return whether a run is merged with the newer runs, which have `rows` entries together.

    A run that is not merged has at least a quarter more entries than all newer runs, so the number of runs grows only
    with the logarithm of the number of entries.
    """
    small = run_rows(run) <= SMALL and sum(segment.size for segment in run) <= SMALL_BYTES
    return small or 4 * run_rows(run) <= 5 * rows


def run_rows(run: Sequence[SegmentInfo]) -> int:
    """Return the number of entries of a run."""
    return sum(segment.rows for segment in run)
