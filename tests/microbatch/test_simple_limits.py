# SPDX-License-Identifier: Apache-2.0
"""A simple source of plain rows in a stream: limits in rows."""

from __future__ import annotations

import json
from typing import ClassVar

import pyarrow as pa
import pytest

from forebay.errors import ConfigurationError
from forebay.framework.host_options import HostOptions
from forebay.framework.microbatch.opening import open_stream
from forebay.framework.microbatch.tasks.task import run_task
from forebay.framework.simple import SimpleSource


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
