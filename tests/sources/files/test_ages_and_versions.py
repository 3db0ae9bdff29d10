# SPDX-License-Identifier: Apache-2.0
"""The files that are new to a stream: late and old files, files of the future, changed files."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from manual_clock import ManualClock

from forebay.errors import ConfigurationError, DataError

Put = Callable[..., Path]
Begin = Callable[..., Any]
NOON = 1_700_000_000
DAY = 86_400


def numbers(first: int, count: int) -> str:
    return "".join(f"{number:09}\n" for number in range(first, first + count))


def test_the_age_of_files_counts_from_the_newest_one_read_and_not_from_the_clock(put: Put, stream: Begin) -> None:
    put("a.txt", at=-100 * DAY)
    put("b.txt", at=-90 * DAY)
    query = stream()
    assert query.drain() == [["a.txt", "b.txt"]]
    put("late.txt", at=-96 * DAY)
    put("later.txt", at=-97.5 * DAY)
    assert query.drain() == [["late.txt"]]
    query.restart(max_file_age="1000d")  # what was passed over does not come back, nor does a.txt
    assert query.drain() == []
    put("new.txt")
    assert query.drain() == [["new.txt"]]


def test_files_dated_before_1970_are_read_and_come_first(put: Put, stream: Begin) -> None:
    put("a.txt")
    put("b.txt", at=-NOON - 5)
    query = stream(max_files_per_trigger=1)
    assert query.drain() == [["b.txt"], ["a.txt"]]
    query.restart()
    assert query.drain() == []


def test_what_is_too_old_is_forgotten_and_stays_away_over_restarts(put: Put, stream: Begin) -> None:
    query = stream(max_file_age="10s")
    for number in range(50):
        put(f"{number:02}.txt", at=number)
        assert query.drain() == [[f"{number:02}.txt"]]
    remembered = query.planner._committed.done
    assert len(remembered) <= 13
    for _ in range(2):
        query.restart()
        assert query.drain() == []
    put("50.txt", at=50)
    assert query.drain() == [["50.txt"]]


def test_a_backlog_with_a_cap_does_not_grow_too_old_while_it_waits(put: Put, stream: Begin) -> None:
    for number in range(30):
        put(f"{number:02}.txt", at=number * DAY - 30 * DAY)
    query = stream(max_files_per_trigger=1)
    assert len(query.drain()) == 30


def test_one_file_of_the_year_2100_hides_no_other_and_is_logged(
    put: Put, stream: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    put("2100.txt", at=77 * 365 * DAY)
    put("old.txt", at=-100 * DAY)
    query = stream(max_files_per_trigger=1)
    with caplog.at_level(logging.WARNING):
        assert query.drain() == [["old.txt"], ["2100.txt"]]
        put("late.txt", at=-105 * DAY)
        assert query.drain() == [["late.txt"]]
        query.restart()
        put("later.txt", at=-106 * DAY)
        assert query.drain() == [["later.txt"]]
    assert any("2100.txt is in the future" in record.getMessage() for record in caplog.records)


def test_a_clock_that_is_fast_by_hours_hides_no_file_that_is_written_meanwhile(put: Put, stream: Begin) -> None:
    """A file of another machine, dated within a day ahead, counts as of now."""
    put("fast.txt", at=DAY - 60)
    query = stream(max_file_age="1h")
    assert query.drain() == [["fast.txt"]]
    put("now.txt", at=5)
    assert query.drain() == [["now.txt"]]
    put("late.txt", at=-3000)
    put("too-late.txt", at=-4000)
    query.restart()
    assert query.drain() == [["late.txt"]]


class SetClock(ManualClock):
    """A clock that the test sets."""

    ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead


@pytest.mark.parametrize("over_a_restart", [False, True])
def test_after_a_clock_that_was_years_ahead_skipped_files_are_an_error(
    put: Put, stream: Begin, over_a_restart: bool
) -> None:
    """The clocks of the stream and of the files were wrong, so all new files would be too old."""
    query = stream()
    query.clock = SetClock(NOON)
    query.restart()
    put("a.txt")
    assert query.drain() == [["a.txt"]]
    query.clock.ahead = 3 * 365 * DAY
    for name in ("wrong.txt", "also-wrong.txt"):  # an offset knows what was read by the one before
        put(name, at=3 * 365 * DAY)
        assert query.drain() == [[name]]
    query.clock.ahead = 0
    put("sane.txt", at=60)
    query.clock.advance(60)
    if over_a_restart:
        query.restart()
    with pytest.raises(ConfigurationError, match="would be skipped") as raised:
        query.drain()
    assert raised.value.option == "maxFileAge"
    assert "modifiedAfter" in str(raised.value.advice)
    # With a new checkpoint and modifiedAfter, as the error advises, nothing is lost.
    again = stream(modified_after="2023-11-14T22:13:21")
    assert again.drain() == [["also-wrong.txt", "sane.txt", "wrong.txt"]]
    put("next.txt", at=61)
    assert again.drain() == [["next.txt"]]


def test_a_restart_after_one_micro_batch_by_a_wrong_clock_hides_nothing(put: Put, stream: Begin) -> None:
    query = stream()
    query.clock = SetClock(NOON)
    query.clock.ahead = 3 * 365 * DAY
    query.restart()
    put("wrong.txt", at=3 * 365 * DAY)
    assert query.drain() == [["wrong.txt"]]
    query.clock.ahead = 0
    query.restart()
    put("sane.txt", at=60)
    assert query.drain() == [["sane.txt"]]


def test_a_clock_that_was_ahead_by_less_than_the_age_hides_nothing(put: Put, stream: Begin) -> None:
    query = stream()
    query.clock = SetClock(NOON)
    query.restart()
    query.clock.ahead = 6 * DAY
    put("fast.txt", at=6 * DAY)
    assert query.drain() == [["fast.txt"]]
    query.clock.ahead = 0
    put("sane.txt", at=60)
    assert query.drain() == [["sane.txt"]]
    query.restart()
    put("next.txt", at=120)
    assert query.drain() == [["next.txt"]]


def test_a_micro_batch_of_a_file_that_was_replaced_fails_for_ever_until_it_is_planned_again(
    put: Put, stream: Begin
) -> None:
    """By docs/operations.md: the uncommitted offset is deleted, and the query continues from the one before."""
    put("a.txt", "1\n")
    query = stream(on_changed_file="reread")
    assert query.drain() == [["1"]]
    put("b.txt", "2\n")
    end = query.plan()
    put("b.txt", "2\n3\n", at=5)
    for _ in range(2):
        query.restart()
        with pytest.raises(DataError, match="has changed since it was listed") as raised:
            query.read(end)
        assert "planned again" in str(raised.value.advice)
    query.restart()
    assert query.drain() == [["2", "3"]]


@pytest.mark.parametrize("over_a_restart", [False, True])
def test_a_file_that_grew_after_it_was_read_is_an_error_that_names_it(
    put: Put, stream: Begin, over_a_restart: bool
) -> None:
    put("a.txt", "1\n")
    query = stream()
    assert query.drain() == [["1"]]
    put("a.txt", "1\n2\n", at=5)
    if over_a_restart:
        query.restart()
    with pytest.raises(DataError, match=r"has changed since it was read \(then 2 bytes.*; now 4 bytes") as raised:
        query.drain()
    assert raised.value.option == "onChangedFile"
    assert str(raised.value.split).endswith("/in/a.txt")
    query.restart(on_changed_file="ignore")
    assert query.drain() == []
    query.restart(on_changed_file="reread")
    assert query.drain() == [["1", "2"]]
    query.restart(on_changed_file="error")
    assert query.drain() == []
    put("a.txt", "3\n", at=6)
    query.restart(on_changed_file="reread")
    assert query.drain() == [["3"]]
    assert query.drain() == []


def test_a_version_that_was_read_does_not_come_again_when_the_first_one_is_forgotten(put: Put, stream: Begin) -> None:
    put("a.txt", "1\n")
    query = stream(on_changed_file="reread", max_file_age="10s")
    query.drain()
    put("a.txt", "2\n", at=8)
    assert query.drain() == [["2"]]
    for number in range(11, 18):
        put(f"{number}.txt", at=number)
        assert query.drain() == [[f"{number}.txt"]]
    assert len(query.planner._committed.done) == 8  # the first version is forgotten
    query.restart()
    assert query.drain() == []


def test_a_file_that_changes_when_half_of_it_was_read_is_read_again_or_an_error(put: Put, stream: Begin) -> None:
    put("a.txt", numbers(0, 30))
    put("b.txt", numbers(90, 5), at=1)
    query = stream(max_bytes_per_trigger=100, on_changed_file="ignore")
    assert len(query.trigger()) == 10
    put("a.txt", numbers(50, 12), at=2)
    with pytest.raises(DataError, match="has changed since it was read") as raised:
        query.plan()
    assert str(raised.value.advice).endswith("restart with onChangedFile=reread")
    query.restart(on_changed_file="reread")
    rest = [value for values in query.drain() for value in values]
    assert sorted(rest) == numbers(50, 12).split() + numbers(90, 5).split()
    query.restart(on_changed_file="error")
    assert query.drain() == []


@pytest.mark.parametrize("ends", [False, True], ids=["goes on", "available now"])
@pytest.mark.parametrize("change", ["replaced", "deleted"])
def test_a_file_that_changes_while_it_waits_for_its_turn_is_read_as_it_is_then(
    put: Put, stream: Begin, change: str, ends: bool
) -> None:
    put("a.txt", "1\n")
    put("b.txt", "2\n", at=1)
    put("c.txt", "3\n", at=2)
    query = stream(max_files_per_trigger=1)
    if ends:
        query.planner.prepare_available_now()
    assert query.trigger() == [("1",)]
    path = put("b.txt", "new\n", at=3)
    if change == "deleted":
        path.unlink()
    query.clock.advance(60)
    put("d.txt", "4\n", at=4)
    rest = [value for values in query.drain() for value in values]
    assert sorted(rest) == sorted(["3"] + ["new"] * (change == "replaced") + ["4"] * (not ends))


@pytest.mark.parametrize("on_changed_file", ["reread", "error"])
def test_a_file_that_changes_when_half_of_it_was_read_is_noticed_by_an_available_now_run(
    put: Put, stream: Begin, on_changed_file: str
) -> None:
    put("a.txt", numbers(0, 30))
    query = stream(max_bytes_per_trigger=100, on_changed_file=on_changed_file)
    query.planner.prepare_available_now()
    assert len(query.trigger()) == 10
    put("a.txt", numbers(50, 12), at=2)
    query.clock.advance(60)
    if on_changed_file == "error":
        with pytest.raises(DataError, match="has changed since it was read"):
            query.plan()
        return
    assert query.drain() == [], "the next run reads it whole"
    query.restart()
    assert sorted(value for values in query.drain() for value in values) == numbers(50, 12).split()


def test_files_of_one_name_are_one_file_if_the_user_says_so(put: Put, stream: Begin) -> None:
    put("x/a.txt", "1\n")
    put("y/a.txt", "2\n", at=1)
    query = stream(file_name_only=True, recursive_file_lookup=True)
    assert query.drain() == [["1"]]
    put("z/a.txt", "3\n", at=2)
    put("z/b.txt", "4\n", at=2)
    query.restart()
    assert query.drain() == [["4"]]


@pytest.mark.parametrize("change", ["replaced", "deleted"])
def test_a_file_that_changes_between_plan_and_read_is_an_error_that_names_it(
    put: Put, stream: Begin, change: str
) -> None:
    path = put("a.txt", "1\n")
    query = stream()
    end = query.plan()
    if change == "deleted":
        path.unlink()
    else:
        put("a.txt", "22\n", at=3)
    with pytest.raises(DataError) as raised:
        query.read(end)
    assert str(raised.value.split).endswith("/in/a.txt")


def test_a_file_that_is_gone_when_it_is_read_is_left_out_if_the_user_says_so(put: Put, stream: Begin) -> None:
    path = put("a.txt")
    put("b.txt", at=1)
    query = stream(ignore_missing_files=True)
    end = query.plan()
    path.unlink()
    assert query.read(end) == [("b.txt",)]
