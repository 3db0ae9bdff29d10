# SPDX-License-Identifier: Apache-2.0
"""A real PostgreSQL server, and a table of it for each test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import psycopg
import pytest

from forebay.spark.changelog.targets.postgres.target import PostgresTarget
from forebay.testkit.servers.postgres import postgres_server

_numbers = itertools.count()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The DSN of a running server."""
    with postgres_server() as dsn:
        yield dsn


class Table:
    """A table of the server: read by tests, written by its target."""

    def __init__(self, dsn: str, name: str) -> None:
        self.dsn, self.name = dsn, name
        self.target = PostgresTarget(dsn, name)

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
def tables(postgres) -> Callable[[], Table]:
    """Make tables that no other test uses."""
    return lambda: Table(postgres, f"orders_{next(_numbers)}")


@pytest.fixture
def table(tables) -> Table:
    """A table that no other test uses."""
    return tables()
