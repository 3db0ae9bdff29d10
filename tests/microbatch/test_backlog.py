# SPDX-License-Identifier: Apache-2.0
"""A long backlog of files: files beyond the limits are not planned, but counted."""

from __future__ import annotations

import pytest

from forebay.framework.microbatch.admission import AvailableSplits
from forebay.framework.microbatch.offset import Planned, UnknownEnd
from forebay.framework.split import Split

MANY = 3000


def files(count):
    return [
        Split(f"file-{number:05}-{number * 2654435761 % 2**32:08x}{number * 40503 % 65521:04x}", 0)
        for number in range(count)
    ]


@pytest.fixture
def listed(outside, query):
    """Return a query of files without a known end, which every poll lists again."""

    def make(count, **options):
        kind = type("Listed", (query.bounded,), {"in_order": True})
        return query(outside(files(count)), kind=kind, **options)

    return make


@pytest.fixture
def made(monkeypatch):
    """Count the planned splits."""
    found = []
    plain = Planned.__init__

    def counted(self, split, to):
        found.append(split.id)
        plain(self, split, to)

    monkeypatch.setattr(Planned, "__init__", counted)
    return found


def taking(run, made):
    """Return the ids of the next micro-batch, and how many splits were planned for it."""
    made.clear()
    end = run.latest()
    planned = len(made)
    earlier, run.start = run.start, end
    run.log.append(end)
    return sorted(run.read(earlier, end)), planned


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("ending", [False, True])
def test_only_what_a_limit_lets_in_is_planned(listed, made, tmp_path, ending, stored):
    options = {"state_location": str(tmp_path)} if stored else {}
    run = listed(MANY, max_files_per_trigger=10, **options)
    if ending:
        run.planner.prepare_available_now()
    for turn in range(3):
        ids, planned = taking(run, made)
        assert ids == [split.id for split in files(MANY)[10 * turn : 10 * turn + 10]]
        assert planned <= 30  # each, the one behind them, and what it takes to read the offset back


def test_only_what_a_micro_batch_has_room_for_is_planned(listed, made):
    run = listed(MANY)
    ids, planned = taking(run, made)
    assert 100 < len(ids) < MANY - 500
    assert planned < len(ids) + 50


def test_a_run_that_ends_takes_what_there_was_and_each_once(listed):
    run = listed(50, max_files_per_trigger=20)
    run.planner.prepare_available_now()
    first = run.turn()
    run.outside.splits = files(70)
    run.wait()
    turns = [first, *run.turns()]
    assert [len(turn) for turn in turns] == [20, 20, 10]
    assert sorted(split_id for turn in turns for split_id in turn) == [split.id for split in files(50)]
    run.restart()
    run.wait()
    assert sorted(split_id for turn in run.turns() for split_id in turn) == [split.id for split in files(70)[50:]]


@pytest.mark.parametrize("measured", [5, 15, 5000])
def test_what_is_not_planned_is_counted_in_the_report(listed, made, monkeypatch, measured):
    monkeypatch.setattr("forebay.framework.microbatch.reports._MEASURED", measured)
    run = listed(100, max_files_per_trigger=10)
    for turn in range(1, 11):
        taking(run, made)
        made.clear()
        report = run.planner.report()
        assert report["splits"]["behind"] == 100 - 10 * turn
        assert report["last"]["splits"] == 10
        assert len(made) <= measured + 30


def test_a_backlog_is_a_sequence_of_plans_each_made_once(made):
    known = Planned(Split("known", 0, 5), 5)
    backlog = AvailableSplits([known, *files(3), Planned(Split("start"), None)])
    assert len(backlog) == 5 and len(made) == 2
    assert dict(backlog.ends()) == {"known": 5, **{split.id: UnknownEnd.WHOLE for split in files(3)}}
    assert len(made) == 2
    assert backlog[0] is known and backlog[-2] is backlog[3]
    assert len(made) == 3
    assert [planned.split.id for planned in backlog[1:3]] == [split.id for split in files(2)]
    assert list(backlog)[1:4] == [Planned(split, UnknownEnd.WHOLE) for split in files(3)]
