# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import itertools
from concurrent.futures import Future
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import forebay
from forebay.errors import (
    ConfigurationError,
    ContractError,
    DataError,
    DataLossError,
    FatalError,
    RetriableError,
)
from forebay.framework.enumerator import SourceEvent, SplitEnumerator
from forebay.framework.inprocess import run
from forebay.framework.inprocess.deliveries import DeliveryLog
from forebay.framework.inprocess.reader import MAX_RESTARTS, ReaderFailures, may_pass, may_restart
from forebay.framework.reader import InputStatus, SourceReader
from forebay.framework.reading.source_reader import SourceReaderBase
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.split import Split

QUICK = HostOptions(retries=0)


def failing(*times, error=RetriableError):
    """Fail at the n-th fetches of a world, counted over all readers."""
    observed = []

    def before_fetch(_split_id, _position):
        observed.append(1)
        if len(observed) in times:
            raise error(f"failure {len(observed)}")

    return before_fetch


@pytest.mark.parametrize("when", range(1, 9))
@pytest.mark.parametrize("error", [RetriableError, OSError, ValueError])
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_failed_reader_is_replaced_and_no_row_comes_twice(world, source, one_thread, kit, when, error, parallelism):
    """ENU-3: splits are returned at their delivered position, and read on."""
    world.before_fetch = failing(when, error=error)
    rows = kit.rows_of(run(source, parallelism=parallelism, options=QUICK, runtime=one_thread))
    assert sorted(rows) == world.everything()
    for split_id in world.sizes:
        numbers = [n for each, n in rows if each == split_id]
        assert numbers == sorted(numbers)


def test_an_unbounded_run_survives_a_failed_reader(world, source, one_thread, kit):
    world.bounded = False
    world.before_fetch = failing(3, 5)
    with run(source, parallelism=2, options=QUICK, runtime=one_thread) as reading:
        rows = []
        while len(rows) < 13:
            rows += kit.rows_of([next(reading)])
    assert sorted(rows) == world.everything()


def test_other_splits_go_on_after_the_reader_is_replaced(kit, one_thread):
    world = kit.World(a=30, b=30)
    world.before_fetch = failing(2)
    with run(kit.source_over(world), parallelism=2, options=QUICK, runtime=one_thread) as reading:
        rows = kit.rows_of(reading)
    assert sorted(rows) == world.everything() and world.journal.count("reader closed") == 4


def test_the_failed_reader_is_closed_and_its_replacement_waits_a_little(world, source, one_thread, caplog):
    world.before_fetch = failing(2)
    with run(source, options=QUICK, runtime=one_thread) as reading:
        next(reading)
        assert world.journal.count("reader closed") == 0
        before = one_thread.clock.monotonic()
        next(reading)
        assert world.journal.count("reader closed") == 1
        assert one_thread.clock.monotonic() - before >= 0.05
    assert "the reader failed" in caplog.text and "failure 2" in caplog.text


def test_too_many_failures_in_a_row_surface_with_place_and_advice(world, source, one_thread):
    """Bounded: the error names source, split and position."""

    def before_fetch(split_id, position):
        if position == 3:
            raise RetriableError("gone")

    world.before_fetch = before_fetch
    reading = run(source, options=QUICK, runtime=one_thread)
    next(reading)
    with pytest.raises(RetriableError) as caught:
        list(reading)
    error = caught.value
    assert (error.source, error.split, error.position) == ("worldly", "a", "3")
    assert any("replaced 3 times" in note for note in error.__notes__)
    assert world.journal.count("reader closed") == MAX_RESTARTS + 1


def test_progress_between_failures_makes_the_count_begin_again(kit, one_thread):
    world = kit.World(a=60)
    world.before_fetch = failing(*range(2, 40, 2))
    rows = kit.rows_of(run(kit.source_over(world), options=QUICK, runtime=one_thread))
    assert rows == world.everything()


@pytest.mark.parametrize("error", [ConfigurationError, ContractError, DataError, DataLossError, FatalError])
def test_errors_raised_on_purpose_are_final(world, source, one_thread, error):
    world.before_fetch = failing(2, error=error)
    reading = run(source, options=QUICK, runtime=one_thread)
    next(reading)
    with pytest.raises(error) as caught:
        next(reading)
    assert caught.value.source == "worldly" and caught.value.split == "a"
    assert world.journal.count("reader closed") == 1


def test_a_defect_of_the_connector_surfaces_as_a_fatal_error_with_its_cause(world, source, one_thread):
    world.before_fetch = failing(*range(1, 99), error=KeyError)
    with pytest.raises(FatalError, match="KeyError") as caught:
        next(run(source, options=QUICK, runtime=one_thread))
    assert isinstance(caught.value.__cause__, KeyError) and caught.value.source == "worldly"


def test_a_failing_creation_of_a_reader_fails_that_reader(world, source, one_thread, kit):
    """SRC-3: its replacement may succeed."""
    failures = [OSError("no socket")] * 2

    def make(_context):
        if failures:
            raise failures.pop()

    world.make_reader = make
    assert sorted(kit.rows_of(run(source, options=QUICK, runtime=one_thread))) == world.everything()
    failures.extend([OSError("no socket")] * 9)
    with pytest.raises(FatalError, match="no socket"):
        next(run(source, options=QUICK, runtime=one_thread))


def test_clients_on_loan_are_thrown_away_after_a_failure_and_kept_otherwise(world, source, one_thread):
    made, closed = [], []

    class Client:
        def __init__(self):
            made.append(self)

        def close(self):
            closed.append(self)

    def make(context):
        context.lease(("client", id(world)), Client)

    world.make_reader = make
    world.before_fetch = failing(2)
    list(run(source, options=QUICK, runtime=one_thread))
    assert len(made) == 2 and closed == made[:1]
    list(run(source, options=QUICK, runtime=one_thread))
    assert len(made) == 2


class Mistaken(SourceReader):
    """A custom reader whose behaviour the test defines."""

    context: Any

    def __init__(self, polls):
        self.polls = list(polls)
        self.splits = []
        self.done = Future()
        self.done.set_result(None)

    def poll_next(self, output):
        if not self.splits:
            return InputStatus.NOTHING_AVAILABLE
        return self.polls.pop(0)(output)

    def is_available(self):
        return Future() if not self.splits else self.done

    def start(self):
        self.context.send_split_request()

    def add_splits(self, splits):
        self.splits += splits

    def notify_no_more_splits(self):
        pass

    def snapshot_state(self, checkpoint_id):
        return self.splits

    def pause_or_resume_splits(self, pause, resume):
        pass

    def close(self):
        pass


def twice(batch):
    def poll(output):
        output.collect("a", batch, 3)
        output.collect("a", batch, 6)
        return InputStatus.MORE_AVAILABLE

    return poll


def emitting(split_id, what, position, status=InputStatus.MORE_AVAILABLE):
    def poll(output):
        output.collect(split_id, what, position)
        return status

    return poll


@pytest.mark.parametrize(
    ("rule", "poll"),
    [
        ("RDR-2", twice),
        ("RDR-2", lambda _batch: emitting("a", [1], 3)),
        ("RB-5", lambda batch: emitting("zzz", batch, 3)),
        ("RDR-4", lambda batch: emitting("a", batch, None)),
        ("SR-2", lambda _batch: emitting("a", pa.RecordBatch.from_pydict({"x": [1]}), 3)),
        ("RDR-6", lambda batch: emitting("a", batch, 3, InputStatus.END_OF_INPUT)),
    ],
)
def test_a_reader_that_breaks_the_contract_gets_an_error_with_the_rule(world, source, one_thread, rule, poll):
    def make(context):
        reader = Mistaken([poll(world.batch("a", 0, 3))])
        reader.context = context
        return reader

    world.make_reader = make
    with pytest.raises(ContractError) as caught:
        list(run(source, runtime=one_thread))
    assert caught.value.rule == rule and caught.value.source == "worldly" and caught.value.advice


def test_what_was_emitted_and_not_yielded_before_a_failure_is_read_again(world, source, one_thread, kit):
    """ENU-3: it was never delivered."""
    world.sizes = {"a": 3}
    made = []

    def make(context):
        if made:
            return None

        def poll(output):
            output.collect("a", world.batch("a", 0, 3), 3)
            output.split_released("a")
            raise OSError("after all")

        made.append(Mistaken([poll]))
        made[0].context = context
        return made[0]

    world.make_reader = make
    assert kit.rows_of(run(source, runtime=one_thread)) == world.everything()


# ---- the rules by themselves


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (RetriableError("x"), True),
        (OSError("x"), True),
        (ValueError("x"), True),
        (KeyboardInterrupt(), False),
        (DataError("x"), False),
        (FatalError("x"), False),
    ],
)
def test_which_failures_may_pass(error, passes):
    assert may_pass(error) is passes
    wrapped = FatalError("a fetcher failed")
    wrapped.__cause__ = error
    assert may_pass(wrapped) is passes


def failures_of(*split_ids, restarts=True):
    deliveries = DeliveryLog()
    deliveries.give([Split(split_id, 0) for split_id in split_ids])
    failures = ReaderFailures("s", QUICK, deliveries, restarts=restarts)

    def failed(error):
        failures.restart_pause(error, Random(0))

    return failures, failed


def test_failures_are_counted_for_the_split_that_is_named():
    failures, failed = failures_of("a", "b")
    for _ in range(3):
        failed(RetriableError("x", split="b"))
    with pytest.raises(FatalError):
        failed(OSError())
    failures.progressed("b")
    failed(OSError())
    failed(OSError())
    with pytest.raises(FatalError):
        failed(OSError())


def test_an_error_keeps_its_own_context():
    _, failed = failures_of("a", restarts=False)
    with pytest.raises(DataError) as caught:
        failed(DataError("x", split="b", position=4))
    assert (caught.value.source, caught.value.split, caught.value.position) == ("s", "b", "4")
    with pytest.raises(KeyboardInterrupt):
        failed(KeyboardInterrupt())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_readers_that_fail_at_any_moment_cost_no_row_and_double_none(kit, data):
    """ENU-3: exactly once without a crash of the consumer, whatever fails, order per split kept."""
    world = kit.World(**{f"s{n}": data.draw(st.integers(0, 12)) for n in range(data.draw(st.integers(1, 4)))})
    world.fetchers = data.draw(st.sampled_from([1, 2, None]))
    world.rows = data.draw(st.integers(1, 4))
    times = data.draw(st.lists(st.integers(1, 30), max_size=3))
    world.before_fetch = failing(*times, error=data.draw(st.sampled_from([RetriableError, OSError])))
    options = HostOptions(retries=data.draw(st.integers(0, 1)), queue_batches=data.draw(st.integers(1, 3)))
    reading = run(
        kit.source_over(world),
        parallelism=data.draw(st.integers(1, 3)),
        options=options,
        runtime=kit.OneThread(data.draw(st.integers(0, 9))),
    )
    rows = kit.rows_of(reading)
    assert sorted(rows) == world.everything()
    for split_id in world.sizes:
        numbers = [n for each, n in rows if each == split_id]
        assert numbers == sorted(numbers)


def test_the_readers_of_a_run_on_threads_are_replaced_too(kit):
    world = kit.World(**{f"s{n}": 50 for n in range(6)})
    world.before_fetch = failing(5, 17, 40, 41)
    rows = kit.rows_of(run(kit.source_over(world), parallelism=3, options=QUICK))
    assert sorted(rows) == world.everything()


def test_a_simple_source_is_read_on_after_a_crash():
    crashes = [ConnectionError("reset")] * 2

    class Lines(forebay.SimpleSource):
        def schema(self):
            return pa.schema({"n": pa.int64()})

        def read(self, split):
            for n in range(split.position or 0, 100):
                if n == 50 and crashes:
                    raise crashes.pop()
                yield {"n": n}

    assert run(Lines()).to_table().column("n").to_pylist() == list(range(100))


@pytest.mark.parametrize(("retries", "tries"), [(0, 4), (1, 4), (2, 3), (3, 4), (7, 8)])
def test_a_retriable_error_is_tried_as_often_as_retries_says_and_not_that_often_by_every_reader(
    world, source, one_thread, retries, tries
):
    observed = []

    def before_fetch(split_id, position):
        observed.append(position)
        raise RetriableError("gone")

    world.before_fetch = before_fetch
    with pytest.raises(RetriableError):
        next(run(source, options=HostOptions(retries=retries), runtime=one_thread))
    assert len(observed) == tries
    assert not may_restart(RetriableError("x"), 1, 3)
    assert may_restart(OSError("x"), 3, 3) and not may_restart(OSError("x"), 4, 3)


class Acknowledged(SourceEvent):
    """Says that the reader has done what the enumerator waits for."""


class Telling(SplitEnumerator):
    """Assigns the splits of a world to the reader, and logs what it is told."""

    def __init__(self, world, log, context):
        self.log = log
        self.context = context
        self.waiting = [Split(split_id, 0) for split_id in world.sizes]

    def start(self):
        pass

    def add_reader(self, subtask):
        self.log.append("add_reader")
        self.context.assign_splits({0: self.waiting})
        self.waiting = []
        self.context.signal_no_more_splits(0)

    def handle_split_request(self, subtask, host):
        pass

    def handle_source_event(self, subtask, event):
        self.log.append("event")

    def handle_splits_finished(self, subtask, splits):
        self.log.append("finished")

    def add_splits_back(self, splits, subtask):
        self.log.append("add_splits_back")
        self.waiting = list(splits)

    def snapshot_state(self, checkpoint_id):
        return None

    def close(self):
        pass


def test_the_enumerator_hears_of_a_readers_events_before_it_gets_its_splits_back(kit, world, one_thread):
    log, polls = [], itertools.count(1)
    world.make_enumerator = lambda context: Telling(world, log, context)
    source = kit.source_over(world)

    class Reader(SourceReaderBase):
        def poll_next(self, output):
            if next(polls) == 3:
                self._context.send_source_event(Acknowledged())
                raise OSError("gone")
            return super().poll_next(output)

    world.make_reader = lambda context: Reader(source, context, HostOptions())
    assert sorted(kit.rows_of(run(source, runtime=one_thread))) == world.everything()
    assert [entry for entry in log if entry != "finished"] == ["add_reader", "event", "add_splits_back", "add_reader"]


def test_the_enumerator_hears_of_a_readers_events_before_it_hears_of_the_end_of_a_split(kit, one_thread):
    log, world = [], kit.World(a=3)
    world.make_enumerator = lambda context: Telling(world, log, context)
    source = kit.source_over(world)

    class Reader(SourceReaderBase):
        def _finish_hand_over(self, output):
            if self._finished:
                self._context.send_source_event(Acknowledged())
            super()._finish_hand_over(output)

    world.make_reader = lambda context: Reader(source, context, HostOptions())
    assert len(kit.rows_of(run(source, runtime=one_thread))) == 3
    assert log == ["add_reader", "event", "finished"]
