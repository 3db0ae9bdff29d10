# SPDX-License-Identifier: Apache-2.0
"""The connectors of a simulation: they read a world through both layers, and fail on its faults."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import ClassVar

import pyarrow as pa

from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.enumerator import SplitEnumeratorContext
from forebay.framework.reader import SourceReader, SourceReaderContext
from forebay.framework.simple import Batch, SimpleSource
from forebay.framework.source import Source
from forebay.framework.split import Position, Split
from forebay.framework.split_reader import Fetched, SplitReader
from forebay_simulator.reader import SimulatedReader
from forebay_simulator.scenario import Fault, SplitScript
from forebay_simulator.world import RETRIES, InjectedFailure, World

SCHEMA = pa.schema([pa.field("n", pa.int64())])

_LONGEST_WAIT = 5.0


@lru_cache(maxsize=16)
def _numbers(base: int, size: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(range(base, base + size), pa.int64())], schema=SCHEMA)


def _records(script: SplitScript, start: int, stop: int) -> pa.RecordBatch:
    """Return the records of a stretch without gaps: a slice of one batch, because making one takes 100 µs."""
    return _numbers(script.base, 64).slice(start, stop - start)


def watch(context: SplitEnumeratorContext, world: World) -> None:
    """Check the calls of the framework's enumerator, through the context that sources get too.

    Every split must have been assigned before a reader gets no-more-splits.
    """
    assign, signal = context.assign_splits, context.signal_no_more_splits

    def assign_splits(assignment: Mapping[int, Sequence[Split]]) -> None:
        assign(assignment)
        world.out.update(split.id for splits in assignment.values() for split in splits)

    def signal_no_more_splits(subtask: int) -> None:
        missing = world.scripts.keys() - world.out
        if missing or not world.scenario.bounded:
            world.broken(f"reader {subtask} is told that no splits follow; not yet out: {sorted(missing)} (CTX-3)")
        signal(subtask)

    vars(context).update(assign_splits=assign_splits, signal_no_more_splits=signal_no_more_splits)


class ScriptedEnumerator(DiscoveryEnumerator):
    """Discovers the splits of a world that have appeared.

    Args:
        world: The world.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._failed = 0

    def discover(self, known: Mapping[str, Split], first: bool) -> Discovered:
        """Return the splits that have appeared; known ones too, unless the scenario leaves them out."""
        world = self._world
        if first:
            self._fail_first()
        else:
            world.maybe_fail(Fault.DISCOVERY_FAILURE, "discovery")
        scenario, now = world.scenario, world.clock.monotonic()
        gone = frozenset(world.retired) if scenario.horizon else frozenset()
        found = [
            Split(script.id, script.start, script.size if script.ends else None)
            for script in scenario.splits
            if script.appears <= now and script.id not in gone and not (scenario.only_new and script.id in known)
        ]
        world.note(f"  found {[split.id for split in found]}")
        return Discovered(found, horizon=(lambda split: split.id in gone) if gone else None)

    def _fail_first(self) -> None:
        """Fail at most as often as the host retries."""
        if self._failed < RETRIES and self._world.happens(Fault.DISCOVERY_FAILURE, "first discovery"):
            self._failed += 1
            raise InjectedFailure("first discovery", advice="nothing: it was injected")

    def finished(self, splits: Sequence[Split]) -> None:
        """Check that the splits are stored as delivered."""
        self._world.kill("before telling of ends")
        self._world.maybe_fail(Fault.AUTHOR_FAILURE, "finished")
        for split in splits:
            self._world.check_finished(split.id, split.position)

    def committed(self, positions: Mapping[str, Position]) -> None:
        """Check that the positions are stored as delivered."""
        self._world.kill("before telling of positions")
        self._world.maybe_fail(Fault.AUTHOR_FAILURE, "committed")
        for split_id, position in positions.items():
            self._world.check_committed(split_id, position)


class ScriptedSplitReader(SplitReader):
    """Reads splits of a world, in a random order.

    Args:
        world: The world.
        context: The host.
    """

    def __init__(self, world: World, context: SourceReaderContext) -> None:
        world.crash("making a split reader")
        self.closed = 0
        self._failed = 0
        self._world = world
        self._woken = context.runtime.signal()
        self._splits: dict[str, Split] = {}
        self._paused: set[str] = set()
        self._caught_up: set[str] = set()
        world.split_readers.append(self)

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Take more splits."""
        self._world.crash("add_splits of a split reader")
        self._splits.update((split.id, split) for split in splits)

    def fetch(self) -> Sequence[Fetched]:
        """Return the next records of some splits; without any, wait as a client would."""
        world = self._world
        if self._failed < RETRIES and world.happens(Fault.FETCH_FAILURE, "fetch"):
            self._failed += 1
            raise InjectedFailure("fetch", advice="nothing: it was injected")
        world.crash("fetch")
        if world.runtime is not None:
            world.runtime.interleave()
        fetched: list[Fetched] = []
        ids = [split_id for split_id in self._splits if split_id not in self._paused]
        while ids and len(fetched) < world.scenario.parts:
            split_id = world.chance.choice(ids)
            part = self._read(self._splits[split_id])
            if part is not None:
                fetched.append(part)
            if part is None or part.finished:
                ids.remove(split_id)
        if fetched:
            self._failed = 0
        else:
            self._woken.wait(world.chance.uniform(0.1, _LONGEST_WAIT))
            self._woken.clear()
        return fetched

    def wake_up(self) -> None:
        """End the wait of a fetch."""
        self._woken.set()

    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> bool:
        """Skip paused splits, if the scenario says that this reader can."""
        if self._world.scenario.can_pause:
            self._paused = (self._paused - set(resume)) | set(pause)
        return self._world.scenario.can_pause

    def close(self) -> None:
        """Count the call."""
        self.closed += 1
        self._world.crash("close of a split reader")

    def _read(self, split: Split) -> Fetched | None:
        world, script = self._world, self._world.scripts[split.id]
        position = split.position if isinstance(split.position, int) else 0
        until = world.available(script)
        if isinstance(split.end, int):
            until = min(until, split.end)
        start, stop = script.stretch(position, world.chance.randint(1, world.scenario.batch_rows), until)
        ends = world.scenario.bounded or script.ends
        at_end = ends and stop == script.size and not (world.scenario.late_end and stop > position)
        if stop == position and not at_end:
            if split.id in self._caught_up:
                return None
            self._caught_up.add(split.id)
            return Fetched(split.id, position=position, caught_up=True)
        self._caught_up.discard(split.id)
        if at_end:
            del self._splits[split.id]
        else:
            self._splits[split.id] = split.at(stop)
        # A gap is progress without records.
        batch = _records(script, start, stop) if stop > start else None
        return Fetched(split.id, batch, stop, finished=at_end)


class _OverWorld(Source):
    """The common part of both layers; `world` is set when a source is made, because it is not an option."""

    world: ClassVar[World]

    @property
    def bounded(self) -> bool:
        """As the scenario says."""
        return self.world.scenario.bounded

    @property
    def fetchers(self) -> int | None:
        """As the scenario says."""
        return self.world.scenario.fetchers

    def schema(self) -> pa.Schema:
        """One column of numbers."""
        return SCHEMA

    def create_enumerator(self, context: SplitEnumeratorContext) -> DiscoveryEnumerator:
        """Make an enumerator of the world's splits."""
        watch(context, self.world)
        return ScriptedEnumerator(self.world)

    def create_reader(self, context: SourceReaderContext) -> SourceReader:
        """Make the supplied reader, with a watch on it."""
        return SimulatedReader(self, context, self.world)


class ScriptedSource(_OverWorld):
    """Over split readers that are written out."""

    name = "scripted"

    def create_split_reader(self, context: SourceReaderContext) -> SplitReader:
        """Make a split reader of the world."""
        return ScriptedSplitReader(self.world, context)


class ScriptedSimpleSource(_OverWorld, SimpleSource):
    """Over a generator."""

    name = "scripted_simple"

    def create_enumerator(self, context: SplitEnumeratorContext) -> DiscoveryEnumerator:
        """Make the same enumerator as the full layer: what `SimpleSource` brings is a part of the reading side."""
        return _OverWorld.create_enumerator(self, context)

    def create_split_reader(self, context: SourceReaderContext) -> SplitReader:
        """Make the split reader with generator workers."""
        self.world.crash("making a split reader")
        return SimpleSource.create_split_reader(self, context)

    def read(self, split: Split) -> Iterator[Batch]:
        """Yield the records that have arrived."""
        world, script = self.world, self.world.scripts[split.id]
        position = split.position if isinstance(split.position, int) else 0
        until = world.available(script)
        while position < until:
            world.maybe_fail_in_a_row(Fault.FETCH_FAILURE, "read()")
            world.crash("read()")
            if world.runtime is not None:
                world.runtime.interleave()
            start, stop = script.stretch(position, world.chance.randint(1, world.scenario.batch_rows), until)
            yield Batch(_records(script, start, stop), stop)
            position = stop


def source_over(world: World) -> Source:
    """Make the source of a world."""
    source = ScriptedSimpleSource() if world.scenario.simple else ScriptedSource()
    object.__setattr__(source, "world", world)
    return source
