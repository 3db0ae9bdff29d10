# SPDX-License-Identifier: Apache-2.0
"""A table of PostgreSQL: a backfill by ranges of ids, and a stream of changes by (updated_at, id).

Run it: ``python examples/postgres_orders.py "host=… dbname=…"`` (``pip install "psycopg[binary]"``).
"""

import itertools
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pyarrow as pa

import forebay
from forebay import Batch, Duration, Secret, SimpleSource, Split, option

START = ("0001-01-01T00:00:00.000000+00:00", 0)
ROW_BYTES = 100  # about
BETWEEN = """FROM orders WHERE (updated_at, id) >= (%s::timestamptz, %s) AND (updated_at, id) < (%s::timestamptz, %s)
    ORDER BY updated_at, id"""
NEWEST = """SELECT updated_at, id FROM orders WHERE updated_at < clock_timestamp() - %s
    ORDER BY updated_at DESC, id DESC LIMIT 1"""


class Table(SimpleSource):
    """The options and the connection of both sources."""

    dsn: Secret = option(doc="connection string; also env:NAME or file:/path")
    page_rows: int = option(default=5_000, doc="orders asked for in one query")

    def schema(self) -> pa.Schema:
        return pa.schema(
            {"id": pa.int64(), "customer": pa.string(), "total": pa.float64(), "updated_at": pa.timestamp("us", "UTC")}
        )

    @forebay.cached
    def connection(self) -> psycopg.Connection:
        return psycopg.connect(self.dsn.reveal(), autocommit=True, connect_timeout=10)

    def query(self, sql: str, *values: object) -> list[Any]:
        try:
            return self.connection.execute(sql, values).fetchall()
        except psycopg.OperationalError as error:
            raise forebay.RetriableError(f"PostgreSQL: {error}") from error


class OrderTable(Table):
    """All orders as they are now, read once; a position is an id."""

    def slices(self, split: Split, count: int) -> Iterable[Split]:
        low, high = self.query("SELECT coalesce(min(id), 0), coalesce(max(id), 0) + 1 FROM orders")[0]
        borders = [*range(low, high, -(-(high - low) // count)), high]
        return [split.slice(start, end) for start, end in itertools.pairwise(borders)]

    def size(self, split: Split) -> int:
        if split.end is None:
            return self.query("SELECT pg_table_size('orders')")[0][0]
        return (split.end - (split.position or 0)) * ROW_BYTES

    def read(self, split: Split) -> Iterator[Batch]:
        at, end = split.position or 0, split.end or 2**63 - 1
        columns = "SELECT id, customer, total, updated_at FROM orders"
        while rows := self.query(f"{columns} WHERE id >= %s AND id < %s ORDER BY id LIMIT %s", at, end, self.page_rows):
            yield Batch(rows, at := rows[-1][0] + 1)


class OrderChanges(Table):
    """Changed orders, in the order of their last change, unbounded; a position is (updated_at, id)."""

    bounded = False
    event_time = "updated_at"
    settling: Duration = option(default="5s", doc="longer than any transaction that writes orders")

    def latest(self, split: Split) -> tuple[str, int]:
        newest = self.query(NEWEST, self.settling)
        return position(newest[0][0], newest[0][1] + 1) if newest else START

    def advance(self, split: Split, rows: int) -> tuple[str, int]:
        found = self.query(f"SELECT updated_at, id {BETWEEN} OFFSET %s LIMIT 1", *self.range_of(split), rows)
        return position(*found[0]) if found else split.end

    def read(self, split: Split) -> Iterator[Batch]:
        columns = "SELECT id, customer, total, updated_at"
        while rows := self.query(f"{columns} {BETWEEN} LIMIT %s", *self.range_of(split), self.page_rows):
            split = split.at(position(rows[-1][3], rows[-1][0] + 1))
            yield Batch(rows, split.position)

    def range_of(self, split: Split) -> tuple[object, ...]:
        return (*(split.position or START), *split.end)


def position(updated_at: datetime, order_id: int) -> tuple[str, int]:
    return updated_at.astimezone(UTC).isoformat(timespec="microseconds"), order_id


if __name__ == "__main__":
    print(forebay.peek(OrderTable(dsn=Secret(sys.argv[1])), 5))
    print(forebay.peek(OrderChanges(dsn=Secret(sys.argv[1])), 5))
