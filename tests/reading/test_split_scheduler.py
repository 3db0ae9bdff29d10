# SPDX-License-Identifier: Apache-2.0
"""Splits take turns: the longest wait goes first, delayed and paused splits wait, each at no cost to the others."""

from __future__ import annotations

import itertools
import random
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest
from forebay_simulator import SimulatedRuntime

import forebay
from forebay.framework.reading.generator_reader import GeneratorSplitReader, SplitScheduler
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.simple import SimpleSource
from forebay.framework.split import Split
from forebay.testkit.scripted import RecordingContext


def taken(scheduler: SplitScheduler, now: float = 0.0) -> list[str]:
    found = []
    while (split := scheduler.take(now)) is not None:
        found.append(split.id)
    return found


def test_splits_go_in_the_order_they_came_and_resting_ones_when_they_are_due() -> None:
    scheduler = SplitScheduler()
    scheduler.add(Split("late"), until=7.0)
    scheduler.add(Split("soon"), until=5.0)
    scheduler.add(Split("a"))
    scheduler.add(Split("b"))
    assert scheduler.next_due() == 5.0
    assert taken(scheduler, 4.9) == ["a", "b"]
    assert taken(scheduler, 5.0) == ["soon"]
    assert taken(scheduler, 9.0) == ["late"]
    assert scheduler.next_due() is None


def test_a_paused_split_waits_and_goes_on_when_it_is_resumed() -> None:
    scheduler = SplitScheduler()
    for split_id in ("a", "b"):
        scheduler.add(Split(split_id))
    scheduler.add(Split("c"), until=1.0)
    scheduler.pause(["a", "c"], [])
    assert taken(scheduler, 2.0) == ["b"]
    scheduler.pause([], ["a", "nobody"])
    assert taken(scheduler, 2.0) == ["a"]
    scheduler.pause([], ["c"])
    assert taken(scheduler, 2.0) == ["c"]


def test_a_split_that_comes_again_replaces_the_one_that_is_here() -> None:
    scheduler = SplitScheduler()
    scheduler.add(Split("a", 1), until=5.0)
    scheduler.add(Split("b", 1))
    scheduler.add(Split("a", 2))
    scheduler.add(Split("b", 2))
    assert [scheduler.take(9.0), scheduler.take(9.0), scheduler.take(9.0)] == [Split("a", 2), Split("b", 2), None]


class Quiet(SimpleSource):
    """Nothing to read."""

    bounded: bool = False  # type: ignore[assignment]  # an option here

    def schema(self) -> pa.Schema:
        return pa.schema({"n": pa.int64()})

    def read(self, split: Split) -> list[Any]:
        return []


def run_until_idle(runtime: SimulatedRuntime) -> None:
    while runtime.step():
        pass


def reading(splits: int, *, bounded: bool) -> tuple[GeneratorSplitReader, SimulatedRuntime]:
    runtime = SimulatedRuntime(random.Random(1))
    reader = GeneratorSplitReader(Quiet(bounded=bounded), RecordingContext(runtime))
    reader.add_splits([Split(f"s{number}") for number in range(splits)])
    return reader, runtime


def lines_of_a_start(splits: int, *, resting: bool) -> int:
    """Count the lines of code of one start of workers, with this many ready or delayed splits."""
    reader, runtime = reading(splits, bounded=False)
    for _ in range(splits if resting else 1):
        reader._start_workers()
        run_until_idle(runtime)
        reader._collect()
    count = 0

    def trace(frame: FrameType, event: str, _arg: object) -> Any:
        nonlocal count
        count += event == "line" and "forebay/framework/reading" in frame.f_code.co_filename
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        reader._next_event_in()
        reader._start_workers()
    finally:
        sys.settrace(before)
    reader.close()
    return count


def test_a_start_costs_the_same_however_many_splits_wait_or_rest() -> None:
    for resting in (False, True):
        assert lines_of_a_start(400, resting=resting) <= lines_of_a_start(40, resting=resting)


def test_a_pause_ends_with_its_split_so_that_a_later_one_of_the_same_id_is_read() -> None:
    reader, runtime = reading(1, bounded=True)
    reader.fetch()
    run_until_idle(runtime)
    reader.pause_or_resume_splits(["s0"], [])
    assert reader._collect() == []
    reader.pause_or_resume_splits([], ["s0"])
    reader._scheduler.paused.add("s0")
    ended = reader._end_of_run(next(iter(reader._workers.values()))[0])
    assert ended.finished
    assert reader._scheduler.paused == set()


RELEASED = threading.Event()


class Tailing(SimpleSource):
    """Never caught up; the splits `b…` give one record and block then."""

    name = "tailing"
    bounded = False
    names: list[str]

    def schema(self) -> pa.Schema:
        return pa.schema({"n": pa.int64()})

    def splits(self) -> list[str]:
        return list(self.names)

    def read(self, split: Split) -> Iterator[dict[str, int]]:
        for n in itertools.count(split.position or 0):
            yield {"n": n}
            RELEASED.wait(None if split.id.startswith("b") else 0.002)


@pytest.mark.parametrize("kind", ["a", "b"], ids=["tailing", "blocked"])
def test_splits_that_are_never_caught_up_take_turns_too(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Otherwise eight splits would block the ninth for ever. No record is lost or repeated."""
    monkeypatch.setattr("forebay.framework.reading.generator_reader._TURN", 0.05)
    RELEASED.clear()
    names = [f"{kind}{number}" for number in range(20)]
    options = HostOptions(max_rows_per_batch=7, max_batch_delay="20ms")
    rows: dict[str, list[int]] = {}
    reading = forebay.run(Tailing(names=names), options=options)
    for batch in reading:
        assert reading.delivered is not None
        rows.setdefault(reading.delivered[0], []).extend(batch.column(0).to_pylist())
        if len(rows) == 20 and (kind == "b" or min(map(len, rows.values())) > 20):
            break
    RELEASED.set()
    reading.close()
    assert rows == {name: list(range(len(rows[name]))) for name in names}
