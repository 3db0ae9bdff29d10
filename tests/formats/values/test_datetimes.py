# SPDX-License-Identifier: Apache-2.0
"""Dates, timestamps and times of day from text: the calendar, and Spark's casts of malformed texts."""

from __future__ import annotations

import datetime as dt
import itertools
import random
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.formats.values.dates import (
    UTC,
    days_of,
    parse_date,
    parse_time,
    parse_timestamp,
    parse_timestamp_ntz,
    zone,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EPOCH = dt.datetime(1970, 1, 1)

# -- what Spark says

YEARS = ["2024", "0001", "0000", "9999", "10000", "12024", "012024", "294247", "294248", "999999", "1582", "24", "1900"]
MONTHS, DAYS = ["01", "1", "12", "13", "00", "3", "10"], ["01", "1", "31", "32", "00", "10", "29"]
CLOCKS = ["", "12", "12:30", "1:3", "12:30:15", "25:00:00", "24:00:00", "12:60:00", "12:30:60", "12:30:15.",
          "12:30:15.1", "12:30:15.123456789", "02:30:00", "01:30:00", "12:30:15.1x"]  # fmt: skip
ZONES = ["Z", "z", "UTC", "UTC+1", "GMT-3", "UT+05:30", "UTC+05:30:15", "+1", "+0100", "+01:00", "+1:00", "+01:0",
         "+1:30", "-18:00", "+18:01", "+02:60", "+02:59:60", "+020030", "+02:0030", "+0200:30", "+02:3:4", "+123",
         "localtime", "posix/Europe/Paris", "right/UTC", "posixrules", "Factory", "ROC", "Europe/Paris",
         "europe/paris", "PST", "EST", "BST", "Etc/GMT+5", "GMT0", "UTCZ", "", " ", "-", "Mars/X", "../etc/passwd",
         "Europe", "W-SU", "+00", "-00:00", "GMT+9:5", "gmt"]  # fmt: skip
ODD = ["", "T", "2024", "+2024", "-2024-01-01", "-0001-01-01", "+12024-01-01", "12", "2024-06", "2024/06/01",
       "2024-01-01-", "2024-01-01 12", "2000-02-29", "1900-02-29", "290308-12-21", "-290308-12-21", "9999999-01-01",
       "5881580-07-11", "5881580-07-12", "-5877641-06-23", "-5877641-06-22", "294247-01-10T04:00:54.775807Z",
       "294247-01-10T04:00:54.775808Z", "-290308-12-21T19:59:05.224192Z", "-290308-12-21T19:59:05.224191Z"]  # fmt: skip


def texts() -> list[str]:
    """Texts that are nearly dates and timestamps, the same in each run."""
    random_ = random.Random(14)
    choose = random_.choice
    found = {*ODD, *(f"2024-06-01 12:00:00{gap}{name}" for gap in ("", " ") for name in ZONES)}
    for _ in range(2000):
        clock = choose(CLOCKS)
        name = choose(["", " "]) + choose(ZONES) if clock and random_.random() < 0.3 else ""
        day = f"{choose(['', '', '-', '+'])}{choose(YEARS)}-{choose(MONTHS)}-{choose(DAYS)}"
        found.add(choose(["", " ", "\t", "\x7f", "\u00a0"]) + day + (clock and choose("T ") + clock + name))
    return sorted(found)


TEXTS = texts()


def cast(spark: SparkSession, values: list[str], expression: str) -> list[int | None]:
    frame = spark.createDataFrame([(value,) for value in values], "t string")
    return [row[0] for row in frame.selectExpr(expression).collect()]


def different(values: list[str], found: list[int | None], expected: list[int | None]) -> list[tuple[object, ...]]:
    return [row for row in zip(values, found, expected, strict=True) if row[1] != row[2]]


@pytest.mark.parametrize("name", ["Europe/Paris", "America/New_York", "+05:45"])
def test_timestamps_are_those_of_sparks_cast(spark: SparkSession, name: str) -> None:
    spark.conf.set("spark.sql.session.timeZone", name)
    expected = cast(spark, TEXTS, "unix_micros(cast(t as timestamp))")
    assert not different(TEXTS, [parse_timestamp(text, zone(name)) for text in TEXTS], expected)
    assert sum(value is not None for value in expected) > 200


def test_wall_clock_times_are_those_of_sparks_cast(spark: SparkSession) -> None:
    expected = cast(spark, TEXTS, "unix_micros(cast(cast(t as timestamp_ntz) as timestamp))")
    assert not different(TEXTS, [parse_timestamp_ntz(text, allow_zone=True) for text in TEXTS], expected)


def test_wall_clock_times_of_formats_have_no_zone() -> None:
    assert parse_timestamp_ntz("2024-06-01 12:00:00 +02:00") is None
    assert parse_timestamp_ntz("2024-06-01 12:00:00") == parse_timestamp("2024-06-01 12:00:00", UTC)


def test_dates_are_those_of_sparks_cast(spark: SparkSession) -> None:
    expected = cast(spark, TEXTS, "unix_date(cast(t as date))")
    assert not different(TEXTS, [parse_date(text) for text in TEXTS], expected)


def test_times_of_day_are_those_of_sparks_cast(spark: SparkSession) -> None:
    parts = itertools.product(
        ["", " ", "T"], ["12", "1", "0", "23", "24", "012", "-1"], [":30", ":3", ":60", ""],
        ["", ":15", ":1", ":60", ":", ":15.", ":15.1", ":15.123456789"],
        ["", "Z", "AM", " pm", "  pm", "PM  ", " pm\n", "\tAm", "x", " A"],
    )  # fmt: skip
    values = ["".join(each) for each in parts]
    expected = cast(spark, values, "time_to_micros(try_cast(t as time(6)))")
    assert not different(values, [parse_time(value) for value in values], expected)


def test_a_time_without_a_date_is_of_today_where_that_is_wanted() -> None:
    today = parse_timestamp("12:00", UTC)
    assert today is not None and today % (86_400 * 10**6) == 43_200 * 10**6
    assert parse_timestamp("12:00", UTC, time_alone=False) is None
    assert parse_timestamp_ntz("12:00") is None


# -- the calendar and the clocks


@given(st.dates())
def test_days_are_those_of_the_calendar(date: dt.date) -> None:
    assert days_of(date.year, date.month, date.day) == (date - EPOCH.date()).days
    assert parse_date(date.isoformat()) == (date - EPOCH.date()).days


@given(st.integers(-5_000_000, 5_000_000))
def test_the_calendar_repeats_every_400_years(year: int) -> None:
    first, later = days_of(year, 2, 28), days_of(year + 400, 2, 28)
    assert first is not None and later is not None and later - first == 146_097
    assert (days_of(year, 2, 29) is None) == (days_of(year + 400, 2, 29) is None)


@pytest.mark.parametrize(
    ("year", "month", "day"), [(2021, 2, 29), (1900, 2, 29), (2020, 13, 1), (2020, 0, 1), (2020, 4, 31), (2020, 1, 0)]
)
def test_days_that_are_not_in_the_calendar_are_none(year: int, month: int, day: int) -> None:
    assert days_of(year, month, day) is None


@given(
    st.datetimes(dt.datetime(1, 1, 3), dt.datetime(9999, 12, 29)),
    st.sampled_from(["Europe/Berlin", "America/St_Johns", "Asia/Kolkata", "UTC"]),
)
def test_wall_clock_times_become_instants_as_in_python(time: dt.datetime, name: str) -> None:
    expected = time.replace(tzinfo=ZoneInfo(name)) - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    micros = expected // dt.timedelta(microseconds=1)
    assert parse_timestamp(time.isoformat(), zone(name)) == micros
    assert parse_timestamp_ntz(time.isoformat()) == (time - EPOCH) // dt.timedelta(microseconds=1)


def test_far_years_have_the_rules_of_near_ones() -> None:
    summer = "-07-01T12:00:00"
    berlin = zone("Europe/Berlin")
    far = [parse_timestamp(f"{year}{summer}", berlin) for year in (9998, 10398, 12345, 200_000)]
    assert [value is not None and value // 10**6 % 86_400 for value in far] == [10 * 3600] * 4
    long_ago = parse_timestamp("-0500-07-01T12:00:00", UTC)
    assert long_ago is not None
    assert parse_timestamp("-0500-07-01T12:00:00", berlin) == long_ago - 3208 * 10**6


def test_in_the_skipped_hour_the_clock_is_moved_forward() -> None:
    where = zone("America/New_York")
    assert parse_timestamp("2024-03-10T02:30:00", where) == parse_timestamp("2024-03-10T03:30:00", where)


def test_in_the_repeated_hour_the_earlier_instant_is_taken() -> None:
    where = zone("America/New_York")
    assert parse_timestamp("2024-11-03T01:30:00", where) == parse_timestamp("2024-11-03T01:30:00-04:00", where)
