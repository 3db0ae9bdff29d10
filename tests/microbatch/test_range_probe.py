# SPDX-License-Identifier: Apache-2.0
"""An end that moves on without records, such as "now less a delay", makes no empty micro-batches."""

from __future__ import annotations

import json
import logging
from typing import ClassVar

import pyarrow as pa
import pytest
from manual_clock import ManualClock

from forebay.errors import ContractError, RetriableError
from forebay.framework.arrow.row_packer import Batch
from forebay.framework.microbatch.stream_planner import open_stream
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import ThreadRuntime
from forebay.framework.simple import SimpleEnumerator, SimpleSource
from forebay.framework.tasks.read_task import run_task


class World:
    """The records by time, and the reads of planner and tasks."""

    def __init__(self, *splits):
        self.clock = ManualClock(1000)
        self.events = {split_id: [] for split_id in splits or ("all",)}
        self.reads = []
        self.slow = 0.0
        self.error = None


class Ticks(SimpleSource):
    """Events by whole seconds; the end is the present second."""

    bounded = False
    world: ClassVar[World]

    def schema(self):
        return pa.schema({"at": pa.int64()})

    def splits(self):
        return list(self.world.events)

    def latest(self, split):
        return (int(self.world.clock.now()),)

    def read(self, split):
        world = self.world
        world.reads.append((split.id, split.position, split.end))
        world.clock.advance(world.slow)
        if world.error is not None:
            raise world.error
        for at in world.events[split.id]:
            if (split.position or (0,)) <= (at,) < split.end:
                yield Batch([{"at": at}], (at + 1,))


class Query:
    """Plans and reads micro-batches as Spark does."""

    def __init__(self, world, kind=Ticks, **options):
        self.world, self.kind = world, kind
        self.source = type("Ticks", (kind,), {"world": world, "name": "ticks"})()
        self.options = HostOptions(**options)
        self.log, self.rows = [], []
        self.probes = 0
        self.restart()

    def restart(self):
        self.planner = open_stream(self.source, self.options, parallelism=1, runtime=ThreadRuntime(self.world.clock))
        self.start = self.log[-1] if self.log else json.loads(json.dumps(self.planner.initial()))

    def turn(self, seconds=2.0, **how):
        """Let time pass, and return the rows of the next micro-batch; None if there is none."""
        self.world.clock.advance(seconds)
        before = len(self.world.reads)
        found = json.loads(json.dumps(self.planner.latest(self.start, **how)))
        self.probes += len(self.world.reads) - before
        if found == self.start:
            return None
        rows = self.read(self.start, found)
        self.start = found
        self.log.append(found)
        self.rows += rows
        return rows

    def read(self, start, end):
        tasks = self.planner.tasks(start, end)
        return [n for task in tasks for part in run_task(task) for n in part.batch.column(0).to_pylist()]

    def happens(self, split_id="all"):
        self.world.events[split_id].append(int(self.world.clock.now()))


@pytest.fixture
def world():
    return World()


def test_s4_an_end_that_moves_on_alone_makes_no_micro_batch(world):
    """S4: only records are new, not ends."""
    query = Query(world)
    turns = []
    for turn in range(40):
        if turn in (10, 11, 30):
            query.happens()
        turns.append(query.turn())
    assert query.rows == world.events["all"]
    assert [turn for turn, rows in enumerate(turns) if rows is not None] == [0, 10, 11, 30]


def test_a_micro_batch_after_a_silence_begins_where_the_last_one_ended(world):
    query = Query(world)
    query.happens()
    query.turn()
    for _ in range(5):
        assert query.turn() is None
    query.happens()
    [[_, end, *_]] = query.start["splits"]
    query.turn()
    assert world.reads[-1][1] == tuple(end)
    query.restart()
    assert query.read(query.log[-2], query.log[-1]) == query.rows[-1:]


def test_a_record_in_one_of_many_splits_is_found():
    world = World("a", "b", "c")
    query = Query(world)
    query.turn()
    for split_id in ("c", "a", "b"):
        assert query.turn() is None
        query.happens(split_id)
        assert query.turn() == world.events[split_id][-1:]


class Counted(Ticks):
    """Declares positions as rows, so that there is always a row before a new end."""

    positions_are_rows = True

    def latest(self, split):
        return len(self.world.events["all"])

    def read(self, split):
        self.world.reads.append((split.id, split.position, split.end))
        yield from ({"at": at} for at in self.world.events["all"][split.position or 0 : split.end])


class Exact(Ticks):
    """Declares that every end is after a record."""

    def create_enumerator(self, context):
        enumerator = SimpleEnumerator(self)
        enumerator.exact_ends = True
        return enumerator


@pytest.mark.parametrize("kind", [Counted, Exact])
def test_exact_ends_are_believed_and_nothing_is_read_to_plan(world, kind):
    query = Query(world, kind)
    for _ in range(4):
        query.happens()
        assert query.turn() == world.events["all"][-1:]
    assert query.probes == 0


def test_probing_takes_a_fifth_of_the_time_at_most_while_records_flow(world):
    """A probe that takes 2 s runs every 10 s: a fifth of the time."""
    query = Query(world)
    query.turn()
    for _ in range(60):
        query.happens()
        world.slow = 0.0
        world.clock.advance(1.5)
        world.slow = 2.0
        end = json.loads(json.dumps(query.planner.latest(query.start)))
        assert end != query.start
        query.start = end
    assert 9 <= len(world.reads) <= 16


def test_what_the_user_says_of_ends_holds_for_first_records_too(world):
    query = Query(world, refresh_interval="20s")
    query.turn()
    assert [query.turn(5.0) for _ in range(16)] == [None] * 16
    assert query.probes == 4


@pytest.mark.parametrize("error", [RetriableError("no way there"), ContractError("broken"), KeyError("x")])
def test_a_probe_that_fails_holds_nothing_back(world, caplog, error):
    """The planner may not reach the source; a task reports the error."""
    query = Query(world, retries=0)
    query.turn()
    query.happens()
    world.error = error
    world.clock.advance(2.0)
    with caplog.at_level(logging.WARNING):
        end = query.planner.latest(query.start)
    assert end != query.start
    assert "reading a first record in the planner failed" in caplog.text
    world.error = None
    assert query.read(query.start, json.loads(json.dumps(end))) == world.events["all"]


def test_an_empty_range_is_planned_at_last_so_that_positions_do_not_grow_old(world):
    query = Query(world)
    query.turn()
    turns = [query.turn(10.0) for _ in range(70)]
    assert [turn for turn, rows in enumerate(turns) if rows is not None] == [59]


def test_runs_that_end_are_planned_as_ever(world):
    """An AvailableNow run, or Once, plans at most one micro-batch too many."""
    query = Query(world)
    query.turn()
    query.restart()
    query.planner.prepare_available_now()
    assert [query.turn(), query.turn()] == [[], None]
    query.restart()
    assert query.turn(limited=False) == []
    assert query.probes == 0


def test_a_silent_stream_is_idle_in_its_report(world):
    query = Query(world)
    query.turn()
    query.turn()
    report = query.planner.report()
    assert (report["idle"], report["splits"]) == (True, {"open": 1, "done": 0, "behind": 0})
