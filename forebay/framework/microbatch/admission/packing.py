# SPDX-License-Identifier: Apache-2.0
"""From splits to tasks: cut what is big, pack what is small, every slice kept exactly once."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable, Sequence

from forebay.errors import ContractError
from forebay.framework.discovery import OPEN_COST
from forebay.framework.split import Split

MOST_BYTES = 1 << 30
"""Bytes of one task, unless the user says how many tasks there are: more would make a retry dear."""


def count_partitions(sizes: Sequence[int | None], parallelism: int) -> int:
    """Return how many partitions suit the input: one per core, a multiple of that for a very big input."""
    total = sum(filled(sizes)) if any(size is not None for size in sizes) else 0
    return parallelism * max(1, -(-total // (parallelism * MOST_BYTES)))


def filled(sizes: Sequence[int | None]) -> list[int]:
    """Return the sizes with the unknown ones taken for the mean of the known ones."""
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
    """Cut the splits that are too big for one of `partitions` equal shares.

    Args:
        splits: What there is to read.
        size: Estimates the bytes of a split; None = unknown.
        slices: Cuts a split into about so many slices.
        partitions: How many tasks there will be.
        least: No slice needs to be smaller than this many bytes.

    Returns:
        Slices and uncut splits, in the order of the splits.

    Raises:
        ContractError: A slice has another id than its split, or there are none.
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
    """Return the tasks that a source's own options make of `slices`; None if they say nothing.

    Raises:
        ContractError: A split is in a task that is not to be read, or none is left of one.
    """
    if tasks is None:
        return None
    wanted, given = {one.id for one in slices}, {one.id for task in tasks for one in task}
    # What is empty may be left out.
    missing = {one.id for one in slices if one.end is None or one.end != one.position} - given
    wrong = next(iter(sorted(given - wanted) or sorted(missing)), None)
    if wrong is not None:
        raise ContractError(
            f"tasks() {'left out' if wrong in wanted else 'added'} the split {wrong!r}",
            split=wrong,
            rule="DIS-2",
            advice="return the slices it is given, cut with split.slice(position, end): together they are all of them",
        )
    return [tuple(task) for task in tasks if task]


def pack(slices: Sequence[Split], sizes: Sequence[int | None], partitions: int) -> list[tuple[Split, ...]]:
    """Spread slices over at most `partitions` tasks, evenly by estimated bytes. Deterministic.

    The heaviest slice goes first, each to the lightest task (at most 4/3 of the best possible). Within a task slices
    keep their order, and neighbours of one split become one slice again.

    Returns:
        The tasks, in the order of their first slice; none is empty.
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
            f"slices() gave a slice with the id {wrong.id!r}" if wrong is not None else "slices() gave no slice at all",
            split=split.id,
            rule="SPL-1",
            advice="cut with split.slice(position, end): every slice keeps the id, and together they are the split",
        )
    return slices
