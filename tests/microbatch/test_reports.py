# SPDX-License-Identifier: Apache-2.0
"""Progress reports of a stream."""

from __future__ import annotations

import json
import random
from datetime import datetime
from types import SimpleNamespace

import pyarrow as pa
import pytest
from manual_clock import ManualClock

from forebay.errors import RetriableError
from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.microbatch.split_provider import Failure, RefreshPolicy
from forebay.framework.microbatch.stream_planner import open_stream
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.source import Source
from forebay.framework.split import Split


class Log(DiscoveryEnumerator):
    """Splits that grow; one position is one row of ten bytes."""

    def __init__(self, ends, **ways):
        self.ends = ends
        self.ways = ways

    def discover(self, known, first):
        return Discovered([Split(one, 0) for one in self.ends])

    def latest(self, splits):
        return {split.id: self.ends[split.id] for split in splits}

    def advance(self, split, *, rows=None, byte_budget=None):
        return min(split.end, split.position + rows)

    def size(self, split):
        if "size" in self.ways:
            return self.ways["size"](split)
        return None if split.end is None else 10 * (split.end - split.position)


def stream(ends, *, bounded=False, ways=None, make=None, **options):
    is_bounded = bounded

    class Growing(Source):
        name = "growing"
        bounded = is_bounded

        def schema(self):
            return pa.schema({"n": pa.int64()})

        def create_enumerator(self, context):
            return make() if make else Log(ends, **(ways or {}))

        def create_split_reader(self, context):
            raise NotImplementedError

    return open_stream(Growing(), HostOptions(refresh_interval="0s", discovery_interval="0s", **options), parallelism=1)


def follow(planner, times=1):
    offset = planner.initial()
    for _ in range(times):
        offset = json.loads(json.dumps(dict(planner.latest(offset))))
    return planner.report()


def test_the_report_is_empty_before_the_first_poll():
    assert stream({}).report() == {}


def test_totals_and_detail_are_those_after_the_micro_batch():
    report = follow(stream({"a": 30, "b": 10}, max_rows_per_trigger=20))
    assert (report["source"], report["n"], report["idle"]) == ("growing", 0, False)
    assert report["splits"] == {"open": 2, "done": 0, "behind": 2}
    assert report["behind"] == {"rows": 20, "bytes": 200}
    assert report["last"] == {"n": 0, "splits": 2, "rows": 20, "bytes": 200}
    assert report["worst"] == [
        {"split": "a", "position": 15, "end": 30, "behind": 15, "bytes": 150, "last": {"rows": 15, "bytes": 150}},
        {"split": "b", "position": 5, "end": 10, "behind": 5, "bytes": 50, "last": {"rows": 5, "bytes": 50}},
    ]


def test_a_stream_that_caught_up_is_idle_and_says_what_it_read_last():
    report = follow(stream({"a": 3}), times=3)
    assert report["idle"] and report["n"] == 0
    assert report["behind"] == {"rows": 0, "bytes": 0} and report["splits"]["behind"] == 0
    assert report["last"] == {"n": 0, "splits": 1, "rows": 3, "bytes": 30}
    assert report["worst"] == []


def test_a_micro_batch_that_reads_all_leaves_nothing_behind():
    (worst,) = follow(stream({"a": 3}))["worst"]
    assert worst == {"split": "a", "position": 3, "end": 3, "behind": 0, "last": {"rows": 3, "bytes": 30}}


def test_the_twenty_furthest_behind_are_reported_and_the_report_stays_small():
    ends = {f"{'x' * 500}{n}": n + 1 for n in range(2000)}
    report = follow(stream(ends, max_rows_per_trigger=10))
    assert report["splits"]["open"] == 2000
    behind = [worst["behind"] for worst in report["worst"]]
    assert len(behind) == 20 and behind == sorted(behind, reverse=True) and behind[-1] > 1970
    assert report["worst"][0]["split"].endswith(("x1999", "x1998"))
    assert len(json.dumps(report)) < 10_000


def test_what_is_not_known_is_left_out():
    class Names(Log):
        def discover(self, known, first):
            return Discovered([Split("one", "b", end="zz"), Split("two")])

        def latest(self, splits):
            return {}

        def size(self, split):
            return None

    report = follow(stream({}, bounded=True, make=lambda: Names({}), max_files_per_trigger=1))
    assert report["behind"] == {}
    assert report["last"] == {"n": 0, "splits": 1}
    ends = {worst["split"]: worst["end"] for worst in report["worst"]}
    assert ends == {"one": "zz", "two": "to its own end"}
    assert all("behind" not in worst or worst["behind"] == 0 for worst in report["worst"])


def test_a_failing_estimate_is_left_out_of_the_report():
    def fail(split):
        raise ZeroDivisionError

    planner = stream({"a": 3}, ways={"size": fail})
    assert "bytes" not in follow(planner)["last"]


def test_a_failed_discovery_is_counted():
    class Fails(Log):
        count = 0

        def discover(self, known, first):
            self.count += 1
            if self.count > 1:
                raise RetriableError("not now")
            return super().discover(known, first)

    report = follow(stream({"a": 3}, make=lambda: Fails({"a": 3}), retries=0), times=2)
    assert report["discovery"]["retried"] == 1 and report["discovery"]["seconds"] >= 0


def test_the_last_failure_is_reported_with_its_time_and_split_and_whether_it_is_over():
    class Fails(Log):
        failures = None

        def latest(self, splits):
            if self.failures is not None:
                raise self.failures
            return super().latest(splits)

    log = Fails({"a": 3})
    planner = stream({}, make=lambda: log, retries=0)
    offset = dict(planner.latest(planner.initial()))
    assert "error" not in planner.report()["discovery"]
    log.failures = RetriableError("no answer, " + "z" * 1000, split="a")
    planner.latest(offset)
    error = planner.report()["discovery"]["error"]
    assert datetime.fromisoformat(error.pop("at")).tzinfo is not None
    assert len(error["text"]) == 500 and error.pop("text").startswith("no answer, zz")
    assert error == {"split": "a", "over": False}


def test_a_failure_is_over_once_somebody_answered():
    clock = ManualClock(0)
    asked = RefreshPolicy(SimpleNamespace(clock=clock, random=random.Random(0)), None, 1.0, 0.05)
    assert (asked.failures.failed, asked.failures.failure) == (0, None)
    asked.put_off(RetriableError("gone", advice="wait"))
    assert asked.failures.failure == Failure(0, "gone\n  next step: wait", None, over=False)
    clock.advance(60)
    asked.measure(lambda: None)
    assert asked.failures.failure == Failure(0, "gone\n  next step: wait", None, over=True)


def test_the_payload_is_made_once_per_poll(monkeypatch):
    planner = stream({"a": 3})
    assert follow(planner) is planner.report()


@pytest.mark.parametrize("bounded", [True, False])
def test_the_end_of_a_bounded_split_is_its_position_then(bounded):
    report = follow(stream({"a": 3}, bounded=bounded), times=2)
    assert report["splits"] == {"open": 0 if bounded else 1, "done": 1 if bounded else 0, "behind": 0}


def test_what_waits_is_measured_once():
    asked = []

    def size(split):
        asked.append((split.id, split.end))
        return 10

    ends = {f"s{n}": 5 for n in range(50)}
    planner = stream(ends, bounded=True, ways={"size": size}, max_files_per_trigger=1)
    offset = dict(planner.latest(planner.initial()))
    planner.report()
    before = len(asked)
    dict(planner.latest(json.loads(json.dumps(offset))))
    assert planner.report()["splits"]["behind"] == 48
    assert len(asked) - before <= 3


def test_of_very_many_splits_only_the_number_is_reported(monkeypatch):
    monkeypatch.setattr("forebay.framework.microbatch.reports._MEASURED", 10)
    report = follow(stream({f"s{n:02}": 5 for n in range(50)}, max_rows_per_trigger=3))
    assert report["splits"]["behind"] == 50 and report["behind"] == {}
    assert len(report["worst"]) == 10
    assert report["last"] == {"n": 0, "splits": 3, "rows": 3, "bytes": 30}
