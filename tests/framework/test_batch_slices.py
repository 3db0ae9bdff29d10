# SPDX-License-Identifier: Apache-2.0
"""Record batches are sliced at the limits, in few measurements of their size."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from forebay.framework.arrow.casting import slices_within


class Rows:
    """Stands in for a record batch; counts how often its size is measured, which takes time for each column."""

    measured = 0

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    @property
    def num_rows(self) -> int:
        return len(self.sizes)

    @property
    def nbytes(self) -> int:
        Rows.measured += 1
        return sum(self.sizes)

    def slice(self, start: int, length: int) -> Rows:
        return Rows(self.sizes[start : start + length])


def sliced(sizes: list[int], max_rows: int, max_bytes: int) -> list[list[int]]:
    batch = cast("pa.RecordBatch", Rows(sizes))
    found: list[Any] = list(slices_within(batch, max_rows=max_rows, max_bytes=max_bytes))
    return [part.sizes for part in found]


@given(st.lists(st.integers(0, 30), max_size=60), st.integers(1, 20), st.integers(1, 60))
def test_each_slice_has_as_many_rows_as_fit(sizes: list[int], max_rows: int, max_bytes: int) -> None:
    expected: list[list[int]] = []
    for size in sizes:
        if expected and len(expected[-1]) < max_rows and sum(expected[-1]) + size <= max_bytes:
            expected[-1].append(size)
        else:
            expected.append([size])
    assert sliced(sizes, max_rows, max_bytes) == expected


def test_rows_of_equal_size_are_measured_three_times_a_slice() -> None:
    Rows.measured = 0
    slices = sliced([100] * 10_000, 8_000, 3_500)
    assert len(slices) == 286
    assert Rows.measured <= 3 * len(slices) + 20


def test_rows_whose_size_changes_are_measured_a_few_times_more() -> None:
    Rows.measured = 0
    slices = sliced([*[1] * 5_000, *[100] * 5_000, *range(1, 1_000)], 8_000, 3_500)
    assert Rows.measured <= 5 * len(slices) + 30
