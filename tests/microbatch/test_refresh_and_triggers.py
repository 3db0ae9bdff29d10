# SPDX-License-Identifier: Apache-2.0
"""How often the source is asked, what a micro-batch reads, and when the author is notified of finished splits."""

from __future__ import annotations

import random
import threading
from types import SimpleNamespace

import pytest
from manual_clock import ManualClock

from forebay.errors import ConfigurationError, FatalError, RetriableError
from forebay.framework.discovery import DiscoveryEnumerator
from forebay.framework.microbatch.split_provider import RefreshPolicy
from forebay.framework.runtime.runtime import ThreadRuntime
from forebay.framework.split import Split
from forebay.options import Duration


def open_splits(*names):
    return [Split(name, 0) for name in names]


@pytest.fixture
def two(outside):
    return outside(open_splits("a", "b"), {"a": 10, "b": 4})


def rows(turn):
    return {split_id: end - start for split_id, (start, end) in turn.items()}


def poll(run, seconds, rate=90):
    """Poll as often as an idle Spark does; return the number of new offsets."""
    found, clock = 0, run.outside.clock
    until = clock.monotonic() + seconds
    while clock.monotonic() < until:
        run.wait(1 / rate)
        found += run.turn() is not None
    return found


# ---- S7: idle queries


def test_s7_an_idle_query_asks_the_outside_seldom(query, two):
    """S7: 90 calls a second, but a bounded number of questions; the other calls touch no split."""
    run = query(two)
    run.turn()
    two.calls.clear()
    split_provider, polls = run.planner._split_provider, []
    ask = split_provider.poll
    split_provider.poll = lambda *arguments, **how: polls.append(how) or ask(*arguments, **how)
    assert poll(run, 60) == 0
    assert len(polls) <= 61
    assert 55 <= two.count("discover") <= 61
    assert 55 <= two.count("latest") <= 61
    assert two.count("committed") == 1


def test_s7_an_expensive_poll_comes_at_most_every_ten_seconds(query, two):
    """S7: an answer is trusted for twenty times its cost, and ten seconds at most."""
    run = query(two)
    run.turn()
    for takes, fewest, most in ((0.2, 12, 15), (2.0, 4, 6)):
        two.takes = takes
        run.wait()
        run.turn()
        two.calls.clear()
        poll(run, 60)
        assert fewest <= two.count("discover") <= most + 1


@pytest.mark.parametrize(("share", "good_for"), [(0.05, 4.0), (0.1, 2.0), (1.0, 0.5), (0.001, 10.0)])
def test_s7_an_answer_is_good_for_as_long_as_asking_takes_its_share_of_the_time(share, good_for):
    """S7: at least for the floor, here half a second, and at most for ten seconds."""
    clock = ManualClock()
    asked = RefreshPolicy(SimpleNamespace(clock=clock, random=random.Random(0)), None, 0.5, share)
    for takes, seconds in ((0.2, 0.5), (0.2, good_for), (3.0, good_for), (0.2, good_for)):
        asked.measure(lambda: clock.advance(takes))  # noqa: B023 - called at once
        assert asked.due == pytest.approx(clock.monotonic() + seconds), "the first, and a slow one, do not count"


def test_s7_an_answer_that_is_too_old_by_now_is_no_answer_to_a_question_of_now():
    """S7: an answer that expires between two readings of the clock is not expensive."""
    clock = ManualClock()
    asked = RefreshPolicy(SimpleNamespace(clock=clock, random=random.Random(0)), None, 0.02, 0.1)
    assert asked.due_soon(0.0, 0.1) is None
    asked.measure(lambda: None)
    since = clock.monotonic() + 0.01
    clock.advance(0.02)
    assert asked.due_soon(since, 0.1) == pytest.approx(0.08)
    assert asked.due_soon(since, 0.05) is None, "asking is dear"
    clock.advance(0.1)
    assert asked.due_soon(since, 0.1) == 0.0
    asked.measure(lambda: None)
    assert asked.due_soon(since, 0.1) is None, "asked since"


def test_s7_ends_are_not_left_alone_while_new_splits_are_waited_for(query, two):
    """S7: waiting for one question is not waiting for the other."""
    run = query(two, refresh_interval=Duration(0.0), discovery_interval=Duration(0.1))
    run.turn()
    assert run.turn() is None
    two.calls.clear()
    before = two.clock.monotonic()
    run.wait(0.001)
    assert run.turn() is None
    assert two.clock.monotonic() - before == pytest.approx(0.1, abs=0.02)
    assert (two.count("discover"), two.count("latest")) == (1, pytest.approx(10, abs=2))


def test_s7_what_brings_no_news_is_asked_less_often(query, two, monkeypatch):
    """S7: a cheap question is asked 10 times a second after five quiet seconds, instead of 40 times."""
    monkeypatch.setattr(DiscoveryEnumerator, "refresh_floor", 0.025)
    monkeypatch.setattr(DiscoveryEnumerator, "discovery_floor", 1.0)
    run = query(two)
    run.turn()
    counts = []
    for _ in range(4):
        two.calls.clear()
        poll(run, 4)
        counts.append(two.count("latest"))
    assert counts[0] == pytest.approx(160, rel=0.1)
    assert counts[2:] == [pytest.approx(40, rel=0.1)] * 2
    two.ends["a"] += 1
    run.wait()
    run.turn()
    two.calls.clear()
    poll(run, 4)
    assert two.count("latest") == pytest.approx(160, rel=0.1)


def test_s7_the_user_says_how_often(query, two):
    """S7: refreshInterval is for ends, discoveryInterval for splits."""
    run = query(two, refresh_interval=Duration(0.5), discovery_interval=Duration(20.0))
    run.turn()
    two.calls.clear()
    poll(run, 60)
    assert 115 <= two.count("latest") <= 121
    assert two.count("discover") in (2, 3)


def test_s7_splits_may_be_discovered_less_often_than_ends_are_asked_for(query, two, monkeypatch):
    """S7: such as partitions of Kafka, which are added rarely."""
    monkeypatch.setattr(DiscoveryEnumerator, "refresh_floor", 0.5)
    monkeypatch.setattr(DiscoveryEnumerator, "discovery_floor", 5.0)
    run = query(two)
    run.turn()
    two.calls.clear()
    poll(run, 60)
    assert 115 <= two.count("latest") <= 121
    assert 11 <= two.count("discover") <= 13


def test_s7_a_trigger_of_an_hour_sees_what_is_there_now(query, two):
    """S7: an answer older than its interval is refreshed in the call itself."""
    run = query(two)
    run.turn()
    two.ends["a"] = 500
    two.splits.append(Split("c", 0))
    two.ends["c"] = 1
    run.wait(3600)
    assert rows(run.turn()) == {"a": 490, "c": 1}


def test_s7_while_there_is_more_to_read_nobody_is_asked_more_often(query, two):
    """S7: a backlog is read without asking again."""
    two.ends["a"] = 1000
    run = query(two, max_rows_per_trigger=10)
    two.calls.clear()
    assert len(run.turns(80)) == 80
    assert (two.count("discover"), two.count("latest")) == (1, 1)


@pytest.mark.parametrize("seconds", [0.001, 0.003, 0.02, 0.049])
def test_s7_no_data_is_reported_from_a_fresh_answer_where_asking_costs_little(query, two, monkeypatch, seconds):
    """S7: Spark's processAllAvailable relies on it, so the call waits for a fresh answer."""
    monkeypatch.setattr(DiscoveryEnumerator, "refresh_floor", 0.05)
    run = query(two)
    run.turn()
    run.wait()
    assert run.turn() is None
    run.wait(seconds)
    two.ends["a"] = 11  # between two polls
    two.calls.clear()
    assert rows(run.turn()) == {"a": 1}
    assert (two.count("discover"), two.count("latest")) == (1, 1)
    run.wait(seconds)
    two.ends["a"] = 12  # after the poll of the committed micro-batch
    assert rows(run.turn()) == {"a": 1}
    run.wait(seconds)
    before = two.clock.monotonic()
    assert run.turn() is None
    assert two.clock.monotonic() - before == pytest.approx(0.05 - seconds)


def test_s7_an_expensive_answer_is_not_waited_for(query, two, monkeypatch):
    """S7: no data is reported from the last answer, as `refreshInterval` and the cost of asking allow."""
    monkeypatch.setattr(DiscoveryEnumerator, "refresh_floor", 0.05)
    two.takes = 0.01  # so an answer is good for 0.2 s
    run = query(two)
    for _ in range(3):
        run.turn()
        run.wait()
    run.turn()
    two.ends["a"] = 11
    before = two.clock.monotonic()
    assert run.turn() is None
    assert two.clock.monotonic() == before
    run.wait(0.15)
    assert run.turn() is None, "not even where it is soon"
    run.wait(0.05)
    assert rows(run.turn()) == {"a": 1}


def test_s7_a_bounded_source_that_is_read_is_asked_nothing(query, outside):
    """S7: no more data can come."""
    there = outside([Split("a"), Split("b", 0)], {"b": 5})
    run = query(there, query.bounded)
    run.turns()
    there.calls.clear()
    assert poll(run, 30) == 0
    assert there.calls == []


def test_a_failing_discovery_backs_off(query, two):
    run = query(two, retries=0)
    run.turn()
    two.calls.clear()
    two.fail["discover"] = 10**9
    poll(run, 120)
    assert 10 <= two.count("discover") <= 40


def test_a_question_for_ends_that_fails_is_asked_again_later_and_the_backlog_is_read_on(query, two):
    """An outage of the source must not end a query, with or without data."""
    run = query(two, retries=0, max_rows_per_trigger=7)
    run.turn()
    two.calls.clear()
    two.fail["latest"] = 10**9
    run.wait()
    assert rows(run.turn()) == {"a": 5, "b": 2}
    poll(run, 120)
    assert 10 <= two.count("latest") <= 40
    assert run.planner.report()["discovery"]["retried"] == two.count("latest")
    two.fail.clear()
    two.ends["a"] = 11
    run.wait()
    assert rows(run.turn()) == {"a": 1}


def test_the_first_question_for_ends_of_a_run_must_be_answered(query, two):
    """Nothing could be planned."""
    run = query(two, retries=0)
    run.turn()
    two.fail["latest"] = 1
    run.restart(retries=0)
    with pytest.raises(RetriableError):
        run.turn()
    run.restart(retries=0)
    assert run.turn() is None


def test_a_new_split_whose_end_cannot_be_asked_for_yet_waits_and_does_not_end_the_query(query, two, caplog):
    """It is not a split with an unknown end, and must not hold back the others."""
    run = query(two, retries=0)
    run.turn()
    two.splits.append(Split("c", 0))
    two.ends |= {"a": 11, "c": 3}
    two.fail["latest"] = 10**9
    run.wait()
    two.calls.clear()
    assert poll(run, 120) == 0
    assert 10 <= two.count("latest") <= 40
    assert "latest() failed" in caplog.text
    two.fail.clear()
    run.wait()
    assert rows(run.turn()) == {"a": 1, "c": 3}


def test_s17_a_run_that_ends_does_not_leave_out_a_split_whose_end_cannot_be_asked_for(query, two):
    """S17: otherwise an outage would end the run as if there were no data."""
    run = query(two, retries=0)
    run.turn()
    two.splits.append(Split("c", 0))
    two.fail["latest"] = 1
    run.planner.prepare_available_now()
    run.wait()
    with pytest.raises(RetriableError):
        run.turn()


# ---- S16: limits


def test_s16_a_backlog_takes_exactly_as_many_micro_batches_as_the_limit_says(query, outside):
    """S16: exactly the limit, and each split its share."""
    there = outside(open_splits("a", "b", "c"), {"a": 101, "b": 11, "c": 1})
    turns = query(there, max_rows_per_trigger=10).turns()
    assert [sum(rows(turn).values()) for turn in turns] == [10] * 11 + [3]
    assert any("c" in turn for turn in turns[:3])


def test_s16_two_busy_splits_on_alternate_turns_do_not_starve_a_third(query, outside):
    """S16: a rotation by the number of the micro-batch would starve the third split."""
    there = outside(open_splits("a", "x", "b"), {"a": 0, "x": 0, "b": 0})
    run = query(there, max_rows_per_trigger=1, refresh_interval=Duration(0.0))
    run.turn()
    there.ends["x"] = 20
    got = []
    for turn in range(40):
        there.ends["a" if turn % 2 else "b"] += 1
        got.extend(run.turn())
    assert got.count("x") >= 10


def test_s16_more_splits_than_fit_into_a_memory_are_all_read(query, outside):
    """S16: open splits are in every offset anyway; those beyond the 400th must not starve."""
    names = [f"s{number:04}" for number in range(1000)]
    there = outside(open_splits(*names), dict.fromkeys(names, 3))
    assert sorted(query(there).turn()) == names


def test_s16_the_queue_survives_a_restart(query, outside):
    """S16: the order of waiting is in the offset, so a killed planner starves no split."""
    names = ["a", "b", "c", "d"]
    there = outside(open_splits(*names), dict.fromkeys(names, 100))
    run = query(there, max_rows_per_trigger=1)
    got = []
    for _ in range(8):
        got.extend(run.turn())
        run.restart()
    assert got == names * 2


def test_s16_a_limit_of_rows_where_positions_are_no_rows_is_refused_by_name(query, outside):
    """S16: the first micro-batch does not wait."""
    with pytest.raises(ConfigurationError) as caught:
        query(outside([Split("a", "x")], {"a": "y"}), max_rows_per_trigger=5).turn()
    assert caught.value.option == "maxRowsPerTrigger"


# ---- minimum rows and the delay


def test_a_micro_batch_waits_for_its_minimum_of_rows_but_not_for_ever(query, two):
    run = query(two, min_rows_per_trigger=10, max_trigger_delay=Duration(60.0))
    assert rows(run.turn()) == {"a": 10, "b": 4}, "the first one does not wait"
    two.ends["a"] = 19
    assert poll(run, 50) == 0
    two.ends["b"] = 5
    run.wait(2)
    assert rows(run.turn()) == {"a": 9, "b": 1}
    two.ends["a"] = 20
    assert poll(run, 59) == 0
    assert poll(run, 3) == 1


def test_the_delay_does_not_restart_with_every_process(query, two):
    """Otherwise rows would wait forever in a query that is restarted often; Spark's Kafka source begins at once."""
    run = query(two, min_rows_per_trigger=10, max_trigger_delay=Duration(900.0))
    run.turn()
    two.ends["a"] = 11
    run.wait(800)
    assert run.turn() is None
    run.restart()
    assert rows(run.turn()) == {"a": 1}


def test_while_waiting_for_rows_the_outside_is_asked_seldom(query, two):
    run = query(two, min_rows_per_trigger=10, max_trigger_delay=Duration(600.0))
    run.turn()
    two.ends["a"] = 11
    two.calls.clear()
    assert poll(run, 30) == 0
    assert two.count("latest") <= 31


def test_s17_minimum_rows_mean_nothing_to_a_run_that_ends(query, two):
    """S17: AvailableNow and Once read all available data."""
    run = query(two, min_rows_per_trigger=10, max_rows_per_trigger=10)
    run.planner.prepare_available_now()
    assert [sum(rows(turn).values()) for turn in run.turns()] == [10, 4], "also the rest, which is less"
    run.restart()
    two.ends["a"] += 10
    assert rows(run.turn()) == {"a": 10}
    two.ends["a"] += 1
    run.wait()
    assert run.turn() is None
    assert rows(run.turn(limited=False)) == {"a": 1}


def test_a_minimum_of_rows_where_positions_are_no_rows_is_refused_by_name(query, outside):
    there = outside([Split("a", "x")], {"a": "y"})
    run = query(there, min_rows_per_trigger=5)
    run.turn()
    there.ends["a"] = "z"
    run.wait()
    with pytest.raises(ConfigurationError) as caught:
        run.turn()
    assert caught.value.option == "minRowsPerTrigger"


# ---- S17: runs that end


def test_s17_an_available_now_run_ends_at_what_there_was_when_it_began(query, two):
    """S17: while a writer writes, splits appear and a limit makes many micro-batches."""
    run = query(two, max_rows_per_trigger=3)
    run.planner.prepare_available_now()
    there = dict(two.ends)
    read = dict.fromkeys(there, 0)
    while (turn := run.turn()) is not None:
        for split_id, count in rows(turn).items():
            read[split_id] += count
        two.ends = {split_id: end + 7 for split_id, end in two.ends.items()}
        two.splits.append(Split(f"new-{len(two.splits)}", 0))
        run.wait()
    assert read == there
    assert len(run.log) == 5


def test_s17_its_target_comes_from_a_poll_of_its_own(query, two):
    """S17: answers from before the run are outdated."""
    run = query(two)
    run.turn()
    two.ends["a"] = 12
    two.splits.append(Split("c", 0))
    two.ends["c"] = 2
    run.planner.prepare_available_now()
    assert rows(run.turn()) == {"a": 2, "c": 2}
    assert run.turn() is None


@pytest.mark.parametrize("how", ["available now", "once"])
@pytest.mark.parametrize("what", ["discover", "latest"])
@pytest.mark.parametrize("restarted", [True, False])
def test_s17_a_poll_that_fails_is_an_error(query, two, what, how, restarted):
    """S17: a run that ends because of an outage would look complete."""
    run = query(two, retries=0)
    run.turn()
    if restarted:
        run.restart(retries=0)
    if how == "available now":
        run.planner.prepare_available_now()
    two.fail[what] = 1
    with pytest.raises(RetriableError):
        run.turn(limited=how == "available now")


def test_once_takes_everything_whatever_the_limits(query, two):
    run = query(two, max_rows_per_trigger=1, max_files_per_trigger=1)
    assert rows(run.turn(limited=False)) == {"a": 10, "b": 4}
    assert run.turn(limited=False) is None


# ---- S19: when ends are reported


def test_s19_ends_are_reported_at_commit_or_in_a_later_run(query, outside):
    """S19: an action that cannot be repeated waits until no replay of the micro-batch is possible."""
    there = outside([Split("a", 0, 5), Split("b", 0, 9)], {"a": 5, "b": 3})
    run = query(there)
    run.turn()
    assert run.turn() is None
    assert there.count("finished") == 0, "asked from, n is done; but it may be replayed"
    run.planner.commit(run.log[0])
    run.planner.commit(run.log[0])
    assert there.reported("finished") == [["a"]]
    run.restart()
    run.turn()
    assert there.reported("finished") == [["a"], ["a"]], (
        "a later run tells again, for the first may have died just then"
    )


def test_s19_ends_that_could_not_be_reported_are_reported_with_the_next_ones(query, outside):
    """S19: not only at the next start, which may be months later."""
    there = outside([Split("a", 0, 5), Split("b", 0, 9)], {"a": 5, "b": 9})
    run = query(there, max_files_per_trigger=1)
    run.turn()
    run.turn()
    there.fail["finished"] = 10
    run.planner.commit(run.log[0])
    there.fail.clear()
    there.calls.clear()
    run.planner.commit(run.log[1])
    assert there.reported("finished") == [["a", "b"]]


def test_s19_a_replay_may_be_replayed_again(query, outside):
    """S19: a run that begins with a replay of n reports n only at its commit."""
    there = outside([Split("a", 0, 5), Split("b", 0, 9)], {"a": 5, "b": 9})
    run = query(there, max_files_per_trigger=1)
    run.turns()
    run.restart()
    run.read(run.log[0], run.log[1])
    assert run.turn() is None
    assert there.reported("finished") == [["a"]]
    run.planner.commit(run.log[1])
    assert there.reported("finished") == [["a"], ["b"]]


def test_s19_positions_are_committed_when_the_next_micro_batch_is_planned(query, two):
    """S19: group offsets may be committed twice, and early."""
    run = query(two)
    run.turn()
    assert two.count("committed") == 0
    run.turn()
    run.turn()
    assert two.reported("committed") == [{"a": 10, "b": 4}]


def test_trap_7_the_last_micro_batch_of_a_run_is_reported_without_a_commit(query, two):
    """Trap 7: the last commit is never called, but the next poll is."""
    run = query(two)
    run.planner.prepare_available_now()
    run.turns()
    assert two.reported("committed") == [{"a": 10, "b": 4}]


def test_a_failure_after_a_micro_batch_never_ends_the_query(query, outside, caplog):
    there = outside([Split("a", 0, 5), Split("b", 0)], {"a": 5, "b": 3})
    run = query(there, retries=0)
    run.turn()
    there.fail.update(finished=1, committed=1)
    run.planner.commit(run.log[0])
    assert run.turn() is None
    assert caplog.text.count("notifying the source of committed data failed") == 2
    there.ends["b"] = 4
    run.wait()
    assert rows(run.turn()) == {"b": 1}
    run.planner.commit({"not": "ours"})


def test_close_closes_the_author(query, two):
    run = query(two)
    run.turn()
    run.planner.close()
    assert two.count("close") == 1


def test_close_waits_for_the_author_only_for_the_time_out_of_closing(query, two):
    """Spark has sent SIGTERM by then: the planner must not wait ten more minutes."""
    run = query(two, close_timeout=Duration(0.05))
    run.turn()
    over = threading.Event()
    split_provider = run.planner._split_provider
    split_provider.enumerator.close = over.wait
    split_provider._calls._runtime = ThreadRuntime()
    try:
        with pytest.raises(FatalError, match=r"close\(\) did not return within 0\.05 s") as caught:
            run.planner.close()
    finally:
        over.set()
    assert "closeTimeout" in caught.value.advice


# ---- S7: long offsets


@pytest.fixture
def patient(query, two):
    """A caught-up query whose offset is long."""
    run = query(two)
    run.turn()
    run.planner._codec.patience = lambda: 5.0
    run.wait()
    two.calls.clear()
    return run


def test_s7_a_call_with_a_long_offset_waits_and_goes_on_polling(patient, two):
    """S7: each call transfers the offset, so there are few calls; the source is asked as often as before."""
    began = two.clock.monotonic()
    assert patient.turn() is None
    assert two.clock.monotonic() - began == pytest.approx(5.0, abs=0.2)
    assert 4 <= two.count("latest") <= 7


def test_s7_what_comes_while_a_call_waits_is_planned_at_once(patient, two):
    """S7: waiting delays nothing."""
    latest = two.called

    def called(what, *arguments):
        latest(what, *arguments)
        if two.count("latest") == 3:
            two.ends["a"] = 20

    two.called = called
    began = two.clock.monotonic()
    assert rows(patient.turn()) == {"a": 10}
    assert two.clock.monotonic() - began < 3.5


@pytest.mark.parametrize("how", ["available now", "once"])
def test_s7_a_run_that_ends_does_not_wait(patient, two, how):
    """S7: AvailableNow and Once do not wait for the next file."""
    if how == "available now":
        patient.planner.prepare_available_now()
    began = two.clock.monotonic()
    patient.turn(limited=how == "available now")
    assert two.clock.monotonic() - began < 0.2
