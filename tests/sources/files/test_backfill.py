# SPDX-License-Identifier: Apache-2.0
"""A backfill of files on real Spark: in the order of event times, windows close while it runs and state stays small."""

from __future__ import annotations

import datetime as dt
import os
import random
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

FILES_A_DAY, ROWS_A_FILE = 16, 6
SPAN = dt.timedelta(days=1) / FILES_A_DAY
FIRST = dt.datetime(2023, 1, 1, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)


def write_clicks(directory: Path, days: int) -> None:
    """Write files of one and a half hours each, in a random order of names and times of change."""
    directory.mkdir()
    order = list(range(days * FILES_A_DAY))
    random.Random(16).shuffle(order)
    for place, number in enumerate(order):
        times = [FIRST + number * SPAN + row * SPAN / ROWS_A_FILE for row in range(ROWS_A_FILE)]
        path = directory / f"{place:04}.parquet"
        pq.write_table(pa.table({"ts": pa.array(times, pa.timestamp("us", "UTC"))}), path)
        os.utime(path, (1_700_000_000 + place, 1_700_000_000 + place))


class Backfill(NamedTuple):
    """What a run did."""

    peak: int
    dropped: int
    rows: int
    windows: dict[dt.datetime, int]


def backfill(spark: Any, clicks: Path, checkpoint: Path, *, delay: str, **options: str) -> Backfill:
    """Count the rows of each hour in one AvailableNow run."""
    from pyspark.sql.functions import window

    reader = spark.readStream.format("forebay_files").schema("ts timestamp").options(**options)
    counts = reader.load(str(clicks)).withWatermark("ts", delay).groupBy(window("ts", "1 hour")).count()
    name = f"backfill_{checkpoint.name}"
    writer = counts.writeStream.format("memory").queryName(name).outputMode("append")
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination(500)
    assert query.exception() is None
    progress = query.recentProgress
    states = [state for one in progress for state in one.stateOperators]
    found = spark.table(name).selectExpr("unix_seconds(window.start)", "count").collect()
    windows = {dt.datetime.fromtimestamp(start, dt.UTC): count for start, count in found}
    return Backfill(
        max(state.numRowsTotal for state in states),
        sum(state.numRowsDroppedByWatermark for state in states),
        sum(one.numInputRows for one in progress),
        windows,
    )


DAYS = [3, *(pytest.param(days, marks=pytest.mark.soak) for days in (4, 12, 60))]


@pytest.mark.soak
@pytest.mark.parametrize("days", DAYS)
def test_a_backfill_by_event_time_keeps_two_days_of_state(spark: Any, tmp_path: Path, days: int) -> None:
    """Hourly windows of all days × 16 files."""
    clicks = tmp_path / "clicks"
    write_clicks(clicks, days)
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "1000")
    # Drift + one file ≤ the delay of the watermark.
    options = {"fileEventTime": "footer:ts", "alignmentMaxDrift": "21h"}
    swept = backfill(spark, clicks, tmp_path / "swept", delay="1350 minutes", **options)
    rows = days * FILES_A_DAY * ROWS_A_FILE
    assert (swept.rows, swept.dropped) == (rows, 0)
    assert swept.peak <= 48
    closed = FIRST + dt.timedelta(days=days - 1)
    assert {at for at in swept.windows if at < closed} == {FIRST + hour * HOUR for hour in range((days - 1) * 24)}
    assert set(swept.windows.values()) == {rows // days // 24}


@pytest.mark.soak
@pytest.mark.parametrize("days", [3, 4, 12, 60])
def test_in_the_order_of_times_of_change_all_hours_stay_or_rows_are_dropped(
    spark: Any, tmp_path: Path, days: int
) -> None:
    """What the event times of the files are for: the same files without them."""
    clicks = tmp_path / "clicks"
    write_clicks(clicks, days)
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "1000")
    quarter = str(days * FILES_A_DAY // 4)
    unordered = backfill(spark, clicks, tmp_path / "unordered", delay=f"{days + 1} days", maxFilesPerTrigger=quarter)
    hasty = backfill(spark, clicks, tmp_path / "hasty", delay="1350 minutes", maxFilesPerTrigger=quarter)
    rows = days * FILES_A_DAY * ROWS_A_FILE
    assert (unordered.rows, unordered.dropped, unordered.peak) == (rows, 0, days * 24)
    assert hasty.dropped > 0
