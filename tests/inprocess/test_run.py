# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gc
import threading
import time
from datetime import timedelta

import pyarrow as pa
import pytest

import forebay
from forebay.errors import ConfigurationError, ContractError, FatalError
from forebay.framework.discovery import Discovered
from forebay.framework.inprocess import peek, run
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import ThreadRuntime
from forebay.framework.split import Split
from forebay.options import Duration

OTHERS: set[threading.Thread] = set()


@pytest.fixture(scope="module", autouse=True)
def _others():
    """Do not count threads that tests of other files have abandoned."""
    OTHERS.update(threading.enumerate())


def ours():
    return [each for each in threading.enumerate() if each.name.startswith("forebay-") and each not in OTHERS]


def wait_for_threads():
    for _ in range(500):
        if not ours():
            return True
        time.sleep(0.01)
    return False


class Countdown(forebay.SimpleSource):
    start: int = 10

    def schema(self):
        return pa.schema({"n": pa.int64()})

    def read(self, split):
        for i in range(split.position or 0, self.start):
            yield {"n": self.start - i}


def test_the_smallest_source_becomes_a_table():
    assert run(Countdown(start=3)).to_table().to_pylist() == [{"n": 3}, {"n": 2}, {"n": 1}]
    assert wait_for_threads()


@pytest.mark.parametrize("parallelism", [1, 2, 5])
@pytest.mark.parametrize("fetchers", [1, 3, None])
def test_every_row_comes_once_in_the_order_of_its_split(world, source, one_thread, kit, parallelism, fetchers):
    """ENU-10, RDR-6: with fewer and more readers than splits; empty splits and readers without splits end too."""
    world.fetchers = fetchers
    rows = kit.rows_of(run(source, parallelism=parallelism, runtime=one_thread))
    assert sorted(rows) == world.everything()
    for split_id in world.sizes:
        numbers = [n for each, n in rows if each == split_id]
        assert numbers == sorted(numbers)


def test_the_same_on_threads(world, source, kit):
    world.sizes = {f"s{n}": 20 * n for n in range(8)}
    rows = kit.rows_of(run(source, parallelism=3))
    assert sorted(rows) == world.everything()


def test_a_source_without_splits_ends(kit, one_thread):
    """ENU-10: without splits, all splits are assigned."""
    with run(kit.source_over(kit.World()), parallelism=2, runtime=one_thread) as reading:
        assert list(reading) == []


def test_an_unbounded_run_goes_on_and_finds_new_splits(world, source, one_thread, kit):
    world.bounded = False
    observed = []
    with run(source, parallelism=2, runtime=one_thread) as reading:
        for batch in reading:
            observed += kit.rows_of([batch])
            if len(observed) == 13:
                world.sizes |= {"d": 2, "a": 9}
            if len(observed) == 16:
                break
    assert sorted(observed) == world.everything()


def test_an_unbounded_source_does_not_become_a_table(world, source, one_thread):
    world.bounded = False
    with pytest.raises(ConfigurationError, match="unbounded") as caught:
        run(source, runtime=one_thread).to_table()
    assert "peek" in caught.value.advice


def test_it_says_what_was_delivered_and_where_everything_stands(world, source, one_thread):
    with run(source, runtime=one_thread) as reading:
        before = reading.delivered
        next(reading)
        assert before is None and reading.delivered == ("a", 3) and reading.positions() == {"a": 3, "b": 0, "c": 0}
        states = {split.split_id: split.state for split in reading.progress()}
        assert states == {"a": "reading", "b": "waiting", "c": "waiting"}
        list(reading)
        reported = {split.split_id: (split.position, split.rows, split.state) for split in reading.progress()}
        assert reported == {"a": (8, 8, "finished"), "b": (0, 0, "finished"), "c": (5, 5, "finished")}
        assert next(split.bytes for split in reading.progress() if split.split_id == "a") > 0


def test_a_split_without_end_is_caught_up_between_rows(world, source, one_thread):
    world.bounded = False
    with run(source, runtime=one_thread) as reading:
        for _ in range(5):
            next(reading)
        world.sizes["a"] += 1
        next(reading)
        assert {split.split_id: split.state for split in reading.progress()} == {
            "a": "reading",
            "b": "caught up",
            "c": "caught up",
        }


def test_an_exhausted_run_is_closed_and_stays_exhausted(world, source, one_thread):
    reading = run(source, runtime=one_thread)
    assert len(list(reading)) == 5
    assert list(reading) == []
    assert world.journal.count("enumerator closed") == 1
    reading.close()


def test_leaving_the_block_closes_everything(world, source):
    world.bounded = False
    with run(source, parallelism=3) as reading:
        next(reading)
        assert ours()
    assert wait_for_threads()
    assert world.journal.count("reader closed") >= 1 and world.journal.count("enumerator closed") == 1
    assert list(reading) == []


def test_a_loop_that_is_left_frees_its_threads(world, source):
    """RDR-9: a run without `with` closes too."""
    world.bounded = False
    for _batch in run(source, parallelism=2):
        break
    gc.collect()
    assert wait_for_threads()


def test_closing_is_bounded_and_names_who_is_blocked():
    """RDR-9: all readers together within closeTimeout; a blocked generator is abandoned and named."""
    release, blocked = threading.Event(), threading.Event()

    class Stuck(forebay.SimpleSource):
        def schema(self):
            return pa.schema({"n": pa.int64()})

        def splits(self):
            return ["s1", "s2", "s3"]

        def read(self, split):
            yield {"n": 1}
            blocked.set()
            release.wait(60)

    options = HostOptions(close_timeout=Duration(0.3), max_batch_delay=Duration(0))
    reading = run(Stuck(), parallelism=3, options=options)
    try:
        next(reading)
        assert blocked.wait(10)
        began = time.monotonic()
        with pytest.raises(FatalError) as caught:
            reading.close()
        assert time.monotonic() - began < 10
        assert caught.value.rule == "RDR-9" and "closeTimeout" in caught.value.advice
    finally:
        release.set()
    assert wait_for_threads()


def test_an_interrupt_closes_the_run(world, source, one_thread):
    """COO-3: the interrupt itself is raised; continuing afterwards is an error."""

    def interrupted(_context):
        raise KeyboardInterrupt

    world.make_enumerator = interrupted
    reading = run(source, runtime=one_thread)
    with pytest.raises(KeyboardInterrupt):
        next(reading)
    with pytest.raises(FatalError, match="interrupted"):
        next(reading)


def test_a_run_that_is_interrupted_while_it_waits_goes_on(world, source, one_thread, kit, monkeypatch):
    """COO-3: no part of the run has failed."""

    def interrupted(_timeout):
        raise KeyboardInterrupt

    world.bounded = False
    with run(source, poll_timeout=3, runtime=one_thread) as reading:
        with pytest.raises(TimeoutError):
            list(reading)
        with monkeypatch.context() as patch:
            patch.setattr(reading._engine.signal, "wait", interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(reading)
        world.sizes["b"] = 2
        assert kit.rows_of([next(reading)]) == [("b", 0), ("b", 1)]


def test_columns_are_selected_by_the_host_if_the_source_does_not(source, one_thread):
    with run(source, options=HostOptions(columns=["n"]), runtime=one_thread) as reading:
        assert reading.schema == pa.schema([pa.field("n", pa.int64())])
        assert reading.to_table().column_names == ["n"]
    with pytest.raises(ConfigurationError, match="nix") as caught:
        run(source, options=HostOptions(columns=["nix"]))
    assert caught.value.option == "columns"


def test_columns_are_left_to_the_source_if_it_can(source, one_thread, monkeypatch):
    observed = []

    def with_columns(self, columns):
        observed.append(columns)
        return self

    monkeypatch.setattr(type(source), "with_columns", with_columns)
    with run(source, options=HostOptions(columns=["n"]), runtime=one_thread) as reading:
        assert observed == [("n",)] and reading.schema.names == ["split", "n", "at"]


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ({"parallelism": 0}, "parallelism"),
        ({"parallelism": 1.5}, "parallelism"),
        ({"parallelism": True}, "parallelism"),
    ],
)
def test_arguments_out_of_range_are_refused(source, arguments, option):
    with pytest.raises(ConfigurationError) as caught:
        run(source, **arguments)
    assert caught.value.option == option


def test_what_is_no_source_is_refused():
    with pytest.raises(
        ConfigurationError, match=r"takes a source, not the class Countdown.*\n?.*give an instance: Cou"
    ):
        run(Countdown)
    with pytest.raises(ConfigurationError, match="takes a source, not 3"):
        run(3)


@pytest.mark.parametrize("answer", [ValueError("no"), 3])
def test_a_schema_that_fails_is_named(source, monkeypatch, answer):
    def schema(_self):
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(type(source), "schema", schema)
    with pytest.raises(FatalError, match=r"schema\(\)") as caught:
        run(source)
    assert caught.value.source == "worldly"


def test_an_error_of_the_enumerator_surfaces_and_closes(world, source, one_thread):
    error = ConfigurationError("no such topic")
    world.make_enumerator = lambda _context: _failing(error)
    reading = run(source, runtime=one_thread)
    for _ in range(2):
        with pytest.raises(ConfigurationError) as caught:
            next(reading)
        assert caught.value is error and error.source == "worldly"


def _failing(error):
    class Failing(forebay.DiscoveryEnumerator):
        def discover(self, known, first):
            raise error

    return Failing()


def test_a_run_goes_on_in_another_thread(world, source, kit):
    """CTX-9: the calling thread is the coordinator for that step."""
    reading = run(source, runtime=ThreadRuntime())
    rows = kit.rows_of([next(reading)])
    thread = threading.Thread(target=lambda: rows.extend(kit.rows_of(reading)))
    thread.start()
    thread.join(30)
    assert sorted(rows) == world.everything()


def test_a_batch_of_another_schema_is_refused(world, source, one_thread):
    world.batch = lambda *_: pa.RecordBatch.from_pydict({"x": [1]})
    with pytest.raises(ContractError, match="schema") as caught:
        next(run(source, runtime=one_thread))
    assert caught.value.rule == "SR-2" and caught.value.split == "a"


@pytest.mark.parametrize("narrows", [False, True])
def test_columns_are_matched_and_refused_as_on_spark(source, one_thread, monkeypatch, narrows):
    if narrows:
        monkeypatch.setattr(type(source), "with_columns", lambda self, columns: None)
    for look in (
        lambda options: run(source, options=options, runtime=one_thread).schema,
        lambda options: peek(source, 1, options=options, runtime=one_thread).schema,
    ):
        assert look(HostOptions(columns=["N", "Split"])).names == ["n", "split"]
        for wrong, why in (([], "names no column"), (["n", "N"], "twice"), (["nix"], "no column 'nix'")):
            with pytest.raises(ConfigurationError, match=why) as caught:
                look(HostOptions(columns=wrong))
            assert caught.value.option == "columns"


@pytest.mark.parametrize("value", [2, 2.0, timedelta(seconds=2), "2s", Duration(2)])
def test_every_duration_of_a_run_takes_the_same_things(world, source, one_thread, value):
    options = HostOptions(discovery_interval=value, poll_interval=value)
    assert options.discovery_interval == options.poll_interval == Duration(2)
    assert isinstance(options.discovery_interval, Duration)
    strategy = forebay.WatermarkStrategy.bounded_disorder(value).with_idleness(value).with_alignment(value)
    assert strategy == forebay.WatermarkStrategy.bounded_disorder(2).with_idleness(2).with_alignment(2)
    world.bounded = False
    reading = run(source, checkpoint_interval=value, poll_timeout=value, options=options, runtime=one_thread)
    with pytest.raises(TimeoutError):
        list(reading)
    assert ("committed", {"a": 8, "b": 0, "c": 5}) in world.journal
    reading.close()


@pytest.mark.parametrize("value", [0, -1, True, float("nan"), float("inf"), "10", "0s", [1]])
@pytest.mark.parametrize("option", ["checkpoint_interval", "poll_timeout"])
def test_what_is_no_duration_is_refused(source, option, value):
    with pytest.raises(ConfigurationError) as caught:
        run(source, **{option: value})
    assert caught.value.option == option and "'10s'" in caught.value.advice


# ---- until caught up


def test_an_unbounded_run_may_end_when_it_is_caught_up(world, kit, tmp_path):
    """Everything is acknowledged, and the next run continues after it."""
    world.bounded = False
    rows = []
    for expected in (13, 2, 0):
        reading = run(
            kit.source_over(world), parallelism=2, checkpoint=tmp_path, until_caught_up=True, runtime=kit.OneThread()
        )
        came = kit.rows_of(reading)
        assert len(came) == expected
        rows += came
        world.sizes |= {"b": 1, "new": 1}
    assert sorted(rows) == world.everything()


def test_a_run_until_caught_up_ends_though_rows_keep_coming(world, source, one_thread):
    """Each split must have caught up once: two busy splits may never be caught up at the same time."""
    world.bounded = False
    with run(source, until_caught_up=True, runtime=one_thread) as reading:
        for number, _batch in enumerate(reading):
            world.sizes["a" if number % 2 else "c"] += 1
            assert number < 100


def test_a_run_until_caught_up_looks_for_new_splits_first(world, kit, one_thread):
    """A source without splits has caught up after its first discovery."""
    world.bounded, world.sizes = False, {}
    assert run(kit.source_over(world), until_caught_up=True, runtime=one_thread).to_table().num_rows == 0


def test_a_bounded_run_until_caught_up_reads_everything(world, source, one_thread, kit):
    assert sorted(kit.rows_of(run(source, until_caught_up=True, runtime=one_thread))) == world.everything()


# ---- the timeout of next


def test_a_run_that_timed_out_goes_on(world, source, one_thread, kit, tmp_path):
    """Asking for the next batch acknowledged the previous ones."""
    world.bounded = False
    with run(source, checkpoint=tmp_path, poll_timeout=3, runtime=one_thread) as reading:
        rows = []
        with pytest.raises(TimeoutError, match=r"worldly: no record batch came within poll_timeout=3 s") as caught:
            rows += [row for batch in reading for row in kit.rows_of([batch])]
        assert "call next() again" in str(caught.value)
        world.sizes["b"] = 2
        assert kit.rows_of([next(reading)]) == [("b", 0), ("b", 1)]
        with pytest.raises(TimeoutError):
            next(reading)
    again = run(kit.source_over(world), checkpoint=tmp_path, poll_timeout=3, runtime=kit.OneThread())
    with again, pytest.raises(TimeoutError):
        next(again)


def test_a_time_out_counts_from_the_question(world, source, one_thread):
    world.bounded = False
    with run(source, poll_timeout=3, runtime=one_thread) as reading:
        for _ in range(5):
            next(reading)
            one_thread.clock.advance(10)
        before = one_thread.clock.monotonic()
        with pytest.raises(TimeoutError):
            next(reading)
        assert 3 <= one_thread.clock.monotonic() - before < 3.1


def test_a_split_may_be_false(kit, world, one_thread):
    class Empty(Split):
        def __len__(self):
            return 0

    enumerator = kit.Enumerator(world)
    enumerator.discover = lambda known, first: Discovered([Empty(split_id, 0) for split_id in world.sizes], state=None)
    world.make_enumerator = lambda context: enumerator
    assert sorted(kit.rows_of(run(kit.source_over(world), runtime=one_thread))) == world.everything()
