# SPDX-License-Identifier: Apache-2.0
"""Assigns slices to tasks: the source's own tasks, or large splits cut and small ones packed by size."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable, Collection, Sequence

from forebay.errors import ContractError
from forebay.framework.discovery import OPEN_COST, DiscoveryEnumerator
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.split import Split


def spread(
    enumerator: DiscoveryEnumerator | None,
    splits: Sequence[Split],
    options: HostOptions,
    cores: int,
    *,
    uncut: Collection[str] = (),
) -> list[tuple[Split, ...]]:
    """Return the slices of splits that each task reads, one tuple per task. May block: call it by `ConnectorCalls`.

    Args:
        enumerator: Provides tasks, sizes and slices; None = a raw `SplitEnumerator`, which cannot.
        splits: The splits to read.
        options: The option `num_partitions` is used.
        cores: How many tasks run at once.
        uncut: Ids of splits that must not be cut into slices.

    Raises:
        ContractError: The enumerator's own tasks do not read every split, or a slice has another id than its split.
    """
    if enumerator is None:
        return pack(splits, [None] * len(splits), options.num_partitions or cores)
    if (own := chosen(enumerator.tasks(splits), splits)) is not None:
        return own
    sizes = [enumerator.size(one) for one in splits]
    partitions = options.num_partitions or count_partitions(sizes, cores)
    parts = cut(
        splits,
        enumerator.size,
        lambda split, count: [split] if split.id in uncut else enumerator.slices(split, count),
        partitions,
        least=1 if options.num_partitions else OPEN_COST,
    )
    return pack(parts, [enumerator.size(one) for one in parts], partitions)


MOST_BYTES = 1 << 30
"""Maximum bytes of one task, to bound the cost of a retry; `numPartitions` overrides it."""


def count_partitions(sizes: Sequence[int | None], parallelism: int) -> int:
    """Return the number of partitions for splits of these bytes: one per core, or a multiple for very large inputs."""
    total = sum(filled(sizes)) if any(size is not None for size in sizes) else 0
    return parallelism * max(1, -(-total // (parallelism * MOST_BYTES)))


def filled(sizes: Sequence[int | None]) -> list[int]:
    """Return the sizes, with the mean of the known sizes in place of each unknown size (None)."""
    known = [max(0, size) for size in sizes if size is not None]
    usual = sum(known) // len(known) if known else OPEN_COST
    return [usual if size is None else max(0, size) for size in sizes]


def cut(
    splits: Sequence[Split],
    size: Callable[[Split], int | None],
    slices: Callable[[Split, int], Sequence[Split]],
    partitions: int,
    *,
    least: int = OPEN_COST,
) -> list[Split]:
    """Cut the splits that are larger than one of `partitions` equal shares; return all slices in order.

    Args:
        splits: The splits to read.
        size: Estimates the bytes of a split; None = unknown.
        slices: Cuts a split into about the given number of slices.
        partitions: The number of tasks.
        least: Minimum bytes of one share.

    Raises:
        ContractError: A slice has another id than its split, or `slices` returned no slice.
    """
    sizes = [size(split) for split in splits]
    smallest = 1 if all(one is None for one in sizes) else least
    guessed = filled(sizes)
    share = max(1, smallest, sum(guessed) // max(1, partitions))
    result: list[Split] = []
    for split, bytes_here in zip(splits, guessed, strict=True):
        count = -(-bytes_here // share)
        result.extend(_checked(split, slices(split, count)) if count > 1 else [split])
    return result


def chosen(tasks: Sequence[Sequence[Split]] | None, slices: Sequence[Split]) -> list[tuple[Split, ...]] | None:
    """Check and return `tasks`, which the enumerator's `tasks()` returned for `slices`; None if it returned None.

    Raises:
        ContractError: The tasks contain another split, or leave one out.
    """
    if tasks is None:
        return None
    wanted, given = {one.id for one in slices}, {one.id for task in tasks for one in task}
    # Empty slices may be left out.
    missing = {one.id for one in slices if one.end is None or one.end != one.position} - given
    wrong = next(iter(sorted(given - wanted) or sorted(missing)), None)
    if wrong is not None:
        raise ContractError(
            f"tasks() {'left out' if wrong in wanted else 'added'} the split {wrong!r}",
            split=wrong,
            rule="DIS-2",
            advice="let tasks() return each slice that it is given, whole or cut with split.slice(position, end)",
        )
    return [tuple(task) for task in tasks if task]


def pack(slices: Sequence[Split], sizes: Sequence[int | None], partitions: int) -> list[tuple[Split, ...]]:
    """Return at most `partitions` tasks of even estimated bytes, in the order of their first slice. Deterministic.

    Slices are assigned in descending size, each to the smallest task so far: the largest task has at most 4/3 of the
    optimum. The slices of a task keep their order; adjacent slices of one split are joined.
    """
    costs = [size + OPEN_COST for size in filled(sizes)]
    tasks: list[list[int]] = [[] for _ in range(min(max(1, partitions), len(slices)))]
    loads = [(0, number) for number in range(len(tasks))]
    for index in sorted(range(len(slices)), key=lambda index: (-costs[index], index)):
        load, number = heapq.heappop(loads)
        tasks[number].append(index)
        heapq.heappush(loads, (load + costs[index], number))
    ordered = sorted(sorted(task) for task in tasks)
    return [_joined([slices[index] for index in task]) for task in ordered]


def _joined(slices: Sequence[Split]) -> tuple[Split, ...]:
    result: list[Split] = []
    for one in slices:
        before = result[-1] if result else None
        if (
            before is not None
            and before.id == one.id
            and before.end is not None
            and before.end == one.position
            and dataclasses.replace(before, end=one.end) == dataclasses.replace(one, position=before.position)
        ):
            result[-1] = dataclasses.replace(before, end=one.end)
        else:
            result.append(one)
    return tuple(result)


def _checked(split: Split, slices: Sequence[Split]) -> Sequence[Split]:
    wrong = next((one for one in slices if one.id != split.id), None)
    if wrong is not None or not slices:
        raise ContractError(
            f"slices() returned a slice with the id {wrong.id!r}"
            if wrong is not None
            else "slices() returned no slice",
            split=split.id,
            rule="SPL-1",
            advice="let slices() cut with split.slice(position, end): each slice keeps the split's id, and together "
            "they cover the split",
        )
    return slices
