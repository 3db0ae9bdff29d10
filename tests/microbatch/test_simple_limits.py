# SPDX-License-Identifier: Apache-2.0
"""A simple source of plain rows in a stream: limits in rows, and an end beyond the last row."""

from __future__ import annotations

import json
from typing import ClassVar

import pyarrow as pa
import pytest

from forebay.errors import ConfigurationError, ContractError
from forebay.framework.arrow.row_packer import Batch
from forebay.framework.inprocess.running import run
from forebay.framework.microbatch.stream_planner import open_stream
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.simple import SimpleSource
from forebay.framework.split import Split
from forebay.framework.tasks.assign_tasks import plan_bounded
from forebay.framework.tasks.read_task import ReadTask, run_task


class Lines(SimpleSource):
    """A given number of plain rows."""

    bounded = False
    positions_are_rows = True
    there: ClassVar[int] = 25

    def schema(self):
        return pa.schema({"n": pa.int64()})

    def latest(self, split):
        return self.there

    def read(self, split):
        for n in range(split.position or 0, self.there):
            yield {"n": n}


class Uncounted(Lines):
    positions_are_rows = False


def drained(source, **options):
    """Return the rows of each micro-batch until there is no new data."""
    planner = open_stream(source, HostOptions(refresh_interval="0s", **options), parallelism=1)
    start, batches = planner.initial(), []
    while (end := json.loads(json.dumps(planner.latest(start)))) != start:
        tasks = planner.tasks(start, end)
        batches.append([n for task in tasks for part in run_task(task) for n in part.batch.column(0).to_pylist()])
        start = end
    planner.close()
    return batches


def test_a_limit_of_rows_is_kept_where_positions_are_rows():
    assert drained(Lines(), max_rows_per_trigger=10) == [
        list(range(10)),
        list(range(10, 20)),
        list(range(20, 25)),
    ]


def test_it_is_refused_with_the_way_out_where_nobody_says_so():
    with pytest.raises(ConfigurationError, match="does not support maxRowsPerTrigger") as caught:
        drained(Uncounted(), max_rows_per_trigger=10)
    assert "positions_are_rows" in str(caught.value.advice)


class Promising(Lines):
    """Announces 30 rows, and gives 25."""

    def latest(self, split):
        return 30


class PromisingUnsaid(Promising):
    """Declares its positions as rows."""

    positions_are_rows = False


class PromisingTables(Promising):
    def read(self, split):
        yield pa.table({"n": list(range(split.position or 0, self.there))})


class PromisingBatches(Promising):
    """The author gives row numbers as positions."""

    def read(self, split):
        for n in range(split.position or 0, self.there):
            yield Batch([{"n": n}], n + 1)


class PromisingNothing(Promising):
    there = 0


@pytest.mark.parametrize("cls", [Promising, PromisingUnsaid, PromisingTables, PromisingBatches])
def test_rows_that_stop_short_of_the_promised_end_are_not_passed_over(cls):
    with pytest.raises(ContractError, match="returned at row 25, before the planned end 30") as caught:
        drained(cls())
    error = caught.value
    assert (error.rule, error.source, error.split, error.position) == ("DIS-1", cls().name, "all", "25")
    assert "latest()" in str(error.advice)


def test_nor_is_a_read_that_gives_no_row_at_all():
    with pytest.raises(ContractError, match="returned at row 0, before the planned end 30"):
        drained(PromisingNothing())


def test_what_came_late_is_read_when_the_micro_batch_is_read_again():
    planner = open_stream(Promising(), HostOptions(), parallelism=1)
    start = planner.initial()
    (task,) = planner.tasks(start, planner.latest(start))
    planner.close()
    with pytest.raises(ContractError):
        list(run_task(task))

    class Whole(Promising):
        there = 30

    again = ReadTask(Whole(), task.slices, task.options)
    assert [n for part in run_task(again) for n in part.batch.column(0).to_pylist()] == list(range(30))


class Sparse(Promising):
    """Positions are ids, and the last ids are missing."""

    positions_are_rows = False

    def read(self, split):
        for n in range(split.position or 0, self.there, 5):
            yield Batch([{"n": n}], n + 1)


def test_positions_of_an_authors_own_may_leave_gaps():
    assert drained(Sparse()) == [[0, 5, 10, 15, 20]]


class OwnEnd(Lines):
    """A split with the end 30 that grows."""

    there = 10

    def splits(self):
        return [Split("all", end=30)]

    def latest(self, split):
        return None

    def read(self, split):
        at = split.position or 0
        for n in range(at, min(at + 10, 30)):
            yield {"n": n}


def test_in_process_a_split_of_its_own_end_is_read_again_until_it_is_there():
    with run(OwnEnd(), options=HostOptions(poll_interval="1ms")) as batches:
        rows = []
        for batch in batches:
            rows += batch.column(0).to_pylist()
            if len(rows) == 30:
                break
    assert rows == list(range(30))


# ---- positions that do not count rows


class ByTime(SimpleSource):
    """Rows by (time, id), some of one time; positions are such pairs."""

    bounded = False
    name = "by_time"
    tables: ClassVar[dict[str, list[tuple[int, int]]]] = {"all": [(n // 3, n) for n in range(25)]}

    def schema(self):
        return pa.schema({"n": pa.int64()})

    def splits(self):
        return list(self.tables)

    def latest(self, split):
        time, number = self.tables[split.id][-1]
        return (time, number + 1)

    def between(self, split):
        return [one for one in self.tables[split.id] if (split.position or (-1, 0)) <= one < (split.end or (99, 0))]

    def advance(self, split, rows):
        there = self.between(split)
        return there[rows] if rows < len(there) else split.end

    def read(self, split):
        for time, number in self.between(split):
            yield Batch([{"n": number}], (time, number + 1))


def test_a_limit_of_rows_is_kept_where_the_source_says_how_far_rows_reach():
    assert drained(ByTime(), max_rows_per_trigger=10) == [
        list(range(10)),
        list(range(10, 20)),
        list(range(20, 25)),
    ]


class ManyByTime(ByTime):
    tables: ClassVar[dict[str, list[tuple[int, int]]]] = {
        "a": [(n, n) for n in range(30)],
        "b": [(n, 100 + n) for n in range(3)],
        "c": [(n, 200 + n) for n in range(9)],
    }


def test_it_is_shared_evenly_and_never_passed():
    batches = drained(ManyByTime(), max_rows_per_trigger=6)
    assert batches[0] == [0, 1, 100, 101, 200, 201]
    assert max(map(len, batches)) == 6
    assert sorted(n for batch in batches for n in batch) == [*range(30), *range(100, 103), *range(200, 209)]


def test_fewer_rows_than_splits_come_to_each_in_its_turn():
    assert drained(ManyByTime(), max_rows_per_trigger=1)[:6] == [[0], [100], [200], [1], [101], [201]]


class SizedByTime(ManyByTime):
    """Estimates eight bytes for a row."""

    def size(self, split):
        return 8 * len(self.between(split))


def test_sizes_make_the_shares_proportional():
    assert list(map(len, drained(SizedByTime(), max_rows_per_trigger=14))) == [14, 14, 14]


class Silent(ByTime):
    def advance(self, split, rows):
        return None


class Standing(ByTime):
    def advance(self, split, rows):
        return split.position or (0, 0)


class Beyond(ByTime):
    def advance(self, split, rows):
        return (99, 0)


def test_what_advance_cannot_say_is_refused_with_the_way_out():
    with pytest.raises(ConfigurationError, match="does not support maxRowsPerTrigger") as caught:
        drained(Silent(), max_rows_per_trigger=10)
    assert "implement advance()" in str(caught.value.advice)


def test_minimum_rows_are_refused_there():
    planner = open_stream(ByTime(), HostOptions(refresh_interval="0s", min_rows_per_trigger=5), parallelism=1)
    start = planner.latest(planner.initial())
    ByTime.tables["all"].append((9, 25))
    try:
        with pytest.raises(ConfigurationError, match="does not support minRowsPerTrigger"):
            planner.latest(start)
    finally:
        ByTime.tables["all"].pop()
        planner.close()


@pytest.mark.parametrize(("cls", "what"), [(Standing, "where the split begins"), (Beyond, "beyond the split.s end")])
def test_a_wrong_answer_of_advance_is_reported(cls, what):
    with pytest.raises(ContractError, match=what) as caught:
        drained(cls(), max_rows_per_trigger=10)
    assert (caught.value.rule, caught.value.split) == ("DIS-3", "all")


# ---- slices and sizes


class Cut(ByTime):
    """Bounded; its one split is cut in the middle, or as a test requires."""

    bounded = True
    cuts: ClassVar[list[tuple[object, object]]] = [(None, (4, 12)), ((4, 12), None)]

    def latest(self, split):
        return None

    def slices(self, split, count):
        return [split.slice(start, end) for start, end in self.cuts]


def test_slices_of_a_simple_source_are_read_by_several_tasks():
    tasks = plan_bounded(Cut(), HostOptions(num_partitions=2))
    assert [[(one.position, one.end) for one in task] for task in tasks] == [[(None, (4, 12))], [((4, 12), None)]]
    read = [run_task(ReadTask(Cut(), task, HostOptions())) for task in tasks]
    assert [[n for part in one for n in part.batch.column(0).to_pylist()] for one in read] == [
        list(range(12)),
        list(range(12, 25)),
    ]


@pytest.mark.parametrize(
    "cuts",
    [
        [((0, 0), (4, 12)), ((4, 13), (8, 25))],
        [((0, 0), None), (None, (8, 25))],
        [((0, 0), (4, 12)), ((4, 12), None), ((4, 12), (8, 25))],
        [],
    ],
)
def test_slices_that_leave_something_out_or_give_it_twice_are_refused(monkeypatch, cuts):
    """DIS-2: before a task reads them."""
    monkeypatch.setattr(Cut, "cuts", cuts)
    with pytest.raises(ContractError, match=r"slices\(\) returned") as caught:
        plan_bounded(Cut(), HostOptions(num_partitions=2))
    assert (caught.value.rule, caught.value.split, caught.value.source) == ("DIS-2", "all", "cut")


@pytest.mark.parametrize("cuts", [[((0, 1), (4, 12)), ((4, 12), (8, 25))], [((0, 0), (4, 12)), ((4, 12), (8, 24))]])
def test_so_are_slices_of_less_than_the_split(monkeypatch, cuts):
    monkeypatch.setattr(Cut, "splits", lambda self: [Split("all", (0, 0), (8, 25))])
    monkeypatch.setattr(Cut, "cuts", cuts)
    with pytest.raises(ContractError, match=r"begin the first slice at \(0, 0\)"):
        plan_bounded(Cut(), HostOptions(num_partitions=2))


@pytest.mark.parametrize("size", [0.5, -1])
def test_a_size_is_a_whole_number_of_bytes(monkeypatch, size):
    """DIS-5."""
    monkeypatch.setattr(Cut, "size", lambda self, split: size)
    with pytest.raises(ContractError, match=rf"size\(\) returned {size}") as caught:
        plan_bounded(Cut(), HostOptions(num_partitions=2))
    assert caught.value.rule == "DIS-5"


def test_sizes_say_how_many_slices_a_split_is_worth(monkeypatch):
    asked = []
    monkeypatch.setattr(Cut, "size", lambda self, split: 40 << 20)
    monkeypatch.setattr(Cut, "slices", lambda self, split, count: asked.append(count) or [split])
    plan_bounded(Cut(), HostOptions(), parallelism=4)
    assert asked == [4]
