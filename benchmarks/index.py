# SPDX-License-Identifier: Apache-2.0
"""`forebay.index` beside PostgreSQL and OpenSearch: full builds, changes, queries, hydration, and flips under load.

All take turns on the same rows: an 8-byte key, three filters, a time, and a text of eight words. PostgreSQL has `COPY`,
btrees and a GIN index; OpenSearch has `_bulk`. Ours is `Funnel.commit` and a node's `refresh`, with Spark's JVM among
its CPU seconds; the peers get bodies that are prepared before, and only their servers count. Run it:
``make bench BENCH=index``, or with less to do by ``BENCH_ARGS='--rows 250000 --rounds 3'``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from cpu import by_program_since, tree
from index_peers import OpenSearch, Postgres, opensearch, postgres
from opensearchpy import OpenSearch as Client
from opensearchpy import helpers
from pyspark.sql import SparkSession
from report import WHERE

from forebay.index import Datasource, Funnel, ObjectType, OpenSearchIndex, Property, SearchNode
from forebay.text_tables import text_table

CHANGES = (10, 1_000, 100_000)
DELTAS = 8
FLIPS = 100
ORDER = ObjectType(
    "Order",
    key={"id": "bigint"},
    datasources=[
        Datasource(
            "orders",
            {
                "status": Property("string", filter=True),
                "city": Property("string", filter=True),
                "amount": Property("decimal(12,2)", filter=True),
                "at": Property("timestamp"),
                "note": Property("string", text=True),
            },
        )
    ],
)


def rows(keys: np.ndarray[Any, Any], seed: int) -> pa.Table:
    """Return rows with these keys."""
    random = np.random.default_rng(seed)
    size = len(keys)

    def word(prefix: str, words: int) -> pa.Array:
        known = pa.array([f"{prefix}{number}" for number in range(words)])
        return known.take(pa.array(random.integers(0, words, size)))

    euros = pa.array(np.round(random.integers(0, 10_000_000, size) / 100, 2))
    amount = euros.cast(pa.decimal128(12, 2), safe=False)
    at = pa.array(1_700_000_000_000_000 + random.integers(0, 10**12, size), pa.timestamp("us", tz="UTC"))
    note = pc.binary_join_element_wise(*(word("w", 5_000) for _ in range(8)), " ")  # type: ignore[type-var]  # the stubs
    names = ["id", "status", "city", "amount", "at", "note"]
    return pa.table([pa.array(keys), word("s", 6), word("c", 10_000), amount, at, note], names=names)


def session() -> SparkSession:
    """Return a session of two cores."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


class Took:
    """Seconds by the clock and of CPU of a piece of work, one of each per repeat."""

    def __init__(self) -> None:
        self.clock: list[float] = []
        self.cpu: list[float] = []
        self.programs: list[dict[str, float]] = []

    @contextmanager
    def turn(self, without: int | None = None, root: int | None = None) -> Iterator[None]:
        """Measure a `with` block: this process without one of its children, or a server."""
        before, began = tree(without, root), time.perf_counter()
        yield
        self.clock.append(time.perf_counter() - began)
        self.programs.append(by_program_since(before, without, root))
        self.cpu.append(sum(self.programs[-1].values()))

    def shown(self) -> str:
        """The figures as people read them."""
        java = median(programs.get("java", 0.0) for programs in self.programs)
        return f"{_spread(self.clock)} s, CPU {_spread(self.cpu)} s" + (f", of Java {java:.3f}" if java else "")


def _spread(values: list[float]) -> str:
    return f"{median(values):.3f} ({min(values):.3f}-{max(values):.3f})"


class Asked:
    """A node that is asked as the peers are."""

    def __init__(self, node: SearchNode) -> None:
        self.get = node.get
        self._node = node

    def where(self, city: str) -> object:
        """Return 20 objects by a filter."""
        return self._node.where(city=city).limit(20).fetch().rows

    def search(self, word: str) -> object:
        """Return 20 objects by a word."""
        return self._node.search(word).limit(20).fetch().rows


class Bench:
    """Lets ours and the peers take turns, and collects figures and bars."""

    def __init__(
        self, spark: SparkSession, work: Path, size: int, peer_rows: int, peers: list[Postgres | OpenSearch]
    ) -> None:
        self.spark, self.work, self.size, self.peers = spark, work, size, peers
        self.peer_rows = min(size, peer_rows)
        self.server = next((peer.process for peer in peers if isinstance(peer, OpenSearch)), None)
        self.took: dict[str, Took] = {}
        self.figures: list[list[str]] = []
        self.bars: list[list[str]] = []
        self.funnel = Funnel(str(work / "ours"), ORDER)
        self.node: SearchNode | None = None
        self._next = size

    def build(self, rounds: int) -> None:
        """Full builds."""
        whole = rows(np.arange(self.size), 0)
        pq.write_table(whole, self.work / "rows.parquet", row_group_size=-(-self.size // 4))
        prepared = {each.name: each.prepared(whole.slice(0, self._rows(each))) for each in self.peers}
        for number in range(rounds):
            self.funnel = Funnel(str(self.work / f"ours{number}"), ORDER)
            with self._of("build", "forebay").turn(self.server):
                frame = self.spark.read.parquet(str(self.work / "rows.parquet"))
                self.funnel.commit("orders", frame, kind="snapshot")
            for peer in self.peers:
                with self._of("build", peer.name).turn(root=peer.process):
                    peer.build(prepared[peer.name])
            if number:
                shutil.rmtree(self.work / f"ours{number - 1}")
            print(f"build {number} done", flush=True)
        ours = self._of("build", "forebay")
        for name, took in self._all("build"):
            count = self.size if name == "forebay" else self._rows(next(p for p in self.peers if p.name == name))
            self.figures.append(
                [f"build of {count:,}", name, took.shown(), f"{count / median(took.cpu):,.0f} rows/CPU s"]
            )
            if name == "PostgreSQL":
                self.bar(
                    "full build, times PostgreSQL by the clock", median(took.clock) / median(ours.clock), 3, least=True
                )
            if name == "OpenSearch":
                ratio = (self.size / median(ours.cpu)) / (count / median(took.cpu))
                self.bar("full build, times OpenSearch in rows per CPU second", ratio, 5, least=True)

    def changes(self, rounds: int) -> None:
        """Changes in a warm process: until a node answers from them."""
        self.node = SearchNode(self.funnel.index.location, "Order", cache=self.work / "warm")
        full = median(self._of("build", "forebay").cpu)
        for size in (each for each in CHANGES if each <= self.size // 4):
            cell = f"{size:,} changed"
            # A JVM compiles for long: after a hundred small commits, one takes half of the CPU of an early one.
            warming = 100 if size == CHANGES[0] else 1
            for number in range(warming + rounds):
                changed = rows(np.random.default_rng(number).choice(self.size, size, replace=False), number + 1)
                # Bodies of peers are made before; the first turns of each size warm up, and do not count.
                with (self._of(cell, "forebay") if number >= warming else Took()).turn(self.server):
                    self.funnel.commit("orders", self.spark.createDataFrame(changed), kind="update")
                    self.node.refresh()
                for peer in self.peers:
                    if self._rows(peer) < self.size:
                        changed = changed.filter(pc.less(changed["id"], self._rows(peer)))
                    bodies = peer.prepared(changed)
                    with (self._of(cell, peer.name) if number >= warming else Took()).turn(root=peer.process):
                        peer.change(bodies)
            for name, took in self._all(cell):
                self.figures.append([cell, name, took.shown(), ""])
            ours = median(self._of(cell, "forebay").cpu)
            least = {10: 100, 1_000: 40, 100_000: 4}[size]
            self.bar(f"{cell}: a full build costs … times its CPU", full / ours, least, least=True)
            if size == 10:
                self.bar("10 changed, warm: CPU ms (PostgreSQL wins)", ours * 1e3, 60)

    def cold(self, rounds: int) -> None:
        """Ten changes in a new process, and a process that only starts Spark."""
        for _ in range(rounds):
            for what in ("change", "start"):
                took = self._of("10 changed, new process" if what == "change" else "Spark's start alone", "forebay")
                self._next += 1
                with took.turn(self.server):
                    found = self._child(what, self.funnel.index.location, str(self._next))
                took.cpu[-1] = float(found)
        change = self._of("10 changed, new process", "forebay")
        start = self._of("Spark's start alone", "forebay")
        self.figures.append(["10 changed, new process", "forebay", change.shown(), ""])
        self.figures.append(["Spark's start and a count", "forebay", start.shown(), ""])
        full = median(self._of("build", "forebay").cpu)
        self.bar(
            "10 changed, new process: a full build costs … times its CPU", full / median(change.cpu), 15, least=True
        )
        more = max(0.001, median(change.cpu) - median(start.cpu))
        self.bar("… without Spark's start", full / more, 15, least=True)

    def queries(self, repeats: int) -> None:
        """Queries without and with deltas, and of the peers."""
        location = self.work / "queries"
        self.funnel = Funnel(str(location), ORDER)
        self.funnel.commit("orders", self.spark.read.parquet(str(self.work / "rows.parquet")), kind="snapshot")
        found: dict[tuple[str, str], float] = {}
        for deltas in (0, DELTAS):
            for number in range(deltas):
                keys = np.random.default_rng(number).choice(self.size, self.size // 200, replace=False)
                changed = rows(keys, number + 50)
                self.funnel.commit("orders", self.spark.createDataFrame(changed), kind="update")
            runs = len(self.funnel.status().pipelines[0].version.runs)
            if runs != deltas + 1:
                raise SystemExit(f"the index has {runs} runs")
            node = SearchNode(str(location), "Order", cache=self.work / f"queries{deltas}")
            name = f"forebay, {deltas} deltas"
            self._query(found, name, Asked(node), repeats)
        for peer in self.peers:
            self._query(found, peer.name, peer, repeats // 4)
        most = {"get": 2.5, "filter": 2.0, "text": 2.0}
        for what, limit in most.items():
            ratio = found[what, f"forebay, {DELTAS} deltas"] / found[what, "forebay, 0 deltas"]
            self.bar(f"{what} with {DELTAS} deltas, times without", ratio, limit)

    def hydration(self, rounds: int) -> None:
        """A new node beside a copy and SHA-256 of its files."""
        index = self.funnel.index
        segments = index.serving(index.head()).segments
        paths = [path for each in segments if (path := index.store.local_path(each.name)) is not None]
        for number in range(rounds):
            with self._of("hydration", "forebay").turn(self.server):
                SearchNode(index.location, "Order", cache=self.work / f"hydrated{number}").close()
            with self._of("hydration", "copy + SHA-256").turn(self.server):
                (self.work / f"copied{number}").mkdir()
                for path in paths:
                    copy = shutil.copy(path, self.work / f"copied{number}" / path.name)
                    with Path(copy).open("rb") as file:
                        hashlib.file_digest(file, "sha256")
            shutil.rmtree(self.work / f"hydrated{number}")
            shutil.rmtree(self.work / f"copied{number}")
        for name, took in self._all("hydration"):
            self.figures.append([f"hydration, {sum(each.size for each in segments):,} bytes", name, took.shown(), ""])
        ours, copying = self._of("hydration", "forebay"), self._of("hydration", "copy + SHA-256")
        self.bar("hydration, times copy + SHA-256, CPU", median(ours.cpu) / median(copying.cpu), 2.5)

    def second_database(self, rounds: int) -> None:
        """OpenSearch as the second database, beside the bulk helper of its client with the same documents at hand."""
        peer = next((peer for peer in self.peers if isinstance(peer, OpenSearch)), None)
        if peer is None:
            return
        funnel = Funnel(str(self.work / "second"), ORDER)
        funnel.commit("orders", self.spark.createDataFrame(rows(np.arange(self.peer_rows), 0)), kind="snapshot")
        index = OpenSearchIndex(funnel.index.location, "Order", peer.url, settings={"number_of_replicas": 0})
        client = Client(hosts=[peer.url], timeout=600)
        index.catch_up()
        documents = [(hit["_id"], hit["_source"]) for hit in helpers.scan(client, index="order", size=5_000)]
        ((_, made),) = client.indices.get(index="order").items()
        analysis = made["settings"]["index"]["analysis"]
        settings = {"number_of_replicas": 0, "refresh_interval": "-1", "analysis": analysis}
        for number in range(rounds):
            with self._of("second database", "forebay").turn(peer.process):
                index.catch_up(full=True)
            bare = f"bare{number}"
            actions = (
                {"_index": bare, "_id": key, "_source": source, "version": 1, "version_type": "external_gte"}
                for key, source in documents
            )
            with self._of("second database", "opensearch-py").turn(peer.process):
                client.indices.create(index=bare, body={"settings": settings, "mappings": made["mappings"]})
                helpers.bulk(client, actions, chunk_size=1_000)
                client.indices.refresh(index=bare)
            client.indices.delete(index=bare)
        for who, took in self._all("second database"):
            rate = f"{self.peer_rows / median(took.clock):,.0f} documents/s"
            self.figures.append([f"second database, {self.peer_rows:,} documents", who, took.shown(), rate])
        ours, theirs = self._of("second database", "forebay"), self._of("second database", "opensearch-py")
        self.bar("second database, times the bulk helper", median(theirs.clock) / median(ours.clock), 0.8, least=True)

    def flips(self) -> None:
        """The p99 of `get` in another process, quiet and while 100 versions come."""
        command = [sys.executable, "-P", __file__, "--child", "reader", self.funnel.index.location, str(self.size)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdin is not None
            assert reader.stdout is not None
            quiet = json.loads(reader.stdout.readline())
            for number in range(FLIPS):
                self.funnel.commit(
                    "orders", self.spark.createDataFrame(rows(np.arange(10), 900 + number)), kind="update"
                )
            reader.stdin.close()
            during = json.loads(reader.stdout.readline())
        self.figures.append(["get, quiet", "forebay", f"p50 {quiet['p50']:.1f} µs, p99 {quiet['p99']:.1f} µs", ""])
        self.figures.append(
            [f"get, {during['flips']} flips", "forebay", f"p50 {during['p50']:.1f} µs, p99 {during['p99']:.1f} µs", ""]
        )
        self.bar(f"p99 of get during {FLIPS} flips, times quiet", during["p99"] / quiet["p99"], 3)

    def growth(self, small: int, rounds: int) -> None:
        """Ten changes of a smaller index, beside those of the whole one."""
        funnel = Funnel(str(self.work / "small"), ORDER)
        funnel.commit("orders", self.spark.createDataFrame(rows(np.arange(small), 0)), kind="snapshot")
        took, large = Took(), Took()
        for number in range(rounds + 1):
            for each, size, of in ((funnel, small, took), (self.funnel, self.size, large)):
                changed = rows(np.random.default_rng(number).choice(size, 10, replace=False), 2_000 + number)
                with (of if number else Took()).turn(self.server):
                    each.commit("orders", self.spark.createDataFrame(changed), kind="update")
        self.figures.append([f"10 changed of {small:,}", "forebay", took.shown(), ""])
        self.figures.append([f"10 changed of {self.size:,}", "forebay", large.shown(), ""])
        self.bar(f"10 changed of {self.size:,}, times of {small:,}, CPU", median(large.cpu) / median(took.cpu), 1.5)

    def bar(self, what: str, figure: float, limit: float, *, least: bool = False) -> None:
        """Note a bar: at least or at most a limit."""
        hit = figure >= limit if least else figure <= limit
        self.bars.append([what, f"{figure:.2f}", f"{'≥' if least else '≤'} {limit:g}", "hit" if hit else "missed"])

    def _query(
        self, found: dict[tuple[str, str], float], name: str, asked: Asked | Postgres | OpenSearch, repeats: int
    ) -> None:
        random = np.random.default_rng(7)
        count = self.size if name.startswith(("forebay", "Postgres")) else self.peer_rows
        work: dict[str, Callable[[], object]] = {
            "get": lambda: asked.get(int(random.integers(count))),
            "filter": lambda: asked.where(f"c{random.integers(10_000)}"),
            "text": lambda: asked.search(f"w{random.integers(5_000)}"),
        }
        for what, call in work.items():
            for _ in range(20):
                call()
            p50, p99 = _percentiles([_timed(call) for _ in range(repeats)])
            found[what, name] = p50
            self.figures.append([what, name, f"p50 {p50:.1f} µs, p99 {p99:.1f} µs", ""])

    def _of(self, cell: str, name: str) -> Took:
        return self.took.setdefault(f"{cell}\n{name}", Took())

    def _all(self, cell: str) -> Iterator[tuple[str, Took]]:
        for key, took in self.took.items():
            if key.startswith(f"{cell}\n"):
                yield key.split("\n")[1], took

    def _rows(self, peer: Postgres | OpenSearch) -> int:
        return self.size if isinstance(peer, Postgres) else self.peer_rows

    def _child(self, *arguments: str) -> str:
        command = [sys.executable, "-P", __file__, "--child", *arguments]
        return subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout.strip().split("\n")[-1]


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1e6


def _percentiles(values: list[float]) -> tuple[float, float]:
    return float(np.percentile(values, 50)), float(np.percentile(values, 99))


def child(what: str, location: str, number: str) -> None:
    """Do what a process of its own does: `start` Spark, commit a `change`, or be a `reader`."""
    if what == "reader":
        read(location, int(number))
        return
    spark = session()
    spark.range(10).count()
    if what == "change":
        changed = rows(np.arange(10) + 10 * int(number), int(number))
        Funnel(location, ORDER).commit("orders", spark.createDataFrame(changed), kind="update")
    print(sum(used.own + used.ended for used in tree().values()), flush=True)
    spark.stop()


def read(location: str, size: int) -> None:
    """Print the percentiles of `get`, quiet and until standard input ends, while a thread takes each new version."""
    with tempfile.TemporaryDirectory() as cache, SearchNode(location, "Order", cache=cache) as node:
        random = np.random.default_rng(3)

        def percentiles(until: Callable[[], bool]) -> dict[str, float]:
            values: list[float] = []
            while not until():
                values.append(_timed(lambda: node.get(int(random.integers(size)))))
                if len(values) % 50 == 0:
                    time.sleep(0.005)
            p50, p99 = _percentiles(values)
            return {"p50": p50, "p99": p99}

        end = time.monotonic() + 5
        print(json.dumps(percentiles(lambda: time.monotonic() > end)), flush=True)
        ended = threading.Event()

        def wait() -> None:
            sys.stdin.read()
            ended.set()

        threading.Thread(target=wait, daemon=True).start()
        flips: set[int] = set()

        def refresh() -> None:
            while not ended.wait(0.02):
                flips.add(node.refresh().number)

        flipping = threading.Thread(target=refresh)
        flipping.start()
        found = percentiles(ended.is_set)
        flipping.join()
        print(json.dumps({**found, "flips": len(flips)}), flush=True)


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer-rows", type=int, default=200_000, help="rows of OpenSearch, at most")
    parser.add_argument("--small-rows", type=int, default=250_000, help="rows of the smaller index of the last cell")
    parser.add_argument("--without-peers", action="store_true")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(*given.child)
        return
    with tempfile.TemporaryDirectory(prefix="forebay-bench-", ignore_cleanup_errors=True) as directory:
        work = Path(directory)
        spark = session()
        warm = Funnel(str(work / "first"), ORDER, small=100)
        for kind in ("snapshot", "update"):
            warm.commit("orders", spark.createDataFrame(rows(np.arange(20_000), len(kind))), kind=kind)
        if given.without_peers:
            bench = Bench(spark, work, given.rows, given.peer_rows, [])
            run(bench, given.rounds, given.small_rows)
        else:
            (work / "opensearch").mkdir()
            with postgres() as one, opensearch(work / "opensearch") as other:
                bench = Bench(spark, work, given.rows, given.peer_rows, [one, other])
                run(bench, given.rounds, given.small_rows)
        spark.stop()


def run(bench: Bench, rounds: int, small: int) -> None:
    """Run all cells, and print and keep what they found after each."""
    for cell in (
        lambda: bench.build(rounds),
        lambda: bench.changes(rounds),
        lambda: bench.cold(min(3, rounds)),
        lambda: bench.queries(4_000),
        lambda: bench.hydration(rounds),
        lambda: bench.second_database(rounds),
        bench.flips,
        lambda: bench.growth(small, rounds),
    ):
        cell()
        WHERE.mkdir(parents=True, exist_ok=True)
        found = {
            "rows": bench.size,
            "figures": bench.figures,
            "bars": bench.bars,
            "raw": {key.replace("\n", ", "): vars(took) for key, took in bench.took.items()},
        }
        (WHERE / "index.json").write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
        print(text_table(("what", "who", "median (min-max)", "rate"), bench.figures), flush=True)
        print(text_table(("bar", "figure", "limit", ""), bench.bars, right={1, 2}), flush=True)
    print(f"figures: {WHERE}/index.json")


if __name__ == "__main__":
    main()
