# SPDX-License-Identifier: Apache-2.0
"""A simple source of plain rows in a stream: limits in rows, and an end that promises more than there is."""

from __future__ import annotations

import json
from typing import ClassVar

import pyarrow as pa
import pytest

from forebay.errors import ConfigurationError, ContractError
from forebay.framework.host_options import HostOptions
from forebay.framework.local.running import run
from forebay.framework.microbatch.opening import open_stream
from forebay.framework.microbatch.tasks.task import ReadTask, run_task
from forebay.framework.rows import Batch
from forebay.framework.simple import SimpleSource
from forebay.framework.split import Split


class Lines(SimpleSource):
    """Plain rows, of which there are so many."""

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
    """Return the rows of each micro-batch, until there is nothing new."""
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
    with pytest.raises(ConfigurationError, match="maxRowsPerTrigger cannot be kept") as caught:
        drained(Uncounted(), max_rows_per_trigger=10)
    assert "positions_are_rows" in str(caught.value.advice)


class Promising(Lines):
    """Says that there are 30 rows, and gives 25."""

    def latest(self, split):
        return 30


class PromisingUnsaid(Promising):
    """Its plain rows say that they are counted."""

    positions_are_rows = False


class PromisingTables(Promising):
    def read(self, split):
        yield pa.table({"n": list(range(split.position or 0, self.there))})


class PromisingBatches(Promising):
    """A position is the number of a row, and the author gives it."""

    def read(self, split):
        for n in range(split.position or 0, self.there):
            yield Batch([{"n": n}], n + 1)


class PromisingNothing(Promising):
    there = 0


@pytest.mark.parametrize("cls", [Promising, PromisingUnsaid, PromisingTables, PromisingBatches])
def test_rows_that_stop_short_of_the_promised_end_are_not_passed_over(cls):
    with pytest.raises(ContractError, match="returned at row 25, and was to give every row before 30") as caught:
        drained(cls())
    error = caught.value
    assert (error.rule, error.source, error.split, error.position) == ("DIS-1", cls().name, "all", "25")
    assert "latest()" in str(error.advice)


def test_nor_is_a_read_that_gives_no_row_at_all():
    with pytest.raises(ContractError, match="returned at row 0, and was to give every row before 30"):
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
    """Positions are ids, and the last ones are not there."""

    positions_are_rows = False

    def read(self, split):
        for n in range(split.position or 0, self.there, 5):
            yield Batch([{"n": n}], n + 1)


def test_positions_of_an_authors_own_may_leave_gaps():
    assert drained(Sparse()) == [[0, 5, 10, 15, 20]]


class OwnEnd(Lines):
    """A split that ends at 30 by itself, and gets there bit by bit."""

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
