# SPDX-License-Identifier: Apache-2.0
"""Writes micro-batches to PostgreSQL without Spark, and dies by SIGKILL at each numbered point of the writes, in turn.

Run by the tests as `python -P writer_program.py DSN KIND`. A point is before each statement, commit and part of
a COPY, and after the last one.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from types import SimpleNamespace
from typing import Any

import psycopg
import pyarrow as pa
from pyspark.sql.types import IntegerType, LongType, StringType, StructField

from forebay.spark.changelog.targets.changes import DELETED, END_AT, SEQUENCE, START_AT, Changes
from forebay.spark.changelog.targets.postgres import PostgresTarget

FIELDS = (StructField("id", IntegerType()), StructField("v", StringType()))
BATCHES = (
    [(1, "a", 1, False), (2, "b", 1, False), (3, "c", 1, False)],
    [(1, "a2", 2, False), (2, None, 2, True), (4, None, 2, True)],
)


class WithoutSpark(PostgresTarget):
    """Copies rows that are at hand, as one task."""

    def _copy(self, changes: Changes, statements: Any) -> tuple[list[int], int]:
        found: Any = changes.df
        half = found.table.num_rows // 2
        batches = [*found.table.slice(0, half).to_batches(), *found.table.slice(half).to_batches()]
        results = [row for done in self._copier(statements)(iter(batches)) for row in done.to_pylist()]
        return [row["task"] for row in results], sum(row["deletes"] for row in results)


def changes(kind: str, rows: list[tuple[Any, ...]]) -> Changes:
    names = ["id", "v", SEQUENCE, DELETED]
    table = pa.table({name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)})
    table = table.set_column(0, "id", table["id"].cast(pa.int32()))
    if kind == "plain":
        table = table.drop_columns([SEQUENCE])
    df: Any = SimpleNamespace(columns=table.column_names, table=table)
    return Changes(df, ("id",), FIELDS, None if kind == "plain" else LongType(), history=kind == "history")


def write(dsn: str, name: str, kind: str) -> None:
    target = WithoutSpark(dsn, name)
    for number, rows in enumerate(BATCHES):
        target._apply(changes(kind, rows), number, "the-query", adopt=False)


def die_at(fatal: int | None) -> Any:
    """Number the points of this process; return the counter."""
    numbers = itertools.count(1)

    def meet() -> None:
        if next(numbers) == fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(owner: Any, name: str) -> None:
        method = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            meet()
            return method(*args, **kwargs)

        setattr(owner, name, wrapped)

    around(psycopg.Connection, "execute")
    around(psycopg.Connection, "commit")
    around(psycopg.Copy, "write")
    around(psycopg.Copy, "finish")
    return numbers


def in_a_fork(dsn: str, name: str, kind: str, fatal: int | None) -> int:
    """Write in a child; return the number of points that it met, or 0 if it died."""
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        numbers = die_at(fatal)
        write(dsn, name, kind)
        if fatal == (met := next(numbers)):
            os.kill(os.getpid(), signal.SIGKILL)
        os.write(writing, str(met).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        met = pipe.read()
    _, status = os.waitpid(pid, 0)
    if not os.WIFSIGNALED(status) and os.WEXITSTATUS(status) != 0:
        raise SystemExit(f"the writer ended with {status}")
    return int(met or 0)


def main() -> None:
    dsn, kind = sys.argv[1:]
    order = {"plain": "id, v", "sequence": f'id, v, "{SEQUENCE}"', "history": f'id, v, "{START_AT}", "{END_AT}"'}[kind]

    def content(name: str) -> list[Any]:
        with psycopg.connect(dsn) as connection:
            rows = connection.execute(f"SELECT {order} FROM {name} ORDER BY {order}").fetchall()
            left = connection.execute("SELECT relname FROM pg_class WHERE relname LIKE '%staging%'").fetchall()
            if kind != "plain":
                rows += connection.execute(f"SELECT * FROM {name}__tombstones ORDER BY 1, 2").fetchall()
        return [rows, left]

    # Imports what writes need (pyarrow imports pandas), so that not each fork does.
    write(dsn, f"{kind}_warm", kind)
    points = in_a_fork(dsn, f"{kind}_undisturbed", kind, None)
    expected = content(f"{kind}_undisturbed")
    wrong = []
    for point in range(1, points + 1):
        name = f"{kind}_{point}"
        if in_a_fork(dsn, name, kind, point) != 0:
            raise SystemExit(f"point {point} of {points} was not met")
        if in_a_fork(dsn, name, kind, None) == 0:
            raise SystemExit("the second run died")
        if (found := content(name)) != expected:
            wrong.append([point, found])
    sys.stdout.write(json.dumps({"points": points, "expected": expected, "wrong": wrong}))


if __name__ == "__main__":
    main()
