# SPDX-License-Identifier: Apache-2.0
"""What a stream reports of event time: watermarks, drift, held and idle splits, and which split all wait for."""

from __future__ import annotations

import json
import logging
import time
from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from manual_clock import ManualClock

from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.microbatch.event_time import SplitTime
from forebay.framework.microbatch.reports import event_time_report, utc_text
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.source import Source
from forebay.framework.split import Split

US = 1_000_000
BASE = 1_700_000_000


class Log:
    """Splits with the event times of their records, which rise, in seconds after BASE; None = a record without one."""

    def __init__(self, **splits):
        self.records = {split_id: list(times) for split_id, times in splits.items()}
        self.clock = ManualClock(BASE + 1_000_000)


class Enumerator(DiscoveryEnumerator):
    """Positions are row numbers."""

    exact_ends = True

    def __init__(self, log):
        self.records = log.records

    def discover(self, known, first):
        return Discovered([Split(split_id, position=0) for split_id in self.records])

    def latest(self, splits):
        return {split.id: len(self.records[split.id]) for split in splits}

    def advance(self, split, *, rows=None, byte_budget=None):
        return min(split.position + rows, split.end)

    def positions_at(self, event_time, splits):
        return {split.id: self.first(self.records[split.id], event_time) for split in splits}

    def first(self, records, event_time):
        return sum(at is None or (BASE + at) * US < event_time for at in records)

    def event_times(self, splits, column):
        at = {split.id: self.records[split.id][min(split.position, split.end - 1)] for split in splits}
        return {split_id: (BASE + second) * US for split_id, second in at.items() if second is not None}


class Timed(Source):
    """Unbounded, with the event time in `at`."""

    name = "timed"
    bounded = False
    event_time: ClassVar[str | None] = "at"
    outside: ClassVar[Log]

    def schema(self):
        return pa.schema({"at": pa.timestamp("us", "UTC")})

    def create_enumerator(self, context):
        return Enumerator(self.outside)

    def create_split_reader(self, context):
        raise NotImplementedError


def text(second):
    """Return the watermark of a record at this second after BASE."""
    return utc_text((BASE + second) * US - 1)


@pytest.fixture
def aligned(query):
    """Return a function that starts a query over a log."""

    def start(log, **options):
        return query(log, Timed, **{"alignment_max_drift": "10s", "retries": 0, **options})

    return start


def test_the_report_names_the_split_that_all_wait_for(aligned):
    log = Log(slow=range(0, 100, 1), fast=range(0, 6000, 60))
    query = aligned(log, watermark_delay="2s", max_rows_per_trigger=2)
    query.turn()
    report = query.planner.report()["eventTime"]
    assert report == {
        "watermark": text(-2),
        "limit": text(8),
        "drift": 0.0,
        "maxDrift": 10.0,
        "delay": 2.0,
        "held": 2,
        "idle": 0,
        "late": 0,
        "slowest": {"split": "fast", "watermark": text(-2), "why": "unread"},
        "splits": [
            {"split": "fast", "watermark": text(-2), "ahead": 0.0, "held": True},
            {"split": "slow", "watermark": text(-2), "ahead": 0.0, "held": True},
        ],
    }
    query.turns(200)
    report = query.planner.report()["eventTime"]
    assert report["slowest"] == {"split": "slow", "watermark": text(97), "why": "caught up"}
    assert (report["held"], report["drift"]) == (1, 21.0)
    assert report["splits"][1] == {"split": "fast", "watermark": text(118), "ahead": 21.0, "held": True}


def test_an_idle_split_is_reported_and_waited_for_by_nobody(aligned):
    log = Log(slow=range(3), fast=range(0, 600, 5))
    query = aligned(log, idle_timeout="30s")
    query.turns(200)
    query.wait(31)
    query.turns(200)
    report = query.planner.report()["eventTime"]
    assert (report["idle"], report["held"], report["idleTimeout"]) == (1, 0, 30.0)
    assert report["slowest"]["split"] == "fast"
    assert report["splits"][0]["idle"] is True and report["splits"][0]["ahead"] < 0


def test_without_alignment_there_is_no_such_report(query):
    started = query(Log(a=range(3)), Timed)
    started.turn()
    assert "eventTime" not in started.planner.report()
    assert "eventTime" not in started.start


def test_before_any_event_time_is_known_only_counts_are_reported(aligned):
    query = aligned(Log(a=[None, None]))
    query.turn()
    assert query.planner.report()["eventTime"] == {"held": 1, "idle": 0, "late": 0, "delay": 0.0, "maxDrift": 10.0}


def test_the_offset_carries_the_same_report_and_a_restart_reads_it(aligned):
    log = Log(slow=range(0, 100, 1), fast=range(0, 6000, 60))
    query = aligned(log)
    query.turn()
    assert query.start["eventTime"] == query.planner.report()["eventTime"]
    query.restart()
    assert query.turn() is not None


def test_the_report_of_ten_thousand_splits_is_small_and_made_in_milliseconds(record_property):
    times = {
        f"{'x' * 200}/{number}": SplitTime(None, watermark=(BASE + number * 7919 % 10_007) * US)
        for number in range(10_000)
    }
    alignment: Any = SimpleNamespace(times=times, active=times, limit=BASE * US, late=0)
    began = time.process_time()
    report: Any = event_time_report(alignment, HostOptions(alignment_max_drift="10s"))
    took = time.process_time() - began
    record_property("report", f"event time report of 10,000 splits: {took * 1e3:.1f} ms")
    assert len(json.dumps(report)) < 5_000
    ahead = [split["ahead"] for split in report["splits"]]
    assert len(ahead) == 16 and ahead == sorted(ahead)
    assert ahead[:8] == list(range(8)) and ahead[-1] == report["drift"] == 10_006


@pytest.mark.parametrize(
    ("micros", "shown"),
    [
        (0, "1970-01-01T00:00:00.000000Z"),
        (-1, "1969-12-31T23:59:59.999999Z"),
        (-(2**63) + 1, "0001-01-01T00:00:00.000000Z"),
        (2**63 - 1, "9999-12-31T23:59:59.999999Z"),
        (-62_135_596_800_000_000, "0001-01-01T00:00:00.000000Z"),
    ],
)
def test_event_times_are_texts_in_utc(micros, shown):
    assert utc_text(micros) == shown


def held_by_a_caught_up_split(aligned, caplog, log, **options):
    """Return the warnings of a query whose splits wait for 120 s."""
    query = aligned(log, **options)
    with caplog.at_level(logging.WARNING, "forebay"):
        for _ in range(24):
            query.turns(200)
            query.wait(5)
        return [record.getMessage() for record in caplog.records if "idleTimeout" in record.getMessage()]


def test_a_caught_up_split_that_holds_the_others_for_a_minute_is_named_once(aligned, caplog):
    log = Log(slow=range(3), fast=range(0, 600, 5))
    (warning,) = held_by_a_caught_up_split(aligned, caplog, log)
    assert "'slow'" in warning and "for 60 s" in warning


@pytest.mark.parametrize("options", [{"idle_timeout": "1000s"}, {"alignment_max_drift": "1000s"}])
def test_nothing_is_said_where_the_hold_ends_or_nobody_is_held(aligned, caplog, options):
    log = Log(slow=range(3), fast=range(0, 600, 5))
    assert held_by_a_caught_up_split(aligned, caplog, log, **options) == []


def test_a_split_that_goes_on_in_time_is_not_named(aligned, caplog):
    log = Log(slow=range(3), fast=range(0, 600, 5))
    query = aligned(log)
    with caplog.at_level(logging.WARNING, "forebay"):
        for second in range(3, 9):
            query.turns(200)
            query.wait(50)
            query.turns(200)
            log.records["slow"].append(second * 5)
    assert "idleTimeout" not in caplog.text
