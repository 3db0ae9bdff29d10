# SPDX-License-Identifier: Apache-2.0
"""Assigns slices of splits to tasks: by the source's own `tasks()`, or by size, cutting large splits, packing small."""

from __future__ import annotations

import dataclasses
import heapq
import os
from array import array
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Self, overload

import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import ConfigurationError, ContractError, FatalError
from forebay.framework.coordination.coordinator import Coordinator
from forebay.framework.coordination.validation import checked_enumerator, checked_splits, fixed_ends, unread
from forebay.framework.discovery import OPEN_COST, DiscoveryEnumerator
from forebay.framework.enumerator import SourceEvent, SplitEnumerator, SplitEnumeratorContext
from forebay.framework.runtime.clients import ConnectorCalls
from forebay.framework.runtime.connector_errors import closing, event_refused
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import Runtime, ThreadRuntime
from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.retry import RetryPolicy

# -- The enumerator of a planner; plans a bounded read whose splits a connector's own `SplitEnumerator` assigns.


def create_enumerator(
    source: Source, context: SplitEnumeratorContext, calls: ConnectorCalls
) -> DiscoveryEnumerator | SplitEnumerator:
    """Return a new enumerator of the source, created with `context`.

    Raises:
        ContractError: The source's `create_enumerator()` returned no enumerator.
    """
    made = calls.call("create_enumerator()", lambda: source.create_enumerator(context))
    return checked_enumerator(source, made)


class PlannedReader:
    """The one reader that an enumerator sees on Spark: it keeps the splits that it gets, for the plan."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._splits: list[Split] = []
        self.requested = False
        """Whether the reader has requested a split and got none yet."""

    def __len__(self) -> int:
        return len(self._splits)

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Keep the splits."""
        self._splits += splits
        self.requested = False

    def notify_no_more_splits(self) -> None:
        """Do nothing: the planner asks the coordinator."""

    def handle_source_event(self, event: SourceEvent) -> None:
        """Raise a ConfigurationError, as the coordinator of a planner does before (EVT-1)."""
        raise event_refused(self._source, event)

    def take(self) -> list[Split]:
        """Return the splits since the last call, in the order of assignment."""
        splits, self._splits = self._splits, []
        return splits


def plan_assigned(source: Source, enumerator: SplitEnumerator, coordinator: Coordinator, timeout: float) -> list[Split]:
    """Request splits until the enumerator signals that there are no more, close it, and return them.

    If the source is unbounded, its enumerator may never signal: planning then fails as soon as all its asynchronous
    calls have got a result, see `AsyncCalls.awaited`.

    Args:
        source: The source.
        enumerator: Its enumerator, not started yet.
        coordinator: The context that `enumerator` was created with.
        timeout: Maximum seconds until all splits are assigned.

    Raises:
        ConfigurationError: The source is unbounded, and its enumerator did not call `signal_no_more_splits`.
        FatalError: The enumerator failed, or did not call `signal_no_more_splits` in time.
        ContractError: The enumerator broke a rule of the contract.
    """
    deadline = coordinator.clock.monotonic() + timeout
    reader = PlannedReader(source.name)
    # Not `coordinator.close(timeout)`: work in flight is dropped, not waited for.
    coordinator.attach(enumerator)
    with closing(source.name, lambda: coordinator.close(0.0)):
        coordinator.begin()
        coordinator.register(reader, None)
        while True:
            coordinator.signal.clear()
            left = deadline - coordinator.clock.monotonic()
            if left > 0 and coordinator.run_next():  # an enumerator that assigns splits without end is late too
                continue
            if coordinator.no_more:
                return reader.take()
            if not reader.requested and left > 0:
                reader.requested = True
                coordinator.request()
            elif not source.bounded and coordinator.is_idle(delayed=True):
                raise _unbounded(source.name)
            elif left <= 0:
                raise _late(source.name, timeout)
            else:
                due = coordinator.due_in()
                coordinator.signal.wait(left if due is None else min(left, due))


def _unbounded(source: str) -> ConfigurationError:
    return ConfigurationError(
        "an unbounded source cannot be read once, because its enumerator did not call signal_no_more_splits(0)",
        source=source,
        advice="read it with spark.readStream or forebay.run; or, in the connector, let the enumerator call "
        "context.signal_no_more_splits(0) after the last assignment if context.reads_once is True",
    )


def _late(source: str, timeout: float) -> FatalError:
    return FatalError(
        f"the enumerator did not call signal_no_more_splits(0) within {timeout:g} s",
        source=source,
        rule="ENU-2",
        advice="in the connector, call context.signal_no_more_splits(0) after the last assignment (of an "
        "unbounded source: if context.reads_once is True); or, if the work needs longer, raise planningTimeout",
    )


# -- Assigns slices of splits to tasks: by the source's own `tasks()`, or by size, cutting large splits, packing small.


def spread(
    enumerator: DiscoveryEnumerator | None,
    splits: Sequence[Split],
    options: HostOptions,
    cores: int,
    *,
    uncut: Collection[str] = (),
) -> Sequence[tuple[Split, ...]]:
    """Return the slices of splits that each task reads, one tuple per task. May block: call it with `ConnectorCalls`.

    Args:
        enumerator: Provides `tasks`, `size` and `slices`; None = a raw `SplitEnumerator`, which has none of them.
        splits: The splits to read, maybe a lazy sequence: they are accessed one at a time, and not kept in a list.
        options: The host's options; only `num_partitions` is used.
        cores: The number of tasks that can run at once.
        uncut: Ids of splits that must not be cut into slices.

    Raises:
        ContractError: The enumerator's own tasks do not read every split, or a slice has another id than its split.
    """
    if enumerator is None:
        return pack(splits, Sizes.of([None] * len(splits)), options.num_partitions or cores)
    if (own := chosen(enumerator.tasks(splits), splits)) is not None:
        return own
    size = enumerator.size
    sizes = Sizes.of(map(size, splits))
    partitions = options.num_partitions or count_partitions(sizes, cores)
    parts = cut(
        splits,
        sizes,
        lambda split, count: [split] if split.id in uncut else enumerator.slices(split, count),
        partitions,
        least=1 if options.num_partitions else OPEN_COST,
    )
    return pack(parts, sizes if parts is splits else Sizes.of(map(size, parts)), partitions)


MOST_BYTES = 1 << 30
"""Maximum bytes of one task, to bound the cost of a retry; `numPartitions` overrides it."""


MOST_SPLITS = 32_768
"""Maximum splits of one task, to bound its memory: about 40 MB; `numPartitions` overrides it."""


def count_partitions(sizes: Sizes, parallelism: int) -> int:
    """Return the number of tasks for splits of these sizes: `parallelism`, or a multiple of it for large inputs."""
    total = sum(sizes.bytes) if sizes.known else 0
    least = max(-(-total // MOST_BYTES), -(-len(sizes.bytes) // MOST_SPLITS))
    return parallelism * max(1, -(-least // parallelism))


def cut(
    splits: Sequence[Split],
    sizes: Sizes,
    slices: Callable[[Split, int], Sequence[Split]],
    partitions: int,
    *,
    least: int = OPEN_COST,
) -> Sequence[Split]:
    """Cut the splits that are larger than one of `partitions` equal shares.

    Args:
        splits: The splits to read.
        sizes: The sizes of the splits.
        slices: Cuts a split into about the given number of slices.
        partitions: The number of tasks.
        least: Minimum bytes of one share, if sizes are known.

    Returns:
        All slices in order; `splits` itself if none is cut.

    Raises:
        ContractError: A slice has another id than its split, or `slices` returned no slice.
    """
    share = max(1, least if sizes.known else 1, sum(sizes.bytes) // max(1, partitions))
    places, parts = array("q"), list[Split]()
    for place, size in enumerate(sizes.bytes):
        if size <= share:
            places.append(place)
            continue
        for part in _checked(splits[place], slices(splits[place], -(-size // share))):
            parts.append(part)
            places.append(-len(parts))
    return PartlyCut(splits, places, parts) if parts else splits


def chosen(tasks: Sequence[Sequence[Split]] | None, slices: Sequence[Split]) -> list[tuple[Split, ...]] | None:
    """Check and return `tasks`, the result of the enumerator's `tasks(slices)`; None if it is None.

    Raises:
        ContractError: `tasks` contains a split that is not in `slices`, or leaves out one that is not empty.
    """
    if tasks is None:
        return None
    slice_ids, assigned = {part.id for part in slices}, {part.id for task in tasks for part in task}
    # `tasks()` may leave out empty slices.
    missing = {part.id for part in slices if part.end is None or part.end != part.position} - assigned
    wrong = next(iter(sorted(assigned - slice_ids) or sorted(missing)), None)
    if wrong is not None:
        raise ContractError(
            f"tasks() {'left out' if wrong in slice_ids else 'added'} the split {wrong!r}",
            split=wrong,
            rule="DIS-2",
            advice="in the connector, let tasks() return each slice that it is given, whole or cut with "
            "split.slice(position, end)",
        )
    return [tuple(task) for task in tasks if task]


def _checked(split: Split, slices: Sequence[Split]) -> Sequence[Split]:
    wrong = next((part for part in slices if part.id != split.id), None)
    if wrong is not None or not slices:
        raise ContractError(
            f"slices() returned a slice with the id {wrong.id!r}"
            if wrong is not None
            else "slices() returned no slice",
            split=split.id,
            rule="SPL-1",
            advice="in the connector, let slices() cut with split.slice(position, end): each slice keeps the split's "
            "id, and together they cover the split",
        )
    return slices


# -- Packs slices of splits into tasks of even size. It uses little memory: a bounded read may have millions of splits.


_MOST = 1 << 60
"""Maximum for the estimated bytes of a split, so that they fit into a signed 64-bit integer."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Estimated bytes of splits. An unknown size counts as the mean of the known ones, or as `OPEN_COST` without any.

    Args:
        bytes: The estimated bytes of each split.
        known: Whether the size of at least one split is known.
    """

    bytes: array[int]
    known: bool

    @classmethod
    def of(cls, sizes: Iterable[int | None]) -> Self:
        """Return the `Sizes` of splits from the estimated bytes of each; None = unknown."""
        result, unknown = array("q"), array("q")
        for size in sizes:
            if size is None:
                unknown.append(len(result))
            result.append(min(max(0, size or 0), _MOST))
        known = len(result) - len(unknown)
        mean = sum(result) // known if known else OPEN_COST
        for place in unknown:
            result[place] = mean
        return cls(result, known > 0)


class PartlyCut(Sequence[Split]):
    """The splits of a sequence, with slices in place of some of them.

    Args:
        splits: The splits.
        places: For each item, in order: the index of a split in `splits`, or `-1 - index` of a slice in `slices`.
        slices: The slices.
    """

    def __init__(self, splits: Sequence[Split], places: Sequence[int], slices: Sequence[Split]) -> None:
        self._splits = splits
        self._places = places
        self._slices = slices

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Split: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Split]: ...

    def __getitem__(self, index: int | slice) -> Split | Sequence[Split]:
        if isinstance(index, slice):
            return PartlyCut(self._splits, self._places[index], self._slices)
        place = self._places[index]
        return self._splits[place] if place >= 0 else self._slices[-1 - place]


class Tasks(Sequence[tuple[Split, ...]]):
    """The slices of each task, in order. Each access makes a new tuple; adjacent slices of one split are joined.

    Args:
        slices: The slices of all tasks.
        places: For each task, the ascending indexes of its slices in `slices`.
    """

    def __init__(self, slices: Sequence[Split], places: Sequence[Sequence[int]]) -> None:
        self._slices = slices
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> tuple[Split, ...]: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[tuple[Split, ...]]: ...

    def __getitem__(self, index: int | slice) -> tuple[Split, ...] | Sequence[tuple[Split, ...]]:
        if isinstance(index, slice):
            return Tasks(self._slices, self._places[index])
        return _joined(self._slices[place] for place in self._places[index])


def pack(slices: Sequence[Split], sizes: Sizes, partitions: int) -> Tasks:
    """Return at most `partitions` tasks of even estimated bytes, in the order of their first slice. Deterministic.

    Slices are assigned in descending size, each to the smallest task so far: the largest task has at most 4/3 of the
    optimum. The slices of a task keep their order; adjacent slices of one split are joined.
    """
    tasks = [array("q") for _ in range(min(max(1, partitions), len(slices)))]
    loads = [(0, number) for number in range(len(tasks))]
    for place in _descending(sizes.bytes):
        load, number = heapq.heappop(loads)
        tasks[number].append(place)
        heapq.heappush(loads, (load + sizes.bytes[place] + OPEN_COST, number))
    ordered = [array("q", sorted(task)) for task in tasks]
    return Tasks(slices, sorted(ordered, key=lambda task: task[0]))


def _descending(sizes: array[int]) -> Iterable[int]:
    """Return the indexes of `sizes`, sorted by descending size; equal sizes keep their order."""
    # Arrow sorts stably, and its result has 8 bytes per index. `pa.array` would import pandas, which takes 0.17 s.
    negated = array("q", (-size for size in sizes))
    indices = pc.sort_indices(pa.Array.from_buffers(pa.int64(), len(negated), [None, pa.py_buffer(negated)])).buffers()[
        1
    ]
    return () if indices is None else memoryview(indices).cast("Q")[: len(sizes)]


def _joined(slices: Iterable[Split]) -> tuple[Split, ...]:
    result: list[Split] = []
    for part in slices:
        before = result[-1] if result else None
        if (
            before is not None
            and before.id == part.id
            and before.end is not None
            and before.end == part.position
            and dataclasses.replace(before, end=part.end) == dataclasses.replace(part, position=before.position)
        ):
            result[-1] = dataclasses.replace(before, end=part.end)
        else:
            result.append(part)
    return tuple(result)


# -- Plans a bounded read: discovers all splits, fixes their ends, and assigns slices of them to tasks.


def plan_bounded(
    source: Source,
    options: HostOptions,
    *,
    parallelism: int | None = None,
    runtime: Runtime | None = None,
) -> Sequence[tuple[Split, ...]]:
    """Return the slices of splits that each task reads, one tuple per task; no task if there is nothing to read.

    Each access makes a new tuple, so that millions of splits of a lazy discovery are never in memory at once.

    An unbounded source is read up to its latest positions. A split whose latest position is unknown has no end, and is
    read until it is caught up.

    Args:
        source: The source.
        options: The host's options; `num_partitions`, `retries` and `planning_timeout` are used.
        parallelism: The number of tasks if `num_partitions` is not set, usually the cores of the cluster; by default
            the cores of this machine. Very large inputs get a multiple of it.
        runtime: Threads and time.

    Raises:
        ForebayError: The source raised it; the names of source and split are added.
        FatalError: The source raised an exception of another class, or did not answer within `planning_timeout`.
        ContractError: The source broke a rule: repeated split ids, positions of an unknown kind, wrong types.
    """
    runtime = runtime or ThreadRuntime()
    timeout = options.planning_timeout.total_seconds()
    calls = ConnectorCalls(source.name, runtime, retry=RetryPolicy.of(options), timeout=timeout)
    coordinator = Coordinator(source.name, runtime, reads_once=True)
    enumerator = create_enumerator(source, coordinator, calls)
    cores = parallelism or os.cpu_count() or 1
    if isinstance(enumerator, DiscoveryEnumerator):
        return _plan_discovery(source, enumerator, options, cores, calls)
    splits = unread(source, plan_assigned(source, enumerator, coordinator, timeout))
    return spread(None, splits, options, cores)


def _plan_discovery(
    source: Source, enumerator: DiscoveryEnumerator, options: HostOptions, cores: int, calls: ConnectorCalls
) -> Sequence[tuple[Split, ...]]:
    with closing(source.name, lambda: calls.call("close()", enumerator.close)):
        splits = checked_splits(source, calls.call("discover()", lambda: enumerator.discover({}, first=True)))
        ends = calls.call("latest()", lambda: enumerator.latest(splits)) if splits else {}
        splits = unread(source, fixed_ends(source, splits, ends))
        return calls.call("tasks(), size() or slices()", lambda: spread(enumerator, splits, options, cores))
