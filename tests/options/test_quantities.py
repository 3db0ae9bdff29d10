# SPDX-License-Identifier: Apache-2.0
"""Durations and byte sizes."""

from __future__ import annotations

import copy
import pickle
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.options import ByteSize, Duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("500ms", 0.5),
        ("5m", 300),
        ("1 hour", 3600),
        ("1 minute 30 seconds", 90),
        ("1h30m", 5400),
        ("  1.5 H ", 5400),
        ("2 days", 172_800),
        ("1w", 604_800),
        ("250us", 0.00025),
        ("PT1M30S", 90),
        ("P1DT0.5H", 88_200),
        ("0", 0),
    ],
)
def test_a_duration_reads_text_with_units(text, seconds):
    assert Duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", "30", "s", "1 month", "-5s", "1s5", "P", "PT", "P1M", "1.0000001s", "\u0661s", "9" * 30 + "d", "1e3s"]
)
def test_a_duration_refuses_what_has_no_clear_length(text):
    with pytest.raises(ValueError, match=r"."):
        Duration(text)


def test_a_duration_is_made_of_seconds_or_a_timedelta_but_not_of_negative_ones():
    assert Duration(0.1) == timedelta(milliseconds=100)
    assert Duration(timedelta(minutes=1)).text == "1m"
    assert float(Duration("1500ms")) == 1.5
    for bad in (-1, timedelta(seconds=-1), float("inf"), float("nan")):
        with pytest.raises(ValueError, match=r"."):
            Duration(bad)


@given(st.integers(0, 999_999_999 * 86_400_000_000))
def test_the_text_of_a_duration_reads_back_and_so_does_its_pickle(microseconds):
    duration = Duration(timedelta(microseconds=microseconds))
    assert Duration(duration.text) == duration
    again = pickle.loads(pickle.dumps(duration))
    assert (again, type(again)) == (duration, Duration)
    assert copy.deepcopy(duration) == duration


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1000", 1000),
        ("64k", 65_536),
        ("64 KB", 65_536),
        ("64kib", 65_536),
        ("128m", 134_217_728),
        ("1.5GB", 1_610_612_736),
        ("2t", 2 << 40),
        ("1p", 1 << 50),
        ("10 bytes", 10),
        ("0.3k", 307),
    ],
)
def test_a_byte_size_reads_units_of_1024(text, size):
    assert ByteSize(text) == size


@pytest.mark.parametrize("text", ["", "k", "-1", "1x", "1 k k", "1e3", "\u0663k"])
def test_a_byte_size_refuses_other_text(text):
    with pytest.raises(ValueError, match=r"."):
        ByteSize(text)


def test_a_byte_size_is_an_int_that_is_not_negative():
    assert ByteSize("1k") + 1 == 1025
    with pytest.raises(ValueError, match="is negative"):
        ByteSize(-1)


@given(st.one_of(st.integers(0, 1 << 70), st.integers(0, 1 << 20).map(lambda n: n << 30)))
def test_the_text_of_a_byte_size_reads_back_and_so_does_its_pickle(size):
    assert ByteSize(ByteSize(size).text) == size
    again = pickle.loads(pickle.dumps(ByteSize(size)))
    assert (again, type(again)) == (size, ByteSize)
