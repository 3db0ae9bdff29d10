# SPDX-License-Identifier: Apache-2.0
"""The rate source: deterministic rows, exact positions, event times by the options."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from manual_clock import ManualClock

from forebay.errors import ConfigurationError
from forebay.options import Duration
from forebay.sources.rate import RATE_SCHEMA, RateEnumerator, RateSource, RateSplit


def rows(source: RateSource, index: int, start: int, stop: int) -> pa.RecordBatch:
    return source.make(RateSplit(f"rate-{index}", index=index, started_at=0), start, stop)


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50), st.integers(0, 9), st.integers(0, 10**7))
def test_any_cut_gives_the_same_rows(start: int, first: int, second: int, seed: int, disorder: int) -> None:
    source = RateSource(num_splits=3, seed=seed, disorder=Duration(disorder / 1e6), skew=2.5)
    whole = rows(source, 1, start, start + first + second)
    parts = [rows(source, 1, start, start + first), rows(source, 1, start + first, start + first + second)]
    assert pa.Table.from_batches(parts).to_pylist() == whole.to_pylist()
    assert whole.schema == RATE_SCHEMA


def test_values_are_unique_over_splits_and_times_run_at_the_rate() -> None:
    source = RateSource(num_splits=3, rows_per_second=10)
    values = [value for index in range(3) for value in rows(source, index, 0, 100).column("value").to_pylist()]
    assert sorted(values) == list(range(300))
    times = rows(source, 0, 0, 3).column("timestamp").cast(pa.int64()).to_pylist()
    assert times == [0, 100_000, 200_000]


def test_skew_speeds_up_the_last_split() -> None:
    source = RateSource(num_splits=3, rows_per_second=1, skew=60.0)
    last = [rows(source, index, 10, 11).column("timestamp").cast(pa.int64())[0].as_py() for index in range(3)]
    assert last == [10_000_000, 305_000_000, 600_000_000]


def test_disorder_is_bounded_and_really_disorders() -> None:
    source = RateSource(rows_per_second=1000, disorder=Duration(0.1))
    times = rows(source, 0, 0, 5000).column("timestamp").cast(pa.int64()).to_pylist()
    lags = [1000 * number - time for number, time in enumerate(times)]
    assert min(lags) >= 0
    assert 90_000 < max(lags) <= 100_000
    assert times != sorted(times)


def test_an_unbounded_split_is_fixed_at_discovery_and_comes_due_by_the_clock() -> None:
    clock = ManualClock(1000.0)
    enumerator = RateEnumerator(RateSource(rows_per_second=10, num_splits=2), clock)
    splits = enumerator.discover({}, True).splits
    clock.advance(3.0)
    assert enumerator.latest(splits) == {"rate-0": 30, "rate-1": 30}
    assert enumerator.discover({split.id: split for split in splits}, False).splits == []


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(1, 9))
def test_slices_cover_what_is_left(start: int, more: int, count: int) -> None:
    enumerator = RateEnumerator(RateSource(rows=5), ManualClock())
    split = RateSplit("rate-0", start, start + more, index=0, started_at=0)
    cut = enumerator.slices(split, count)
    assert cut[0].position == start
    assert cut[-1].end == start + more
    assert all(one.end == two.position for one, two in itertools.pairwise(cut))
    assert sum(enumerator.size(one) or 0 for one in cut) == enumerator.size(split)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows_per_second": 0.0}, "the option rowsPerSecond is 0.0, but must be above 0"),
        ({"num_splits": 0}, "the option numSplits is 0, but must be 1 or more"),
        ({"rows": -1}, "the option rows is -1, but must be 0 or more"),
        ({"skew": 0.0}, "the option skew is 0.0, but must be above 0"),
    ],
)
def test_options_that_make_no_rows_are_refused_by_name(options: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as raised:
        RateSource(**options)  # type: ignore[arg-type]  # the parameters name their types
    assert raised.value.option


@given(
    st.integers(0, 200),
    st.integers(0, 200),
    st.integers(-10, 3_000_000),
    st.sampled_from([0, 5_000, 700_000]),
    st.data(),
)
def test_event_times_and_positions_are_those_of_the_rows(start, more, event_time, disorder, data) -> None:
    source = RateSource(
        rows_per_second=data.draw(st.sampled_from([3.0, 100.0, 1e7])), num_splits=2, skew=7.0, disorder=disorder / 1e6
    )
    split = RateSplit("rate-1", start, start + more, index=1, started_at=17)
    times = source.make(split, 0, start + more).column(0).cast(pa.int64()).to_pylist()
    enumerator = RateEnumerator(source, ManualClock())
    row = start if more else start - 1
    assert enumerator.event_times([split], "timestamp") == ({split.id: times[row]} if row >= 0 else {})
    first = next((n for n in range(start, start + more) if times[n] >= event_time), start + more)
    assert enumerator.positions_at(event_time, [split]) == {split.id: first}
    assert enumerator.event_times([split], "value") is None
