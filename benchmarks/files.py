# SPDX-License-Identifier: Apache-2.0
"""`forebay_files` beside Spark's own readers: a full scan with every column used, one file and sixteen.

Run it: ``make bench``, or with less data ``make bench BENCH_ARGS='--megabytes 20 --repeats 3'``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from cpu import tree_cpu_seconds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from report import Cell, publish

import forebay

FORMATS = ("csv", "json", "parquet")
FILES = (1, 16)
# Bytes of one row of `rows` in each format, measured; they only set how many rows make the wanted size.
ROW_BYTES = {"csv": 118, "json": 205, "parquet": 62}


def rows(spark: SparkSession, count: int) -> DataFrame:
    """Seven columns of the types that files hold most."""
    n = fn.col("id")
    return spark.range(count).select(
        n.alias("id"),
        fn.concat(fn.lit("customer-"), fn.hash(n).cast("string")).alias("name"),
        (fn.rand(7) * 1000).alias("amount"),
        (n % 97).cast("int").alias("quantity"),
        fn.timestamp_micros(1_700_000_000_000_000 + n * 1_000_003).alias("at"),
        fn.date_add(fn.lit("2024-01-01").cast("date"), (n % 365).cast("int")).alias("day"),
        fn.concat_ws(" ", fn.md5(n.cast("string")), fn.lit("note")).alias("note"),
    )


def make(spark: SparkSession, where: Path, kind: str, files: int, megabytes: int) -> tuple[str, int]:
    """Write one data set; return its path and its rows."""
    count = megabytes * 1_000_000 // ROW_BYTES[kind]
    path = str(where / f"{kind}-{files}")
    writer = rows(spark, count).repartition(files) if files > 1 else rows(spark, count).coalesce(1)
    writer.write.mode("overwrite").format(kind).save(path)
    return path, count


def seconds(work: Callable[[], None]) -> tuple[float, float]:
    """Run it; return wall and CPU seconds."""
    cpu, began = tree_cpu_seconds(), time.perf_counter()
    work()
    return time.perf_counter() - began, tree_cpu_seconds() - cpu


def scan(spark: SparkSession, reader: str, kind: str, path: str, schema: str) -> None:
    """Read every column of every row into nothing."""
    read = spark.read.format(reader).schema(schema)
    if reader == "forebay_files":
        read = read.option("fileFormat", kind)
    read.load(path).write.format("noop").mode("overwrite").save()


def compare(spark: SparkSession, where: Path, kind: str, files: int, megabytes: int, repeats: int) -> Cell:
    """Warm both up once, then take turns."""
    path, count = make(spark, where, kind, files, megabytes)
    schema = spark.read.parquet(path).schema if kind == "parquet" else rows(spark, 1).schema
    ddl = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)
    ours: list[tuple[float, float]] = []
    peer: list[tuple[float, float]] = []
    for turn in range(repeats + 1):
        for taken, reader in ((ours, "forebay_files"), (peer, kind)):
            taken.append(seconds(lambda reader=reader: scan(spark, reader, kind, path, ddl)))  # type: ignore[misc]  # bound at once
        print(
            f"  {kind}, {files} files, turn {turn}: ours {ours[-1][0]:.2f} s, Spark {peer[-1][0]:.2f} s",
            file=sys.stderr,
        )
    wall, cpu = zip(*ours[1:], strict=True)
    peer_wall, peer_cpu = zip(*peer[1:], strict=True)
    name = f"{kind}, {files} file{'s' if files > 1 else ''}"
    return Cell(name, "Spark's own reader", [*wall], [*peer_wall], [*cpu], [*peer_cpu], count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=500, help="size of each of the six data sets")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--files", default=",".join(map(str, FILES)))
    args = parser.parse_args()
    spark = (
        SparkSession.builder.master("local[*]")
        .config("spark.ui.enabled", False)
        .config("spark.driver.memory", "3g")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    forebay.register(spark)
    with tempfile.TemporaryDirectory() as where:
        cells = [
            compare(spark, Path(where), kind, int(files), args.megabytes, args.repeats)
            for kind in args.formats.split(",")
            for files in args.files.split(",")
        ]
    spark.stop()
    publish("files", cells)


if __name__ == "__main__":
    main()
