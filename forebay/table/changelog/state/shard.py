# SPDX-License-Identifier: Apache-2.0
"""A shard of keyed state: reads the version before a micro-batch, and writes the version after it once."""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final

import numpy as np
import pyarrow as pa

from forebay.errors import ConfigurationError, FatalError
from forebay.state.open_state_store import open_state_store
from forebay.state.state_store import OPTION, RetryingStateStore, StateStore
from forebay.stores.store import StorageOptions
from forebay.table.changelog.state.facts import SegmentInfo, damaged
from forebay.table.changelog.state.manifest import Manifest, OperatorInfo
from forebay.table.changelog.state.segments import (
    BYTES,
    COUNT,
    KEY_HASH,
    ORDER,
    ORDINAL,
    ROW_HASH,
    ROWS,
    TOUCHED,
    Ints,
    Segment,
    SegmentFiles,
    StoredSegments,
    sorted_by_key,
    split_rows,
)

# -- Looks up the entries of keys in all runs of an opened version of a shard.


@dataclass(frozen=True)
class Entries:
    """Entries that `lookup` found, sorted by key hash, row hash and ordinal; tombstones are left out.

    The fields hold hashes, ordinals, counts and times; `take` reads the other columns.
    """

    key_hashes: Ints
    row_hashes: Ints
    ordinals: Ints
    counts: Ints
    touched: Ints | None
    _segments: Sequence[Segment]
    _owners: Ints
    _places: Ints

    def __len__(self) -> int:
        return len(self.key_hashes)

    def take(self, which: Ints, fields: Sequence[pa.Field]) -> list[pa.Array]:
        """Return columns of the entries `which`, in this order. Columns that a segment lacks are NULL."""
        owners, places = self._owners[which], self._places[which]
        by_owner = np.argsort(owners, kind="stable")
        back = np.empty(len(which), np.int64)
        back[by_owner] = np.arange(len(which))
        cuts = np.flatnonzero(np.diff(owners[by_owner])) + 1
        groups = [group for group in np.split(by_owner, cuts) if len(group)]
        taken = []
        for group in groups:
            segment = self._segments[owners[group[0]]]
            taken.append(segment.take(places[group], fields))
            segment.unload()
        if not taken:
            return [pa.nulls(0, field.type) for field in fields]
        order = pa.array(back)
        return [pa.concat_arrays(parts).take(order) for parts in zip(*taken, strict=True)]

    def orders(self, types: Sequence[pa.DataType]) -> list[pa.Array]:
        """Return the columns that order the rows of a key, for all entries."""
        fields = [pa.field(f"{ORDER}{place}", kind) for place, kind in enumerate(types)]
        return self.take(np.arange(len(self)), fields)


def lookup(runs: Sequence[Sequence[Segment]], hashes: Ints, *, timed: bool) -> Entries:
    """Return the newest version of each entry of some keys.

    Args:
        runs: The runs of the shard, oldest first.
        hashes: Key hashes, sorted, without duplicates.
        timed: Whether entries have a time.
    """
    names = [KEY_HASH, ROW_HASH, ORDINAL, COUNT, *([TOUCHED] if timed else [])]
    empty = np.empty(0, np.int64)
    segments: list[Segment] = []
    parts: list[list[Ints]] = [[empty] for _ in range(len(names) + 2)]
    for segment in (segment for run in reversed(runs) for segment in run):
        places = segment.find(hashes)[0] if len(hashes) else empty
        if len(places):
            columns = [segment.ints(name)[places] for name in names]
            for column, part in zip(parts, [np.full(len(places), len(segments)), places, *columns], strict=True):
                column.append(part)
            segments.append(segment)
        segment.unload()
    owners, places, keys, rows, ordinals, counts, *touched = (
        np.concatenate(column).astype(np.int64, copy=False) for column in parts
    )
    live = newest(keys, rows, ordinals)
    live = live[counts[live] != 0]
    return Entries(
        keys[live],
        rows[live],
        ordinals[live],
        counts[live],
        touched[0][live] if timed else None,
        segments,
        owners[live],
        places[live],
    )


def newest(keys: Ints, rows: Ints, ordinals: Ints) -> Ints:
    """Return the index of the first, which is the newest, entry of each key, row and ordinal, sorted by these three."""
    by_identity = (ordinals, rows, keys) if ordinals.any() else (rows, keys)
    order = np.lexsort(by_identity)  # stable
    if not len(order):
        return order
    first = np.ones(len(order), np.bool_)
    first[1:] = False
    for column in by_identity:
        arranged = column[order]
        first[1:] |= arranged[1:] != arranged[:-1]
    return order[first]


# -- Merges runs of segments into one run, in bounded memory.


SMALL: Final = 4096
"""Runs of at most this many entries are merged with each new run, so that small micro-batches leave few runs."""

SMALL_BYTES: Final = 4 << 20
"""Runs with more bytes than this are not small, even if they have few entries."""


@dataclass(frozen=True)
class MergeInput:
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
    runs: Sequence[Sequence[MergeInput]],
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
        merged = newest_entries(entries_between(runs, low, high, schema), keep_tombstones=keep_tombstones)
        if merged.num_rows:
            waiting.append(merged)
        if sum(part.num_rows for part in waiting) >= ROWS or sum(part.nbytes for part in waiting) >= BYTES:
            flush()
    flush()
    return tuple(written)


def key_ranges(runs: Sequence[Sequence[MergeInput]]) -> Iterator[tuple[int | None, int | None]]:
    """Yield ranges of key hashes `[low, high)` that cover all entries, in ascending order; None is no bound.

    A range holds at most one segment of each run, so a caller that reads the entries of one range after another needs
    memory for one segment of each run.
    """
    cuts = sorted({part.first for run in runs for part in run})
    if cuts:
        yield from zip([None, *cuts[1:]], [*cuts[1:], None], strict=True)


def entries_between(
    runs: Sequence[Sequence[MergeInput]], low: int | None, high: int | None, schema: pa.Schema
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
    places = newest(keys, rows, ordinals)
    if not keep_tombstones:
        places = places[entries.column(COUNT).to_numpy()[places] != 0]
    return entries.take(pa.array(places))


def in_memory_run(entries: pa.RecordBatch) -> list[MergeInput]:
    """Return sorted entries as a run of one segment that is not a file."""
    segment = Segment(entries)
    return [MergeInput(int(segment.hashes[0]), int(segment.hashes[-1]), lambda: segment)]


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


_log = logging.getLogger(__name__)

MAPPED: Final = 64
"""Maximum shards whose segments a process keeps mapped."""

SWEEP: Final = 64
"""The number of versions between two searches for segments that killed attempts left behind."""

_NEW: Final = (
    "start the query with a new checkpoint and a new state location, or restore the state location and the checkpoint "
    "from one backup"
)


@dataclass(frozen=True)
class StateChange:
    """The change of the state by one micro-batch.

    Args:
        entries: The entries that changed, in any order, each once.
        digest: A checksum of all events of the micro-batch.
        clock: The greatest time seen so far in microseconds; None without a time to live.
        counts: The counters of the operator, by name.
    """

    entries: pa.RecordBatch
    digest: int
    clock: int | None
    counts: dict[str, int]


class Shard:
    """One shard of an operator's state. Used by one task at a time; other attempts may use the same shard.

    Args:
        store: The store of the manifests.
        files: Writes and opens segments, in the same store.
        directory: The directory of the operator, ending in a slash.
        number: The number of the shard.
        keep: How many versions before the current one stay readable.
        generation: The generation of the state that the shard belongs to; see `OperatorInfo`.
        inside: The directory of the generation, below `directory`: empty or ending in a slash.
    """

    def __init__(
        self,
        store: StateStore,
        files: SegmentFiles,
        directory: str,
        number: int,
        keep: int = 100,
        *,
        generation: int = 0,
        inside: str = "",
    ) -> None:
        self._store = store
        self._files = files
        self._info = info_name(directory, generation)
        self._next_info = info_name(directory, generation + 1)
        self._resharded = generation > 0
        self._directory = directory + inside
        self._prefix = shard_prefix(self._directory, number)
        self.number = number
        self._keep = keep

    def begin(self, info: OperatorInfo, version: int) -> Manifest:
        """Check that the state belongs to this query, and return the manifest before a micro-batch.

        Raises:
            ConfigurationError: The state belongs to another query or operator, or has another number of shards.
            FatalError: The state before this micro-batch is missing or damaged.
        """
        first = self._check(replace(info, first=version))
        if version == first:
            return Manifest(version - 1, (), pa.schema([]))
        before = self.newest(version - 1)
        if before is None:
            self._refuse_resharded()
            raise self._missing(version)
        return before

    def newest(self, version: int) -> Manifest | None:
        """Return the manifest after a micro-batch, or the one that a reshard wrote for that micro-batch, or None."""
        manifest = self.manifest(version)
        if manifest is not None or not self._resharded:
            return manifest
        name = reshard_name(self._prefix, version)
        data = self._store.get(name)
        return None if data is None else Manifest.from_bytes(data, name)

    def manifest(self, version: int) -> Manifest | None:
        """Return the manifest after a micro-batch; None if there is none."""
        name = manifest_name(self._prefix, version)
        data = self._store.get(name)
        return None if data is None else Manifest.from_bytes(data, name)

    def versions(self) -> list[int]:
        """Return the sorted ids of the micro-batches after which there is a manifest."""
        names = self._store.names(self._prefix)
        versions = {version_of(name, self._prefix) for name in names if name.endswith(".json")}
        return sorted(version for version in versions if version is not None)

    def open(self, manifest: Manifest) -> list[list[Segment]]:
        """Return the segments of a version, memory-mapped, oldest run first.

        The process keeps the mappings for the next micro-batch, except those of segments that were merged away.
        """
        known = _mapped.pop((self._store.location, self._prefix), {})
        mapped = {
            segment.name: known.get(segment.name) or self._files.open(segment)
            for run in manifest.runs
            for segment in run
        }
        _mapped[self._store.location, self._prefix] = mapped
        while len(_mapped) > MAPPED:
            _mapped.popitem(last=False)
        return [[mapped[segment.name] for segment in run] for run in manifest.runs]

    def commit(self, before: Manifest, version: int, change: StateChange) -> Manifest:
        """Write the version after a micro-batch, unless another attempt has written it.

        Raises:
            FatalError: The version exists but was made of other events, or the state was resharded.
        """
        existing = self.manifest(version)
        if existing is None:
            written = self._write(before, version, change)
            self._refuse_resharded()
            if self._store.put_if_absent(manifest_name(self._prefix, version), written.to_bytes()):
                self._remove_old(written)
                return written
            existing = self.manifest(version)
            if existing is None:
                raise damaged(manifest_name(self._prefix, version), "it vanished")
            self._store.delete(_names(written.runs) - _names(before.runs) - _names(existing.runs))
        if existing.digest != change.digest:
            raise FatalError(
                f"micro-batch {version} of shard {self.number} has other events than when its state was written",
                option=OPTION,
                advice="if two functions of the query have the same name, give each one its own (name=…); otherwise "
                "make the input of the query the same at each replay (no rand(), no current time, no source that "
                "loses data); "
                f"if the checkpoint was set back or replaced, {_NEW}",
            )
        return existing

    def _refuse_resharded(self) -> None:
        if self._store.get(self._next_info) is not None:
            raise FatalError(
                f"the state was given another number of shards since this query was defined ({self._next_info})",
                option=OPTION,
                advice="stop the query, define its DataFrame again and start it; reshard only a stopped query",
            )

    def _check(self, info: OperatorInfo) -> int:
        """Compare the stored `OperatorInfo` with `info`, or store `info` in a new state. Return the first version."""
        name = self._info
        data = self._store.get(name)
        if data is None:
            if info.first > 0:
                raise ConfigurationError(
                    f"there is no state below {self._store.location!r} (no file {name}), but the query is at "
                    f"micro-batch {info.first}",
                    option=OPTION,
                    advice=_NEW,
                )
            if self._store.put_if_absent(name, info.to_bytes()):
                return info.first
            data = self._store.get(name) or b""
        stored = OperatorInfo.from_bytes(data, name)
        check_info(stored, info, self._store.location)
        return stored.first

    def _missing(self, version: int) -> FatalError:
        """Return the error for a micro-batch that finds no state of the micro-batch before it."""
        versions = self.versions()
        before = max((earlier for earlier in versions if earlier < version), default=None)
        if before is not None:
            advice = (
                "if the query uses foreachBatch, let its function read each micro-batch, because one that it does not "
                "read leaves no state"
            )
            return FatalError(
                f"shard {self.number} in {self._prefix} has no state of micro-batch {version - 1}; its last one before "
                f"is that of micro-batch {before}",
                option=OPTION,
                advice=f"{advice}; if files of the state were removed, {_NEW}",
            )
        oldest = min(versions, default=None)
        has = "has no version" if oldest is None else f"has no version before micro-batch {oldest}"
        return FatalError(
            f"the state of micro-batch {version - 1} is missing: shard {self.number} in {self._prefix} {has}",
            option=OPTION,
            advice=f"a query can go back {self._keep} micro-batches; {_NEW}",
        )

    def _write(self, before: Manifest, version: int, change: StateChange) -> Manifest:
        """Write the changed entries, merged with the newest runs as `is_merged` decides. Return the manifest."""
        schema = change.entries.schema
        runs = list(before.runs)
        # Segments that earlier versions dropped were removed after the previous version was written.
        retired = [(dropped, name) for dropped, name in before.retired if dropped >= version - self._keep]
        if change.entries.num_rows:
            merged = [in_memory_run(sorted_by_key(change.entries))]
            rows = change.entries.num_rows
            while runs and is_merged(runs[-1], rows):
                run = runs.pop()
                rows += run_rows(run)
                merged.append([self._part(segment) for segment in run])
                retired += [(version, segment.name) for segment in run]
            prefix = f"{self._prefix}{version:012d}-"
            new = merge(merged, schema, lambda batch: self._files.write(prefix, batch), keep_tombstones=bool(runs))
            runs += [new] if new else []
        return Manifest(
            version,
            tuple(runs),
            schema,
            tuple(retired),
            change.digest,
            change.clock,
            change.counts,
        )

    def _part(self, segment: SegmentInfo) -> MergeInput:
        return MergeInput(segment.first, segment.last, lambda: self._files.open(segment))

    def _remove_old(self, manifest: Manifest) -> None:
        """Remove files that only versions more than `keep` behind need. The next version drops them from `retired`."""
        oldest = manifest.version - self._keep
        names = [name for version, name in manifest.retired if version <= oldest]
        if oldest > 0:
            names.append(manifest_name(self._prefix, oldest - 1))
        if manifest.version % SWEEP == 0 and oldest > 0:
            known = _names(manifest.runs) | {name for _, name in manifest.retired}
            names += [
                name
                for name in self._store.names(self._prefix)
                if name not in known and (version := version_of(name, self._prefix)) is not None and version < oldest
            ]
        if names:
            self._store.delete(names)
            self._files.forget(names)


_mapped: OrderedDict[tuple[str, str], dict[str, Segment]] = OrderedDict()
"""The mapped segments of the shards that this process has used most recently."""


def check_info(stored: OperatorInfo, expected: OperatorInfo, location: str) -> None:
    """Check that a state belongs to the query and the operator of `expected`, and has as many shards.

    Raises:
        ConfigurationError: One of these differs.
    """
    if stored.query != expected.query:
        raise ConfigurationError(
            f"the state below {location!r} belongs to the query {stored.query}, not to {expected.query}",
            option=OPTION,
            advice="give each query a state location of its own; a query with a new checkpoint needs a new one too",
        )
    if (stored.operator, stored.keys) != (expected.operator, expected.keys):
        raise ConfigurationError(
            f"the state below {location!r} is that of {_shown(stored)}, not of {_shown(expected)}",
            option=OPTION,
            advice="give each operator of a query a name of its own (name=…); for another key or strategy, start with "
            "a new checkpoint and a new state location",
        )
    if stored.shards != expected.shards:
        raise ConfigurationError(
            f"the state below {location!r} has {stored.shards} shards, not {expected.shards}",
            option="shards",
            advice=f"set shards to {stored.shards}, or stop the query and run `forebay state reshard`",
        )


def info_name(directory: str, generation: int) -> str:
    """Return the file name of the `OperatorInfo` of a generation. The last generation that has one is the state."""
    return f"{directory}operator.json" if generation == 0 else f"{directory}operator-{generation:05d}.json"


def shard_prefix(directory: str, number: int) -> str:
    """Return the directory of a shard, ending in a slash."""
    return f"{directory}{number:05d}/"


def manifest_name(prefix: str, version: int) -> str:
    """Return the file name of the manifest after a micro-batch."""
    return f"{prefix}v{version:012d}.json"


def reshard_name(prefix: str, version: int) -> str:
    """Return the file name of the manifest that a reshard writes for the last micro-batch.

    If Spark has not logged this micro-batch as done, Spark repeats it, and its tasks write `manifest_name`.
    """
    return f"{prefix}v{version:012d}-resharded.json"


_VERSION: Final = re.compile(r"v?([0-9]{12})[-.]")


def version_of(name: str, prefix: str) -> int | None:
    """Return the id of the micro-batch that wrote a manifest or a segment of a shard; None for any other file."""
    match = _VERSION.match(name.removeprefix(prefix))
    return None if match is None else int(match[1])


def _shown(info: OperatorInfo) -> str:
    return f"{info.operator} by {', '.join(f'{name} {kind}' for name, kind in info.keys)}"


def _names(runs: Sequence[Sequence[SegmentInfo]]) -> set[str]:
    return {segment.name for run in runs for segment in run}


# -- The location and settings of the state of one operator of one query.


@dataclass(frozen=True)
class OperatorState:
    """The state of an operator. It is pickled to the tasks; secrets stay references.

    Args:
        location: A directory that all machines share, or `s3://bucket/prefix`.
        name: The name of the operator, which is a directory below the location.
        storage: Settings of S3, as `stateStorage.*` of a stream.
        shards: The number of shards; None if it is not known yet.
        generation: How often the state was resharded.
        inside: The directory of this generation's shards, below the directory of the operator.
        retained: How many versions before the current one stay readable, as `spark.sql.streaming.minBatchesToRetain`.
    """

    location: str
    name: str
    storage: Mapping[str, object] = field(default_factory=dict)
    shards: int | None = None
    retained: int = 100
    generation: int = 0
    inside: str = ""

    @property
    def directory(self) -> str:
        """The directory of the operator below the location, ending in a slash."""
        return f"{self.name}/"

    def store(self) -> StateStore:
        """Return the state store, which repeats failed requests, without any request to it.

        Raises:
            ConfigurationError: The store cannot keep state, or an option is unknown.
        """
        return RetryingStateStore(open_state_store(self.location, StorageOptions(self.storage)))

    def shard(self, number: int) -> Shard:
        """Return a shard, without any request to the store."""
        store = self.store()
        return Shard(
            store,
            StoredSegments(store),
            self.directory,
            number,
            self.retained,
            generation=self.generation,
            inside=self.inside,
        )

    def info(self) -> OperatorInfo | None:
        """Return the `OperatorInfo` of the last generation: what the state belongs to. None: there is no state yet."""
        store, info = self.store(), None
        for generation in count():
            name = info_name(self.directory, generation)
            data = store.get(name)
            if data is None:
                break
            info = OperatorInfo.from_bytes(data, name)
        return info

    def at(self, info: OperatorInfo) -> OperatorState:
        """Return the same state with the shards of the generation that `info` describes."""
        return replace(self, shards=info.shards, generation=info.generation, inside=info.directory)
