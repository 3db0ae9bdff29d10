# SPDX-License-Identifier: Apache-2.0
"""Packs slices of splits into tasks of even size. It uses little memory: a bounded read may have millions of splits."""

from __future__ import annotations

import dataclasses
import heapq
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self, overload

import pyarrow as pa
import pyarrow.compute as pc

from forebay.framework.discovery import OPEN_COST
from forebay.framework.split import Split

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
    found = pc.sort_indices(pa.Array.from_buffers(pa.int64(), len(negated), [None, pa.py_buffer(negated)])).buffers()[1]
    return () if found is None else memoryview(found).cast("Q")[: len(sizes)]


def _joined(slices: Iterable[Split]) -> tuple[Split, ...]:
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
