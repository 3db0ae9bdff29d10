# SPDX-License-Identifier: Apache-2.0
"""Java's date patterns: years of any size, as Spark's own formatter reads them."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forebay.formats.values.dates import UTC
from forebay.formats.values.time_columns import DatePattern

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

YEARS = [
    *("2024", "24", "999", "12024", "0000", "-0000", "+0000", "-0001", "+2024", "-2024", "+12024", "-12024"),
    *("+02024", "-02024", "+10000", "-10000", "+294247", "+999999", "-999999", "+999999999", "-999999999"),
    *("+9999999999", "--2024"),
]
PATTERNS = {"yyyy-MM-dd": "{}-01-05", "yyyyMMdd": "{}0105", "dd/MM/yyyy HH:mm": "05/01/{} 03:04", "MM-yyyy": "01-{}"}


@pytest.mark.parametrize(("pattern", "form"), PATTERNS.items())
def test_years_are_read_as_by_spark(spark_utc: SparkSession, tmp_path: Path, pattern: str, form: str) -> None:
    texts = [form.format(year) for year in YEARS]
    (tmp_path / "f.csv").write_text("".join(f"{text},{text},{text}\n" for text in texts))
    reader = spark_utc.read.schema("d date, t timestamp, n timestamp_ntz")
    reader = reader.options(dateFormat=pattern, timestampFormat=pattern, timestampNTZFormat=pattern)
    frame = reader.csv(str(tmp_path / "f.csv"))
    rows = frame.selectExpr("unix_date(d)", "unix_micros(t)", "unix_micros(cast(n as timestamp))").collect()
    compiled = DatePattern.of(pattern)
    found = [(compiled.date(text), compiled.timestamp(text, UTC), compiled.timestamp_ntz(text)) for text in texts]
    assert list(zip(texts, found, strict=True)) == list(zip(texts, map(tuple, rows), strict=True))
    assert None not in found[YEARS.index("-0001")]
    assert None not in found[YEARS.index("+12024")]


@pytest.mark.parametrize(
    ("pattern", "path", "found"),
    [
        ("yyyyMMdd", "/d/part-20240105.csv", ["2024-01-05"]),
        ("yyyyMMdd", "/d/0123420240107-20240105", ["2024-01-05"]),
        ("yyyyMMdd", "/d/20240105999.csv", []),
        ("yyyyMMdd", "/d/20240105-20240106-20240105", ["2024-01-05", "2024-01-06"]),
        ("yyyy-MM-dd", "/d/2024-13-01/2023-02-29/2024-02-29", ["2024-02-29"]),
        ("'DAY='yyyy/M/d", "/d/day=2024/1/5/x", ["2024-01-05"]),
    ],
)
def test_times_are_found_in_a_path_but_not_inside_numbers(pattern: str, path: str, found: list[str]) -> None:
    days = [dt.datetime.fromisoformat(one).replace(tzinfo=dt.UTC) for one in found]
    expected = {int(day.timestamp()) * 1_000_000 for day in days}
    assert DatePattern.inside(pattern).timestamps_in(path, UTC) == expected


@pytest.mark.parametrize("pattern", ["MM-dd", "HH", "'yyyy'"])
def test_a_pattern_for_paths_has_a_year(pattern: str) -> None:
    with pytest.raises(ValueError, match="has no year"):
        DatePattern.inside(pattern)
