# SPDX-License-Identifier: Apache-2.0
"""The table of PostgreSQL on a real server: kept contract, slices, limits, and rows that change."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from collections.abc import Iterator

import psycopg
import pytest
from postgres_table import PostgresChanges, PostgresTable  # type: ignore[import-not-found]  # see conftest.py

import forebay
from forebay.framework.microbatch.stream_planner import open_stream
from forebay.framework.tasks.assign_tasks import plan_bounded
from forebay.framework.tasks.read_task import ReadTask, run_task
from forebay.testkit import SourceContract

TABLE = """
    DROP TABLE IF EXISTS orders;
    CREATE TABLE orders (id bigserial PRIMARY KEY, customer text, total float8, updated_at timestamptz);
    CREATE INDEX ON orders (updated_at, id);
"""
ROWS = """
    INSERT INTO orders (customer, total, updated_at)
    SELECT 'c' || n, n, clock_timestamp() FROM generate_series(1, %s) n RETURNING id, customer, total, updated_at
"""


@pytest.fixture
def database(postgres) -> Iterator[psycopg.Connection]:
    """Gives a connection to an empty table."""
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(TABLE)
        yield connection


def tables(postgres, kind, **options):
    return kind(dsn=forebay.Secret(postgres), **{"table": "orders", "page_rows": 7} | options)


def rows_of(source, slices, column="id"):
    return [
        n for part in run_task(ReadTask(source, slices, forebay.HostOptions())) for n in part.batch[column].to_pylist()
    ]


class TestPostgresChanges(SourceContract):
    most_splits = 1

    @pytest.fixture(autouse=True)
    def table(self, postgres, database):
        self.postgres, self.database = postgres, database

    def source(self):
        return tables(self.postgres, PostgresChanges, settling="0s")

    def add_split(self):
        return "all"

    def write(self, split_id, n):
        written = self.database.execute(ROWS, [n]).fetchall()
        return [dict(zip(("id", "customer", "total", "updated_at"), row, strict=True)) for row in written]


@pytest.mark.soak
def test_the_table_keeps_the_contract(postgres, database):
    database.execute(ROWS, [40])
    report = forebay.testkit.check(tables(postgres, PostgresTable))
    assert {"DIS-2", "DIS-5"} <= report.rules("passed")


def test_several_tasks_read_one_table_by_ranges_of_ids(postgres, database):
    database.execute(ROWS, [100])
    database.execute("DELETE FROM orders WHERE id BETWEEN 20 AND 60")
    source = tables(postgres, PostgresTable)
    tasks = plan_bounded(source, forebay.HostOptions(num_partitions=4))
    read = [rows_of(source, task) for task in tasks]
    assert list(map(len, read)) == [19, 0, 15, 25]
    assert list(itertools.chain(*read)) == [*range(1, 20), *range(61, 101)]


def test_a_table_is_worth_as_many_tasks_as_it_is_large(postgres, database):
    assert len(plan_bounded(tables(postgres, PostgresTable), forebay.HostOptions(), parallelism=4)) == 1
    database.execute(ROWS, [100_000])
    assert len(plan_bounded(tables(postgres, PostgresTable), forebay.HostOptions(), parallelism=4)) > 1


@pytest.fixture
def turns(postgres, database):
    """Gives a function that plans and reads one micro-batch; None where there is none."""
    source = tables(postgres, PostgresChanges, settling="0s")
    options = forebay.HostOptions(max_rows_per_trigger=10, refresh_interval="0s")
    planner = open_stream(source, options, parallelism=1)
    at = planner.initial()

    def turn():
        nonlocal at
        start, at = at, json.loads(json.dumps(planner.latest(at)))
        if start == at:
            return None
        return [n for task in planner.tasks(start, at) for n in rows_of(source, task.slices)]

    yield turn
    planner.close()


def test_a_first_backfill_by_change_is_cut_into_micro_batches(turns, database):
    database.execute(ROWS, [25])
    database.execute("UPDATE orders SET updated_at = date_trunc('hour', updated_at)")  # many of one time
    assert [turns() for _ in range(4)] == [list(range(1, 11)), list(range(11, 21)), list(range(21, 26)), None]


def test_a_row_that_changed_comes_again_and_nothing_else_does(turns, database):
    database.execute(ROWS, [3])
    assert turns() == [1, 2, 3]
    assert turns() is None
    database.execute("UPDATE orders SET total = 0, updated_at = clock_timestamp() WHERE id = 2")
    assert [turns(), turns()] == [[2], None]


def test_a_last_row_that_changes_while_the_table_is_the_history_comes_from_the_live_source(postgres, database):
    """It is behind the end of the history by then, which is reached all the same."""
    stages = (tables(postgres, PostgresChanges, settling="0s") for _ in range(2))
    source = forebay.HybridSource(*stages)
    planner = open_stream(source, forebay.HostOptions(refresh_interval="0s"), parallelism=1)
    database.execute(ROWS, [3])
    at, read = planner.initial(), []
    for change in ("UPDATE orders SET updated_at = clock_timestamp() WHERE id = 3", "SELECT 1"):
        start, at = at, json.loads(json.dumps(planner.latest(at)))
        database.execute(change)
        tasks = planner.tasks(start, at)
        read.append([n for task in tasks for part in run_task(task) for n in part.batch["id"].to_pylist()])
    planner.close()
    assert read == [[1, 2], [1, 2, 3]]


def test_columns_and_names_are_those_of_the_table(postgres, database):
    database.execute('CREATE SCHEMA IF NOT EXISTS "Shop"')
    database.execute('DROP TABLE IF EXISTS "Shop"."all types"')
    database.execute(
        """CREATE TABLE "Shop"."all types" ("the key" int, flag bool, small int2, real float4, day date, at timestamp,
        bytes bytea, word varchar(9), fixed char(3), nothing text)"""
    )
    database.execute(
        """INSERT INTO "Shop"."all types" VALUES (-3, true, 7, 0.5, '2025-01-02', '2025-01-02 03:04:05', '\\x00ff',
        'a word', 'ab', NULL)"""
    )
    (row,) = forebay.run(tables(postgres, PostgresTable, table="Shop.all types", key="the key")).to_table().to_pylist()
    assert list(row.values())[:5] == [-3, True, 7, 0.5, dt.date(2025, 1, 2)]
    assert list(row.values())[6:] == [b"\x00\xff", "a word", "ab ", None]


def test_a_column_of_another_type_is_refused_by_name(postgres, database):
    database.execute("DROP TABLE IF EXISTS amounts; CREATE TABLE amounts (id int, price numeric, address inet)")
    with pytest.raises(forebay.ConfigurationError, match=r"columns price \(numeric\), address \(inet\)"):
        tables(postgres, PostgresTable, table="amounts").schema()
