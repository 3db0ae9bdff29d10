# SPDX-License-Identifier: Apache-2.0
"""Alignment in the planner: no split is planned ahead of the slowest one (AL-1…9 on Spark)."""

from __future__ import annotations

import logging

import pytest
from forebay_simulator.event_log import BASE, Enumerator, Log, Timed

from forebay.errors import ConfigurationError, ContractError


def test_al6_no_split_is_planned_beyond_the_slowest_one_and_the_drift(aligned):
    """AL-6: of each split, the records up to the slowest one and the drift."""
    log = Log(slow=range(0, 100, 1), fast=range(0, 6000, 60))
    turns = aligned(log).turns(200)
    read = {"slow": 0, "fast": 0}
    for turn in turns:
        slowest = min(log.records[one][at] for one, at in read.items() if at < 100)
        for split_id, (start, end) in turn.items():
            assert start == read[split_id]
            assert max(log.records[split_id][start:end]) < slowest + 10
            read[split_id] = end
    # The caught-up split holds the other one by its last record: 99 s and the drift.
    assert read == {"slow": 100, "fast": 2}


def test_a_caught_up_split_holds_no_longer_than_the_idle_timeout(aligned):
    log = Log(slow=range(3), fast=range(0, 600, 5))
    query = aligned(log, idle_timeout="30s")
    query.turns(200)
    assert query.start["splits"][-1][1] == 3  # 10 s: below 2 s and the drift
    query.wait(29)
    assert query.turns(200) == []
    query.wait(2)
    assert sum(end - start for turn in query.turns(200) for start, end in turn.values()) == 117


def test_wm4_only_completed_looks_count_towards_the_idle_timeout(aligned):
    log = Log(slow=range(3), fast=range(0, 600, 5))
    query = aligned(log, idle_timeout="30s")
    query.turns(200)
    log.fail["latest"] = 1000  # nobody knows whether the slow split has more
    query.wait(100)
    assert query.turns(200) == []
    log.fail.clear()
    query.wait(100)
    assert query.turns(200)


def test_a_held_or_limited_split_is_never_idle(aligned):
    log = Log(slow=range(1000), fast=range(0, 60_000, 60))
    query = aligned(log, idle_timeout="1s", max_rows_per_trigger=1)
    for _ in range(20):
        assert query.turn() is not None
        query.wait(60)
    ends = {entry[0]: entry[1] for entry in query.start["splits"]}
    assert ends["fast"] <= 1


def test_availablenow_reads_everything_although_a_split_ends_early(aligned):
    log = Log(slow=range(3), fast=range(0, 600, 5))
    query = aligned(log)
    query.planner.prepare_available_now()
    read = [(split_id, *part) for turn in query.turns(200) for split_id, part in turn.items()]
    assert sum(end - start for split_id, start, end in read if split_id == "fast") == 120
    assert sum(end - start for split_id, start, end in read if split_id == "slow") == 3


def test_an_idle_split_that_comes_back_with_old_records_is_counted(aligned, caplog):
    log = Log(slow=range(3), fast=range(0, 600, 5))
    query = aligned(log, idle_timeout="30s")
    query.turns(200)
    query.wait(31)
    query.turns(200)
    log.records["slow"] += [3, 4]
    log.records["fast"] += [600]
    query.wait(31)
    with caplog.at_level(logging.WARNING):
        query.turns(200)
    assert "'slow'" in caplog.text
    assert "idleTimeout" in caplog.text


def test_the_limit_never_goes_back(aligned):
    log = Log(a=range(100), b=range(100))
    query = aligned(log)
    limits = []
    while query.turn() is not None:
        limits.append(query.planner._alignment.limit)
    assert limits == sorted(limits)


def test_no_event_time_is_asked_for_while_nobody_is_held(aligned):
    log = Log(a=[0], b=[0])
    query = aligned(log, alignment_max_drift="1h")
    query.turns(200)
    asked = sum(call[0] == "event_times" for call in log.calls)
    for second in range(1, 50):
        log.records["a"].append(second)
        log.records["b"].append(second)
        query.wait(1)
        assert query.turn() == {"a": (second, second + 1), "b": (second, second + 1)}
    assert sum(call[0] == "event_times" for call in log.calls) == asked


@pytest.mark.parametrize("absurd", [10**11, None])
def test_a_record_with_an_absurd_time_or_none_stalls_nobody(aligned, absurd):
    log = Log(a=[*range(50), absurd, *range(50, 100)], b=range(100))
    turns = aligned(log).turns(200)
    read = {"a": 0, "b": 0}
    for turn in turns:
        for split_id, (start, end) in turn.items():
            assert start == read[split_id]
            read[split_id] = end
    assert read == {"a": 101, "b": 100}


def test_after_an_absurd_record_a_split_is_still_cut(aligned):
    log = Log(a=[0, 10**11, *range(1, 1000)], slow=range(3))
    query = aligned(log)
    query.turns(200)
    ends = {entry[0]: entry[1] for entry in query.start["splits"]}
    assert ends == {"a": 13, "slow": 3}  # up to 11 s, below 2 s and the drift


def test_a_record_from_before_1970_delays_others_and_no_more(aligned):
    log = Log(a=[0, 1, -BASE - 100, 2, 3], b=range(5))
    query = aligned(log)
    assert sum(end - start for turn in query.turns(200) for start, end in turn.values()) == 10


def test_disorder_within_the_delay_is_cut_below_the_limit(aligned):
    times = [at + (5 if at % 3 == 0 else 0) for at in range(200)]
    log = Log(a=times, b=range(200))
    query = aligned(log, watermark_delay="5s")
    read = {"a": 0, "b": 0}
    while (turn := query.turn()) is not None:
        slowest = min(log.records[one][at] for one, at in read.items() if at < 200)
        for split_id, (start, end) in turn.items():
            # What is unread is at most the delay behind; so far, and by the drift, nobody runs ahead.
            assert max(log.records[split_id][start:end]) < slowest + 10 + 5
            read[split_id] = end
    assert read == {"a": 200, "b": 200}


def test_without_times_of_positions_a_split_is_taken_whole_or_held(aligned):
    log = Log(slow=[0, 100], fast=[50, 60, 70])
    log.by_time = False
    query = aligned(log)
    assert query.turn() == {"slow": (0, 2)}
    assert query.turn() == {"fast": (0, 3)}


def test_a_restart_goes_on_where_it_was(aligned):
    log = Log(slow=range(0, 100, 1), fast=range(0, 6000, 60))
    once = aligned(log)
    again = aligned(log)
    for _ in range(30):
        first, second = once.turn(), again.turn()
        assert first == second
        again.restart()


def test_a_failed_look_holds_splits_and_is_repeated(aligned, caplog):
    log = Log(slow=range(100), fast=range(0, 6000, 60))
    query = aligned(log)
    query.turn()
    log.fail["event_times"] = 1
    with caplog.at_level(logging.WARNING):
        assert query.turn() is None
    assert "event times" in caplog.text
    query.wait(30)
    assert query.turn() is not None


def test_a_new_partition_is_waited_for(aligned):
    log = Log(a=range(1000))
    query = aligned(log)
    query.turn()
    log.records["late"] = [5, 6, 7]
    query.wait(30)
    turn = query.turn()
    assert turn["late"] == (0, 3)


def test_without_event_time_column_the_option_is_refused(query):
    class Timeless(Timed):
        name = "timeless"
        event_time = None

    with pytest.raises(ConfigurationError, match="eventTimeColumn") as caught:
        query(Log(a=[1]), Timeless, alignment_max_drift="10s")
    assert caught.value.option == "eventTimeColumn"
    with pytest.raises(ConfigurationError, match="'there'"):
        query(Log(a=[1]), Timed, alignment_max_drift="10s", event_time_column="there")


@pytest.mark.parametrize("answer", [7, {"a": 1.5}, {"a": "x"}])
def test_dis6_an_answer_that_is_no_event_time_is_refused(aligned, monkeypatch, answer):
    """DIS-6."""
    monkeypatch.setattr(Enumerator, "event_times", lambda self, splits, column: answer)
    with pytest.raises(ContractError, match="event_times"):
        aligned(Log(a=[1])).turn()


def test_dis4_a_position_before_that_of_the_split_is_refused(aligned, monkeypatch):
    """DIS-4: a search that begins before the position, as Kafka's brokers do, says nothing about what is unread."""
    monkeypatch.setattr(
        Enumerator, "positions_at", lambda self, at, splits: {one.id: 2 - bool(one.position) for one in splits}
    )
    query = aligned(Log(a=range(100)))
    assert query.turn() == {"a": (0, 2)}
    with pytest.raises(ContractError, match="before the split.s position") as caught:
        query.turns(3)
    assert caught.value.rule == "DIS-4"
