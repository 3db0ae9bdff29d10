# SPDX-License-Identifier: Apache-2.0
"""What is in a state location: operators, shards, versions, sizes, damage. Nothing here changes a state."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa

from forebay.changelog.state.entries import KEY_HASH
from forebay.changelog.state.location import OperatorState
from forebay.changelog.state.manifest import Manifest, OperatorInfo, SegmentInfo
from forebay.changelog.state.shard import Shard, manifest_name, shard_prefix
from forebay.errors import ConfigurationError, FatalError
from forebay.state.state_store import OPTION, StateStore


@dataclass(frozen=True)
class ShardReport:
    """A shard at one version.

    Args:
        number: Its number; of all shards together, how many there are.
        first: The first version that can be read; None if there is none.
        last: The last one.
        entries: The stored entries, including tombstones and replaced ones.
        tombstones: The entries that hide older ones; None if they were not counted.
        size: Bytes.
        runs: The sorted runs, which a look-up searches one by one.
        segments: The files.
        counts: What the operator counted in the micro-batch of this version.
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
        name: Its name.
        info: What it belongs to.
        version: The version of the figures; None without one.
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
        ends = [(one.first, one.last) for one in self.shards if one.first is not None and one.last is not None]
        hidden = [one.tombstones for one in self.shards if one.tombstones is not None]
        counts: Counter[str] = Counter()
        for one in self.shards:
            counts.update(one.counts)
        return ShardReport(
            len(self.shards),
            max((first for first, _ in ends), default=None),
            min((last for _, last in ends), default=None),
            sum(one.entries for one in self.shards),
            sum(hidden) if len(hidden) == len(self.shards) else None,
            sum(one.size for one in self.shards),
            sum(one.runs for one in self.shards),
            sum(one.segments for one in self.shards),
            dict(counts),
        )

    @property
    def skew(self) -> float:
        """The entries of the largest shard, as a multiple of the mean; 1 for an empty state."""
        entries = [one.entries for one in self.shards]
        return max(entries) * len(entries) / sum(entries) if sum(entries) else 1.0


@dataclass(frozen=True)
class Verification:
    """The result of reading all that is kept of an operator.

    Args:
        versions: The versions of shards that were read.
        segments: The segments that were read.
        size: Their bytes.
        problems: What is wrong; each names a file.
    """

    versions: int
    segments: int
    size: int
    problems: Sequence[str]


def operators(state: OperatorState) -> list[str]:
    """Return the names of the operators below a location; `state.name` does not matter."""
    found = [name.rstrip("/") for name in state.store().directories("")]
    return [name for name in found if replace(state, name=name).info() is not None]


def report(state: OperatorState, version: int | None = None) -> OperatorReport:
    """Return the figures of an operator.

    Args:
        state: The state.
        version: The micro-batch after which to look; by default the last one.

    Raises:
        ConfigurationError: There is no such state or version.
        FatalError: A manifest is damaged.
    """
    state, info = opened(state)
    shards = [state.shard(number) for number in range(info.shards)]
    versions = [shard.versions() for shard in shards]
    if version is None:
        version = max((found[-1] for found in versions if found), default=None)
    manifests = [None if version is None else manifest_at(shard, version) for shard in shards]
    found = [
        _shard(number, has, manifest) for number, (has, manifest) in enumerate(zip(versions, manifests, strict=True))
    ]
    schema = next((manifest.schema for manifest in manifests if manifest and manifest.schema.names), pa.schema([]))
    return OperatorReport(state.name, info, version, [(one.name, str(one.type)) for one in schema], found)


def opened(state: OperatorState) -> tuple[OperatorState, OperatorInfo]:
    """Return the state with its shards, and what it belongs to.

    Raises:
        ConfigurationError: There is no state of this name.
    """
    info = state.info()
    if info is None:
        names = operators(state)
        raise ConfigurationError(
            f"there is no state of {state.name!r} below {state.location!r}",
            option=OPTION,
            advice=f"the names are: {', '.join(names)}" if names else "give the state_location of a query",
        )
    return state.at(info), info


def manifest_at(shard: Shard, version: int) -> Manifest | None:
    """Return the last manifest of a shard after a micro-batch; None if the shard had no rows until then.

    Raises:
        ConfigurationError: The version cannot be read any more.
        FatalError: A manifest is damaged.
    """
    versions = shard.versions()
    last = max((found for found in versions if found <= version), default=None)
    if last is not None:
        return shard.newest(last)
    begun = shard.begun()
    if versions and (begun is None or begun <= version):
        raise ConfigurationError(
            f"the version {version} cannot be read any more",
            option="--version",
            advice=f"a shard has the versions {versions[0]} to {versions[-1]}",
        )
    return None


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


def verify(state: OperatorState) -> Verification:
    """Read every segment of every version that is kept, and compare digests, order and ends.

    Raises:
        ConfigurationError: There is no such state.
        RetriableError: The store does not answer.
    """
    state, info = opened(state)
    store = state.store()
    problems: list[str] = []
    read: dict[str, SegmentInfo] = {}
    versions = [state.shard(number).versions() for number in range(info.shards)]
    for number, has in enumerate(versions):
        prefix = shard_prefix(f"{state.directory}{state.inside}", number)
        shard = state.shard(number)
        found = [_checked(problems, partial(shard.newest, version)) for version in has]
        manifests = [manifest for manifest in found if manifest is not None]
        lost = sorted(set(manifests[-1].kept) - set(has)) if manifests else []
        problems += [f"{manifest_name(prefix, version)}: it does not exist" for version in lost]
        if not has and shard.begun() is not None:
            problems.append(f"{prefix}: it has no version")
        _checked(problems, partial(shard.before, max((each[-1] for each in versions if each), default=0)))
        for segment in (one for manifest in manifests for run in manifest.runs for one in run):
            if segment.name not in read:
                read[segment.name] = segment
                problems += [f"{segment.name}: {wrong}" for wrong in _wrong(store, segment)]
    return Verification(
        sum(map(len, versions)), len(read), sum(segment.size for segment in read.values()), tuple(problems)
    )


def _checked(problems: list[str], read: Callable[[], Manifest | None]) -> Manifest | None:
    """Return a manifest, or add what is wrong with it."""
    try:
        return read()
    except FatalError as error:
        if error.message not in problems:
            problems.append(error.message)
        return None


def _wrong(store: StateStore, info: SegmentInfo) -> Iterator[str]:
    """Yield what is wrong with a segment."""
    data = store.get(info.name)
    if data is None:
        yield "it does not exist"
    elif len(data) != info.size:
        yield f"it has {len(data):,} bytes instead of {info.size:,}"
    elif hashlib.sha256(data).hexdigest() != info.digest:
        yield "its digest differs"
    else:
        batch = pa.ipc.open_file(pa.py_buffer(data)).get_batch(0)
        hashes = batch.column(KEY_HASH).to_numpy()
        if batch.num_rows != info.rows or (int(hashes[0]), int(hashes[-1])) != (info.first, info.last):
            yield "its entries are not those that the manifest tells"
        if np.any(hashes[1:] < hashes[:-1]):
            yield "its entries are not sorted"
