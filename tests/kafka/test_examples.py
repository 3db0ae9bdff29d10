# SPDX-License-Identifier: Apache-2.0
"""The Kafka examples and the demo work on a real broker."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
# Last, so that nothing there can stand in for an installed module.
sys.path.append(str(EXAMPLES))

HOUR = 3_600_000
DAY = 1_767_225_600_000  # 2026-01-01 00:00 UTC

pytest.importorskip("pyspark.sql")


@pytest.fixture
def orders(broker, kafka) -> Iterator[Any]:
    made = import_module("kafka_orders").Orders(broker, kafka.name("orders"))
    yield made
    made.close()


@pytest.mark.soak
def test_the_backfill_reads_only_the_given_hours(spark, orders):
    orders.write(2400, DAY, DAY + 24 * HOUR)
    backfill = import_module("kafka_backfill").backfill
    found = backfill(spark, orders.servers, orders.topic, DAY + 6 * HOUR, DAY + 9 * HOUR).collect()
    assert [(str(row.hour), row.orders) for row in found] == [
        (f"2026-01-01 {hour:02}:00:00", 100) for hour in (6, 7, 8)
    ]
    assert [row.revenue for row in found] == [100 * 50.0] * 3
    late = DAY + 48 * HOUR  # nothing is so late, which is no error
    assert backfill(spark, orders.servers, orders.topic, late, late + HOUR).collect() == []


@pytest.mark.soak
def test_the_hourly_job_reads_new_records_once(spark, orders, tmp_path):
    run_once = import_module("kafka_hourly").run_once
    files, checks = str(tmp_path / "files"), str(tmp_path / "checks")
    counts = []
    for hour, runs in ((-1, 2), (0, 1)):
        orders.write(120, DAY + hour * HOUR, DAY + (hour + 1) * HOUR)
        counts += [run_once(spark, orders.servers, orders.topic, files, checks) for _ in range(runs)]
    assert counts == [120, 0, 120]
    days = {file: file.parent.name for file in Path(files).glob("day=*/*.parquet")}
    found = [(row["order"], day) for file, day in days.items() for row in pq.ParquetFile(file).read().to_pylist()]
    assert sorted(order for order, _ in found) == list(range(240))
    assert Counter(day for _, day in found) == {"day=2025-12-31": 120, "day=2026-01-01": 120}


def wait(query: Any, condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(3000):
        if condition():
            return
        assert query.exception() is None
        pause.wait(0.1)
    raise AssertionError("the query did not come so far")


def numbers(log: Path) -> set[int]:
    return {int(path.name) for path in log.iterdir() if path.name.isdecimal()}


@pytest.mark.soak
def test_the_tail_adds_new_records_and_replaces_repeated_batches(spark, orders, tmp_path):
    tail = import_module("kafka_tail")
    database, checks = str(tmp_path / "revenue.db"), tmp_path / "checks"
    orders.write(100)  # before the query begins
    query = tail.tail(spark, orders.servers, orders.topic, database, str(checks))
    try:
        wait(query, lambda: query.lastProgress is not None)
        orders.write(400)
        wait(query, lambda: sum(row[1] for row in tail.revenue(database)) == 400)
        wait(query, lambda: numbers(checks / "commits") == numbers(checks / "offsets"))
    finally:
        query.stop()
    before = tail.revenue(database)
    assert [row[:2] for row in before] == [(shop, 100) for shop in ("Berlin", "Lyon", "Oslo", "Porto")]
    last = checks / "commits" / str(max(numbers(checks / "commits")))
    for path in (last, last.with_name(f".{last.name}.crc")):
        path.unlink(missing_ok=True)  # as if it had crashed before it noted that the micro-batch was done
    query = tail.tail(spark, orders.servers, orders.topic, database, str(checks))
    try:
        wait(query, last.exists)
    finally:
        query.stop()
    assert tail.revenue(database) == before


@pytest.mark.soak
def test_the_demo_shows_a_backfill_a_lag_that_is_caught_up_and_sums_up(tmp_path):
    command = [sys.executable, "-P", str(EXAMPLES / "demo_kafka.py"), "--rows", "9600", "--seconds", "6"]
    command += ["--each-second", "100", "--burst", "2000", "--limit", "300"]
    environment = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment, timeout=550
    )
    assert done.returncode == 0, done.stderr
    backfilled, tailed = [
        line.strip() for line in done.stdout.splitlines() if line.startswith(("  backfill", "  live"))
    ]
    assert backfilled.startswith("backfill   4,800 of 9,600 orders, those of 12 hours") and "rows/s" in backfilled
    assert "2,600 orders sent and read, each of them exactly once" in tailed and tailed.endswith("0 in the end")
    assert int(tailed.partition("at most ")[2].split()[0].replace(",", "")) > 300
    table = done.stdout.partition("forebay kafka lag")[2]
    (total,) = [line for line in table.splitlines() if line.startswith("│ total")]
    assert total.rstrip(" │").endswith(" 10,000")
    assert "█" in done.stdout.partition("rows/s")[2]  # the lag, drawn
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_demo_of_skew_shows_what_spark_s_source_loses_and_alignment_keeps(tmp_path):
    command = [sys.executable, "-P", str(EXAMPLES / "demo_skew.py"), "--records", "200"]
    environment = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment, timeout=550
    )
    assert done.returncode == 0, done.stderr
    _, _, table = done.stdout.partition("3. Rows kept and rows lost")
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in table.splitlines() if "kafka" in line]
    assert [row[0] for row in rows] == ["kafka (Spark's own)", "forebay_kafka", "forebay_kafka, aligned"]
    assert [row[1:5] for row in rows] == [["150", "50", "200", "0"]] * 2 + [["200", "0", "200", "0"]]
    theirs, ours = done.stdout.partition("forebay_kafka, aligned: where")[::2]
    assert any(line.index("s") < line.index("│") for line in theirs.splitlines() if "│" in line and "s·" in line)
    assert not any(line.index("s") < line.index("│") for line in ours.splitlines() if "│" in line and "s·" in line)
