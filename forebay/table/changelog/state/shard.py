# SPDX-License-Identifier: Apache-2.0
"""A shard of keyed state: reads the version before a micro-batch, and writes the version after it once."""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from forebay.errors import ConfigurationError, FatalError
from forebay.state.state_store import OPTION, StateStore
from forebay.table.changelog.state.facts import SegmentInfo, damaged
from forebay.table.changelog.state.manifest import Manifest, OperatorInfo
from forebay.table.changelog.state.merging import Part, in_memory_run, is_merged, merge, run_rows
from forebay.table.changelog.state.segments import Segment, SegmentFiles, sorted_by_key

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
class Change:
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
        found = self.manifest(version)
        if found is not None or not self._resharded:
            return found
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
        found = {version_of(name, self._prefix) for name in names if name.endswith(".json")}
        return sorted(version for version in found if version is not None)

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

    def commit(self, before: Manifest, version: int, change: Change) -> Manifest:
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
        found = OperatorInfo.from_bytes(data, name)
        check_info(found, info, self._store.location)
        return found.first

    def _missing(self, version: int) -> FatalError:
        """Return the error for a micro-batch that finds no state of the micro-batch before it."""
        versions = self.versions()
        before = max((found for found in versions if found < version), default=None)
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

    def _write(self, before: Manifest, version: int, change: Change) -> Manifest:
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

    def _part(self, segment: SegmentInfo) -> Part:
        return Part(segment.first, segment.last, lambda: self._files.open(segment))

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


def check_info(found: OperatorInfo, wanted: OperatorInfo, location: str) -> None:
    """Check that a state belongs to the query and the operator of `wanted`, and has as many shards.

    Raises:
        ConfigurationError: One of these differs.
    """
    if found.query != wanted.query:
        raise ConfigurationError(
            f"the state below {location!r} belongs to the query {found.query}, not to {wanted.query}",
            option=OPTION,
            advice="give each query a state location of its own; a query with a new checkpoint needs a new one too",
        )
    if (found.operator, found.keys) != (wanted.operator, wanted.keys):
        raise ConfigurationError(
            f"the state below {location!r} is that of {_shown(found)}, not of {_shown(wanted)}",
            option=OPTION,
            advice="give each operator of a query a name of its own (name=…); for another key or strategy, start with "
            "a new checkpoint and a new state location",
        )
    if found.shards != wanted.shards:
        raise ConfigurationError(
            f"the state below {location!r} has {found.shards} shards, not {wanted.shards}",
            option="shards",
            advice=f"set shards to {found.shards}, or stop the query and run `forebay state reshard`",
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
