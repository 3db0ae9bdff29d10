# SPDX-License-Identifier: Apache-2.0
"""Dates, times and zones as text."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import ConfigurationError
from forebay.storage.timestamps import days_of, parse_date, parse_time, parse_timestamp, time_zone, to_utc

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@given(st.dates())
def test_days_of_agrees_with_the_calendar(day):
    assert days_of(day.year, day.month, day.day) == (day - dt.date(1970, 1, 1)).days


@given(st.integers(-5_000_000, 5_000_000))
def test_the_calendar_repeats_every_400_years(year):
    first, later = days_of(year, 2, 28), days_of(year + 400, 2, 28)
    assert first is not None and later is not None
    assert later - first == 146_097
    assert (days_of(year, 2, 29) is None) == (days_of(year + 400, 2, 29) is None)


@given(
    st.datetimes().filter(lambda moment: 1 < moment.year < 9999),
    st.sampled_from(["UTC", "Europe/Paris", "America/New_York", "Asia/Kolkata", "+05:45", "-11:00"]),
)
def test_a_wall_clock_reading_is_the_instant_that_python_gives_it(moment, name):
    zone = time_zone(name)
    days = (moment.date() - dt.date(1970, 1, 1)).days
    micros = (moment - dt.datetime.combine(moment.date(), dt.time())) // dt.timedelta(microseconds=1)
    expected = (moment.replace(tzinfo=zone) - EPOCH) // dt.timedelta(microseconds=1)
    assert to_utc(days, micros, zone) == expected


def test_in_the_skipped_hour_the_clock_is_moved_forward():
    zone = time_zone("America/New_York")
    assert parse_timestamp("2024-03-10T02:30:00", zone) == parse_timestamp("2024-03-10T03:30:00", zone)


def test_in_the_repeated_hour_the_earlier_instant_is_taken():
    zone = time_zone("America/New_York")
    assert parse_timestamp("2024-11-03T01:30:00", zone) == parse_timestamp("2024-11-03T01:30:00-04:00", zone)


@pytest.mark.parametrize("text", ["", "x", "2024-13-01", "2024-02-30", "12:00:00", "2024-01-01T", "2024-01-01 25:00"])
def test_no_time_is_made_out_of_nonsense(text):
    assert parse_timestamp(text, dt.UTC) is None


def test_dates_and_times_of_day():
    assert parse_date("1970-1-2 anything") == 1
    assert parse_date("2024-02-30") is None
    assert parse_time("00:01:00.5") == 60_500_000
    assert parse_time("24:00:00") is None


def test_an_unknown_zone_says_what_to_write():
    with pytest.raises(ConfigurationError, match="Europe/Paris"):
        time_zone("Mars/Olympus")
    with pytest.raises(ConfigurationError):
        time_zone("../etc/passwd")
