# SPDX-License-Identifier: Apache-2.0
"""Event times of a `SimpleSource` in a stream's planner: told by the source, or read from first records."""

from __future__ import annotations

import json
import logging
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import ClassVar

import pyarrow as pa
import pytest

from forebay.errors import ContractError
from forebay.framework.microbatch import event_time as lookup
from forebay.framework.microbatch.stream_planner import open_stream
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.simple import SimpleSource

START = datetime(2024, 1, 1, tzinfo=UTC)
US = 1_000_000


class Log:
    """Splits with the seconds of their records; counts reads and blocks those of chosen splits."""

    def __init__(self, **splits):
        self.times = {split_id: list(times) for split_id, times in splits.items()}
        self.reads = []
        self.answers = []
        self.blocked = set()
        self.release = threading.Event()


class Read(SimpleSource):
    """Tells nothing of event times."""

    bounded = False
    positions_are_rows = True
    event_time = "at"
    log: ClassVar[Log]

    def schema(self):
        return pa.schema({"at": pa.timestamp("us", "UTC")})

    def splits(self):
        return list(self.log.times)

    def latest(self, split):
        return len(self.log.times[split.id])

    def read(self, split):
        self.log.reads.append((split.id, split.position, split.end))
        if split.id in self.log.blocked:
            self.log.release.wait(60)
        for second in self.log.times[split.id][split.position or 0 : split.end]:
            yield {"at": None if second is None else START + timedelta(seconds=second)}


class Told(Read):
    """Tells its event times, and where they are."""

    def event_time_at(self, split):
        times = self.log.times[split.id]
        self.log.answers.append((split.id, split.position))
        return START + timedelta(seconds=times[min(split.position or 0, len(times) - 1)]) if times else None

    def position_at(self, split, event_time):
        times, at = self.log.times[split.id], split.position or 0
        limit = (event_time - int(START.timestamp()) * US) / US
        return next((n for n in range(at, split.end) if times[n] >= limit), split.end)


class Query:
    """Plans micro-batches of a source over a log, with a drift of ten seconds."""

    def __init__(self, kind, log, **options):
        self.source = type("Orders", (kind,), {"log": log, "name": "orders"})()
        host = HostOptions(refresh_interval="0s", alignment_max_drift="10s", **options)
        self.planner = open_stream(self.source, host, parallelism=1)
        self.at = self.through(self.planner.initial())

    def turn(self):
        """Return the ends of what the next micro-batch reads, by id; None if there is none."""
        end = self.through(self.planner.latest(self.at))
        if end == self.at:
            return None
        tasks = self.planner.tasks(self.at, end)
        self.at = end
        return {one.id: one.end for task in tasks for one in task.slices}

    def drain(self):
        ends = {}
        while (turn := self.turn()) is not None:
            ends |= turn
        return ends

    def through(self, data):
        return json.loads(json.dumps(data))


@pytest.fixture
def query():
    opened = []

    def start(kind, log, **options):
        opened.append(Query(kind, log, **options))
        return opened[-1]

    yield start
    for one in opened:
        one.source.log.release.set()
        one.planner.close()


def test_what_the_source_tells_is_enough_and_nothing_is_read(query):
    log = Log(slow=range(100), fast=range(0, 6000, 60), empty=[])
    # Up to 99 s, the last record of the slow split, and the drift; exclusive.
    assert query(Told, log).drain() == {"slow": 100, "fast": 2}
    assert log.reads == []


def test_first_records_are_read_where_the_source_tells_nothing(query):
    log = Log(slow=range(100), fast=range(0, 6000, 60))
    # Without `position_at` a split is read to its end or not at all: 0 s is within the drift.
    assert query(Read, log).drain() == {"slow": 100, "fast": 100}
    late = Log(slow=range(100), fast=range(300, 6000, 60))
    assert query(Read, late).drain() == {"slow": 100}


def test_each_part_of_a_split_is_looked_at_before_it_is_read(query):
    log = Log(slow=range(100), fast=range(0, 6000, 60))
    query_of = query(Read, log, max_rows_per_trigger=2)
    for n in range(1, 100):
        before = {entry[0]: entry[1] or 0 for entry in query_of.at.get("splits", [])}
        fast = (query_of.turn() or {}).get("fast")
        # Its first row is within the drift; the rest of a part follows, for its times are not known.
        assert not before or fast is None or before["fast"] * 60 < before["slow"] + 10, n


def test_a_split_that_the_source_knows_nothing_of_is_read_and_no_other(query):
    class Partly(Told):
        def event_time_at(self, split):
            return None if split.id == "slow" else super().event_time_at(split)

    log = Log(slow=range(100), fast=range(0, 6000, 60))
    assert query(Partly, log).drain() == {"slow": 100, "fast": 2}
    assert {split_id for split_id, _, _ in log.reads} == {"slow"}


def test_another_column_than_the_source_s_is_read(query):
    class Two(Told):
        def schema(self):
            return pa.schema({"at": pa.timestamp("us", "UTC"), "other": pa.timestamp("us", "UTC")})

        def read(self, split):
            return ({**row, "other": row["at"]} for row in super().read(split))

    log = Log(slow=range(100), fast=range(300, 6000, 60))
    assert query(Two, log, event_time_column="other").drain() == {"slow": 100}
    assert log.answers == []


@pytest.mark.parametrize("kind", [Read, Told])
def test_a_split_is_asked_again_only_when_its_position_has_moved(query, kind):
    log = Log(slow=[0], fast=range(300, 6000, 60))
    query_of = query(kind, log)
    assert query_of.drain() == {"slow": 1}
    asked = len(log.reads), len(log.answers)
    for _ in range(50):
        assert query_of.turn() is None
    assert (len(log.reads), len(log.answers)) == asked
    log.times["slow"].append(295)
    assert query_of.drain() == ({"slow": 2, "fast": 1} if kind is Told else {"slow": 2, "fast": 95})
    assert (len(log.reads), len(log.answers)) != asked


def test_the_last_record_of_a_caught_up_split_is_read_too(query):
    log = Log(slow=range(290), fast=range(295, 6000, 60))
    # Only the last record, at 289 s, lets 295 s pass; the first look saw 0 s.
    assert query(Read, log).drain() == {"slow": 290, "fast": 96}
    assert ("slow", 289, 290) in log.reads


def test_a_silent_split_ends_the_look_and_the_other_answers_are_kept(query, monkeypatch, caplog):
    monkeypatch.setattr(lookup, "_PATIENCE", 0.2)
    log = Log(a=[0], b=[0], held=[999])
    query_of = query(Read, log)
    assert query_of.drain() == {"a": 1, "b": 1}
    log.times["a"].append(990)
    log.times["b"].append(991)
    log.blocked.add("b")
    log.reads.clear()
    with caplog.at_level(logging.WARNING):
        query_of.turn()
    assert "gave no record of this split within 0.2 s" in caplog.text
    log.release.set()
    until = time.monotonic() + 30
    while (ends := query_of.drain()).get("held") != 1:
        assert time.monotonic() < until, ends
    # `a` was not read again for the answer of `b`, which went on being read in between.
    assert log.reads.count(("a", 1, 2)) == log.reads.count(("b", 1, 2)) == 1


@pytest.mark.parametrize("answer", [datetime(2024, 1, 1), "2024-01-01", 1.5, True, 2**63])
def test_dis6_what_is_no_event_time_is_refused(query, answer):
    """DIS-6: with the split, and what to return."""

    class Wrong(Told):
        def event_time_at(self, split):
            return answer

    with pytest.raises(ContractError, match="DIS-6"):
        query(Wrong, Log(a=[1])).turn()


@pytest.mark.parametrize("answer", [0, 101, 1.5])
def test_dis4_a_position_outside_the_split_is_refused(query, answer):
    """DIS-4: neither before its position nor after its end."""

    class Wrong(Told):
        def position_at(self, split, event_time):
            return super().position_at(split, event_time) if not split.position else answer

    log = Log(slow=range(50), fast=range(0, 6000, 60))
    with pytest.raises(ContractError):
        query_of = query(Wrong, log)
        query_of.drain()
        log.times["slow"] += range(50, 100)
        query_of.drain()
