# SPDX-License-Identifier: Apache-2.0
"""A table of PostgreSQL: a backfill by ranges of its key, and a stream of changes by (time of change, key)."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import psycopg
import pyarrow as pa
from psycopg.sql import SQL, Identifier

import forebay
from forebay import Batch, ConfigurationError, Duration, RetriableError, Secret, SimpleSource, Split, option

START = ("0001-01-01T00:00:00.000000+00:00", -(2**63))
ROW_BYTES = 100  # about
TYPES = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    **dict.fromkeys(("text", "varchar", "bpchar"), pa.string()),
}


class Table(SimpleSource):
    """What both sources share: options, columns and the connection."""

    dsn: Secret = option(doc="connection string; also env:NAME or file:/path")
    table: str = option(doc="the table or view, such as orders or shop.orders")
    key: str = option(default="id", doc="a column of integers, unique and indexed")
    page_rows: int = option(default=5_000, doc="rows asked for in one query")

    @property
    def names(self) -> dict[str, Identifier]:
        return {"table": Identifier(*self.table.split(".")), "key": Identifier(self.key)}

    def schema(self) -> pa.Schema:
        return pa.schema({name: TYPES[kind] for name, kind in self.types.items()})

    @forebay.cached
    def types(self) -> Mapping[str, str]:
        """The types of the columns, in the order of `SELECT *`."""
        with self.connection.execute(SQL("SELECT * FROM {table} LIMIT 0").format(**self.names)) as cursor:
            known = self.connection.adapters.types
            types = {one.name: getattr(known.get(one.type_code), "name", "unknown") for one in cursor.description or ()}
        if other := [f"{name} ({kind})" for name, kind in types.items() if kind not in TYPES]:
            advice = f"read a view that casts them; known types are {', '.join(TYPES)}"
            raise ConfigurationError(f"no type for the columns {', '.join(other)}", option="table", advice=advice)
        return types

    @forebay.cached
    def connection(self) -> psycopg.Connection:
        return psycopg.connect(self.dsn.reveal(), autocommit=True, connect_timeout=10)

    def query(self, sql: str, *values: object) -> list[Any]:
        try:
            return self.connection.execute(SQL(sql).format(**self.names), values).fetchall()
        except psycopg.OperationalError as error:
            raise RetriableError(f"PostgreSQL: {error}") from error


class PostgresTable(Table):
    """All rows as they are now, read once; a position is a key."""

    def slices(self, split: Split, count: int) -> Iterable[Split]:
        low, high = self.query("SELECT coalesce(min({key}), 0), coalesce(max({key}), 0) + 1 FROM {table}")[0]
        low = low if split.position is None else split.position
        high = high if split.end is None else split.end
        borders = [*range(low, high, max(1, -(-(high - low) // count))), high]
        return [split.slice(start, end) for start, end in itertools.pairwise(borders)] or [split]

    def size(self, split: Split) -> int:
        if split.end is None:
            return self.query("SELECT pg_table_size(%s)", self.table)[0][0]
        return (split.end - (split.position or 0)) * ROW_BYTES

    def read(self, split: Split) -> Iterator[Batch]:
        at, end = split.position if split.position is not None else -(2**63), split.end
        page = "SELECT * FROM {table} WHERE {key} >= %s AND (%s::bigint IS NULL OR {key} < %s) ORDER BY {key} LIMIT %s"
        key = self.schema().names.index(self.key)
        while rows := self.query(page, at, end, end, self.page_rows):
            yield Batch(rows, at := rows[-1][key] + 1)


class PostgresChanges(Table):
    """Changed rows, in the order of their last change, unbounded; a position is (time of change, key)."""

    bounded = False
    changed_at: str = option(default="updated_at", doc="a timestamptz that every change sets; indexed with the key")
    settling: Duration = option(default="5s", doc="longer than any transaction that writes the table")

    @property
    def names(self) -> dict[str, Identifier]:
        return super().names | {"at": Identifier(self.changed_at)}

    def latest(self, split: Split) -> tuple[str, int]:
        settled = "SELECT {at}, {key} FROM {table} WHERE {at} < clock_timestamp() - %s"
        newest = self.query(f"{settled} ORDER BY {{at}} DESC, {{key}} DESC LIMIT 1", self.settling)
        return position(newest[0][0], newest[0][1] + 1) if newest else START

    def advance(self, split: Split, rows: int) -> tuple[str, int]:
        found = self.query(f"SELECT {{at}}, {{key}} {BETWEEN} OFFSET %s LIMIT 1", *range_of(split), rows)
        return position(*found[0]) if found else split.end

    def read(self, split: Split) -> Iterator[Batch]:
        at, key = (self.schema().names.index(name) for name in (self.changed_at, self.key))
        while rows := self.query(f"SELECT * {BETWEEN} LIMIT %s", *range_of(split), self.page_rows):
            split = split.at(position(rows[-1][at], rows[-1][key] + 1))
            yield Batch(rows, split.position)
        if split.position != split.end:  # the last row was changed meanwhile: it comes after this end
            yield Batch([], split.end)


BETWEEN = """FROM {table} WHERE ({at}, {key}) >= (%s::timestamptz, %s) AND ({at}, {key}) < (%s::timestamptz, %s)
    ORDER BY {at}, {key}"""


def range_of(split: Split) -> tuple[object, ...]:
    return (*(split.position or START), *split.end)


def position(changed_at: datetime, key: int) -> tuple[str, int]:
    return changed_at.astimezone(UTC).isoformat(timespec="microseconds"), key
