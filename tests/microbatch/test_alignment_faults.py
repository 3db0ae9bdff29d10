# SPDX-License-Identifier: Apache-2.0
"""Alignment when sources fail, starve splits, or have absurd times: nobody runs ahead or is wrongly idle."""

from __future__ import annotations

import pytest
from forebay_simulator.event_log import Enumerator, Log

ABSURD = 10**11
"""Seconds after the base: a year that no clock shows."""


def rows(turns, split_id):
    return sum(turn[split_id][1] - turn[split_id][0] for turn in turns if split_id in turn)


def idle(query, split_id):
    return query.planner._alignment.times[split_id].idle


@pytest.mark.parametrize("absurd", [ABSURD, None])
def test_absurd_first_records_of_all_splits_let_none_run_away(aligned, absurd):
    log = Log(a=[absurd, *range(0, 6000, 60)], slow=[absurd, 0, 1, 2])
    query = aligned(log)
    assert query.turn() == {"a": (0, 1), "slow": (0, 1)}
    query.turns(200)
    ends = {entry[0]: entry[1] for entry in query.start["splits"]}
    assert ends == {"a": 2, "slow": 4}  # up to 2 s and the drift


@pytest.mark.parametrize("absurd", [ABSURD, None])
def test_the_others_wait_for_the_first_event_time_of_a_split(aligned, absurd):
    query = aligned(Log(fast=range(1000, 7000, 60), slow=[absurd, absurd, 0, 1, 2]))
    assert query.turn() == {"slow": (0, 1)}
    query.turns(200)
    ends = {entry[0]: entry[1] for entry in query.start["splits"]}
    assert ends == {"fast": 0, "slow": 5}


def test_a_split_without_event_times_holds_the_others_for_four_looks(aligned):
    query = aligned(Log(dated=range(5), undated=[None] * 100))
    turns = [query.turn() for _ in range(5)]
    assert [turn["undated"] for turn in turns[:4]] == [(0, 1), (1, 3), (3, 7), (7, 15)]
    assert turns[4]["dated"] == (0, 5)
    assert rows([*turns, *query.turns(50)], "undated") == 100


def test_an_absurd_last_record_of_a_caught_up_split_leaves_the_bound_where_it_was(aligned):
    log = Log(a=[0, 5, ABSURD], b=range(0, 100, 4))
    query = aligned(log)
    query.turns(50)
    ends = {entry[0]: entry[1] for entry in query.start["splits"]}
    assert ends == {"a": 3, "b": 3}  # below 0 s, the last event time that was looked at, and the drift
    log.records["a"].append(50)
    query.wait(2)
    query.turns(50)
    assert query.start["splits"][0][1] + query.start["splits"][1][1] == 4 + 15  # below 50 s and the drift


def test_a_failed_look_at_a_new_split_raises_no_limit_and_reads_nothing_of_it(aligned):
    log = Log(a=[0, 8, 16, 24, 32])
    query = aligned(log, max_rows_per_trigger=1)
    query.turn()
    limit = query.planner._alignment.limit
    log.records["new"] = [5, 6]
    log.fail["event_times"] = 2
    query.wait(30)
    turn = query.turn()
    assert log.fail["event_times"] == 1
    assert turn is None or "new" not in turn
    assert query.planner._alignment.limit == limit
    query.wait(30)
    query.turn()
    query.wait(30)
    assert rows(query.turns(50), "new") == 2


def test_a_failed_search_by_time_holds_and_is_repeated(aligned, caplog):
    log = Log(slow=range(100), fast=range(0, 6000, 60))
    query = aligned(log)
    query.turn()
    log.fail["positions_at"] = 1
    assert query.turn() is None
    assert "finding an event time in" in caplog.text
    asked = len(log.calls)
    assert query.turn() is None  # it pauses first
    assert sum(call[0] == "positions_at" for call in log.calls[asked:]) == 0
    query.wait(30)
    assert query.turn() is not None


def test_a_starved_split_whose_next_record_has_no_time_is_not_idle(aligned):
    log = Log(busy=[0] * 1000, starved=[0, *[None] * 3000])
    query = aligned(log, idle_timeout="1s", max_rows_per_trigger=2)
    for _ in range(20):
        assert query.turn() is not None
        assert not idle(query, "starved")
        query.wait(5)


def test_a_slow_answer_is_no_look(aligned, monkeypatch):
    """WM-4: the timeout counts between the beginnings of answers."""
    log = Log(slow=range(3), fast=range(0, 600, 5))
    query = aligned(log, idle_timeout="30s")
    query.turns(200)
    latest = Enumerator.latest
    monkeypatch.setattr(Enumerator, "latest", lambda self, splits: (log.clock.advance(60), latest(self, splits))[1])
    query.wait(12)
    query.turn()
    assert not idle(query, "slow")


def test_vanished_splits_leave_nothing_behind(aligned, monkeypatch):
    monkeypatch.setattr(Enumerator, "vanished", lambda self, splits: True)
    log = Log(stays=range(0, 10_000, 60), **{f"t{n}": [0, 5000] for n in range(20)})
    query = aligned(log)
    query.turns(5)
    alignment = query.planner._alignment
    assert len(alignment.times) == 21
    for n in range(20):
        del log.records[f"t{n}"]
    query.wait(30)
    query.turns(5)
    assert list(alignment.times) == ["stays"]
    assert set(alignment._cuts._answers) <= {"stays"}


def test_a_wall_clock_that_stands_before_the_records_delays_nobody_for_ever(aligned, caplog):
    log = Log(a=range(50), b=range(50))
    log.clock.__init__(0.0)  # 1970
    turns = aligned(log).turns(200)
    assert rows(turns, "a") == rows(turns, "b") == 50
    assert "more than a day in the future" in caplog.text


def test_waiting_for_rows_and_holding_together_end(aligned):
    log = Log(slow=[0, 100], fast=range(0, 600, 5))
    query = aligned(log, min_rows_per_trigger=100, max_trigger_delay="60s")
    read = 0
    for _ in range(20):
        turn = query.turn() or {}
        read += sum(end - start for start, end in turn.values())
        query.wait(61)
    assert read == 2 + 22  # below 100 s and the drift


@pytest.mark.soak
def test_planning_is_cheap_while_ten_thousand_splits_are_held(aligned):
    log = Log(slow=[0], **{f"p{n}": [0, 100] for n in range(10_000)})
    query = aligned(log)
    query.turns(10)
    asked = len(log.calls)
    query.wait(2)
    assert query.turn() is None
    assert {call[0] for call in log.calls[asked:]} <= {"latest", "event_times"}
    assert len(log.calls) - asked <= 2
