# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import queue
import threading

import pyarrow as pa
import pytest

import forebay
from forebay.errors import ConfigurationError, RetriableError
from forebay.framework.inprocess import peek
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.split import Split


@pytest.mark.parametrize(("n", "rows"), [(0, 0), (1, 1), (7, 7), (13, 13), (20, 13)])
@pytest.mark.parametrize("bounded", [True, False])
def test_at_most_so_many_rows_also_of_an_unbounded_source(world, source, one_thread, n, rows, bounded):
    world.bounded = bounded
    table = peek(source, n, runtime=one_thread)
    assert table.num_rows == rows and table.schema == source.schema()


def test_an_unbounded_source_without_splits_or_rows_is_no_wait(kit, one_thread):
    world = kit.World()
    world.bounded = False
    assert peek(kit.source_over(world), runtime=one_thread).num_rows == 0
    world.sizes = {"a": 0}
    assert peek(kit.source_over(world), runtime=one_thread).num_rows == 0


def test_it_stops_reading_at_once(kit, one_thread):
    world = kit.World(a=1_000_000)
    fetches = []
    world.before_fetch = lambda _split_id, position: fetches.append(position)
    peek(kit.source_over(world), 5, runtime=one_thread)
    assert len(fetches) <= 8


def test_a_slow_source_gives_the_first_rows_without_filling_a_batch():
    go_on, waits = threading.Event(), queue.SimpleQueue()

    class Slow(forebay.SimpleSource):
        bounded = False

        def schema(self):
            return pa.schema({"n": pa.int64()})

        def read(self, split):
            for n in range(split.position or 0, 3):
                yield {"n": n}
            waits.put(go_on.wait(20))

    try:
        assert peek(Slow(), 3).column("n").to_pylist() == [0, 1, 2]
        assert waits.empty(), "the rows came only when the read had ended"
    finally:
        go_on.set()


def test_a_read_that_waits_for_more_is_left_behind_and_ends_later():
    go_on, steps = threading.Event(), queue.SimpleQueue()

    class Waiting(forebay.SimpleSource):
        bounded = False

        def schema(self):
            return pa.schema({"n": pa.int64()})

        def read(self, split):
            try:
                yield {"n": 1}
                steps.put("waits")
                steps.put("goes on" if go_on.wait(20) else "waited in vain")
                yield {"n": 2}
            finally:
                steps.put("ends")

    try:
        for _ in range(100):
            assert peek(Waiting(), 1).column("n").to_pylist() == [1]
            # On a busy machine it may be closed before it gets to wait, and then there is nothing to leave behind.
            if steps.get(timeout=20) == "waits":
                break
        else:
            pytest.fail("no read ever got to wait")
        assert steps.empty()
    finally:
        go_on.set()
    assert [steps.get(timeout=20), steps.get(timeout=20)] == ["goes on", "ends"]


def test_a_short_close_timeout_is_kept_and_a_reader_that_ends_is_waited_for(kit, one_thread):
    world = kit.World(a=1_000)
    peek(kit.source_over(world), 1, options=HostOptions(close_timeout="200ms"), runtime=one_thread)
    assert "reader closed" in world.journal


def test_a_look_has_no_side_effects(world, source, one_thread):
    """ENU-7: a peek commits, archives and finishes nothing."""
    peek(source, 100, runtime=one_thread)
    assert sorted(entry for entry in world.journal if isinstance(entry, str)) == ["enumerator closed", "reader closed"]
    assert len(world.journal) == 2


def test_an_error_comes_at_once(world, source, one_thread):
    def before_fetch(_split_id, _position):
        raise RetriableError("down")

    world.before_fetch = before_fetch
    with pytest.raises(RetriableError) as caught:
        peek(source, options=HostOptions(retries=0), runtime=one_thread)
    assert caught.value.split == "a" and caught.value.source == "worldly"
    assert world.journal.count("reader closed") == 1


def test_a_raw_enumerator_can_be_looked_at(world, source, one_thread):
    class Raw(forebay.SplitEnumerator):
        def __init__(self, context):
            self.context = context

        def handle_split_request(self, subtask, host):
            pass

        def add_splits_back(self, splits, subtask):
            pass

        def snapshot_state(self, checkpoint_id):
            return None

        def add_reader(self, subtask):
            self.context.assign_splits({subtask: [Split("a", 0)]})

    world.bounded = False
    world.make_enumerator = Raw
    assert peek(source, runtime=one_thread).num_rows == 8


def test_columns_are_selected(source, one_thread):
    assert peek(source, 2, options=HostOptions(columns=["n"]), runtime=one_thread).column_names == ["n"]


@pytest.mark.parametrize("n", [-1, 1.5, True])
def test_an_impossible_number_of_rows_is_refused(source, n):
    with pytest.raises(ConfigurationError) as caught:
        peek(source, n)
    assert caught.value.option == "n"
