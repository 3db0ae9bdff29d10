# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of alignment, without threads.

Flink: SourceCoordinatorAlignmentTest, SourceOperatorSplitWatermarkAlignmentTest.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import ConfigurationError
from forebay.watermarks.event_time import MAX_WATERMARK, MIN_WATERMARK, max_allowed, splits_ahead

DRIFT = 1000e-6
"""1000 µs, as in Flink's tests, where it is 1000 ms."""


def limits(*reports, drift=DRIFT):
    """Return the limit after each report."""
    latest: dict[object, int | None] = {}
    found = []
    for member, watermark in reports:
        latest[member] = watermark
        found.append(max_allowed(latest.values(), drift))
    return found


def test_watermark_alignment():
    """AL-3: testWatermarkAlignment, 42 → 1042; 44 → 1042; 5000 → 1044."""
    assert limits(("s0", 42), ("s1", 44), ("s0", 5000)) == [1042, 1042, 1044]


def test_watermark_alignment_with_idleness():
    """AL-3: testWatermarkAlignmentWithIdleness, s0 idle → 1044; back at 42 → 1042; all idle → MAX; and back."""
    found = limits(
        ("s0", 42),
        ("s1", 44),
        ("s0", 5000),
        ("s0", MAX_WATERMARK),
        ("s0", 42),
        ("s0", MAX_WATERMARK),
        ("s1", MAX_WATERMARK),
        ("s0", 42),
        ("s1", 46),
    )
    assert found == [1042, 1042, 1044, 1044, 1042, 1044, MAX_WATERMARK, 1042, 1042]


def test_watermark_aggregator():
    """AL-2: testWatermarkAggregator, the minimum over members, which can also fall."""
    found = limits(
        (0, 10), (1, 12), (2, 13), (1, 9), (1, MAX_WATERMARK), (1, 8), (1, 20), (0, 23), (2, 22), drift=0
    )  # fmt: skip
    assert found == [10, 10, 10, 9, 10, 8, 10, 13, 20]


REPORT = st.one_of(st.integers(-100, 100), st.just(MAX_WATERMARK), st.just(MIN_WATERMARK), st.none())


@given(st.lists(REPORT, max_size=60), st.integers(0, 50))
def test_watermark_aggregator_randomly(reports, drift):
    """AL-2: testWatermarkAggregatorRandomly, equals the brute-force minimum over active members."""
    active = [each for each in reports if each not in (None, MIN_WATERMARK, MAX_WATERMARK)]
    assert max_allowed(reports, drift / 1e6) == (min(active) + drift if active else MAX_WATERMARK)


def test_nothing_is_reported_before_there_is_a_watermark():
    """AL-1: a member without a watermark does not limit the others."""
    assert limits(("new", None), ("unread", MIN_WATERMARK), ("s0", 42)) == [MAX_WATERMARK, MAX_WATERMARK, 1042]


def test_overflow_is_capped():
    """AL-2: overflow → MAX."""
    assert max_allowed([MAX_WATERMARK - 10], DRIFT) == MAX_WATERMARK


def test_a_finished_member_does_not_hold_the_others_back():
    """AL-6 and opportunity 14: finished members are dropped from the minimum (FLINK-35157)."""
    assert max_allowed([MAX_WATERMARK, 5000], DRIFT) == 6000
    assert max_allowed([5000], DRIFT) == 6000
    assert max_allowed([], DRIFT) == MAX_WATERMARK


def test_an_infinite_drift_is_off():
    """AL-9: drift Long.MAX means disabled."""
    assert max_allowed([42], float("inf")) == MAX_WATERMARK


def test_a_drift_of_zero_lets_only_the_slowest_go_on():
    """AL-5: equality runs."""
    at = {"s0": 42, "s1": 43}
    assert splits_ahead(at, max_allowed(at.values(), 0)) == {"s1"}


@pytest.mark.parametrize("drift", [-1, float("nan"), "30", float("-inf")])
def test_a_wrong_drift_is_refused(drift):
    """WM-3: drift ≥ 0."""
    with pytest.raises(ConfigurationError, match="alignmentMaxDrift"):
        max_allowed([1], drift)


@pytest.mark.parametrize(("watermark", "goes_on"), [(1041, True), (1042, True), (1043, False)])
def test_a_split_stops_above_the_limit_and_runs_at_it(watermark, goes_on):
    """AL-5, AL-7: latest > maxAllowed → paused, also the only split of a reader (FLINK-36751)."""
    assert (splits_ahead({"only": watermark}, 1042) == set()) is goes_on


def test_split_watermark_alignment():
    """AL-6: testSplitWatermarkAlignment, by a new limit and by a split's own advance."""
    assert splits_ahead({"0": 5, "1": MIN_WATERMARK}, 4) == {"0"}
    assert splits_ahead({"0": 5, "1": MIN_WATERMARK}, 5) == set()
    assert splits_ahead({"0": 11, "1": 3}, 5) == {"0"}
    assert splits_ahead({"0": 11, "1": 12}, 5) == {"0", "1"}


def test_a_split_without_a_watermark_is_not_paused():
    """AL-6: an unread split is never too far ahead."""
    assert splits_ahead({"0": MIN_WATERMARK}, MIN_WATERMARK) == set()


def test_catching_up_is_not_capped_by_an_interval():
    """AL-8 and opportunity 13: the limit is computed on demand, so no announcement interval passes."""
    at = {"slow": 0, "fast": 0}
    largest_drift = 0
    while at["slow"] < 3_600_000_000:
        for split_id, stride in (("slow", 1_000_000), ("fast", 60_000_000)):
            if split_id not in splits_ahead(at, max_allowed(at.values(), 30)):
                at[split_id] += stride
        largest_drift = max(largest_drift, at["fast"] - at["slow"])
    assert largest_drift <= 30_000_000 + 60_000_000, "one batch may overshoot the limit, no second one"
    assert at["fast"] >= at["slow"]
