# SPDX-License-Identifier: Apache-2.0
"""Bugs that simulations found, each reduced to a few calls."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from forebay_simulator import SimulatedRuntime

from forebay.errors import FatalError, RetriableError
from forebay.framework.reader import InputStatus
from forebay.framework.reading.generator_reader import GeneratorSplitReader
from forebay.framework.reading.source_reader import SourceReaderBase
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.simple import SimpleSource
from forebay.framework.split import Split
from forebay.testkit.scripted import Counting, CountingSplitReader, RecordingContext, RecordingOutput


@pytest.fixture
def runtime():
    return SimulatedRuntime(random.Random(1))


def run_until_idle(runtime):
    """Step all workers that are ready."""
    for _ in range(1000):
        if not runtime.step():
            return
    raise AssertionError("somebody steps for ever")


class Refusing(CountingSplitReader):
    """Leaves pausing to the framework, and cannot take the split `bad`."""

    def __init__(self):
        super().__init__(can_pause=False)

    def add_splits(self, splits):
        if any(split.id == "bad" for split in splits):
            raise ValueError("not this one")
        super().add_splits(splits)


class Held(Counting):
    name = "held"

    def create_split_reader(self, context):
        return Refusing()


@pytest.fixture
def full(runtime):
    """A reader whose buffer is full of a paused split, while a hand-over waits; and its output."""
    options = HostOptions(queue_bytes=1, queue_batches=1)
    reader = SourceReaderBase(Held(sizes={}), RecordingContext(runtime, options), options)
    output = RecordingOutput()
    reader.add_splits([Split("a", 0, 100)])
    reader.pause_or_resume_splits(["a"], [])
    for _ in range(3):
        run_until_idle(runtime)
        reader.poll_next(output)
    run_until_idle(runtime)
    assert reader._held_bytes > 1 and not reader._queue.is_empty()
    return reader, output


def test_rdr3_a_reader_with_a_full_gate_waits_for_a_resumption_instead_of_spinning(runtime, full):
    reader, output = full
    assert reader.poll_next(output) is InputStatus.NOTHING_AVAILABLE
    waited = reader.is_available()
    assert not waited.done()
    reader.pause_or_resume_splits([], ["a"])
    assert waited.done() and reader.is_available().done()
    reader.poll_next(output)
    assert output.rows("a") == list(range(10))


def test_rdr3_a_full_gate_does_not_hide_an_error(runtime, full):
    reader, output = full
    assert reader.poll_next(output) is InputStatus.NOTHING_AVAILABLE
    waited = reader.is_available()
    reader.add_splits([Split("bad", 0, 1)])
    run_until_idle(runtime)
    assert waited.done()
    with pytest.raises(FatalError, match="not this one"):
        reader.poll_next(output)


class Two(SimpleSource):
    """Unbounded; `bad` raises before its first row, `good` has three rows so far."""

    bounded = False

    def schema(self):
        return pa.schema([pa.field("n", pa.int64())])

    def read(self, split):
        if split.id == "bad":
            raise RetriableError("not now")
        for n in range(split.position or 0, 3):
            yield {"n": n}


def test_rows_packed_for_one_split_survive_the_failure_of_another(runtime):
    reader = GeneratorSplitReader(Two(), RecordingContext(runtime))
    reader.add_splits([Split("good", 0), Split("bad", 0)])
    reader.fetch()
    run_until_idle(runtime)
    fetched = reader.fetch()
    assert [part.batch.column(0).to_pylist() for part in fetched if part.batch is not None] == [[0, 1, 2]]
    with pytest.raises(RetriableError, match="not now"):
        reader.fetch()
    reader.fetch()  # the split starts again
    run_until_idle(runtime)
    with pytest.raises(RetriableError, match="not now"):
        reader.fetch()


@pytest.mark.parametrize(("end", "finished"), [(3, True), (5, False), (None, False)])
def test_a_split_of_an_unbounded_simple_source_is_finished_at_its_end_and_not_before(runtime, end, finished):
    reader = GeneratorSplitReader(Two(), RecordingContext(runtime))
    reader.add_splits([Split("good", 0, end)])
    reader.fetch()
    run_until_idle(runtime)
    last = reader.fetch()[-1]
    assert (last.position, last.finished, last.caught_up) == (3, finished, not finished)
