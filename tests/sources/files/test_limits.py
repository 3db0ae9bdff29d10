# SPDX-License-Identifier: Apache-2.0
"""Limits of files and bytes in a stream, and big files over several micro-batches."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay.errors import ConfigurationError

Put = Callable[..., Path]
Begin = Callable[..., Any]


def numbers(first: int, count: int) -> str:
    return "".join(f"{number:09}\n" for number in range(first, first + count))


def groups(count: int, rows: int) -> bytes:
    """A Parquet file of `count` row groups, each of `rows` rows that do not compress."""
    sink = pa.BufferOutputStream()
    values = [os.urandom(8).hex() for _ in range(count * rows)]
    pq.write_table(pa.table({"value": values}), sink, row_group_size=rows, compression="none", use_dictionary=False)
    return sink.getvalue().to_pybytes()


def test_a_big_file_spans_several_micro_batches_and_the_next_one_follows(put: Put, stream: Begin) -> None:
    put("a.txt", numbers(0, 100))
    put("b.txt", numbers(100, 20), at=1)
    query = stream(max_bytes_per_trigger=300)
    found = query.drain()
    assert [len(rows) for rows in found] == [30, 30, 30, 30]
    assert [value for values in found for value in values] == [f"{number:09}" for number in range(120)]


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_run_that_stops_inside_a_file_goes_on_there(put: Put, stream: Begin, stop: int) -> None:
    put("a.csv", "v\n" + numbers(0, 100))
    put("b.csv", "v\n" + numbers(100, 3), at=1)
    query = stream(file_format="csv", format_options={"header": "true"}, max_bytes_per_trigger=333)
    for _ in range(stop):
        query.trigger()
    query.restart()
    rest = query.drain()
    everything = sorted(row[0] for rows in query.batches for row in rows)
    assert everything == [f"{number:09}" for number in range(103)]
    assert rest
    query.restart()
    assert query.drain() == []


def test_a_parquet_file_is_cut_between_row_groups_also_by_a_planner_that_knows_no_footer(
    put: Put, stream: Begin
) -> None:
    put("a.parquet", groups(5, 100))
    put("b.parquet", groups(1, 10), at=1)
    query = stream(file_format="parquet", max_bytes_per_trigger=5000)
    found = []
    while (rows := query.trigger()) is not None:
        found.append(len(rows))
        query.restart()
    assert found == [200, 200, 110]
    assert len({row for rows in query.batches for row in rows}) == 510


def test_one_row_group_larger_than_the_budget_is_taken_whole(put: Put, stream: Begin) -> None:
    put("a.parquet", groups(3, 100))
    put("b.parquet", groups(1, 10), at=1)
    assert [len(rows) for rows in stream(file_format="parquet", max_bytes_per_trigger=1000).drain()] == [
        100,
        100,
        100,
        10,
    ]


def test_a_compressed_file_is_taken_whole_and_alone(put: Put, stream: Begin) -> None:
    put("a.txt", numbers(0, 10))
    put("b.txt.gz", gzip.compress(numbers(10, 1000).encode()), at=1)
    put("c.txt", numbers(1010, 10), at=2)
    assert [len(rows) for rows in stream(max_bytes_per_trigger=100).drain()] == [10, 1000, 10]


def test_limits_of_files_and_of_bytes_hold_together(put: Put, stream: Begin) -> None:
    for number in range(4):
        put(f"{number}.txt", numbers(number * 10, 10), at=number)
    put("4.txt", numbers(40, 40), at=4)
    query = stream(max_bytes_per_trigger=250, max_files_per_trigger=3)
    assert [len(rows) for rows in query.drain()] == [25, 25, 25, 5]
    query = stream(max_bytes_per_trigger=10_000, max_files_per_trigger=3)
    assert [len(rows) for rows in query.drain()] == [30, 50]


@pytest.mark.parametrize("option", ["max_rows_per_trigger", "min_rows_per_trigger"])
def test_limits_of_rows_are_refused_by_name(put: Put, stream: Begin, option: str) -> None:
    put("a.txt")
    query = stream(**{option: 10})
    query.offset = query.planner.latest(query.planner.initial(), limited=False)
    query.planner.commit(query.offset)
    put("b.txt")
    with pytest.raises(ConfigurationError) as raised:
        query.trigger()
    assert raised.value.option == ("maxRowsPerTrigger" if "max" in option else "minRowsPerTrigger")


def test_a_micro_batch_of_a_part_of_a_file_is_cut_into_tasks_that_make_up_the_part(put: Put, stream: Begin) -> None:
    put("a.txt", numbers(0, 1_500_000))
    query = stream(max_bytes_per_trigger=10_000_000)
    query.offset = query.plan()
    end = query.plan()
    assert len(query.planner.tasks(query.offset, end)) == 2
    rows = query.read(end)
    assert len(rows) == 500_000
    assert {rows[0][0], rows[-1][0]} == {f"{1_000_000:09}", f"{1_499_999:09}"}
