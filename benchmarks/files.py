# SPDX-License-Identifier: Apache-2.0
"""`forebay_files` beside Spark's own readers: a full scan with every column used, of large and small files.

A second table says where the CPU time goes: in the JVM, in Spark's Python workers, and, measured alone in one process,
in reading the file and in handing Arrow over.

Run it: ``make bench``, or with less data ``make bench BENCH_ARGS='--megabytes 20 --repeats 3'``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pyarrow as pa
from cpu import by_program_since, tree
from handing_over import hand_over
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.pandas.types import to_arrow_schema
from report import Cell, publish

import forebay
from forebay.sources.files import FileSource
from forebay.testkit.kafka_broker import Module, fetched
from forebay.text_tables import text_table

FORMATS = ("csv", "json", "text", "parquet", "orc", "avro")
SMALL_FORMATS = ("csv", "json", "text")
FILES = (1, 16)
# Bytes of one row of `rows` in each format, measured; they only set how many rows make the wanted size.
ROW_BYTES = {"csv": 118, "json": 205, "text": 118, "parquet": 62, "orc": 62, "avro": 88}


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
    frame = rows(spark, count)
    if kind == "text":
        frame = frame.select(fn.concat_ws(",", *frame.columns).alias("value"))
    writer = frame.repartition(files) if files > 1 else frame.coalesce(1)
    writer.write.mode("overwrite").format(kind).save(path)
    return path, count


@dataclass(frozen=True)
class DataSet:
    """Files of one format, their rows, and their columns as DDL."""

    name: str
    kind: str
    path: str
    rows: int
    ddl: str


def large(spark: SparkSession, where: Path, kind: str, files: int, megabytes: int) -> DataSet:
    """Write one file or several."""
    path, count = make(spark, where, kind, files, megabytes)
    schema = spark.read.parquet(path).schema if kind == "parquet" else rows(spark, 1).schema
    ddl = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)
    ddl = "value string" if kind == "text" else ddl
    return DataSet(f"{kind}, {files} file{'s' if files > 1 else ''}", kind, path, count, ddl)


def small(where: Path, kind: str, files: int) -> DataSet:
    """Write files of 50 rows and about 5 KB."""
    directory = where / f"{kind}-small"
    directory.mkdir()
    for file in range(files):
        found = [(file * 50 + row, f"name {file * 7919 % 10_007} {row}", "x" * 60) for row in range(50)]
        lines = [
            json.dumps(dict(zip(("id", "name", "note"), row, strict=True)))
            if kind == "json"
            else ",".join(map(str, row))
            for row in found
        ]
        (directory / f"part-{file:06}.{kind}").write_text("\n".join(lines) + "\n")
    ddl = "value string" if kind == "text" else "id bigint, name string, note string"
    return DataSet(f"{kind}, {files} small files", kind, str(directory), files * 50, ddl)


@dataclass(frozen=True)
class Took:
    """Seconds of one scan: by the clock, and of CPU in the JVM and in everything else, which is Python."""

    wall: float
    jvm: float
    python: float


def took(work: Callable[[], None], without: int | None = None) -> Took:
    """Run it; return what it took. A process `without` does not count, with everything below it."""
    before, began = tree(without), time.perf_counter()
    work()
    wall, used = time.perf_counter() - began, by_program_since(before, without)
    jvm = used.get("java", 0.0)
    return Took(wall, jvm, sum(used.values()) - jvm)


def scan(spark: SparkSession, reader: str, kind: str, path: str, schema: str) -> None:
    """Read every column of every row into nothing."""
    read = spark.read.format(reader).schema(schema)
    if reader == "forebay_files":
        read = read.option("fileFormat", kind)
    read.load(path).write.format("noop").mode("overwrite").save()


def alone(source: FileSource) -> tuple[float, float]:
    """Return the CPU seconds of reading everything in this process, and of handing it over: medians of three."""
    read, given = [], []
    for _ in range(3):
        began, count, some = time.process_time(), 0, deque[pa.RecordBatch](maxlen=8)
        for batch in forebay.run(source, parallelism=1):
            count += batch.num_rows
            some.append(batch)  # more of them would need fresh memory
        read.append(time.process_time() - began)
        given.append(hand_over(some, some[0].schema) * count / sum(batch.num_rows for batch in some))
    return median(read), median(given)


def compare(spark: SparkSession, data: DataSet, repeats: int) -> tuple[Cell, list[str]]:
    """Warm both up once, then take turns; return the comparison, and a row of the second table."""
    kind, path, ddl, count = data.kind, data.path, data.ddl, data.rows
    ours: list[Took] = []
    peer: list[Took] = []
    for turn in range(repeats + 1):
        for taken, reader in ((ours, "forebay_files"), (peer, kind)):
            taken.append(took(lambda reader=reader: scan(spark, reader, kind, path, ddl)))  # type: ignore[misc]  # bound at once
        print(
            f"  {data.name}, turn {turn}: ours {ours[-1].wall:.2f} s, Spark {peer[-1].wall:.2f} s",
            file=sys.stderr,
        )
    ours, peer = ours[1:], peer[1:]
    cell = Cell(
        data.name,
        "Spark's own reader",
        [one.wall for one in ours],
        [one.wall for one in peer],
        [one.jvm + one.python for one in ours],
        [one.jvm + one.python for one in peer],
        count,
    )
    schema = to_arrow_schema(spark.createDataFrame([], ddl).schema, timezone="UTC")
    source = FileSource(path=path, file_format=kind).with_schema(schema)
    parts = [median(one.jvm for one in peer), median(one.jvm for one in ours), median(one.python for one in ours)]
    return cell, [
        data.name,
        *(f"{part / count * 1e6:.2f}" for part in (*parts, *alone(source))),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=500, help="size of each of the eight data sets")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--files", default=",".join(map(str, FILES)))
    parser.add_argument("--small", type=int, default=20_000, help="number of small files; 0: leave them out")
    args = parser.parse_args()
    spark = (
        SparkSession.builder.master("local[*]")
        .config("spark.ui.enabled", False)
        .config("spark.driver.memory", "3g")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    if "avro" in args.formats.split(","):
        # That of Spark 4.2 is not on Maven Central.
        jar = fetched("spark-avro-4.1.1", [Module("org.apache.spark", "spark-avro_2.13", "4.1.1", alone=True)])
        spark.sql(f"ADD JAR '{next(jar.iterdir())}'")
    forebay.register(spark)
    with tempfile.TemporaryDirectory() as where:
        kinds = args.formats.split(",")
        found = [
            compare(spark, large(spark, Path(where), kind, int(files), args.megabytes), args.repeats)
            for kind in kinds
            for files in filter(None, args.files.split(","))
        ]
        found += [
            compare(spark, small(Path(where), kind, args.small), args.repeats) for kind in SMALL_FORMATS if args.small
        ]
    spark.stop()
    publish("files", [cell for cell, _ in found])
    print("Where the CPU time goes, in seconds for a million rows; the last two, alone, are parts of the third:")
    print(
        text_table(
            ["cell", "Spark's, JVM", "ours, JVM", "ours, Python", "reading", "handing over"], [row for _, row in found]
        )
    )


if __name__ == "__main__":
    main()
