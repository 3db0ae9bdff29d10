# SPDX-License-Identifier: Apache-2.0
"""One task reads its slices to their ends, and frees its threads and clients."""

from __future__ import annotations

import dataclasses
import pickle
import threading
from concurrent.futures import Future

import pyarrow as pa
import pytest

from forebay.errors import ConfigurationError, ContractError, FatalError
from forebay.framework.arrow.row_packer import Batch
from forebay.framework.enumerator import SourceEvent
from forebay.framework.reader import InputStatus, SourceReader
from forebay.framework.runtime.clients import LeasePool
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.simple import SimpleSource
from forebay.framework.split import Split
from forebay.framework.split_reader import Fetched, SplitReader
from forebay.framework.tasks.read_task import ReadTask, run_task

SCHEMA = pa.schema({"split": pa.string(), "n": pa.int64()})


class Log(SimpleSource):
    """Ten rows in every split, positions are row numbers."""

    def schema(self):
        return SCHEMA

    def read(self, split):
        stop = 10 if split.end is None else split.end
        for n in range(split.position or 0, stop):
            yield Batch([{"split": split.id, "n": n}], n + 1)


def task(source, *splits, **options):
    options = {"close_timeout": "5s"} | options
    return ReadTask(source, tuple(splits), HostOptions(**options))


def rows(one, **options):
    return [(row["split"], row["n"]) for delivered in run_task(one, **options) for row in delivered.batch.to_pylist()]


@pytest.fixture(autouse=True)
def _no_thread_is_left_behind():
    before = set(threading.enumerate())
    yield
    for thread in threading.enumerate():
        if thread not in before:
            thread.join(10)
            assert not thread.is_alive(), thread.name


@pytest.fixture
def pool(monkeypatch):
    pool = LeasePool()
    monkeypatch.setattr("forebay.framework.runtime.clients.leases", pool)
    return pool


def test_every_split_is_read_to_its_end_and_then_the_task_ends():
    found = rows(task(Log(), Split("a"), Split("b", position=4), Split("c", position=2, end=5)))
    wanted = [("a", n) for n in range(10)] + [("b", n) for n in range(4, 10)] + [("c", n) for n in range(2, 5)]
    assert sorted(found) == wanted


def test_each_record_batch_comes_with_its_split_and_position():
    delivered = list(run_task(task(Log(), Split("a"), max_rows_per_batch=4)))
    assert {one.split_id for one in delivered} == {"a"}
    assert delivered[-1].position == 10
    assert [one.position for one in delivered][:2] == [4, 8]


def test_reading_again_gives_the_same_rows():
    one = task(Log(), Split("a"), Split("b", position=4))
    assert sorted(rows(one)) == sorted(rows(pickle.loads(pickle.dumps(one))))


def test_two_slices_of_one_split_are_read_one_after_the_other():
    assert rows(task(Log(), Split("a", position=0, end=3), Split("a", position=6, end=9))) == [
        ("a", n) for n in (0, 1, 2, 6, 7, 8)
    ]


def test_a_split_without_an_end_of_an_unbounded_source_is_read_until_it_is_caught_up():
    class Endless(Log):
        bounded = False

    assert sorted(rows(task(Endless(), Split("a"), Split("b", end=3)))) == [
        *(("a", n) for n in range(10)),
        *(("b", n) for n in range(3)),
    ]


def test_nothing_to_read_ends_at_once():
    assert rows(task(Log(), Split("a", position=10), Split("b", position=3, end=3))) == []


def test_a_task_planned_by_another_version_is_refused():
    with pytest.raises(ConfigurationError, match=r"planned by forebay 0\.0\.1") as caught:
        rows(dataclasses.replace(task(Log(), Split("a")), version="0.0.1"))
    assert "same version" in str(caught.value.advice)


def test_a_foreign_error_says_source_split_and_position():
    class Breaks(Log):
        def read(self, split):
            yield Batch([{"split": split.id, "n": 0}], 1)
            raise KeyError("page 2")

    with pytest.raises(FatalError, match="KeyError: 'page 2'") as caught:
        rows(task(Breaks(), Split("a")))
    assert (caught.value.source, caught.value.split, caught.value.position) == ("breaks", "a", "1")
    assert isinstance(caught.value.__cause__, KeyError)


def test_reading_goes_on_while_the_host_is_busy_with_a_batch():
    third = threading.Event()

    class Steady(Log):
        def read(self, split):
            for n in range(6):
                if n == 3:
                    third.set()
                yield pa.record_batch([["a"], [n]], schema=SCHEMA)

    reading = run_task(task(Steady(), Split("a"), max_rows_per_batch=1))
    first = next(reading)
    assert third.wait(30), "nothing was read ahead"
    assert [one.batch.column("n")[0].as_py() for one in (first, *reading)] == list(range(6))


def test_closing_early_frees_the_threads():
    class Long(Log):
        def read(self, split):
            for n in range(10_000_000):
                yield Batch([{"split": split.id, "n": n}], n + 1)

    reading = run_task(task(Long(), Split("a"), max_rows_per_batch=10))
    next(reading)
    assert any("forebay" in thread.name for thread in threading.enumerate())
    reading.close()


def test_closing_early_while_the_connector_blocks_is_bounded_and_an_error():
    release = threading.Event()

    class Stuck(SplitReader):
        fetches = 0

        def add_splits(self, splits):
            self.split = splits[0]

        def fetch(self):
            self.fetches += 1
            if self.fetches == 1:
                return [Fetched(self.split.id, pa.record_batch([["a"], [1]], schema=SCHEMA), 1)]
            release.wait(60)
            return []

        def wake_up(self):
            """Does nothing: this is the mistake."""

    class Blocks(Log):
        def create_split_reader(self, context):
            return Stuck()

    reading = run_task(task(Blocks(), Split("a"), close_timeout="200ms"))
    next(reading)
    with pytest.raises(FatalError, match="abandoned") as caught:
        reading.close()
    release.set()
    assert (caught.value.source, caught.value.rule) == ("blocks", "RDR-9")


class Leasing(Log):
    """Leases a client; `made` and `closed` list its clients."""

    fails: bool = False

    def create_reader(self, context):
        client = context.lease("client", Client)
        return OneBatch(client, fails=self.fails)


class Client:
    made = 0

    def __init__(self):
        type(self).made += 1
        self.closed = False

    def close(self):
        self.closed = True


class OneBatch(SourceReader):
    """A reader of the source's own, without threads."""

    used: list[Client] = []  # noqa: RUF012

    def __init__(self, client, *, fails=False, emit=None):
        self.used.append(client)
        self.fails = fails
        self.emit = emit or [pa.record_batch([["a"], [1]], schema=SCHEMA)]

    def poll_next(self, output):
        if self.fails:
            raise OSError("broken pipe")
        for batch in self.emit:
            output.collect("a", batch, 1)
        self.emit = []
        return InputStatus.END_OF_INPUT

    def is_available(self):
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def add_splits(self, splits):
        self.splits = splits

    def notify_no_more_splits(self):
        self.no_more = True

    def snapshot_state(self, checkpoint_id):
        return []

    def pause_or_resume_splits(self, pause, resume):
        pass

    def close(self):
        self.closed = True


@pytest.mark.usefixtures("pool")
def test_a_client_is_lent_again_to_the_next_task():
    OneBatch.used.clear()
    for _ in range(2):
        assert rows(task(Leasing(), Split("a"))) == [("a", 1)]
    assert OneBatch.used[0] is OneBatch.used[1]
    assert not OneBatch.used[0].closed


@pytest.mark.usefixtures("pool")
def test_a_client_is_lent_to_one_task_at_a_time():
    OneBatch.used.clear()
    first = run_task(task(Leasing(), Split("a")))
    next(first)
    assert rows(task(Leasing(), Split("a"))) == [("a", 1)]
    assert list(first) == []
    assert OneBatch.used[0] is not OneBatch.used[1]


@pytest.mark.usefixtures("pool")
def test_a_client_is_closed_and_thrown_away_after_an_error():
    OneBatch.used.clear()
    with pytest.raises(FatalError, match="OSError: broken pipe"):
        rows(task(Leasing(fails=True), Split("a")))
    assert OneBatch.used[0].closed
    rows(task(Leasing(), Split("a")))
    assert OneBatch.used[1] is not OneBatch.used[0]


@pytest.mark.usefixtures("pool")
def test_a_client_is_kept_when_the_task_is_left_early():
    OneBatch.used.clear()
    first = run_task(task(Leasing(), Split("a")))
    next(first)
    first.close()
    rows(task(Leasing(), Split("a")))
    assert OneBatch.used[0] is OneBatch.used[1]


@pytest.mark.parametrize(
    ("emit", "what"),
    [
        ([[{"n": 1}]], "emitted a list in one"),
        ([pa.record_batch([["a"], [1]], schema=SCHEMA)] * 2, "two record batches"),
    ],
)
def test_a_reader_that_emits_something_else_is_refused(emit, what):
    class Emits(Log):
        def create_reader(self, context):
            return OneBatch(None, emit=emit)

    with pytest.raises(ContractError, match=what) as caught:
        rows(task(Emits(), Split("a")))
    assert (caught.value.split, caught.value.rule) == ("a", "RDR-2")


def test_a_source_event_is_refused_by_name():
    class Done(SourceEvent):
        pass

    class Sends(Log):
        def create_reader(self, context):
            context.send_split_request()
            context.send_source_event(Done())

    with pytest.raises(ConfigurationError, match="source event Done"):
        rows(task(Sends(), Split("a")))
