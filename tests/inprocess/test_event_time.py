# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pyarrow as pa
import pytest

from forebay.errors import ConfigurationError
from forebay.framework.inprocess import run
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.simple import SimpleSource
from forebay.options import Duration
from forebay.watermarks.event_time import MAX_WATERMARK, EventTimes
from forebay.watermarks.strategy import WatermarkStrategy

SECOND = 1_000_000


@pytest.fixture
def drive(engine_of, one_thread):
    """Makes an engine and steps it, until time has passed, collecting rows."""

    def make(world, strategy, *, parallelism=1):
        engine = engine_of(world, one_thread, parallelism=parallelism, strategy=strategy)
        rows = []

        def run_for(seconds):
            until = one_thread.clock.monotonic() + seconds
            while one_thread.clock.monotonic() < until:
                engine.ask()
                engine.step()
                batch = engine.take()
                if batch is not None:
                    rows.extend((row["split"], row["n"]) for row in batch.to_pylist())
                elif not one_thread.turn():
                    one_thread.clock.advance(0.01)
            return rows

        return engine, run_for

    return make


def unbounded(kit, **sizes):
    world = kit.World(**sizes)
    world.bounded = False
    return world


def by_column(delay=0.0):
    return WatermarkStrategy.bounded_disorder(delay).with_event_time("at")


def test_an_invalid_drift_is_refused_before_anything_is_read(kit, engine_of, one_thread):
    strategy = WatermarkStrategy(by_column().generator, max_drift=-1)
    with pytest.raises(ConfigurationError, match="drift"):
        engine_of(unbounded(kit, a=1), one_thread, strategy=strategy)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_the_watermark_is_the_lowest_of_all_splits_over_all_readers(kit, drive, parallelism):
    """WX-1: min over active; latest − delay − 1 µs of each."""
    world = unbounded(kit, a=10, b=4)
    engine, run_for = drive(world, by_column(2), parallelism=parallelism)
    run_for(2)
    assert engine.watermark == (3 - 2) * SECOND - 1
    world.sizes["b"] = 20
    run_for(2)
    assert engine.watermark == (9 - 2) * SECOND - 1


def test_an_unread_split_holds_the_watermark_from_the_moment_it_is_added(kit, drive):
    """OUT-4: testPerSplitWatermark; nothing while one has none."""
    world = unbounded(kit, a=10, b=0)
    engine, run_for = drive(world, by_column())
    run_for(3)
    before = engine.watermark
    world.sizes["b"] = 1
    world.times = lambda _split_id, n: (n + 5) * SECOND
    run_for(3)
    assert before is None and engine.watermark == 5 * SECOND - 1


def test_a_finished_split_does_not_hold_the_watermark_and_the_end_is_the_end_of_time(world, source, one_thread):
    """OUT-3, WM-1."""
    with run(source, watermarks=by_column(), runtime=one_thread) as reading:
        observed = [reading.watermark for _batch in reading]
        assert reading.watermark == MAX_WATERMARK
    known = [us for us in observed if us is not None]
    assert known == sorted(known)


def test_no_watermark_overtakes_a_batch(kit, one_thread):
    """OUT-2, WX-1: no watermark makes the rows of a batch late before it is yielded; it never falls."""
    world = kit.World(a=40, b=40, c=40)
    last = None
    with run(kit.source_over(world), parallelism=2, watermarks=by_column(), runtime=one_thread) as reading:
        for batch in reading:
            one_thread.clock.advance(0.3)
            before = reading.watermark
            split_id = batch.column("split")[0].as_py()
            earliest = min(value.as_py().timestamp() for value in batch.column("at")) * SECOND
            if split_id in ("a", "b"):  # c waits for a reader, and what waits there holds nothing back
                assert before is None or before == MAX_WATERMARK or before < earliest
            assert last is None or before is None or before >= last
            last = before


def test_without_a_strategy_there_is_no_watermark(source, one_thread):
    with run(source, runtime=one_thread) as reading:
        list(reading)
        assert reading.watermark is None


def test_the_column_is_the_sources_unless_the_strategy_says_more(world, source, one_thread):
    with run(source, watermarks=WatermarkStrategy.monotonous(), runtime=one_thread) as reading:
        one_thread.clock.advance(1)
        next(reading)
        one_thread.clock.advance(1)
        next(reading)
        assert reading.watermark == 2 * SECOND - 1
    own = WatermarkStrategy.monotonous().with_timestamp_assigner(lambda _batch, _times: EventTimes(7, 7))
    with run(source, watermarks=own, runtime=one_thread) as reading:
        next(reading)
        one_thread.clock.advance(1)
        next(reading)
        assert reading.watermark == 6


def test_a_column_that_does_not_fit_is_an_error(source, one_thread):
    strategy = WatermarkStrategy.monotonous().with_event_time("nix")
    with pytest.raises(ConfigurationError):
        list(run(source, watermarks=strategy, runtime=one_thread))


def test_a_silent_split_becomes_idle_and_lets_the_watermark_pass(kit, drive):
    """WM-4: caught up and silent for the timeout; active again with its next row; the watermark does not fall."""
    world = unbounded(kit, a=3, b=30)
    engine, run_for = drive(world, by_column().with_idleness(5))
    run_for(3)
    assert engine.watermark == 2 * SECOND - 1
    run_for(6)
    assert engine.watermark == 29 * SECOND - 1
    world.sizes["a"] = 6
    run_for(1)
    assert engine.watermark == 29 * SECOND - 1
    world.sizes["b"] = 50
    run_for(2)
    assert engine.watermark == 29 * SECOND - 1  # a holds it again
    world.sizes["a"] = 60
    run_for(3)
    assert engine.watermark == 49 * SECOND - 1


def test_while_the_consumer_works_nothing_becomes_idle(kit, one_thread):
    """WM-4: the idleness clock stops under backpressure."""
    world = kit.World(a=3, b=90)
    world.bounded = False
    strategy = by_column().with_idleness(5)
    with run(kit.source_over(world), watermarks=strategy, runtime=one_thread) as reading:
        for _ in range(15):
            next(reading)
            one_thread.clock.advance(3)
        assert reading.watermark == 2 * SECOND - 1


@pytest.mark.soak(but=["1"])
@pytest.mark.parametrize("parallelism", [1, 2])
def test_splits_do_not_run_ahead_of_the_slowest_further_than_the_drift(kit, drive, parallelism):
    """AL-6, AL-2: paused beyond the limit, resumed when the slowest comes on; also across readers."""
    world = unbounded(kit, fast=1000, slow=5)
    world.rows = 1
    engine, run_for = drive(world, by_column().with_alignment(10), parallelism=parallelism)

    def furthest(split_id):
        return max((n for each, n in rows if each == split_id), default=None)

    rows = run_for(5)
    stopped = furthest("fast")
    assert stopped is not None and 14 <= stopped <= 16
    assert {split.split_id: split.state for split in engine.progress()}["fast"] == "paused"
    run_for(5)
    assert furthest("fast") == stopped
    world.sizes["slow"] = 1000
    run_for(120)
    assert furthest("fast") == 999 and furthest("slow") == 999
    assert len(rows) == len(set(rows)) == 2000


def test_an_idle_split_does_not_hold_others_back(kit, drive):
    """AL-1: idle counts as the end of time."""
    world = unbounded(kit, fast=500, slow=5)
    world.rows = 1
    _engine, run_for = drive(world, by_column().with_alignment(10).with_idleness(5))
    rows = run_for(120)
    assert ("fast", 499) in rows


def test_a_finished_split_does_not_hold_others_back(kit, one_thread):
    """AL-6: testSplitWatermarkAlignment…WithFinishedSplit."""
    world = kit.World(fast=300, slow=5)
    world.rows = 1
    strategy = by_column().with_alignment(10)
    rows = kit.rows_of(run(kit.source_over(world), watermarks=strategy, parallelism=2, runtime=one_thread))
    assert sorted(rows) == world.everything()


@pytest.mark.parametrize("drift", [None, 10])
def test_the_splits_of_a_failed_reader_hold_the_watermark_until_they_are_read_again(kit, engine_of, one_thread, drift):
    """WX-1, OUT-4: a replaced reader makes no row late; afterwards the watermark advances."""
    world = kit.World(a=300, b=300)
    world.bounded, world.rows = False, 1
    failures = [OSError("gone")] * 3

    def before_fetch(split_id, position):
        if (split_id, position) == ("a", 40) and failures:
            raise failures.pop()

    world.before_fetch = before_fetch
    strategy = by_column() if drift is None else by_column().with_alignment(drift)
    engine = engine_of(world, one_thread, parallelism=2, strategy=strategy, retries=0)
    late, rows = [], 0
    while not (rows == 600 and engine.caught_up()):
        engine.ask()
        engine.step()
        batch = engine.take()
        if batch is not None:
            rows += batch.num_rows
            one_thread.clock.advance(0.01)
            if (batch.column("n")[0].as_py() * SECOND) <= (engine.watermark or 0) and batch.column("n")[0].as_py():
                late += batch.to_pylist()
        elif not one_thread.turn():
            one_thread.clock.advance(0.01)
    assert not failures and late == []
    for _ in range(3):
        engine.step()
        one_thread.clock.advance(0.3)
    assert engine.watermark == 299 * SECOND - 1


def test_a_split_of_a_failed_reader_that_nobody_reads_again_lets_go(kit, engine_of, one_thread, monkeypatch):
    """OUT-3: its input was deleted, and the split dropped."""
    world = kit.World(a=50, b=50)
    world.bounded, world.rows = False, 1

    def before_fetch(split_id, position):
        if (split_id, position) == ("a", 20):
            world.sizes.pop("a", None)
            raise OSError("gone")

    world.before_fetch = before_fetch
    monkeypatch.setattr(kit.Enumerator, "vanished", lambda _self, _splits: True)
    discoveries = HostOptions(discovery_interval=Duration(0.01)).discovery_interval
    engine = engine_of(
        world, one_thread, parallelism=2, strategy=by_column(), retries=0, discovery_interval=discoveries
    )
    until = 60.0
    while one_thread.clock.monotonic() < until:
        engine.ask()
        engine.step()
        if engine.take() is None and not one_thread.turn():
            one_thread.clock.advance(0.05)
    assert engine.watermark == 49 * SECOND - 1


def test_rows_without_event_times_make_no_watermark(world, source, one_thread):
    world.batch = lambda split_id, start, stop: pa.RecordBatch.from_pydict(
        {"split": [split_id] * (stop - start), "n": list(range(start, stop)), "at": [None] * (stop - start)},
        schema=source.schema(),
    )
    with run(source, watermarks=by_column(), runtime=one_thread) as reading:
        for _batch in reading:
            one_thread.clock.advance(1)
            assert reading.watermark is None


class Narrowed(SimpleSource):
    """Reads only the selected columns; the event time is one of them, as with Kafka."""

    only: tuple[str, ...] = ()

    @property
    def event_time(self):
        return "t" if not self.only or "t" in self.only else None

    def schema(self):
        whole = pa.schema({"a": pa.int64(), "t": pa.timestamp("us")})
        return pa.schema([whole.field(name) for name in self.only or whole.names])

    def with_columns(self, columns):
        return Narrowed(only=columns)

    def read(self, split):
        yield {name: value for name, value in (("a", 1), ("t", 5 * SECOND)) if name in self.schema().names}


def test_the_event_time_is_read_also_where_it_is_not_among_the_columns():
    """Otherwise there would be silently no watermark, or an error about an existing column."""
    with run(Narrowed(), watermarks=WatermarkStrategy.bounded_disorder(1), options=HostOptions(columns=["a"])) as found:
        assert found.schema.names == ["a"]
        assert found.to_table().to_pylist() == [{"a": 1}]
        assert found.watermark == MAX_WATERMARK


@pytest.mark.parametrize("fetchers", [1, 2])
def test_a_split_that_is_ahead_stays_so_far_after_a_failure_of_the_reader(kit, drive, fetchers):
    world, failures = unbounded(kit, fast=1000, slow=5), []
    world.rows, world.fetchers = 1, fetchers

    def before_fetch(split_id, _position):
        if failures and split_id == "slow":
            failures.pop()
            raise OSError("gone")

    world.before_fetch = before_fetch
    _, run_for = drive(world, by_column().with_alignment(10))
    before = dict(run_for(5))["fast"]
    failures.append(True)
    after = dict(run_for(10))["fast"]
    assert not failures
    assert after <= before + 2  # what was fetched before it was paused again
