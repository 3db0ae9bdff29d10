# SPDX-License-Identifier: Apache-2.0
"""Ends that attempts agree on: whatever is interleaved or killed, each row is in one micro-batch, once, in order."""

from __future__ import annotations

import itertools
import json
from concurrent.futures import Future
from typing import ClassVar

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay.clock import ManualClock
from forebay.framework.host_options import HostOptions
from forebay.framework.microbatch import agreed, opening
from forebay.framework.microbatch.calls import Calls
from forebay.framework.microbatch.chunks import AgreedRead
from forebay.framework.microbatch.claims import Chain
from forebay.framework.microbatch.opening import open_stream
from forebay.framework.microbatch.task_context import Delivered
from forebay.framework.simple import SimpleSource
from forebay.framework.split import Split
from forebay.testkit.simulator.inline import InlineRuntime

N = pa.schema({"n": pa.int64()})


class Killed(BaseException):
    """The process that called is gone."""


class Memory:
    """A store in memory that can kill whoever calls, before or after the call did its work."""

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
    """Splits that grow; only their readers find out how far they go."""

    bounded = False
    world: ClassVar[World]

    def schema(self):
        return N

    def splits(self):
        return list(self.world.sizes)

    def read(self, split):
        raise NotImplementedError  # the attempts of these tests have readers of their own


class FakeRead:
    """Reads rows of one split in pieces whose borders the test decides: they differ from read to read."""

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
    """Knows at once."""

    def __init__(self, world, splits):
        world.probes += 1
        self.silent = {one.id for one in splits if one.id in world.mute}
        known = [one for one in splits if one.id not in self.silent]
        self.something = {one.id for one in known if world.sizes[one.id] > (one.position or 0)}
        self.nothing = {one.id for one in known} - self.something

    def look(self, patience=0.0, grace=0.0):
        pass

    def answers(self):
        told, self.something, self.nothing = (self.something, self.nothing), set(), set()
        return told

    def close(self):
        pass


class World:
    """The source, the store, the time, and how pieces are cut.

    Args:
        monkeypatch: Puts the store and the look at what is new in place.
        piece: Gives the rows of the next piece; 0 for nothing yet, with a second gone by.
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
        self.calls = Calls("growing", self.runtime, retries=0, timeout=60.0)
        self.probes = 0
        self.mute = set()
        monkeypatch.setattr(agreed, "state_store", lambda _: self.store)
        monkeypatch.setattr(opening, "state_store", lambda _: self.store)
        monkeypatch.setattr(agreed, "Probe", lambda _, splits, *__: FakeProbe(self, splits))
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
        """Return the next offset, through Spark's log; None if there is nothing new."""
        found = json.loads(json.dumps(self.planner.latest(self.start)))
        return None if found == self.start else found

    def attempt(self, end):
        """Return the reads of a new attempt to read a micro-batch."""
        return [self.read(one, task.claiming) for task in self.planner.tasks(self.start, end) for one in task.slices]

    def read(self, split, claiming, **options):
        chain = Chain(self.store, self.calls, claiming.query, claiming.n, split)
        read = AgreedRead(
            self.source,
            split,
            chain=chain,
            share=claiming.shares[split.id],
            options=HostOptions(**options) if options else self.options,
            open_read=lambda part, bounds: FakeRead(self, part, bounds),
            clock=self.clock,
        )
        read.start(self.options.max_batch_duration.total_seconds())
        return Attempt(split, read)

    def done(self, end):
        """Spark has written the commit of a micro-batch."""
        self.log.append(end)
        self.start = end


class Attempt:
    """One attempt to read one split of a micro-batch, and the rows that left it."""

    def __init__(self, split: Split, read: AgreedRead):
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
    """Pieces of one size, each a chunk of its own: a second passes between them."""
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
    """Return the rows of micro-batch after micro-batch, until there is nothing new."""
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
    looks = world.probes
    assert [world.plan() for _ in range(50)] == [None] * 50
    assert world.probes == looks, "a caught-up split rests for pollInterval"
    world.clock.advance(1.5)
    assert world.plan() is None
    assert world.probes == looks + 1
    world.sizes = {"a": 10, "b": 4}
    world.clock.advance(1.5)
    assert micro_batch(world) == {"b": [0, 1, 2, 3]}


@quiet
@given(st.data())
def test_attempts_in_any_order_deliver_the_same_rows(monkeypatch, data):
    with monkeypatch.context() as patch:
        world = world_of(patch, data, {"a": data.draw(st.integers(1, 20))})
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
                    check_positions(world, least, exactly=True)
            world.sizes["a"] += data.draw(st.integers(0, 3), label="grows")
            world.clock.advance(2.0)
            if data.draw(st.booleans(), label="restart"):
                world.restart()
        planned(world, data)
        begins = {one.id: one.position or 0 for one in world.planner._open.values()}
        rest = all_rows(world)
        for split_id, begin in begins.items():
            assert rest.get(split_id, []) == list(range(begin, world.sizes[split_id]))


def check_positions(world, least, *, exactly):
    """Where the planner stands: right behind what came out, or further only where a reader left early."""
    for one in world.planner._open.values():
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
    """Read a micro-batch with attempts that die; return whether all of it came out, and what came."""
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
