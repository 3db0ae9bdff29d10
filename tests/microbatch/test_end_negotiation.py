# SPDX-License-Identifier: Apache-2.0
"""Negotiated ends: with any interleaving and any kill, each row is in one micro-batch, once, in order."""

from __future__ import annotations

import itertools
import json
import pickle
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import ClassVar

import pyarrow as pa
import pytest
from forebay_simulator.inline import InlineRuntime
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from manual_clock import ManualClock

from forebay.errors import ConfigurationError, ContractError, RetriableError
from forebay.framework.arrow.row_packer import Batch
from forebay.framework.microbatch import end_negotiation as negotiated_splits
from forebay.framework.microbatch import stream_planner as planner_factory
from forebay.framework.microbatch.admission import BatchLimits
from forebay.framework.microbatch.end_negotiation import Claim, ClaimChain, begun_of
from forebay.framework.microbatch.negotiated_reads import ChunkReader, Negotiation
from forebay.framework.microbatch.stream_planner import open_stream
from forebay.framework.reading.reader_context import Delivered
from forebay.framework.runtime.clients import ConnectorCalls
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import ThreadRuntime
from forebay.framework.simple import SimpleSource
from forebay.framework.split import Json, Split
from forebay.framework.tasks.read_task import ReadTask, run_task
from forebay.retry import RetryPolicy
from forebay.state.open_state_store import open_state_store

N = pa.schema({"n": pa.int64()})


class Killed(BaseException):
    """The calling process was killed."""


class Memory:
    """A store in memory that can kill its caller, before or after the call has done its work."""

    location = "memory"

    def __init__(self):
        self.facts = {}
        self.kill_in = None

    def get(self, name):
        return self._called(lambda: self.facts.get(name))

    def put_if_absent(self, name, data):
        return self._called(lambda: self.facts.setdefault(name, data) is data)

    def names(self, prefix):
        return self._called(lambda: sorted(name for name in self.facts if name.rpartition("/")[0] + "/" == prefix))

    def delete(self, names):
        return self._called(lambda: [self.facts.pop(name, None) for name in names])

    def _called(self, work):
        if self.kill_in == 0:
            self.kill_in = None
            raise Killed
        after = self.kill_in == 1
        if self.kill_in is not None:
            self.kill_in -= 2
            self.kill_in = None if self.kill_in < 0 else self.kill_in
        found = work()
        if after:
            raise Killed
        return found


class Growing(SimpleSource):
    """Splits that grow; only their readers find their ends."""

    bounded = False
    positions_are_rows = True
    world: ClassVar[World]

    def schema(self):
        return N

    def splits(self):
        return list(self.world.sizes)

    def read(self, split):
        raise NotImplementedError  # the attempts of these tests have readers of their own


class FakeRead:
    """Reads rows of one split in batches whose sizes the test controls; they differ between reads."""

    def __init__(self, world, split, options):
        self.world, self.split, self.most = world, split, options.max_rows_per_batch
        self.at = split.position
        self.caught_up, self.finished = set(), set()
        world.open += 1

    def poll(self):
        there = self.world.sizes[self.split.id]
        end = there if self.split.end is None else min(self.split.end, there)
        at = self.at or 0
        if at >= end:
            ended = self.split.end is not None and at >= self.split.end
            (self.finished if ended else self.caught_up).add(self.split.id)
            return None
        count = self.world.piece()
        if not count:
            return None
        self.at = min(end, at + min(count, self.most))
        batch = pa.RecordBatch.from_pylist([{"n": n} for n in range(at, self.at)], N)
        return Delivered(self.split.id, batch, self.at)

    def position(self, split_id):
        return self.at

    def available(self):
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def close(self, error=None):
        self.world.open -= 1


class FakeProbe:
    """Answers at once."""

    def __init__(self, world, splits):
        world.probes += 1
        self.silent = {one.id for one in splits if one.id in world.mute}
        known = [one for one in splits if one.id not in self.silent]
        self.something = {one.id for one in known if world.sizes[one.id] > (one.position or 0)}
        self.nothing = {one.id for one in known} - self.something

        self.away = world.away

    def poll(self, patience=0.0, grace=0.0):
        if self.away:
            self.silent |= self.something | self.nothing
            self.something, self.nothing = set(), set()
            raise RetriableError("the feed is away")

    def answers(self):
        told, self.something, self.nothing = (self.something, self.nothing), set(), set()
        return told

    def close(self):
        pass


class World:
    """The source, the store, the time, and the sizes of batches.

    Args:
        monkeypatch: Replaces the store and the probe.
        piece: Gives the rows of the next batch; 0 = no batch, and a second passes.
        options: Those of the host.
    """

    def __init__(self, monkeypatch, piece, sizes, **options):
        self.sizes = dict(sizes)
        self._piece = piece
        self.open = 0
        self.clock = ManualClock()
        self.runtime = InlineRuntime(self.clock)
        self.store = Memory()
        self.options = HostOptions(state_location="memory", **options)
        self.source = type("Mine", (Growing,), {"world": self, "name": "growing"})()
        self.calls = ConnectorCalls("growing", self.runtime, retry=RetryPolicy(retries=0), timeout=60.0)
        self.probes = 0
        self.mute = set()
        self.away = False
        monkeypatch.setattr(negotiated_splits, "state_store", lambda _: self.store)
        monkeypatch.setattr(planner_factory, "state_store", lambda _: self.store)
        monkeypatch.setattr(negotiated_splits, "RecordProbe", lambda _, splits, *__: FakeProbe(self, splits))
        self.log = []
        self.restart()

    def piece(self):
        count = self._piece()
        if not count:
            self.clock.advance(1.0)
        return count

    def restart(self):
        self.planner = open_stream(self.source, self.options, parallelism=2, runtime=self.runtime)
        self.start = self.log[-1] if self.log else self.planner.initial()

    def plan(self):
        """Return the next offset, through Spark's log; None if there is no new data."""
        found = json.loads(json.dumps(self.planner.latest(self.start)))
        return None if found == self.start else found

    def attempt(self, end):
        """Return the reads of a new attempt of a micro-batch."""
        return [self.read(one, task.unplanned) for task in self.planner.tasks(self.start, end) for one in task.slices]

    def read(self, split, negotiation, kind=ChunkReader, open_read=None):
        chain = ClaimChain(self.store, self.calls, negotiation.query, negotiation.n, split)
        read = kind(
            self.source,
            split,
            chain=chain,
            limits=negotiation.limits[split.id],
            options=self.options,
            open_read=open_read or (lambda part, bounds: FakeRead(self, part, bounds)),
            clock=self.clock,
        )
        read.start(self.options.max_batch_duration.total_seconds())
        return Attempt(split, read)

    def done(self, end):
        """Spark has written the commit of a micro-batch."""
        self.log.append(end)
        self.start = end


class Attempt:
    """One attempt to read one split of a micro-batch, and the rows that it delivered."""

    def __init__(self, split: Split, read: ChunkReader):
        self.split, self.read = split, read
        self.rows: list[int] = []

    @property
    def done(self):
        return self.read.done

    def step(self):
        for delivered in self.read.step():
            self.rows.extend(delivered.batch.column(0).to_pylist())

    def run(self):
        while not self.done:
            self.step()
        return self.rows


quiet = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.large_base_example]
)


def world_of(monkeypatch, data, sizes, **options):
    pieces = itertools.cycle([*data.draw(st.lists(st.integers(0, 5), max_size=6), label="pieces"), 2])
    return World(monkeypatch, lambda: next(pieces), sizes, **options)


def steady(monkeypatch, sizes, piece=3, **options):
    """Batches of one size, each a chunk of its own: a second passes between them."""
    turns = itertools.cycle([piece, 0])
    return World(monkeypatch, lambda: next(turns), sizes, **options)


def micro_batch(world):
    """Read the next micro-batch once; return its rows by split, or None."""
    end = world.plan()
    if end is None:
        return None
    rows = {one.split.id: one.run() for one in world.attempt(end)}
    world.done(end)
    return rows


def all_rows(world, most=60):
    """Return the rows of all micro-batches until there is no new data."""
    found = {}
    for _ in range(most):
        rows = micro_batch(world)
        if rows is None:
            world.clock.advance(2.0)
            rows = micro_batch(world)
        if rows is None:
            return found
        for split_id, part in rows.items():
            found.setdefault(split_id, []).extend(part)
    raise AssertionError("it never ends")


def test_a_micro_batch_reads_until_it_is_caught_up_and_no_empty_one_follows(monkeypatch):
    world = steady(monkeypatch, {"a": 10, "b": 0})
    assert micro_batch(world) == {"a": list(range(10))}
    assert world.plan() is None
    probes = world.probes
    assert [world.plan() for _ in range(50)] == [None] * 50
    assert world.probes == probes, "a caught-up split rests for pollInterval"
    world.clock.advance(1.5)
    assert world.plan() is None
    assert world.probes == probes + 1
    world.sizes = {"a": 10, "b": 4}
    world.clock.advance(1.5)
    assert micro_batch(world) == {"b": [0, 1, 2, 3]}


@quiet
@given(st.data())
def test_attempts_in_any_order_deliver_the_same_rows(monkeypatch, data):
    with monkeypatch.context() as patch:
        world = world_of(patch, data, {"a": data.draw(st.integers(1, 10))})
        end = world.plan()
        attempts = [world.attempt(end)[0] for _ in range(3)]
        while not all(one.done for one in attempts):
            for index in data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=4), label="steps"):
                if not attempts[index].done:
                    attempts[index].step()
                    longest = max((one.rows for one in attempts), key=len)
                    assert all(longest[: len(one.rows)] == one.rows for one in attempts)
            if data.draw(st.booleans(), label="grows"):
                world.sizes["a"] += 1
            stuck = [one for one in attempts if not one.done]
            if stuck and data.draw(st.booleans(), label="finish one"):
                stuck[0].run()
        assert attempts[0].rows == attempts[1].rows == attempts[2].rows == list(range(len(attempts[0].rows)))
        assert world.open == 0
        world.done(end)
        assert attempts[0].rows + all_rows(world).get("a", []) == list(range(world.sizes["a"]))


@quiet
@given(st.data())
def test_whatever_is_killed_every_row_comes_once_and_in_order(monkeypatch, data):
    """Planner and tasks die before or after any call of the store; batches are read whole, in part, or not at all."""
    with monkeypatch.context() as patch:
        limits = {"max_rows_per_trigger": data.draw(st.sampled_from([None, None, 2, 5]))}
        world = world_of(patch, data, {"a": data.draw(st.integers(0, 12)), "b": 3}, **limits)
        least = {"a": 0, "b": 0}  # what came out for certain
        for _ in range(data.draw(st.integers(1, 6), label="micro-batches")):
            end = planned(world, data)
            check_positions(world, least, exactly=False)
            if end is not None:
                whole, attempts = read_somehow(world, end, data)
                for split, rows in attempts:
                    begin = split.position or 0
                    assert rows == list(range(begin, begin + len(rows)))
                    least[split.id] = begin + len(rows)
                world.done(end)
                if whole:
                    world.clock.advance(2.0)
                    planned(world, data)
                    read = {split.id for split, _ in attempts}
                    check_positions(world, {name: at for name, at in least.items() if name in read}, exactly=True)
            world.sizes["a"] += data.draw(st.integers(0, 3), label="grows")
            world.clock.advance(2.0)
            if data.draw(st.booleans(), label="restart"):
                world.restart()
        planned(world, data)
        begins = {one.id: one.position or 0 for one in world.planner._committed.open.values()}
        rest = all_rows(world)
        for split_id, begin in begins.items():
            assert rest.get(split_id, []) == list(range(begin, world.sizes[split_id]))


def check_positions(world, least, *, exactly):
    """The planner's positions are after the delivered rows, or further if a reader stopped early."""
    for one in world.planner._committed.open.values():
        if one.id not in least:
            continue
        at = one.position or 0
        assert at == least[one.id] if exactly else at >= least[one.id]


def planned(world, data):
    while True:
        world.store.kill_in = data.draw(st.one_of(st.none(), st.integers(0, 9)), label="kill planner in")
        try:
            return world.plan()
        except Killed:
            world.restart()
        finally:
            world.store.kill_in = None


def read_somehow(world, end, data):
    """Read a micro-batch with attempts that are killed; return whether it is complete, and its rows."""
    how = data.draw(st.sampled_from(["whole", "whole", "in part", "not at all"]), label="read")
    if how == "not at all":
        return False, []
    while True:
        if data.draw(st.booleans(), label="planner dies"):
            world.restart()
        attempts = world.attempt(end)
        world.store.kill_in = data.draw(st.one_of(st.none(), st.integers(0, 20)), label="kill task in")
        try:
            for one in attempts:
                steps = data.draw(st.integers(0, 6)) if how == "in part" else 10_000
                while not one.done and steps:
                    one.step()
                    steps -= 1
        except Killed:
            continue
        finally:
            world.store.kill_in = None
        return how == "whole", [(one.split, one.rows) for one in attempts]


# ---- rules


def follow(world, claimed, reader):
    """Follow an attempt that has claimed an end of split a, with a reader of the test; return the error."""
    end = world.plan()
    (task,) = world.planner.tasks(world.start, end)
    ClaimChain(world.store, world.calls, task.unplanned.query, 0, task.slices[0]).propose(0, Claim(claimed))
    second = world.read(task.slices[0], task.unplanned, open_read=reader)
    with pytest.raises(ContractError) as caught:
        second.run()
    assert caught.value.rule == "S14" and caught.value.split == "a"
    return caught.value, second.rows


@pytest.mark.parametrize("last", [False, True])
def test_of_two_claims_with_one_end_the_first_decides_whether_the_micro_batch_goes_on(monkeypatch, last):
    """S14: one attempt was caught up at this end, and the other one was not."""
    world = World(monkeypatch, lambda: 1, {"a": 6}) if not last else steady(monkeypatch, {"a": 6})
    end = world.plan()
    (task,) = world.planner.tasks(world.start, end)
    assert isinstance(task.unplanned, Negotiation)
    chain = ClaimChain(world.store, world.calls, task.unplanned.query, task.unplanned.n, task.slices[0])
    (slow,) = world.attempt(end)
    slow.step()
    chain.propose(0, Claim(3 if last else 6, last=last, caught_up=last))
    while not slow.done and len(slow.rows) < 6:
        slow.step()
    assert slow.done is last
    assert slow.rows == [*range(3 if last else 6)]


def test_what_cannot_be_read_again_is_an_error_and_no_wrong_row_leaves(monkeypatch):
    world = steady(monkeypatch, {"a": 10})

    def gone(part, bounds):  # a queue: what was read once is not there again
        world.sizes["a"] = 4
        return FakeRead(world, part, bounds)

    error, rows = follow(world, 6, gone)
    assert "found no more rows at 4" in str(error) and "up to 6" in str(error)
    assert rows == [0, 1, 2, 3]


def test_a_reader_that_does_not_stop_at_the_end_is_an_error_before_a_row_too_many(monkeypatch):
    world = steady(monkeypatch, {"a": 10})
    error, rows = follow(world, 4, lambda part, bounds: FakeRead(world, part.slice(part.position, None), bounds))
    assert "went on to 6" in str(error)
    assert rows == [0, 1, 2]
    assert "stop exactly at split.end" in str(error.advice)


def test_a_reader_that_says_it_is_elsewhere_at_the_claimed_end_is_an_error(monkeypatch):
    class Elsewhere(FakeRead):
        def position(self, split_id):
            return 5

    world = steady(monkeypatch, {"a": 10})
    error, rows = follow(world, 6, lambda part, bounds: Elsewhere(world, part, bounds))
    assert "ended at 5" in str(error) and "up to 6" in str(error)
    assert rows == [0, 1, 2], "those before the ones it cannot be right about"


def test_a_page_border_at_the_claimed_end_is_enough_for_a_reader_that_ignores_it(monkeypatch):
    world = steady(monkeypatch, {"a": 10})
    end = world.plan()
    (task,) = world.planner.tasks(world.start, end)
    chain = ClaimChain(world.store, world.calls, task.unplanned.query, 0, task.slices[0])
    chain.propose(0, Claim(6))
    ignores = world.read(
        task.slices[0],
        task.unplanned,
        open_read=lambda part, bounds: FakeRead(world, part.slice(part.position, None), bounds),
    )
    assert ignores.run() == list(range(10))
    assert chain.seal() == Claim(10, last=True, caught_up=True)


def test_an_abandoned_attempt_stops_where_the_planner_sealed(monkeypatch):
    world = steady(monkeypatch, {"a": 10})
    end = world.plan()
    (late,) = world.attempt(end)
    while not late.rows:
        late.step()
    late.step()
    world.done(end)
    assert world.plan() is not None
    assert late.run() == [0, 1, 2], "what it held back never leaves"
    assert all_rows(world) == {"a": [3, 4, 5, 6, 7, 8, 9]}


def test_positions_that_do_not_go_forward_are_refused_at_the_first_chunk(monkeypatch):
    class Tokens(FakeRead):
        def poll(self):
            found = super().poll()
            return found and Delivered(found.split_id, found.batch, f"token{100 - found.position}")

    world = steady(monkeypatch, {"a": 10})
    (task,) = world.planner.tasks(world.start, world.plan())
    read = world.read(task.slices[0], task.unplanned, open_read=lambda *both: Tokens(world, *both))
    with pytest.raises(ContractError, match="which is not after it") as caught:
        read.run()
    assert caught.value.rule == "S14" and "(count of rows, token)" in str(caught.value.advice)


class Naive(ChunkReader):
    """A wrong reader: it delivers rows at once, and claims the end afterwards (trap 3)."""

    def _lead(self, leader):
        read, polled = leader.read.poll, []
        leader.read.poll = lambda: polled.append(read()) or polled[-1]
        super()._lead(leader)
        leader.read.poll = read
        return [one for one in polled if one is not None]

    def _follow(self, follower):
        super()._follow(follower)
        return ()


def test_claiming_after_reading_diverges(monkeypatch):
    for kind, diverges in ((ChunkReader, False), (Naive, True)):
        pieces = itertools.chain([3, 3, 3, 0], itertools.cycle([0, 3]))
        world = World(monkeypatch, lambda pieces=pieces: next(pieces), {"a": 20})
        (task,) = world.planner.tasks(world.start, world.plan())
        attempts = [world.read(task.slices[0], task.unplanned, kind=kind) for _ in range(2)]
        for one in (0, 0, 0, 1, 1, 1):  # two pieces in hand; the other one cuts behind its first
            attempts[one].step()
        rows = [one.run() for one in attempts]
        assert (rows[0] != rows[1]) is diverges
        assert (rows[0] != list(range(20))) is diverges


# ---- bounds


def test_rows_and_bytes_are_shared_over_the_splits(monkeypatch):
    world = steady(monkeypatch, {"a": 20, "b": 20, "c": 20}, max_rows_per_trigger=7)
    assert {key: len(rows) for key, rows in micro_batch(world).items()} == {"a": 3, "b": 2, "c": 2}
    found = all_rows(world)
    assert {key: len(rows) for key, rows in found.items()} == {"a": 17, "b": 18, "c": 18}
    few = steady(monkeypatch, {"a": 5, "b": 5, "c": 5}, max_rows_per_trigger=2)
    assert [set(micro_batch(few)) for _ in range(3)] == [{"a", "b"}, {"c", "a"}, {"b", "c"}]
    small = steady(monkeypatch, {"a": 10}, max_bytes_per_trigger=30)
    assert micro_batch(small) == {"a": [0, 1, 2]}


def test_once_knows_no_limit_also_where_it_is_read_again(monkeypatch):
    world = steady(monkeypatch, {"a": 10, "b": 7}, max_rows_per_trigger=4, max_files_per_trigger=1)
    end = json.loads(json.dumps(world.planner.latest(world.start, limited=False)))
    assert end["all"] is True
    assert {one.split.id: one.run() for one in world.attempt(end)} == {"a": list(range(10)), "b": list(range(7))}
    world.restart()
    assert {one.split.id: one.run() for one in world.attempt(end)} == {"a": list(range(10)), "b": list(range(7))}
    world.done(end)
    world.sizes["a"] = 20
    world.clock.advance(2.0)
    end = world.plan()
    assert "all" not in end
    assert {one.split.id: len(one.run()) for one in world.attempt(end)} == {"a": 3}, "whole pages, within the limit"


def test_a_source_of_large_pages_cannot_keep_a_limit_of_rows(monkeypatch):
    class Pages(FakeRead):
        """Yields at least four rows, packed up to the maximum."""

        def poll(self):
            self.most = max(self.most // 4, 1) * 4
            self.world._piece = lambda: self.most
            return super().poll()

    world = steady(monkeypatch, {"a": 40}, max_rows_per_trigger=6)
    (task,) = world.planner.tasks(world.start, world.plan())
    read = world.read(task.slices[0], task.unplanned, open_read=lambda *both: Pages(world, *both))
    assert read.run() == [0, 1, 2, 3], "whole pages, as many as there is room for"
    world = steady(monkeypatch, {"a": 40}, max_rows_per_trigger=3)
    (task,) = world.planner.tasks(world.start, world.plan())
    read = world.read(task.slices[0], task.unplanned, open_read=lambda *both: Pages(world, *both))
    with pytest.raises(ConfigurationError, match="yields 4 rows at once, and this split.s share is 3") as caught:
        read.run()
    assert caught.value.option == "maxRowsPerTrigger"


def test_an_endless_split_makes_no_endless_micro_batch(monkeypatch):
    world = steady(monkeypatch, {"a": 10**9}, max_batch_duration="10s")
    rows = micro_batch(world)["a"]
    assert 20 < len(rows) < 40
    assert micro_batch(world)["a"][0] == len(rows)


def test_a_micro_batch_waits_for_its_first_rows_longer_than_it_lasts(monkeypatch):
    waits = iter([0] * 30)
    world = World(monkeypatch, lambda: next(waits, 3), {"a": 6}, max_batch_duration="10s")
    assert micro_batch(world) == {"a": [0, 1, 2]}
    mute = World(monkeypatch, lambda: 0, {"a": 6}, max_batch_duration="10s", planning_timeout="30s")
    assert micro_batch(mute) == {"a": []}


def test_rows_per_trigger_at_least_cannot_be_kept(monkeypatch):
    world = steady(monkeypatch, {"a": 10}, min_rows_per_trigger=5)
    with pytest.raises(ConfigurationError) as caught:
        world.plan()
    assert caught.value.option == "minRowsPerTrigger"


# ---- the planner


def test_available_now_ends_at_the_first_time_it_is_caught_up(monkeypatch):
    world = steady(monkeypatch, {"a": 5, "b": 0})
    world.planner.prepare_available_now()
    assert micro_batch(world) == {"a": list(range(5))}
    world.sizes = {"a": 50, "b": 50, "new": 5}
    world.clock.advance(60)
    assert world.plan() is None, "both were caught up once, and a new split is left to the next run"
    world.restart()
    world.planner.prepare_available_now()
    assert set(micro_batch(world)) == {"a", "b", "new"}


def test_available_now_goes_on_while_it_is_not_caught_up_and_ends_where_nobody_reads(monkeypatch):
    world = steady(monkeypatch, {"a": 10}, max_rows_per_trigger=3)
    world.planner.prepare_available_now()
    assert [len(micro_batch(world)["a"]) for _ in range(4)] == [3, 3, 3, 1]
    assert world.plan() is None
    idle = steady(monkeypatch, {"a": 10})
    idle.planner.prepare_available_now()
    idle.done(idle.plan())
    assert idle.plan() is None
    idle.clock.advance(60)
    idle.restart()
    assert micro_batch(idle) == {"a": list(range(10))}


def test_where_nobody_reads_micro_batches_do_not_follow_at_once(monkeypatch):
    world = steady(monkeypatch, {"a": 10})
    world.done(world.plan())
    assert [world.plan() for _ in range(20)] == [None] * 20
    world.clock.advance(1.5)
    assert micro_batch(world) == {"a": list(range(10))}


def test_a_split_that_does_not_answer_holds_no_other_back_and_is_read_later(monkeypatch):
    world = steady(monkeypatch, {"a": 5, "b": 5})
    world.mute = {"b"}
    assert micro_batch(world) == {"a": list(range(5))}
    for _ in range(5):
        world.sizes["a"] += 1
        world.clock.advance(2.0)
        assert set(micro_batch(world)) == {"a"}
    (probe,) = world.planner._negotiated._probes
    probe.silent, probe.something = set(), {"b"}
    world.clock.advance(0.1)
    assert micro_batch(world) == {"b": list(range(5))}
    world.clock.advance(0.1)
    assert world.plan() is None, "an answer counts once"


def test_a_probe_that_fails_is_repeated_later_and_reported(monkeypatch, caplog):
    world = steady(monkeypatch, {"a": 5})
    assert micro_batch(world) == {"a": list(range(5))}
    world.sizes["a"], world.away = 7, True
    before = world.probes
    for _ in range(120):
        world.clock.advance(1.0)
        assert world.plan() is None
    told = world.planner.report()["discovery"]
    assert told["retried"] == world.probes - before and 10 <= told["retried"] <= 40
    assert told["error"]["text"].startswith("the feed is away") and not told["error"]["over"]
    assert "looking for new records failed" in caplog.text
    world.away = False
    world.clock.advance(60.0)
    assert micro_batch(world) == {"a": [5, 6]}
    assert world.planner.report()["discovery"]["error"]["over"]


def test_a_probe_that_fails_is_an_error_of_an_available_now_run(monkeypatch):
    world = steady(monkeypatch, {"a": 5})
    world.away = True
    world.planner.prepare_available_now()
    with pytest.raises(RetriableError):
        world.plan()


def test_limits_go_to_those_with_known_ends_and_to_the_others_by_turns(monkeypatch):
    world = steady(monkeypatch, {"a": 10, "known": 10}, max_files_per_trigger=5)
    known = {"known": 10}
    monkeypatch.setattr(type(world.source), "latest", lambda _, split: known.get(split.id))
    kinds = []
    for _ in range(2):
        end = world.plan()
        kinds.append({entry[0]: entry[1] for entry in end["splits"]})
        for one in world.planner.tasks(world.start, end):
            for split in one.slices:
                if split.end is None:
                    world.read(split, one.unplanned).run()
        world.done(end)
    assert kinds == [{"a": False, "known": None}, {"known": 10, "a": 10}]


def test_a_query_that_is_set_back_has_claims_of_its_own(monkeypatch):
    world = steady(monkeypatch, {"a": 4, "b": 0})
    assert micro_batch(world) == {"a": [0, 1, 2, 3]}
    world.sizes = {"a": 4, "b": 2}
    world.clock.advance(2)
    assert micro_batch(world) == {"b": [0, 1]}
    world.sizes = {"a": 6, "b": 2}
    world.clock.advance(2)
    assert micro_batch(world) == {"a": [4, 5]}
    world.log = world.log[:1]
    world.restart()
    assert micro_batch(world) == {"a": [4, 5], "b": [0, 1]}, "not the parts of before, but every row once"
    assert all_rows(world) == {}


def test_without_a_place_for_claims_it_is_refused_at_once_and_in_a_replay(monkeypatch):
    world = steady(monkeypatch, {"a": 4})
    end = world.plan()
    monkeypatch.setattr(negotiated_splits, "state_store", lambda _: None)
    world.options = HostOptions()
    world.restart()
    for call in (lambda: world.planner.latest(world.start), lambda: world.planner.tasks(world.start, end)):
        with pytest.raises(ConfigurationError, match="unknown") as caught:
            call()
        assert caught.value.option == "stateLocation" and caught.value.split == "a"


def test_claims_that_are_not_there_are_missed_before_rows_come_twice(monkeypatch):
    world = steady(monkeypatch, {"a": 4})
    micro_batch(world)
    world.store.facts = {}
    world.restart()
    with pytest.raises(ConfigurationError, match="files of micro-batch . are not below memory"):
        world.planner.latest(world.start)
    with pytest.raises(ConfigurationError, match="files of micro-batch . are not below memory"):
        world.planner.tasks(world.planner.initial(), world.start)


def test_an_old_copy_of_the_claims_is_missed_before_rows_come_twice(monkeypatch):
    world = steady(monkeypatch, {"a": 4})
    micro_batch(world)
    old = dict(world.store.facts)
    world.sizes["a"] = 8
    world.clock.advance(60.0)
    micro_batch(world)
    world.store.facts = old
    world.restart()
    with pytest.raises(ConfigurationError, match="files of micro-batch 1 are not below"):
        world.planner.latest(world.start)


def test_a_damaged_claim_is_an_error(monkeypatch):
    world = steady(monkeypatch, {"a": 4})
    micro_batch(world)
    world.store.facts = {name: b"{}" if "/0/" in name else data for name, data in world.store.facts.items()}
    with pytest.raises(ConfigurationError, match="is damaged") as caught:
        world.plan()
    assert caught.value.option == "stateLocation" and caught.value.split == "a"


@quiet
@given(st.data())
def test_two_queries_on_copies_of_one_checkpoint_do_each_other_no_harm(monkeypatch, data):
    """With one `stateLocation`: they share negotiated ends, and each reads every row once, in order."""
    with monkeypatch.context() as patch:
        first = world_of(patch, data, {"a": 4, "b": 2}, max_rows_per_trigger=data.draw(st.sampled_from([None, 3])))
        begun = all_rows(first)
        assert begun == {"a": [0, 1, 2, 3], "b": [0, 1]}
        second = world_of(patch, data, {})
        second.options, second.sizes, second.store, second.log = first.options, first.sizes, first.store, [*first.log]
        second.restart()
        found = [{"a": [], "b": []}, {"a": [], "b": []}]
        for _ in range(data.draw(st.integers(1, 5), label="rounds")):
            first.sizes[data.draw(st.sampled_from("ab"), label="grows")] += data.draw(st.integers(0, 6), label="by")
            worlds = [first, second][:: data.draw(st.sampled_from([1, -1]), label="who plans first")]
            worlds = worlds[: data.draw(st.integers(1, 2), label="how many go on")]
            for world in worlds:
                world.clock.advance(2.0)
            ends = [world.plan() for world in worlds]
            attempts = [[] if end is None else world.attempt(end) for world, end in zip(worlds, ends, strict=True)]
            waiting = [one for of_one in attempts for one in of_one]
            while waiting:
                one = data.draw(st.sampled_from(waiting), label="step")
                one.step()
                waiting = [each for each in waiting if not each.done]
            for world, end, of_one in zip(worlds, ends, attempts, strict=True):
                for one in of_one:
                    found[world is second][one.split.id] += one.rows
                if end is not None:
                    world.done(end)
        for world, rows in zip((first, second), found, strict=True):
            rest = all_rows(world)
            for name, size in first.sizes.items():
                assert rows[name] + rest.get(name, []) == list(range(len(begun[name]), size))


def test_old_claims_are_deleted_and_those_of_the_last_200_kept(monkeypatch):
    world = steady(monkeypatch, {"a": 0})
    for _ in range(203):
        world.sizes["a"] += 1
        world.clock.advance(2)
        assert micro_batch(world)
        world.planner.commit(world.start)
    kept = {int(name.split("/")[2]) for name in world.store.facts if name.count("/") == 3}
    assert kept == set(range(3, 203))


def test_a_query_whose_ends_are_known_is_not_searched_for_claims(monkeypatch, caplog):
    world = steady(monkeypatch, {"a": 4})
    monkeypatch.setattr(type(world.source), "latest", lambda _, split: 4)
    end = world.plan()
    monkeypatch.setattr(world.store, "names", None)
    world.planner.commit({**end, "n": 500})
    assert not caplog.records


@given(st.integers(0, 70), st.integers(0, 70))
def test_the_newest_claim_is_found_in_a_chain_of_any_length(length, after):
    store = Memory()
    chain = ClaimChain(
        store, ConnectorCalls("x", InlineRuntime(), retry=RetryPolicy(retries=0), timeout=1.0), "q", 0, Split("a/../b")
    )
    for k in range(length):
        chain.propose(k, Claim(k))
    found = chain.newest(after - 1)
    assert found == ((length - 1, Claim(length - 1)) if length > after else None)
    assert chain.seal() == Claim(length - 1 if length else None, last=True) == chain.seal()
    assert len(store.facts) == length + 1


def test_names_of_claims_tell_splits_apart_that_look_alike():
    store = Memory()
    calls = ConnectorCalls("x", InlineRuntime(), retry=RetryPolicy(retries=0), timeout=1.0)
    ids = ["a", "A", "a/b", "a.b", "..", "x" * 300, "x" * 301, "ü"]
    for split in [Split(name, position) for name in ids for position in (None, 1, "1", (1,))]:
        assert ClaimChain(store, calls, "q", 0, split).propose(0, Claim(7)) == Claim(7)
    names = {name.rpartition("/")[2].lower() for name in store.facts}
    assert len(names) == 4 * len(ids)
    assert all(len(name.encode()) < 200 and not name.startswith(".") for name in names)
    assert {name.rpartition("/")[0] for name in store.facts} == {"q/claims/0"}


# ---- with threads


class Feed(SimpleSource):
    """A feed with cursors, as in docs/writing-a-source.md."""

    bounded = False
    extra_keys = True  # the cursor
    entries: ClassVar[list[dict[str, object]]] = []
    blocked: ClassVar[threading.Event] = threading.Event()

    def schema(self):
        return N

    def splits(self):
        return ["feed", "blocked"]

    def get(self, after):
        at = next((index + 1 for index, entry in enumerate(self.entries) if entry["cursor"] == after), 0)
        return self.entries[at : at + 5]

    def read(self, split):
        if split.id == "blocked":
            self.blocked.wait()
            return
        count, cursor = split.position or (0, "")
        while page := self.get(after=cursor):
            if split.end is not None:
                page = page[: split.end[0] - count]
            count, cursor = count + len(page), page[-1]["cursor"]
            yield Batch(page, (count, cursor))
            if (count, cursor) == split.end:
                return


@pytest.fixture
def feed(monkeypatch):
    monkeypatch.setattr(Feed, "entries", [{"n": n, "cursor": f"c{n * 37 % 101}"} for n in range(7)])
    monkeypatch.setattr(Feed, "blocked", threading.Event())
    yield Feed
    Feed.blocked.set()
    for thread in threading.enumerate():
        if thread.name.startswith("forebay-feed"):
            thread.join(10)
            assert not thread.is_alive(), thread.name


def grow(feed, count):
    feed.entries.extend({"n": n, "cursor": f"c{n * 37 % 101}"} for n in range(len(feed.entries), count))


def begin(directory):
    """Write the mark that a planner writes before the first task of the query q."""
    assert open_state_store(str(directory)).put_if_absent(begun_of("q", 0), b"feed")


def test_a_retry_of_a_feed_with_cursors_stops_inside_a_page_that_has_grown(feed, tmp_path):
    begin(tmp_path)
    options = HostOptions(state_location=str(tmp_path))
    task = ReadTask(feed(), (Split("feed"),), options, unplanned=Negotiation("q", 0, {"feed": BatchLimits()}))
    first = [n for one in run_task(task) for n in one.batch.column(0).to_pylist()]
    grow(feed, 23)
    again = [n for one in run_task(pickle.loads(pickle.dumps(task))) for n in one.batch.column(0).to_pylist()]
    assert first == again == list(range(7))
    chain = ClaimChain(
        open_state_store(str(tmp_path)),
        ConnectorCalls("x", ThreadRuntime(), retry=RetryPolicy(retries=0), timeout=9.0),
        "q",
        0,
        Split("feed"),
    )
    assert chain.seal() == Claim((7, "c20"), last=True, caught_up=True)


def test_a_task_that_is_left_early_claims_no_further_and_ends_its_threads(feed, tmp_path):
    begin(tmp_path)
    grow(feed, 100)
    options = HostOptions(state_location=str(tmp_path), max_bytes_per_trigger=80)
    task = ReadTask(
        feed(), (Split("feed"),), options, unplanned=Negotiation("q", 0, {"feed": BatchLimits(byte_budget=80)})
    )
    running = run_task(task)
    assert next(running).batch.num_rows == 20
    running.close()
    assert [one.batch.num_rows for one in run_task(task)] == [20]


def test_a_task_with_another_directory_than_the_planner_is_refused_before_a_row_leaves(feed, tmp_path, monkeypatch):
    """A directory of one machine, or one below the working directory: the planner would see no claim, and go on from
    where it was, for ever."""
    for name in ("driver", "worker"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "driver")
    planner = open_stream(feed(), HostOptions(state_location="state"), parallelism=1)
    start = planner.initial()
    tasks = planner.tasks(start, planner.latest(start))
    monkeypatch.chdir(tmp_path / "worker")
    for task in tasks:
        with pytest.raises(ConfigurationError, match="this task does not find the planner.s files") as caught:
            next(run_task(task))
        assert caught.value.option == "stateLocation"
    feed.blocked.set()
    planner.close()


def test_a_blocked_split_is_probed_while_the_others_are_read(feed, tmp_path):
    planner = open_stream(feed(), HostOptions(state_location=str(tmp_path), poll_interval="10ms"), parallelism=1)
    start: Mapping[str, Json] = planner.initial()
    found = []
    for size in (7, 12):
        grow(feed, size)
        while (end := planner.latest(start)) == start:
            time.sleep(0.01)  # Spark asks again too
        found += [sum(one.batch.num_rows for task in planner.tasks(start, end) for one in run_task(task))]
        start = end
    assert found == [7, 5]
    asking = [
        thread.name for thread in threading.enumerate() if thread.name.startswith("forebay-feed-generator-blocked")
    ]
    assert len(asking) == 1, "it was asked once, and still is"
    feed.blocked.set()
    planner.close()
