# SPDX-License-Identifier: Apache-2.0
"""The demo of indexes: orders from a CSV file and shipments from a stream become objects, which a plain process asks.

It needs no server. It indexes 1,000 orders, changes ten, is killed in the middle of a commit, and asks again.

Run it: ``make demo-index``, or ``python examples/demo_index.py``.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from demo import title  # noqa: E402 - the examples are programs, found beside this one

from forebay.changelog import apply_changes, from_changes  # noqa: E402
from forebay.index import Datasource, Funnel, ObjectType, Page, Property, SearchNode  # noqa: E402

ORDER = ObjectType(
    "Order",
    key="order_id",
    datasources=[
        Datasource(
            "orders",
            properties={
                "status": Property("string", filter=True),
                "total": Property("decimal(12,2)", filter=True),
                "note": Property("string", text=True),
            },
        ),
        Datasource("customers", properties={"customer": Property("string", filter=True)}),
        Datasource(
            "shipments",
            key={"order_id": "order_no"},
            properties={"city": Property("string", column="ship_city", filter=True)},
        ),
    ],
)
ORDERS = "order_id INT, status STRING, total DECIMAL(12,2), note STRING, load_ts TIMESTAMP"
CUSTOMERS = "order_id BIGINT, customer STRING"
SHIPMENTS = "order_no BIGINT, ship_city STRING, _change_type STRING, _sequence BIGINT"
NOTES = ("東京都への配送が遅延しています", "parcel is late", "leave it with the neighbour", "返品を受け付けました", "")
CITIES = ("Oslo", "東京", "Bergen", "大阪")


class Shop:
    """Files of a shop: two CSV files, and a directory to which files of changes are added."""

    def __init__(self, directory: Path, orders: int) -> None:
        self.directory = directory
        self._random = random.Random(1)
        self._orders = {number: self._order(number) for number in range(1, orders + 1)}
        self._sequence = 0
        (directory / "shipments").mkdir(parents=True)
        self.write()
        self._csv("customers.csv", [(number, f"customer {number % 50}") for number in self._orders])
        self.ship([(number, CITIES[number % 4], "insert") for number in self._orders])

    def _order(self, number: int) -> tuple[Any, ...]:
        return number, ("open", "closed")[number % 2], f"{self._random.randrange(10_000) / 100:.2f}", NOTES[number % 5]

    def change(self, numbers: list[int]) -> None:
        for number in numbers:
            self._orders[number] = (number, "late", "99.99", "the parcel is late again: 再配達")
        self.write()

    def write(self) -> None:
        # Each export has a new time of loading. No property comes from it, so it changes no object.
        self._csv("orders.csv", [(*row, time.strftime("%Y-%m-%d %H:%M:%S")) for row in self._orders.values()])

    def _csv(self, name: str, rows: list[tuple[Any, ...]]) -> None:
        with (self.directory / name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)

    def ship(self, changes: list[tuple[int, str, str]]) -> None:
        lines = []
        for number, city, kind in changes:
            self._sequence += 1
            row = {"order_no": number, "ship_city": city, "_change_type": kind, "_sequence": self._sequence}
            lines.append(json.dumps(row, ensure_ascii=False))
        (self.directory / "shipments" / f"{self._sequence:06d}.json").write_text("\n".join(lines), encoding="utf-8")


def spark_session() -> SparkSession:
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("forebay demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def orders(spark: SparkSession, shop: Path) -> DataFrame:
    return spark.read.schema(ORDERS).csv(str(shop / "orders.csv"))


def apply_shipments(spark: SparkSession, funnel: Funnel, shop: Path, checks: Path) -> None:
    changes = from_changes(
        spark.readStream.schema(SHIPMENTS).json(str(shop / "shipments")), images="full", history="complete"
    )
    query = apply_changes(
        changes,
        funnel.target("shipments"),
        keys="order_no",
        checkpoint_location=str(checks),
        trigger={"availableNow": True},
    )
    query.awaitTermination()


def killed_commit(directory: Path) -> int:
    """Commit the orders in a process that is killed when all files are written, and the log does not name them yet."""
    program = f"""
import os, signal, sys
sys.path.insert(0, {str(HERE)!r})
import demo_index
from forebay.table.index.log import Log
Log.append = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
spark = demo_index.spark_session()
funnel = demo_index.Funnel({str(directory / "objects")!r}, demo_index.ORDER)
rows = demo_index.orders(spark, demo_index.Path({str(directory / "shop")!r}))
funnel.commit("orders", rows, kind="snapshot", transaction="tuesday")
"""
    done = subprocess.run(  # noqa: S603 - this interpreter
        [sys.executable, "-P", "-c", program], check=False, stderr=subprocess.DEVNULL
    )
    return -done.returncode


def show(console: Console, text: str, page: Page) -> None:
    table = Table(
        title=f"{text}   (version {page.version.number}, fact {page.version.data} of the log)", title_justify="left"
    )
    for name in ("order_id", "status", "total", "customer", "city", "note"):
        table.add_column(name, justify="right" if name in ("order_id", "total") else "left")
    for row in page.rows:
        table.add_row(
            *(
                "" if row[name] is None else str(row[name])
                for name in ("order_id", "status", "total", "customer", "city", "note")
            )
        )
    console.print(table)


def questions(node: SearchNode) -> dict[str, Page]:
    return {
        "open, total > 95, dearest first": node.where("status = 'open' AND total > 95")
        .order_by("-total")
        .limit(3)
        .fetch(),
        "search('late parcel')": node.search("late parcel").limit(3).fetch(),
        "search('配送 遅延') in 大阪": node.search("配送 遅延").where(city="大阪").limit(3).fetch(),
        "search('再配達')": node.search("再配達").limit(12).fetch(),
    }


def run(console: Console, directory: Path, count: int) -> None:
    shop, spark = Shop(directory / "shop", count), spark_session()
    funnel = Funnel(str(directory / "objects"), ORDER)
    title(f"1. {count:,} orders, of two CSV files and a stream")
    funnel.commit("orders", orders(spark, shop.directory), kind="snapshot", transaction="monday")
    customers = spark.read.schema(CUSTOMERS).csv(str(shop.directory / "customers.csv"))
    funnel.commit("customers", customers, kind="snapshot", transaction="monday")
    apply_shipments(spark, funnel, shop.directory, directory / "checks")
    with SearchNode(str(directory / "objects"), "Order", cache=directory / "cache") as node:
        for text, page in questions(node).items():
            show(console, text, page)

        title("2. The next export: ten of them differ, and three parcels move")
        shop.change(list(range(7, 107, 10)))
        shop.ship([(7, "Oslo", "update_postimage"), (17, "Oslo", "update_postimage"), (27, CITIES[3], "delete")])
        began = time.perf_counter()
        done = funnel.commit("orders", orders(spark, shop.directory), kind="snapshot", transaction="monday evening")
        seconds = time.perf_counter() - began
        version = funnel.status().pipelines[0].version
        console.print(f"committed in {seconds:.2f} s: {dict(done.counts)}; {version.decision}, {version.reason}")
        apply_shipments(spark, funnel, shop.directory, directory / "checks")
        node.refresh()
        for text, page in questions(node).items():
            show(console, text, page)

        title("3. A process is killed in the middle of the next commit")
        before = {text: page.rows for text, page in questions(node).items()}
        shop.change(list(range(8, 58, 10)))
        console.print(f"the process ended by {signal.Signals(killed_commit(directory)).name}")
        node.refresh()
        same = before == {text: page.rows for text, page in questions(node).items()}
        console.print(f"the answers are {'the same' if same else '[red]other ones'}")
        done = funnel.commit("orders", orders(spark, shop.directory), kind="snapshot", transaction="tuesday")
        node.refresh()
        console.print(f"committed again: {dict(done.counts)}; {node.search('再配達').count()} orders are late now")

        title("4. Is the index right?")
        console.print(str(funnel.verify()))
        console.print(f"the node: {funnel.verify(node)}")
        console.print(str(funnel.why(27)), markup=False, highlight=False)
        collected = funnel.gc(keep=1, versions=1)
        console.print(f"collected {len(collected.facts)} facts and {len(collected.files)} files; {funnel.verify()}")
        if not same or not funnel.verify(node).is_equal:
            raise SystemExit("the demo failed")
    spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orders", type=int, default=1000, help="how many orders there are")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="forebay-demo-") as directory:
        run(Console(), Path(directory), arguments.orders)


if __name__ == "__main__":
    main()
