# SPDX-License-Identifier: Apache-2.0
"""Gives a state another number of shards, while its query is stopped.

The new shards are a new generation, in a directory of their own. Writing one file, the `OperatorInfo` of the new
generation, makes them the state. Until then nothing changes for the query; afterwards the old shards are removed.

Spark may or may not repeat the last micro-batch of a stopped query. So two versions are kept: the one before that
micro-batch, and the one after it. The manifest of the latter has a name of its own (`reshard_name`), because a
repeat of the micro-batch writes the usual one.
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from forebay.errors import ConfigurationError, FatalError
from forebay.state.state_store import OPTION, StateStore
from forebay.table.changelog.state.facts import SegmentInfo, damaged
from forebay.table.changelog.state.manifest import MOST_SHARDS, Manifest, OperatorInfo
from forebay.table.changelog.state.segments import Segment, StoredSegments
from forebay.table.changelog.state.shard import (
    MergeInput,
    OperatorState,
    info_name,
    manifest_name,
    merge,
    reshard_name,
    shard_prefix,
)

Runs = Sequence[Sequence[SegmentInfo]]

_GENERATION: Final = re.compile(r"g([0-9]{5})-")


@dataclass(frozen=True)
class Resharded:
    """The result of `reshard`.

    Args:
        before: The number of shards before.
        after: The number of shards now.
        version: The id of the last micro-batch in the state.
        entries: The number of entries that were written.
        size: The bytes of these entries.
    """

    before: int
    after: int
    version: int
    entries: int
    size: int


@dataclass(frozen=True)
class _Versions:
    """The manifests of all shards before and after the last micro-batch; one of them may be absent."""

    before: list[Manifest] | None
    after: list[Manifest] | None

    @property
    def last(self) -> int:
        manifests = self.after or self.before or []
        return manifests[0].version


def reshard(state: OperatorState, shards: int, progress: Callable[[int], None] = lambda _: None) -> Resharded:
    """Rewrite the shards of a state. Called by `forebay state reshard`, while the query is stopped.

    Memory is bounded by a few segments. A kill at any moment leaves the old state or the new one. Call the function
    again to remove files that a kill left behind.

    Args:
        state: The state.
        shards: The new number of shards.
        progress: Called after each new shard with the number of shards written so far.

    Raises:
        ConfigurationError: There is no state, or it already has this number of shards.
        FatalError: The state is damaged, its shards are more than one micro-batch apart, or the query is running.
    """
    store, info = state.store(), state.info()
    if info is None:
        raise ConfigurationError(
            f"there is no state of {state.name!r} below {state.location!r}",
            option=OPTION,
            advice="run `forebay state show` for the names, and give one of them",
        )
    if not 1 <= shards <= MOST_SHARDS:
        raise ConfigurationError(f"shards is {shards}", option="shards", advice=f"give 1 to {MOST_SHARDS:,}")
    if shards == info.shards:
        _remove_others(store, state.directory, info)
        raise ConfigurationError(
            f"the state has {shards} shards already", option="shards", advice="give another number of shards"
        )
    state = state.at(info)
    numbers = _newest(state, info.shards)
    versions = _versions(state, info, numbers)
    generation = info.generation + 1
    new = replace(info, shards=shards, generation=generation, directory=f"g{generation:05d}-{uuid.uuid4().hex[:8]}/")
    segments: list[SegmentInfo] = []
    try:
        for number in range(shards):
            segments += _write_shard(state, info.shards, versions, new, number)
            progress(number + 1)
        _switch(state, store, new, numbers)
    except BaseException:  # cleaned up also when interrupted, and raised again
        _remove_directory(store, f"{state.directory}{new.directory}")
        raise
    _remove_others(store, state.directory, new)
    rows, size = (sum(getattr(segment, name) for segment in segments) for name in ("rows", "size"))
    return Resharded(info.shards, shards, versions.last, rows, size)


def _newest(state: OperatorState, shards: int) -> list[int]:
    """Return the last version of each shard.

    Raises:
        FatalError: The shards are more than one micro-batch apart, or a shard has no version.
    """
    versions = [max(state.shard(number).versions(), default=-1) for number in range(shards)]
    if min(versions) < 0 or max(versions) - min(versions) > 1:
        behind = versions.index(min(versions))
        at = "has no version" if min(versions) < 0 else f"is at micro-batch {min(versions)}"
        ahead = f"shard {versions.index(max(versions))} is at micro-batch {max(versions)}"
        raise FatalError(
            f"shard {behind} {at}, and {'no other shard has one' if max(versions) < 0 else ahead}",
            option=OPTION,
            advice="start the query and let it finish its micro-batch, then stop it and call reshard again; if the "
            "query refuses its state, restore the state location and the checkpoint from one backup",
        )
    return versions


def _versions(state: OperatorState, info: OperatorInfo, newest: Sequence[int]) -> _Versions:
    """Return the manifests to rewrite. A micro-batch that only some shards have is left out: Spark will repeat it."""
    last = min(newest)
    after = _manifests(state, info.shards, last)
    if max(newest) > last:
        return _Versions(after, None)
    if last == info.first:
        return _Versions(None, after)
    earlier = [version for version in state.shard(0).versions() if version < last]
    if not earlier:
        raise damaged(manifest_name(shard_prefix(_directory(state), 0), last - 1), "it does not exist")
    return _Versions(_manifests(state, info.shards, earlier[-1]), after)


def _manifests(state: OperatorState, shards: int, version: int) -> list[Manifest]:
    manifests = []
    for number in range(shards):
        manifest = state.shard(number).newest(version)
        if manifest is None:
            raise damaged(manifest_name(shard_prefix(_directory(state), number), version), "it does not exist")
        manifests.append(manifest)
    return manifests


def _write_shard(
    state: OperatorState, old: int, versions: _Versions, new: OperatorInfo, number: int
) -> Iterable[SegmentInfo]:
    """Write a new shard, and return its segments. Runs that both versions share become one run, the others another."""
    store = state.store()
    files = StoredSegments(store)
    prefix = shard_prefix(f"{state.directory}{new.directory}", number)
    step = math.gcd(old, new.shards)
    sources = [place for place in range(old) if (place - number) % step == 0]  # only these have its keys
    names = [(versions.before, manifest_name), (versions.after, reshard_name)]
    present = [(manifests, name) for manifests, name in names if manifests is not None]
    shared = [_common([manifests[place].runs for manifests, _ in present]) for place in range(old)]

    def written(manifests: Sequence[Manifest], *, tail: bool) -> tuple[SegmentInfo, ...]:
        chosen = [manifests[place].runs[shared[place] :] if tail else manifests[place].runs[: shared[place]]
                  for place in sources]  # fmt: skip
        parts = [
            [_part(files, segment, new.shards, number) for segment in run] for runs in chosen for run in reversed(runs)
        ]
        start = f"{prefix}{manifests[0].version:012d}-"
        write = partial(files.write, start)
        return merge(parts, _widest(manifests), write, keep_tombstones=tail) if parts else ()

    base = written(present[0][0], tail=False)
    segments = dict.fromkeys(base)
    dropped: tuple[tuple[int, str], ...] = ()
    for manifests, name in present:
        version = manifests[0].version
        last = written(manifests, tail=True)
        clocks = [manifests[place].clock for place in sources]
        manifest = Manifest(
            version,
            tuple(run for run in (base, last) if run),
            _widest(manifests),
            dropped,
            # The least clock, so that no key expires earlier than without the reshard.
            clock=min((clock for clock in clocks if clock is not None), default=None),
        )
        store.put_if_absent(name(prefix, version), manifest.to_bytes())
        segments |= dict.fromkeys(last)
        if versions.after is not None:
            dropped = tuple((versions.last, segment.name) for segment in last)
    return segments


def _common(runs: Sequence[Runs]) -> int:
    """Return how many of their oldest runs all versions have in common."""
    shortest = min(len(each) for each in runs)
    return next((place for place in range(shortest) if any(each[place] != runs[0][place] for each in runs)), shortest)


def _part(files: StoredSegments, segment: SegmentInfo, shards: int, number: int) -> MergeInput:
    """Return the entries of a segment that belong to a new shard, selected when they are read."""

    def opened() -> Segment:
        whole = files.open(segment)
        rows = np.flatnonzero(whole.hashes % shards == number)
        return Segment(whole.batch.take(pa.array(rows)))

    return MergeInput(segment.first, segment.last, opened)


def _widest(manifests: Sequence[Manifest]) -> pa.Schema:
    """Return the schema with the most columns: a killed query may have added columns in some of the shards only."""
    return max((manifest.schema for manifest in manifests), key=lambda schema: len(schema.names))


def _switch(state: OperatorState, store: StateStore, new: OperatorInfo, newest: Sequence[int]) -> None:
    """Make a new generation the current state, unless the query ran in the meantime.

    Raises:
        FatalError: The query or another reshard is running. The old state stays current.
    """
    name = info_name(state.directory, new.generation)
    running = FatalError(
        f"the state changed while it was resharded: the query or another reshard is running below {state.location!r}",
        option=OPTION,
        advice="stop the query and call reshard again; the state is as it was",
    )

    def moved() -> bool:
        return [max(state.shard(number).versions(), default=-1) for number in range(len(newest))] != list(newest)

    if moved() or not store.put_if_absent(name, new.to_bytes()):
        raise running
    if moved():
        store.delete([name])
        raise running


def _remove_others(store: StateStore, directory: str, current: OperatorInfo) -> None:
    """Remove the shards of older generations, and the files that killed reshards up to this generation left behind."""
    for subdirectory in store.directories(directory):
        inside = subdirectory.removeprefix(directory)
        match = _GENERATION.match(inside)
        generation = int(match[1]) if match else 0
        of_current = inside == current.directory or (generation == 0 and not current.directory)
        if generation <= current.generation and not of_current:
            _remove_directory(store, subdirectory)


def _remove_directory(store: StateStore, directory: str) -> None:
    for below in store.directories(directory):
        _remove_directory(store, below)
    names = store.names(directory)
    if names:
        store.delete(names)


def _directory(state: OperatorState) -> str:
    return f"{state.directory}{state.inside}"
