# SPDX-License-Identifier: Apache-2.0
"""A real PostgreSQL server, and a table of it for each test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import psycopg
import pyarrow as pa
import pytest
from postgres_server import postgres_server
from pyspark.sql.types import LongType

from forebay.spark.changelog.targets.changes import DELETED, SEQUENCE, Changes
from forebay.spark.changelog.targets.postgres import PostgresTarget

_numbers = itertools.count()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The DSN of a running server."""
    with postgres_server() as dsn:
        yield dsn


class WithoutSpark(PostgresTarget):
    """Copies record batches that are at hand, as one task."""

    def _copy(self, changes, statements):
        results = [done for part in self._copier(statements)(iter(changes.df.batches)) for done in part.to_pylist()]
        return [done["task"] for done in results], sum(done["deletes"] for done in results)


class Table:
    """A table of the server: read by tests, written by its target."""

    def __init__(self, dsn: str, name: str, schema: str = "public") -> None:
        self.dsn, self.name, self.schema = dsn, name, schema
        self.target = PostgresTarget(dsn, name, schema=schema)

    def write(self, number, columns, *, fields, deleted=None, sequence=None, history=False, keys=("id",)):
        """Apply Arrow arrays as a micro-batch, without Spark."""
        rows = len(next(iter(columns.values())))
        if sequence is not None:
            columns = {**columns, SEQUENCE: pa.array([sequence] * rows, pa.int64())}
        columns = {**columns, DELETED: pa.array(deleted or [False] * rows)}
        df = SimpleNamespace(columns=[*columns], batches=[pa.record_batch(columns)])
        changes = Changes(df, keys, fields, None if sequence is None else LongType(), history=history)
        return WithoutSpark(self.dsn, self.name, schema=self.schema)._apply(changes, number, "q", adopt=False)

    def sql(self, text: str):
        """Return the rows of a statement; `{t}` stands for the table."""
        with psycopg.connect(self.dsn) as connection:
            cursor = connection.execute(text.replace("{t}", f'"{self.name}"'))
            return cursor.fetchall() if cursor.description else None

    def rows(self, columns: str = "*"):
        """Return the rows, sorted."""
        return sorted(self.sql(f"SELECT {columns} FROM {{t}}"), key=repr)

    def staging(self):
        """Return the names of staging tables."""
        return self.sql("SELECT relname FROM pg_class WHERE relname LIKE '%staging%' AND relkind = 'r'")


@pytest.fixture(scope="session")
def tables(postgres) -> Callable[..., Table]:
    """Make tables, which no other test uses unless they are given a name."""
    return lambda name=None, **schema: Table(postgres, f"orders_{next(_numbers)}" if name is None else name, **schema)


@pytest.fixture
def table(tables) -> Table:
    """A table that no other test uses."""
    return tables()
