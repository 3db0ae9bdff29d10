# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of alignment, without threads.

Flink: SourceCoordinatorAlignmentTest, SourceOperatorSplitWatermarkAlignmentTest.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import ConfigurationError
from forebay.watermarks.alignment import Alignment, PauseChange, SplitAlignment, max_allowed, may_read
from forebay.watermarks.event_time import MAX_WATERMARK, MIN_WATERMARK

DRIFT = 1000e-6
"""1000 µs: the worked numbers of the rules, in our unit."""


def test_watermark_alignment():
    """AL-3: testWatermarkAlignment, 42 → 1042; 44 → 1042; 5000 → 1044."""
    alignment = Alignment(DRIFT)
    alignment.report("s0", 42)
    assert alignment.max_allowed() == 1042
    alignment.report("s1", 44)
    assert alignment.max_allowed() == 1042
    alignment.report("s0", 5000)
    assert alignment.max_allowed() == 1044


def test_watermark_alignment_with_idleness():
    """AL-3: testWatermarkAlignmentWithIdleness, s0 idle → 1044; back at 42 → 1042; all idle → MAX; and back."""
    alignment = Alignment(DRIFT)
    seen = []
    for member, watermark in [
        ("s0", 42),
        ("s1", 44),
        ("s0", 5000),
        ("s0", MAX_WATERMARK),
        ("s0", 42),
        ("s0", MAX_WATERMARK),
        ("s1", MAX_WATERMARK),
        ("s0", 42),
        ("s1", 46),
    ]:
        alignment.report(member, watermark)
        seen.append(alignment.max_allowed())
    assert seen == [1042, 1042, 1044, 1044, 1042, 1044, MAX_WATERMARK, 1042, 1042]


def test_two_alignments_do_not_influence_one_another():
    """AL-4: testWatermarkAlignmentWithTwoGroups."""
    one, two = Alignment(DRIFT), Alignment(DRIFT)
    one.report("s0", 42)
    two.report("s1", 44)
    assert (one.max_allowed(), two.max_allowed()) == (1042, 1044)
    one.report("s0", 5000)
    assert (one.max_allowed(), two.max_allowed()) == (6000, 1044)


def test_watermark_aggregator():
    """AL-2: testWatermarkAggregator, the minimum over members, which can also fall."""
    alignment = Alignment(0)
    seen = []
    for member, watermark in [
        (0, 10), (1, 12), (2, 13), (1, 9), (1, MAX_WATERMARK), (1, 8), (1, 20), (0, 23), (2, 22),
    ]:  # fmt: skip
        alignment.report(member, watermark)
        seen.append(alignment.slowest())
    assert seen == [10, 10, 10, 9, 10, 8, 10, 13, 20]


REPORT = st.one_of(st.integers(-100, 100), st.just(MAX_WATERMARK), st.just(MIN_WATERMARK), st.none(), st.just("finish"))


@given(st.lists(st.tuples(st.integers(0, 5), REPORT), max_size=60), st.integers(0, 50))
def test_watermark_aggregator_randomly(reports, drift):
    """AL-2: testWatermarkAggregatorRandomly, equals the brute-force minimum over active members."""
    alignment = Alignment(drift / 1e6)
    latest: dict[int, int] = {}
    for member, watermark in reports:
        if watermark == "finish":
            alignment.finish(member)
            latest.pop(member, None)
        else:
            alignment.report(member, watermark)
            if watermark not in (None, MIN_WATERMARK):
                latest[member] = watermark
        active = [each for each in latest.values() if each != MAX_WATERMARK]
        assert alignment.slowest() == (min(active) if active else None)
        assert alignment.max_allowed() == (min(active) + drift if active else MAX_WATERMARK)
        assert alignment.max_allowed() == max_allowed(latest.values(), drift / 1e6)


def test_nothing_is_reported_before_there_is_a_watermark():
    """AL-1: nothing before it has one, so it holds nobody back."""
    alignment = Alignment(DRIFT)
    alignment.report("new", None)
    alignment.report("unread", MIN_WATERMARK)
    assert alignment.max_allowed() == MAX_WATERMARK
    alignment.report("s0", 42)
    assert alignment.max_allowed() == 1042
    assert max_allowed([MIN_WATERMARK, 42], DRIFT) == 1042


def test_overflow_is_capped():
    """AL-2: overflow → MAX."""
    assert max_allowed([MAX_WATERMARK - 10], DRIFT) == MAX_WATERMARK


def test_a_finished_member_does_not_hold_the_others_back():
    """AL-6 and opportunity 14: finished members are dropped from the minimum (FLINK-35157)."""
    alignment = Alignment(DRIFT)
    alignment.report("s0", 42)
    alignment.report("s1", 5000)
    alignment.finish("s0")
    alignment.finish("never there")
    assert alignment.max_allowed() == 6000
    alignment.finish("s1")
    assert alignment.max_allowed() == MAX_WATERMARK


def test_a_member_that_failed_may_come_back_lower():
    """AL-2: the minimum can fall, after a failure as after idleness."""
    alignment = Alignment(DRIFT)
    alignment.report("s0", 5000)
    alignment.finish("s0")
    alignment.report("s0", 42)
    assert alignment.max_allowed() == 1042


def test_an_infinite_drift_is_off():
    """AL-9: drift Long.MAX means disabled."""
    alignment = Alignment(float("inf"))
    alignment.report("s0", 42)
    assert alignment.max_allowed() == MAX_WATERMARK
    assert max_allowed([42], float("inf")) == MAX_WATERMARK


def test_a_drift_of_zero_lets_only_the_slowest_go_on():
    """AL-5: equality runs."""
    alignment = Alignment(0)
    alignment.report("s0", 42)
    alignment.report("s1", 43)
    assert may_read(42, alignment.max_allowed()) and not may_read(43, alignment.max_allowed())


@pytest.mark.parametrize("drift", [-1, float("nan"), "30", float("-inf")])
def test_a_wrong_drift_is_refused(drift):
    """WM-3: drift ≥ 0."""
    with pytest.raises(ConfigurationError, match="alignmentMaxDrift"):
        Alignment(drift)
    with pytest.raises(ConfigurationError, match="alignmentMaxDrift"):
        max_allowed([1], drift)


@pytest.mark.parametrize(("watermark", "goes_on"), [(1041, True), (1042, True), (1043, False)])
def test_a_reader_stops_above_the_limit_and_runs_at_it(watermark, goes_on):
    """AL-5: latest > maxAllowed → stop polling; ≤ → go on."""
    assert may_read(watermark, 1042) is goes_on


def test_the_drift_of_a_member_is_a_metric():
    """MET-1: watermarkAlignmentDrift."""
    alignment = Alignment(DRIFT)
    assert alignment.drift_of("s0") is None
    alignment.report("s0", 42)
    alignment.report("s1", 5000)
    alignment.report("s2", MAX_WATERMARK)
    assert [alignment.drift_of(each) for each in ("s0", "s1", "s2", "s3")] == [0, 4958, None, None]


def splits(*split_ids):
    alignment = SplitAlignment()
    for split_id in split_ids:
        alignment.add(split_id)
    return alignment


def test_split_watermark_alignment():
    """AL-6: testSplitWatermarkAlignment, paused by announcement, by its own advance, and resumed."""
    alignment = splits("0", "1")
    assert alignment.advance("0", 5) == PauseChange()
    assert alignment.limit(4) == PauseChange(pause=("0",))
    assert alignment.limit(5) == PauseChange(resume=("0",))
    assert alignment.paused == set()
    assert alignment.advance("0", 11) == PauseChange(pause=("0",))
    assert alignment.advance("1", 3) == PauseChange()
    assert alignment.paused == {"0"}
    assert alignment.advance("1", 12) == PauseChange(pause=("1",))
    assert alignment.paused == {"0", "1"}


def test_a_split_is_paused_once_and_resumed_once():
    """AL-6: only what changed is said."""
    alignment = splits("0")
    alignment.limit(10)
    assert alignment.advance("0", 11) == PauseChange(pause=("0",))
    assert alignment.advance("0", 12) == PauseChange()
    assert alignment.limit(11) == PauseChange()
    assert alignment.limit(12) == PauseChange(resume=("0",))
    assert alignment.limit(13) == PauseChange()


def test_a_split_without_a_watermark_is_not_paused():
    """AL-6: an unread split is never too far ahead."""
    assert splits("0").limit(MIN_WATERMARK) == PauseChange()


def test_adding_a_split_again_keeps_its_books():
    """OUT-3: idempotent, here too."""
    alignment = splits("0")
    alignment.advance("0", 9)
    alignment.add("0")
    assert alignment.limit(8) == PauseChange(pause=("0",))


def test_split_watermark_alignment_with_finished_split():
    """AL-6: testSplitWatermarkAlignmentWithFinishedSplit, finished splits leave the bookkeeping."""
    alignment = splits("0", "1")
    alignment.advance("0", 5)
    alignment.advance("1", 3)
    alignment.finish("0")
    assert alignment.limit(4) == PauseChange()
    assert alignment.advance("0", 6) == PauseChange()
    alignment.limit(2)
    alignment.finish("1")
    assert alignment.paused == set() and alignment.limit(9) == PauseChange()


def test_a_single_split_is_paused_too():
    """AL-7: readers of one split are not exempt (FLINK-36751)."""
    alignment = splits("only")
    alignment.advance("only", 5)
    assert alignment.limit(4) == PauseChange(pause=("only",))


@given(st.lists(st.one_of(
    st.tuples(st.just("advance"), st.sampled_from("abc"), st.integers(0, 20)),
    st.tuples(st.just("limit"), st.just(""), st.integers(0, 20)),
    st.tuples(st.sampled_from(["add", "finish"]), st.sampled_from("abc"), st.just(0)),
), max_size=50))  # fmt: skip
def test_the_paused_splits_are_those_ahead_of_the_limit(steps):
    """AL-6: whatever happened, paused = known and beyond the limit, and the changes add up to it."""
    alignment, limit = SplitAlignment(), MAX_WATERMARK
    known: dict[str, int] = {}
    added_up: set[str] = set()
    for kind, split_id, us in steps:
        if kind == "add":
            alignment.add(split_id)
            known.setdefault(split_id, MIN_WATERMARK)
        elif kind == "finish":
            alignment.finish(split_id)
            known.pop(split_id, None)
            added_up.discard(split_id)
        else:
            if kind == "limit":
                limit, change = us, alignment.limit(us)
            else:
                change = alignment.advance(split_id, us)
                known.update({split_id: us} if split_id in known else {})
            assert not added_up & set(change.pause) and set(change.resume) <= added_up
            added_up = (added_up | set(change.pause)) - set(change.resume)
        assert alignment.paused == added_up == {each for each, at in known.items() if at > limit}


def test_catching_up_is_not_capped_by_an_interval():
    """AL-8 and opportunity 13: found on demand in one process, the limit needs no announcement, so no time passes."""
    alignment, local = Alignment(30), splits("slow", "fast")
    at = {"slow": 0, "fast": 0}
    drift_seen = 0
    while at["slow"] < 3_600_000_000:
        for split_id, stride in (("slow", 1_000_000), ("fast", 60_000_000)):
            if split_id not in local.paused:
                at[split_id] += stride
                local.advance(split_id, at[split_id])
                alignment.report(split_id, at[split_id])
            local.limit(alignment.max_allowed())
        drift_seen = max(drift_seen, at["fast"] - at["slow"])
    assert drift_seen <= 30_000_000 + 60_000_000, "one batch may overshoot the limit, no second one"
    assert at["fast"] >= at["slow"]
