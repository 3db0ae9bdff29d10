# SPDX-License-Identifier: Apache-2.0
"""The tour: a backfill over files of three formats, the same files as a stream, the smallest connector, a look.

Run it: ``make demo``, or ``python examples/demo.py``.
"""

from __future__ import annotations

import inspect
import os
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

import forebay

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from countdown import Countdown  # noqa: E402 - the examples are programs, found beside this one
from progress_bar import progress  # noqa: E402

DATA = f"{HERE}/data"


def read_orders(spark: SparkSession) -> DataFrame:
    return (
        spark.read.format("forebay_files")
        .schema(
            "order_id long, customer_id long, product_id int, quantity int, ordered_at timestamp, note string, "
            "month string"  # the directories: month=2024-01, …
        )
        .option("fileFormat", "csv")
        .option("header", True)
        .load(f"{DATA}/orders")
    )


def read_customers(spark: SparkSession) -> DataFrame:
    return spark.read.format("forebay_files").load(f"{DATA}/customers.jsonl")


def read_products(spark: SparkSession) -> DataFrame:
    return spark.read.format("forebay_files").load(f"{DATA}/products.parquet")


def revenue(orders: DataFrame, customers: DataFrame, products: DataFrame) -> DataFrame:
    return (
        orders.join(customers, "customer_id")
        .join(products, "product_id")
        .groupBy("month", "category")
        .agg(fn.count("*").alias("orders"), fn.round(fn.sum(fn.col("quantity") * fn.col("price")), 2).alias("revenue"))
        .orderBy("month", fn.desc("revenue"))
    )


def follow(spark: SparkSession, inbox: Path, checks: Path) -> None:
    orders = (
        spark.readStream.format("forebay_files")
        .schema(
            "order_id long, customer_id long, product_id int, quantity int, ordered_at timestamp, note string, "
            "month string"
        )
        .option("fileFormat", "csv")
        .option("header", True)
        .option("maxFilesPerTrigger", 1)
        .load(str(inbox))
    )
    query = (
        orders.writeStream.foreachBatch(lambda batch, n: print(f"    micro-batch {n}: {batch.count()} orders"))
        .option("checkpointLocation", str(checks))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def count_down(spark: SparkSession) -> DataFrame:
    forebay.register(spark, Countdown)
    return spark.read.format("countdown").option("start", 5).load()


def look() -> object:
    return forebay.peek(forebay.FileSource(path=f"{DATA}/customers.jsonl"), 5)


def lines_of(function: Callable[..., object]) -> None:
    print(textwrap.indent(textwrap.dedent(inspect.getsource(function)), "    "))


def title(text: str) -> None:
    print(f"\n── {text} " + "─" * max(0, 90 - len(text)))


def main() -> None:
    title("1. A backfill: CSV, JSON lines and Parquet, joined by Spark")
    for function in (read_orders, read_customers, read_products, revenue):
        lines_of(function)
    print("Starting Spark …", flush=True)
    spark = (
        SparkSession.builder.master("local[*]")
        .appName("forebay demo")
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    forebay.register(spark)
    print("Spark is up.")
    result = revenue(read_orders(spark), read_customers(spark), read_products(spark))
    with progress(spark, "joining"):
        rows = result.toArrow()
    print(forebay.Peek(rows, rows.num_rows + 1))

    title("2. The same files as a stream: what is there, then only what is new")
    lines_of(follow)
    with tempfile.TemporaryDirectory() as directory:
        inbox, checks = Path(directory) / "in", Path(directory) / "checks"
        months = sorted(Path(DATA, "orders").iterdir())
        for month in months[:-1]:
            shutil.copytree(month, inbox / month.name)
        print(f"{len(months) - 1} months are there:")
        follow(spark, inbox, checks)
        shutil.copytree(months[-1], inbox / months[-1].name)
        print("another month comes, and the query is started again:")
        follow(spark, inbox, checks)
        print(f"\nforebay.offsets(checks)\n{forebay.offsets(str(checks))}")

    title("3. The smallest connector, registered and read")
    lines_of(Countdown)
    lines_of(count_down)
    count_down(spark).show()
    spark.stop()

    title("4. A look without Spark")
    lines_of(look)
    print(look())


if __name__ == "__main__":
    main()
