# SPDX-License-Identifier: Apache-2.0
"""Small record batches are combined before Spark gets them: order, limits, and slow sources."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from forebay.spark.batch import coalesced

MB = 1 << 20


def batches(*rows: int, width: int = 1) -> Iterator[pa.RecordBatch]:
    start = 0
    for count in rows:
        yield pa.record_batch({"n": range(start, start + count), "text": ["x" * width] * count})
        start += count


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which only a test moves."""
    now = [100.0]
    monkeypatch.setattr("forebay.spark.batch.time.monotonic", lambda: now[0])
    return now


def rows(found: list[pa.RecordBatch]) -> list[int]:
    return [value for batch in found for value in batch["n"].to_pylist()]


@pytest.mark.usefixtures("clock")
def test_a_burst_is_combined_after_its_first_batch() -> None:
    found = list(coalesced(batches(*[50] * 300), max_rows=100_000, max_bytes=64 * MB))
    assert [batch.num_rows for batch in found] == [50, 5_000, 5_000, 4_950]
    assert rows(found) == list(range(15_000))


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(("max_rows", "max_bytes"), [(120, 64 * MB), (100_000, 6_000)])
def test_the_limits_of_the_host_hold(max_rows: int, max_bytes: int) -> None:
    found = list(coalesced(batches(*[50] * 40, width=32), max_rows=max_rows, max_bytes=max_bytes))
    assert [batch.num_rows for batch in found] == [50, *[100] * 19, 50]
    assert all(batch.nbytes <= max_bytes for batch in found)
    assert rows(found) == list(range(2_000))


@pytest.mark.usefixtures("clock")
def test_large_batches_are_not_copied() -> None:
    given = list(batches(6_000, 6_000, 10, 6_000))
    found = list(coalesced(given, max_rows=100_000, max_bytes=64 * MB))
    assert [one is other for one, other in zip(given, found, strict=True)] == [True] * 4


def test_a_slow_source_is_never_held_back(clock: list[float]) -> None:
    def slow() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches(*[10] * 6)):
            clock[0] += 0.06 if number < 4 else 0.01
            yield batch

    assert [batch.num_rows for batch in coalesced(slow(), max_rows=1_000, max_bytes=MB)] == [10, 10, 10, 10, 20]


def test_batches_without_columns_keep_their_rows(clock: list[float]) -> None:
    empty = pa.RecordBatch.from_struct_array(pa.array([{}] * 3, pa.struct([])))
    found = list(coalesced([empty] * 4, max_rows=100, max_bytes=MB))
    assert sum(batch.num_rows for batch in found) == 12
