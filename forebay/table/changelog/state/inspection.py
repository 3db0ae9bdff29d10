# SPDX-License-Identifier: Apache-2.0
"""Reports what a state location holds: operators, shards, versions, sizes, damage. It changes nothing."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import ConfigurationError, ForebayError
from forebay.state.state_store import OPTION, StateStore
from forebay.table.changelog.state.facts import SegmentInfo
from forebay.table.changelog.state.manifest import Manifest, OperatorInfo
from forebay.table.changelog.state.segments import ORDER, PREFIX, TOUCHED, Ints, Segment, entries_of
from forebay.table.changelog.state.shard import Entries, OperatorState, lookup, manifest_name, shard_prefix


@dataclass(frozen=True)
class ShardReport:
    """A shard at one version.

    Args:
        number: The number of the shard; in `OperatorReport.total`, the count of shards.
        first: The first version that can be read; None if there is none.
        last: The last version that can be read; None if there is none.
        entries: The number of stored entries, including tombstones and replaced ones.
        tombstones: The number of entries that hide older ones; None if they were not counted.
        size: The size in bytes.
        runs: The number of sorted runs. A look-up searches each of them.
        segments: The number of segment files.
        counts: The counters of the operator in the micro-batch of this version, by name.
    """

    number: int
    first: int | None
    last: int | None
    entries: int = 0
    tombstones: int | None = 0
    size: int = 0
    runs: int = 0
    segments: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class OperatorReport:
    """The state of an operator at one version.

    Args:
        name: The name of the operator.
        info: The query and the operator that the state belongs to.
        version: The version that the figures describe; None if there is no version.
        columns: Names and types of the columns of an entry.
        shards: The shards.
    """

    name: str
    info: OperatorInfo
    version: int | None
    columns: Sequence[tuple[str, str]]
    shards: Sequence[ShardReport]

    @property
    def total(self) -> ShardReport:
        """All shards together: the sums, and the versions that all of them have."""
        ends = [
            (shard.first, shard.last) for shard in self.shards if shard.first is not None and shard.last is not None
        ]
        hidden = [shard.tombstones for shard in self.shards if shard.tombstones is not None]
        counts: Counter[str] = Counter()
        for shard in self.shards:
            counts.update(shard.counts)
        return ShardReport(
            len(self.shards),
            max((first for first, _ in ends), default=None),
            min((last for _, last in ends), default=None),
            sum(shard.entries for shard in self.shards),
            sum(hidden) if len(hidden) == len(self.shards) else None,
            sum(shard.size for shard in self.shards),
            sum(shard.runs for shard in self.shards),
            sum(shard.segments for shard in self.shards),
            dict(counts),
        )

    @property
    def skew(self) -> float:
        """The entries of the largest shard, as a multiple of the mean; 1 for an empty state."""
        entries = [shard.entries for shard in self.shards]
        return max(entries) * len(entries) / sum(entries) if sum(entries) else 1.0


@dataclass(frozen=True)
class StateVerification:
    """The result of `verify`, which reads the whole state of an operator.

    Args:
        versions: The number of manifests that were read: one for each version of each shard.
        segments: The number of segments that were read.
        size: The bytes of these segments.
        problems: The problems that were found. Each names a file.
    """

    versions: int
    segments: int
    size: int
    problems: Sequence[str]


def operators(state: OperatorState) -> list[str]:
    """Return the names of the operators below a location; `state.name` does not matter."""
    names = [name.rstrip("/") for name in state.store().directories("")]
    return [name for name in names if replace(state, name=name).info() is not None]


def report(state: OperatorState, version: int | None = None) -> OperatorReport:
    """Return the figures of an operator.

    Args:
        state: The state.
        version: The version to report: a micro-batch id; by default the last one that all shards have.

    Raises:
        ConfigurationError: There is no such state or version.
        FatalError: A manifest is damaged.
    """
    state, info = opened(state)
    shards = [state.shard(number) for number in range(info.shards)]
    versions = [shard.versions() for shard in shards]
    version = _version(state, versions, version)
    manifests = [None if version is None else shard.newest(version) for shard in shards]
    reports = [
        _shard(number, has, manifest) for number, (has, manifest) in enumerate(zip(versions, manifests, strict=True))
    ]
    schema = next((manifest.schema for manifest in manifests if manifest and manifest.schema.names), pa.schema([]))
    return OperatorReport(state.name, info, version, [(column.name, str(column.type)) for column in schema], reports)


def opened(state: OperatorState) -> tuple[OperatorState, OperatorInfo]:
    """Return the state with its number of shards, and the `OperatorInfo` that says what it belongs to.

    Raises:
        ConfigurationError: There is no state of this name.
    """
    info = state.info()
    if info is None:
        names = operators(state)
        raise ConfigurationError(
            f"there is no state of {state.name!r} below {state.location!r}",
            option=OPTION,
            advice=f"give one of the names {', '.join(names)}" if names else "give the state_location of a query",
        )
    return state.at(info), info


def _version(state: OperatorState, versions: Sequence[Sequence[int]], version: int | None) -> int | None:
    common = set.intersection(*map(set, versions))
    if version is None:
        return max(common, default=None)
    if version not in common:
        readable = f"{min(common)} to {max(common)}" if common else "there is none yet"
        raise ConfigurationError(
            f"not all shards of {state.name!r} have the version {version}",
            option="--version",
            advice=f"give a version that can be read: {readable}",
        )
    return version


def _shard(number: int, versions: Sequence[int], manifest: Manifest | None) -> ShardReport:
    first, last = (versions[0], versions[-1]) if versions else (None, None)
    if manifest is None:
        return ShardReport(number, first, last)
    segments = [segment for run in manifest.runs for segment in run]
    hidden = [segment.tombstones for segment in segments if segment.tombstones is not None]
    return ShardReport(
        number,
        first,
        last,
        manifest.entries,
        sum(hidden) if len(hidden) == len(segments) else None,
        manifest.size,
        len(manifest.runs),
        len(segments),
        manifest.counts,
    )


def verify(state: OperatorState) -> StateVerification:
    """Read every segment of every stored version, and check its digest, its order, and its first and last key hash.

    Raises:
        ConfigurationError: There is no such state.
        RetriableError: The store does not answer.
    """
    state, info = opened(state)
    store = state.store()
    problems: list[str] = []
    read: dict[str, SegmentInfo] = {}
    versions = [state.shard(number).versions() for number in range(info.shards)]
    every = sorted(set().union(*versions))
    for number, has in enumerate(versions):
        prefix = shard_prefix(f"{state.directory}{state.inside}", number)
        # A shard may lack the oldest versions, which are removed shard by shard, and the last one, still being written.
        problems += [
            f"{manifest_name(prefix, version)}: it does not exist, but another shard has this version"
            for version in every[:-1]
            if version not in has and version > min(has, default=-1)
        ]
        for version in has:
            try:
                manifest = state.shard(number).newest(version)
            except ForebayError as error:
                problems.append(f"{manifest_name(prefix, version)}: {error.message}")
                continue
            for segment in (segment for run in manifest.runs for segment in run) if manifest else ():
                if segment.name not in read:
                    read[segment.name] = segment
                    problems += [f"{segment.name}: {wrong}" for wrong in _wrong(store, segment)]
    return StateVerification(
        sum(map(len, versions)), len(read), sum(segment.size for segment in read.values()), tuple(problems)
    )


def _wrong(store: StateStore, info: SegmentInfo) -> Iterator[str]:
    """Yield each problem of a segment as text."""
    data = store.get(info.name)
    if data is None:
        yield "it does not exist"
    elif len(data) != info.size:
        yield f"it has {len(data):,} bytes instead of {info.size:,}"
    elif hashlib.sha256(data).hexdigest() != info.digest:
        yield "its digest differs"
    else:
        try:
            entries_of(pa.py_buffer(data), info, full=True)
        except ValueError as error:
            yield str(error)


# -- Reads the rows of a state from its files, without the query that wrote them.


_KEYS: Final = 1024
"""Maximum entries of a segment that one step reads."""


@dataclass(frozen=True)
class StoredRow:
    """A row of a state.

    Args:
        row: The payload.
        count: How often the row was added minus how often it was retracted.
        order: The values of its ordering columns.
        touched: The time of its last event in microseconds since 1970; None without a time to live.
    """

    row: Mapping[str, Any]
    count: int
    order: Sequence[Any]
    touched: int | None


def stored_rows(
    state: OperatorState, version: int | None, limit: int, key: Mapping[str, str] | None = None
) -> list[StoredRow]:
    """Return rows of a state, shard by shard.

    Args:
        state: The state.
        version: The version to read: a micro-batch id; None if no version can be read.
        limit: The maximum number of rows.
        key: Return only rows with these values, given as texts. All segments are read to find them.

    Raises:
        ConfigurationError: There is no such state or column, or a text is not a value of its column.
        FatalError: A file is damaged.
    """
    return list(islice(_rows(state, version, key or {}), limit))


def _rows(state: OperatorState, version: int | None, key: Mapping[str, str]) -> Iterator[StoredRow]:
    state, info = opened(state)
    for number in range(info.shards):
        shard = state.shard(number)
        manifest = None if version is None else shard.newest(version)
        if manifest is None or not manifest.runs:
            continue
        key_values = {name: _value(manifest.schema, name, text) for name, text in key.items()}
        runs = shard.open(manifest)
        for hashes in [_matching(runs, key_values)] if key_values else _all_hashes(runs):
            entries = lookup(runs, hashes, timed=manifest.schema.get_field_index(TOUCHED) >= 0)
            yield from _of_entries(entries, manifest.schema, key_values)


def _value(schema: pa.Schema, name: str, text: str) -> pa.Scalar:
    place = schema.get_field_index(name)
    if place < 0 or name.startswith(PREFIX):
        names = [column for column in schema.names if not column.startswith(PREFIX)]
        raise ConfigurationError(
            f"the state has no column {name!r}", option="--key", advice=f"give one of {', '.join(names)}"
        )
    try:
        return pa.scalar(text).cast(schema.field(place).type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ConfigurationError(
            f"{text!r} is not a value of the column {name!r} of type {schema.field(place).type}", option="--key"
        ) from error


def _matching(runs: Sequence[Sequence[Segment]], key_values: Mapping[str, pa.Scalar]) -> Ints:
    """Return the key hashes of entries with these values."""
    hashes = [
        segment.hashes[_mask([segment.batch.column(name) for name in key_values], key_values)]
        for run in runs
        for segment in run
        if all(segment.batch.schema.get_field_index(name) >= 0 for name in key_values)
    ]
    return np.unique(np.concatenate([np.empty(0, np.int64), *hashes]))


def _mask(columns: Sequence[pa.Array], key_values: Mapping[str, pa.Scalar]) -> Ints:
    same = np.ones(len(columns[0]), np.bool_)
    for column, value in zip(columns, key_values.values(), strict=True):
        same &= pc.fill_null(pc.equal(column, value), fill_value=False).to_numpy(zero_copy_only=False)
    return np.flatnonzero(same)


def _all_hashes(runs: Sequence[Sequence[Segment]]) -> Iterator[Ints]:
    """Yield all key hashes in ascending order, some at a time."""
    segments = [segment for run in runs for segment in run]
    after: int | None = None
    while True:
        parts, end = [np.empty(0, np.int64)], None
        for segment in segments:
            start = 0 if after is None else int(np.searchsorted(segment.hashes, after, side="right"))
            some = segment.hashes[start : start + _KEYS]
            parts.append(some)
            if len(some) == _KEYS:  # its next keys may precede keys of other segments
                end = int(some[-1]) if end is None else min(end, int(some[-1]))
        hashes = np.unique(np.concatenate(parts))
        if end is not None:
            hashes = hashes[hashes <= end]
        if not len(hashes):
            return
        yield hashes
        after = int(hashes[-1])


def _of_entries(entries: Entries, schema: pa.Schema, key_values: Mapping[str, pa.Scalar]) -> Iterator[StoredRow]:
    payload = [column for column in schema if not column.name.startswith(PREFIX)]
    orders = [column for column in schema if column.name.startswith(ORDER)]
    which = np.arange(len(entries))
    if key_values:
        which = _mask(entries.take(which, [schema.field(name) for name in key_values]), key_values)
    names = [column.name for column in payload]
    columns = [column.to_pylist() for column in entries.take(which, [*payload, *orders])]
    for place, entry in enumerate(which.tolist()):
        values = [column[place] for column in columns]
        yield StoredRow(
            dict(zip(names, values[: len(names)], strict=True)),
            int(entries.counts[entry]),
            values[len(names) :],
            None if entries.touched is None else int(entries.touched[entry]),
        )
