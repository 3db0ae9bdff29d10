# SPDX-License-Identifier: Apache-2.0
"""Merges runs of an index, so that a key is looked for in few segments."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import islice
from typing import Final

from forebay.errors import FatalError
from forebay.table.index.definition import ObjectType
from forebay.table.index.pipelines import IndexRun, IndexStore
from forebay.table.index.segment_cache import SegmentCache, process_cache
from forebay.table.index.segments import IndexSegment, Row, RunWriter, newest_rows, open_segment, segment_rows

SMALL: Final = 512
"""A merge takes in runs of at most this many rows, however few the newer ones have."""

RUNS: Final = 10
"""Maximum runs. A key is in at most one segment of a run, so this bounds the segments that have a key."""

_BATCH: Final = 10_000


def compact(
    index: IndexStore, definition: ObjectType, shards: int, prefix: str, runs: Sequence[IndexRun]
) -> tuple[IndexRun, ...]:
    """Return the runs. If there are more than `RUNS`, the newest one is merged with older ones.

    It takes in older runs until at most `RUNS` are left, and the next one has more than `SMALL` rows and over a quarter
    more rows than the merged ones.

    Args:
        index: The store.
        definition: The definition of the object type.
        shards: The number of shards.
        prefix: The beginning of the names of new segments.
        runs: The runs, oldest first. The newest one was written by the caller, and no version names it: it is
            deleted if it is merged.
    """
    if len(runs) <= RUNS:
        return tuple(runs)
    left = list(runs)
    merged = [left.pop()]
    rows = run_rows(merged[0])
    while left and (run_rows(left[-1]) <= SMALL or 4 * run_rows(left[-1]) <= 5 * rows or len(left) >= RUNS):
        merged.append(left.pop())
        rows += run_rows(merged[-1])
    key_hash, width = definition.codec.hasher(), len(definition.keys)
    with (
        RunWriter(index.store, prefix, definition, shards=shards, shard=None, rows=rows) as writer,
        closing(rows_of_runs(index, definition, merged, keep_deleted=bool(left))) as newest,
    ):
        while some := list(islice(newest, _BATCH)):
            writer.add(some, [key_hash(columns[:width]) for _, columns, _ in some])
        run = writer.finish()
    index.store.delete([segment.name for segment in merged[0]])
    return tuple(each for each in (*left, run) if each)


def run_rows(run: IndexRun) -> int:
    """Return the number of keys of a run, deleted ones among them."""
    return sum(segment.rows + segment.deleted for segment in run)


def opened_copies(
    index: IndexStore, segments: Sequence[IndexSegment], definition: ObjectType
) -> Iterator[sqlite3.Connection]:
    """Open local files of segments: those of the store itself, or copies that are fetched if necessary.

    Raises:
        FatalError: A segment cannot be read.
    """
    paths = [index.store.local_path(segment.name) for segment in segments]
    copies = [path for path in paths if path is not None]
    if len(copies) < len(segments):
        cache = SegmentCache(index.store, process_cache(index.store))
        cache.fetch(segments)
        copies = [cache.path(segment) for segment in segments]
    for path, segment in zip(copies, segments, strict=True):
        try:
            connection = open_segment(path, segment.name, definition)
        except sqlite3.DatabaseError as error:
            raise _unreadable(f"the segment {segment.name}", error) from error
        yield connection


def rows_of_runs(
    index: IndexStore, definition: ObjectType, runs: Sequence[IndexRun], *, keep_deleted: bool
) -> Generator[Row, None, None]:
    """Yield the newest row of each key of runs, newest first; see `newest_rows`.

    Raises:
        FatalError: A segment cannot be read.
    """
    with ExitStack() as stack:
        try:
            opened = [
                segment_rows(stack.enter_context(closing(connection)))
                for connection in opened_copies(index, [segment for run in runs for segment in run], definition)
            ]
            yield from newest_rows(opened, keep_deleted=keep_deleted)
        except sqlite3.DatabaseError as error:
            raise _unreadable("a segment of the index", error) from error


def _unreadable(what: str, error: sqlite3.DatabaseError) -> FatalError:
    """Return the error for what SQLite cannot read, which need not be damaged: there may be no more files to open."""
    return FatalError(
        f"{what} cannot be read: {error}",
        option="location",
        advice="run `forebay index verify`, which names it; Funnel.follow(full=True) writes all segments again",
    )
