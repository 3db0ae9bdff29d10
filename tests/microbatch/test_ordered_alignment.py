# SPDX-License-Identifier: Apache-2.0
"""Alignment of splits that are read in order, such as files: a micro-batch takes a narrow prefix (AL-6 on Spark)."""

from __future__ import annotations

import logging
from typing import ClassVar

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from manual_clock import ManualClock

from forebay.errors import ConfigurationError, ContractError
from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.source import Source
from forebay.framework.split import Split

US = 1_000_000
BASE = 1_700_000_000
DAY = 86_400


class Files:
    """Splits with their first event times, in seconds after BASE; None = without one."""

    def __init__(self, times=(), *, known=True):
        self.times = dict(times)
        self.known = known
        self.clock = ManualClock(BASE + 1_000_000)
        self.asked = []
        self.answer = None


class Enumerator(DiscoveryEnumerator):
    """Discovers by event time; a position is a number of bytes, and each split has ten."""

    in_order = True

    def __init__(self, files):
        self.files = files

    def discover(self, known, first):
        def order(name):
            time = self.files.times[name]
            return time is not None, time or 0, name

        return Discovered([Split(name, position=0) for name in sorted(self.files.times, key=order)])

    def event_times(self, splits, column):
        if not self.files.known:
            return None
        self.files.asked.append([split.id for split in splits])
        if self.files.answer is not None:
            return self.files.answer
        times = {split.id: self.files.times[split.id] for split in splits}
        return {name: round((BASE + time) * US) for name, time in times.items() if time is not None}

    def size(self, split):
        return (split.end or 10) - split.position

    def advance(self, split, *, rows=None, byte_budget=None):
        to = split.position + byte_budget
        return None if to >= 10 else to


class Read(Source):
    """Bounded: each split is read to its own end."""

    name = "files"
    outside: ClassVar[Files]

    def schema(self):
        return pa.schema({"at": pa.timestamp("us", "UTC")})

    def create_enumerator(self, context):
        return Enumerator(self.outside)

    def create_split_reader(self, context):
        raise NotImplementedError


@pytest.fixture
def start(query):
    """Return a function that starts a query."""

    def start(files, **options):
        return query(files, Read, **{"alignment_max_drift": "10s", "retries": 0, **options})

    return start


def names(turns):
    return [sorted(turn) for turn in turns]


def test_a_micro_batch_ends_before_the_first_split_beyond_the_drift(start):
    files = Files({"a": 0, "b": 10, "c": 10.000001, "d": 15, "e": 100})
    assert names(start(files).turns()) == [["a", "b"], ["c", "d"], ["e"]]


def test_available_now_is_the_same_sweep(start):
    files = Files({"a": 0, "b": 5, "c": 20, "d": 21})
    query = start(files)
    query.planner.prepare_available_now()
    first = names([query.turn()])
    files.times["late"] = 1  # for the next run
    assert first + names(query.turns()) == [["a", "b"], ["c", "d"]]


def test_one_split_is_always_taken_also_without_drift(start):
    files = Files({"a": 0, "b": 0, "c": 1})
    assert names(start(files, alignment_max_drift="0s").turns()) == [["a", "b"], ["c"]]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the fixture is a class
@given(
    st.lists(st.none() | st.integers(-3 * DAY, 3 * DAY), min_size=1, max_size=40),
    st.integers(0, 2 * DAY),
    st.none() | st.integers(1, 5),
)
def test_every_split_comes_once_in_order_within_the_drift(query, times, drift, most):
    files = Files({f"{at:02}": time for at, time in enumerate(times)})
    options = {"alignment_max_drift": f"{drift}s", "max_files_per_trigger": most, "retries": 0}
    turns = query(files, Read, **options).turns()
    assert sorted(name for turn in turns for name in turn) == sorted(files.times)
    read = [[files.times[name] for name in turn if files.times[name] is not None] for turn in turns]
    assert all(max(one) - min(one) <= drift for one in read if one)
    assert [time for one in read for time in sorted(one)] == sorted(time for time in times if time is not None)


def test_of_very_many_splits_only_the_first_ones_are_asked_for(start):
    files = Files({f"{at:06}": at for at in range(50_000)})
    query = start(files)
    assert len(query.turn()) == 11
    assert sum(map(len, files.asked)) <= 64
    query = start(files, alignment_max_drift="1h", max_files_per_trigger=100)
    files.asked.clear()
    assert len(query.turn()) == 100
    assert sum(map(len, files.asked)) == 100


def test_splits_without_an_event_time_are_taken_and_bound_nothing(start):
    files = Files({"a": None, "b": None, "c": 0, "d": 5, "e": 50})
    assert names(start(files).turns()) == [["a", "b", "c", "d"], ["e"]]


def test_limits_hold_beside_the_drift(start):
    files = Files({"a": 0, "b": 5, "c": 6, "d": 60})
    assert names(start(files, max_files_per_trigger=2).turns()) == [["a", "b"], ["c"], ["d"]]
    turns = start(files, max_bytes_per_trigger=15).turns()
    assert turns == [{"a": (0, None), "b": (0, 5)}, {"b": (5, None), "c": (0, None)}, {"d": (0, None)}]


def test_a_split_that_was_begun_comes_before_older_ones(start, caplog):
    files = Files({"a": 0, "b": 30})
    query = start(files, max_bytes_per_trigger=8)
    assert query.turn() == {"a": (0, 8)}
    files.times["late"] = -100
    query.wait()
    assert query.turn() == {"a": (8, None), "late": (0, 6)}
    assert query.turns() == [{"late": (6, None)}, {"b": (0, 8)}, {"b": (8, None)}]


def test_a_late_split_comes_next_and_is_counted_once(start, caplog):
    files = Files({"a": 0, "b": 100, "c": 200})
    query = start(files, watermark_delay="5s", max_files_per_trigger=1)
    assert names([query.turn(), query.turn()]) == [["a"], ["b"]]
    files.times |= {"late": 10, "later": 20, "on time": 96}
    query.wait()
    with caplog.at_level(logging.WARNING):
        assert names(query.turns()) == [["late"], ["later"], ["on time"], ["c"]]
    assert query.planner._alignment.late == 2
    assert query.planner._alignment.limit == (BASE + 210) * US
    assert ["'late' begins 90.000 s earlier" in record.getMessage() for record in caplog.records] == [True]


def test_a_split_of_the_future_comes_last_and_does_not_make_the_others_late(start, caplog):
    year_9999 = 253_370_764_800 - BASE
    files = Files({"a": 0, "clock": year_9999})
    query = start(files)
    with caplog.at_level(logging.WARNING):
        assert names(query.turns()) == [["a"], ["clock"]]
        assert "'clock'" in caplog.text
        assert "more than a day in the future" in caplog.text
        files.times["b"] = 50
        query.wait()
        assert names(query.turns()) == [["b"]]
    assert query.planner._alignment.late == 0


def test_times_before_1970_are_times(start):
    files = Files({"a": -BASE - 100, "b": -BASE - 95, "c": -BASE, "d": 0})
    assert names(start(files).turns()) == [["a", "b"], ["c"], ["d"]]


def test_a_restart_goes_on_where_it_was(start):
    files = Files({f"{at}": at * 10 for at in range(4)})
    query = start(files)
    assert names([query.turn()]) == [["0", "1"]]
    query.restart()
    assert names(query.turns()) == [["2", "3"]]


def test_a_replay_does_not_ask_for_event_times(start):
    files = Files({"a": 0, "b": 50})
    query = start(files)
    before = query.start
    first = query.turn()
    end = query.start
    query.restart()
    files.known = False
    assert query.read(before, end) == first


def test_a_source_without_event_times_is_refused_also_before_it_has_splits(start):
    query = start(Files(known=False))
    with pytest.raises(ConfigurationError, match="does not know") as raised:
        query.turn()
    assert raised.value.option == "alignmentMaxDrift"
    assert start(Files({"a": 0}, known=False), alignment_max_drift=None).turn() == {"a": (0, None)}


def test_dis6_an_answer_that_is_no_event_time_is_refused(start):
    files = Files({"a": 0})
    files.answer = {"a": "noon"}
    with pytest.raises(ContractError, match="'noon'") as raised:
        start(files).turn()
    assert raised.value.rule == "DIS-6"
