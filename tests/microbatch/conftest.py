# SPDX-License-Identifier: Apache-2.0
"""A source whose splits, ends and failures a test controls, and a driver that plans it as Spark does."""

from __future__ import annotations

import json
from typing import ClassVar

import pyarrow as pa
import pytest
from forebay_simulator.event_log import Timed
from forebay_simulator.inline import InlineRuntime
from manual_clock import ManualClock

from forebay.errors import RetriableError
from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.microbatch.stream_planner import open_stream
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.source import Source
from forebay.options import Secret, option

N = pa.schema({"n": pa.int64()})


class Outside:
    """The state of the source: its splits and ends, the calls it got, and the failures to raise."""

    def __init__(self, splits=(), ends=None):
        self.splits, self.ends = list(splits), dict(ends or {})
        self.calls = []
        self.fail = {}
        self.drop = False
        self.horizon = None
        self.state = None
        self.takes = 0.0
        self.clock = ManualClock()

    def called(self, what, *arguments):
        self.calls.append((what, *arguments))
        self.clock.advance(self.takes)
        left = self.fail.get(what, 0)
        if left:
            self.fail[what] = left - 1
            raise RetriableError(f"{what} is not there")

    def count(self, what):
        return sum(call[0] == what for call in self.calls)

    def reported(self, what):
        return [call[1] for call in self.calls if call[0] == what]


class Enumerator(DiscoveryEnumerator):
    """One position is one row of ten bytes."""

    exact_ends = True

    def __init__(self, outside, in_order):
        self.outside, self.in_order = outside, in_order

    def discover(self, known, first):
        self.outside.called("discover", sorted(known), first)
        return Discovered(list(self.outside.splits), self.outside.horizon, self.outside.state)

    def restore_state(self, state):
        self.outside.called("restore_state", state)

    def latest(self, splits):
        self.outside.called("latest", [split.id for split in splits])
        return dict(self.outside.ends)

    def size(self, split):
        return None if not isinstance(split.end, int) else 10 * (split.end - (split.position or 0))

    def advance(self, split, *, rows=None, byte_budget=None):
        if not isinstance(split.end, int):
            return None
        return min((split.position or 0) + (rows if rows is not None else byte_budget // 10), split.end)

    def vanished(self, splits):
        self.outside.called("vanished", [split.id for split in splits])
        return self.outside.drop

    def finished(self, splits):
        self.outside.called("finished", sorted(split.id for split in splits))

    def committed(self, positions):
        self.outside.called("committed", dict(positions))

    def close(self):
        self.outside.called("close")


class Given(Source):
    """Unbounded."""

    name = "given"
    bounded = False
    in_order: ClassVar[bool] = False
    outside: ClassVar[Outside]
    topic: str = option("t", may_change=False)
    pause: int = 1
    token: Secret | None = option(None, may_change=False)

    def schema(self):
        return N

    def create_enumerator(self, context):
        return Enumerator(self.outside, self.in_order)

    def create_split_reader(self, context):
        raise NotImplementedError


class Bounded(Given):
    """The same, bounded."""

    name = "given"
    bounded = True


def through(data):
    """Return what comes back from Spark's log."""
    return json.loads(json.dumps(data))


class Query:
    """Plans micro-batches as Spark does; its log survives `restart`.

    Args:
        outside: What there is.
        kind: The class of the source.
        source: Its options.
        options: Those of the host.
    """

    bounded = Bounded

    def __init__(self, outside, kind=Given, source=None, inferred=None, **options):
        self.outside, self.inferred = outside, inferred
        self.source = type("Mine", (kind,), {"outside": outside, "name": "given"})(**(source or {}))
        self.options = HostOptions(**options)
        self.log = []
        self.restart()

    def restart(self, **changed):
        self.planner = open_stream(
            self.source,
            HostOptions(**changed) if changed else self.options,
            parallelism=2,
            inferred=self.inferred,
            runtime=InlineRuntime(self.outside.clock),
        )
        self.start = self.log[-1] if self.log else through(self.planner.initial())

    def latest(self, **how):
        return through(self.planner.latest(self.start, **how))

    def turn(self, **how):
        """Return the slices of the next micro-batch, by id; None if there is none."""
        found = self.latest(**how)
        if found == self.start:
            return None
        earlier, self.start = self.start, found
        self.log.append(found)
        return self.read(earlier, found)

    def read(self, start, end):
        slices = [one for task in self.planner.tasks(start, end) for one in task.slices]
        return {one.id: (one.position, one.end) for one in slices}

    def turns(self, most=50, **how):
        found = []
        while len(found) < most and (turn := self.turn(**how)) is not None:
            found.append(turn)
        return found

    def wait(self, seconds=60.0):
        self.outside.clock.advance(seconds)


@pytest.fixture
def outside():
    """Return the class of the source's state."""
    return Outside


@pytest.fixture
def query():
    """Return the class of the driver."""
    return Query


@pytest.fixture
def aligned(query):
    """Return a function that starts a query over a log."""

    def start(log, **options):
        return query(log, Timed, **{"alignment_max_drift": "10s", "retries": 0, **options})

    return start
