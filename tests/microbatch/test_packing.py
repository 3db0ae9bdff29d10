# SPDX-License-Identifier: Apache-2.0
"""Cutting and packing: every record is in exactly one task, evenly and deterministically."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import ContractError
from forebay.framework.discovery import OPEN_COST
from forebay.framework.split import Split
from forebay.framework.tasks.assign_tasks import (
    MOST_BYTES,
    MOST_SPLITS,
    Sizes,
    count_partitions,
    cut,
    pack,
)

MIB = 1 << 20
sizes_of_splits = st.lists(st.none() | st.integers(0, 4_000 * MIB), min_size=0, max_size=30)


def ranges(split: Split, count: int) -> list[Split]:
    """Cut a split with int positions into `count` ranges."""
    start, end = split.position, split.end
    assert isinstance(start, int)
    assert isinstance(end, int)
    step = max(1, -(-(end - start) // count))
    return [split.slice(at, min(at + step, end)) for at in range(start, end, step)] or [split]


def size(split: Split) -> int:
    assert isinstance(split.position, int)
    assert isinstance(split.end, int)
    return split.end - split.position


def sized(splits: Sequence[Split]) -> Sizes:
    return Sizes.of(map(size, splits))


def packed(slices: Sequence[Split], sizes: Sequence[int | None], partitions: int) -> list[tuple[Split, ...]]:
    return list(pack(slices, Sizes.of(sizes), partitions))


@given(sizes_of_splits, st.integers(1, 12))
def test_every_slice_is_in_exactly_one_task_and_no_task_is_empty(sizes, partitions):
    splits = [Split(f"s{number}", position=0, end=7) for number in range(len(sizes))]
    tasks = packed(splits, sizes, partitions)
    assert sorted(one.id for task in tasks for one in task) == sorted(split.id for split in splits)
    assert all(tasks)
    assert len(tasks) == min(partitions, len(splits))


@given(sizes_of_splits.filter(bool), st.integers(1, 12))
def test_no_task_is_heavier_than_the_mean_and_one_slice_together(sizes, partitions):
    splits = [Split(str(number)) for number in range(len(sizes))]
    costs = {split.id: cost + OPEN_COST for split, cost in zip(splits, Sizes.of(sizes).bytes, strict=True)}
    loads = [sum(costs[one.id] for one in task) for task in packed(splits, sizes, partitions)]
    assert max(loads) <= sum(costs.values()) / len(loads) + max(costs.values())


@given(sizes_of_splits, st.integers(1, 12))
def test_packing_is_deterministic_and_keeps_the_order_within_a_task(sizes, partitions):
    splits = [Split(f"{number:02}") for number in range(len(sizes))]
    tasks = packed(splits, sizes, partitions)
    assert tasks == packed(splits, sizes, partitions)
    assert all([one.id for one in task] == sorted(one.id for one in task) for task in tasks)
    assert [task[0].id for task in tasks] == sorted(task[0].id for task in tasks)


@given(st.lists(st.integers(0, 300 * MIB), min_size=1, max_size=8), st.integers(1, 12), st.sampled_from([1, OPEN_COST]))
def test_cutting_and_packing_cover_every_position_once(lengths, partitions, least):
    splits = [Split(str(number), position=0, end=length) for number, length in enumerate(lengths)]
    slices = cut(splits, sized(splits), ranges, partitions, least=least)
    covered: dict[str, list[tuple[object, object]]] = {split.id: [] for split in splits}
    for task in packed(slices, [size(one) for one in slices], partitions):
        for one in task:
            covered[one.id].append((one.position, one.end))
    for split in splits:
        parts = sorted(covered[split.id])
        assert parts[0][0] == 0
        assert parts[-1][1] == split.end
        assert all(before[1] == after[0] for before, after in pairwise(parts))


def test_one_big_split_is_cut_for_every_task():
    big = [Split("big", position=0, end=100 * MIB)]
    slices = cut(big, sized(big), ranges, 4)
    assert [(one.position, one.end) for one in slices] == [(n * 25 * MIB, (n + 1) * 25 * MIB) for n in range(4)]


def test_a_small_split_is_cut_only_when_the_user_says_how_many_tasks():
    small = [Split("small", position=0, end=1000)]
    assert cut(small, sized(small), ranges, 4) == small
    assert len(cut(small, sized(small), ranges, 4, least=1)) == 4


def test_splits_of_unknown_size_count_as_equal():
    asked = []

    def halves(split: Split, count: int) -> list[Split]:
        asked.append(count)
        return [split.slice(None, 5), split.slice(5, None)]

    slices = cut([Split("a"), Split("b")], Sizes.of([None, None]), halves, 4)
    assert asked == [2, 2]
    assert [len(task) for task in packed(slices, [None] * 4, 2)] == [1, 2] or packed(slices, [None] * 4, 4) == [
        (one,) for one in slices
    ]


def test_an_unknown_size_counts_as_the_mean_of_the_known_ones():
    assert list(Sizes.of([10, None, 30, -5]).bytes) == [10, 13, 30, 0]


def test_neighbouring_slices_of_one_split_become_one_again_in_a_task():
    slices = [Split("a", position=None, end=10), Split("a", position=10, end=20), Split("a", position=20, end=None)]
    assert packed(slices, [1, 1, 1], 1) == [(Split("a"),)]


def test_slices_with_a_gap_between_them_stay_apart():
    slices = [Split("a", position=0, end=10), Split("a", position=20, end=30)]
    assert packed(slices, [1, 1], 1) == [tuple(slices)]


def test_slices_that_differ_in_their_own_fields_stay_apart():
    class Block(Split):
        codec: str

    slices = [Block("a", position=0, end=10, codec="x"), Block("a", position=10, end=20, codec="y")]
    assert packed(slices, [1, 1], 1) == [tuple(slices)]


def test_a_very_big_input_gets_more_tasks_than_cores():
    assert count_partitions(Sizes.of([10 * MIB]), 4) == 4
    assert count_partitions(Sizes.of([None] * 1000), 4) == 4
    assert count_partitions(Sizes.of([9 * MOST_BYTES]), 4) == 12


def test_very_many_splits_get_more_tasks_than_cores():
    assert count_partitions(Sizes.of([1] * (4 * MOST_SPLITS)), 4) == 4
    assert count_partitions(Sizes.of([1] * (4 * MOST_SPLITS + 1)), 4) == 8


def test_nothing_to_read_makes_no_task():
    assert cut([], sized([]), ranges, 4) == []
    assert packed([], [], 4) == []


@pytest.mark.parametrize("slices", [[], [Split("other")]])
def test_slices_without_the_id_of_their_split_are_refused(slices):
    big = [Split("big", position=0, end=1000)]
    with pytest.raises(ContractError, match=r"slices\(\) returned") as caught:
        cut(big, sized(big), lambda *_: slices, 4, least=1)
    assert caught.value.split == "big"
    assert caught.value.rule == "SPL-1"
