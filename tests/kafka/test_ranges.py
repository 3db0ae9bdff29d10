# SPDX-License-Identifier: Apache-2.0
"""Ranges of offsets become tasks as in Spark's KafkaOffsetRangeCalculatorSuite, whose cases these are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.sources.kafka.enumerator import RangeRules
from forebay.sources.kafka.split import KafkaSplit


def tasks(least, most, *sizes):
    slices = [KafkaSplit(id=f"t/{number}", position=1, end=1 + size) for number, size in enumerate(sizes)]
    found = RangeRules(least, most).tasks(slices)
    return None if found is None else [(one.id, one.position, one.end) for (one,) in found]


def test_the_host_decides_where_no_option_does():
    assert tasks(None, None, 10) is None


@pytest.mark.parametrize(
    ("least", "most", "sizes", "expected"),
    [
        # with no minPartition: N TopicPartition to N offset ranges; empty ranges ignored
        (1, None, (1, 1, 0), [("t/0", 1, 2), ("t/1", 1, 2)]),
        # with minPartition = 3: N TopicPartitions to N offset ranges
        (3, None, (1, 1, 1), [("t/0", 1, 2), ("t/1", 1, 2), ("t/2", 1, 2)]),
        # with minPartition = 4: 1 TopicPartition to N offset ranges
        (4, None, (4,), [("t/0", 1, 2), ("t/0", 2, 3), ("t/0", 3, 4), ("t/0", 4, 5)]),
        # with minPartition = 3: N skewed TopicPartitions to M offset ranges
        (3, None, (4, 20), [("t/0", 1, 5), ("t/1", 1, 11), ("t/1", 11, 21)]),
        # SPARK-30656: range inexact multiple of minPartitions
        (3, None, (11,), [("t/0", 1, 4), ("t/0", 4, 8), ("t/0", 8, 12)]),
        # SPARK-30656: fewer records than asked for
        (4, None, (1,), [("t/0", 1, 2)]),
        # SPARK-49259: with maxRecordsPerPartition = 5
        (None, 5, (4, 10), [("t/0", 1, 5), ("t/1", 1, 6), ("t/1", 6, 11)]),
        # SPARK-49259: both, the maximum first
        (3, 20, (30,), [("t/0", 1, 8), ("t/0", 8, 16), ("t/0", 16, 23), ("t/0", 23, 31)]),
    ],
)
def test_ranges_are_cut_as_spark_cuts_them(least, most, sizes, expected):
    assert tasks(least, most, *sizes) == expected


def test_one_small_whole_range_and_two_big_cut_ones():  # SPARK-36576
    found = tasks(40, None, 100, 100_000, 300_000)
    assert found is not None
    assert [one for one in found if one[0] == "t/0"] == [("t/0", 1, 101)]
    assert 39 <= len(found) <= 41


@given(st.lists(st.integers(0, 200), max_size=12), st.integers(1, 200), st.integers(1, 300) | st.none())
def test_no_offset_is_dropped(sizes, least, most):  # SPARK-28489
    found = tasks(least, most, *sizes)
    assert found is not None
    for number, size in enumerate(sizes):
        own = [(low, high) for split_id, low, high in found if split_id == f"t/{number}"]
        assert [offset for low, high in own for offset in (low, high)][1:-1:2] == [low for low, _ in own][1:]
        assert (not own and not size) or (own[0][0], own[-1][1]) == (1, size + 1)
        assert most is None or all(high - low <= most for low, high in own)
