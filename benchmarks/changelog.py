# SPDX-License-Identifier: Apache-2.0
"""`materialize` beside Spark's `transformWithState` and `applyInPandasWithState`, and Flink's operator in a local job.

All engines take turns on the same changelogs, on two cores, Spark in micro-batches of 100,000 events. The Python peers
need minutes for a million events, so they read the first `--peer-events`, and rates are compared; on a busy machine,
trust those by CPU. Flink takes part if there is a JDK: V1, no upsert key, state on the heap and in RocksDB. It writes
no checkpoints, where ours and Spark's commit each micro-batch. Before that, each engine of Spark is checked on a small
changelog. At last: what a micro-batch costs by the number of stored keys. Run it: ``make bench BENCH=changelog``, or
with less to do by ``BENCH_ARGS='--scale 0.1 --rounds 1 --sizes 100000 1000000'``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from changelog_events import SCHEMA, Workload, many_rows_a_key, one_row_a_key
from changelog_peers import apply_in_pandas_with_state, transform_with_state
from changelog_state import STORED, show, state_cells
from cpu import seconds_since, tree
from flink_jars import FlinkProgram, javac
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit
from pyspark.sql.streaming.listener import StreamingQueryProgress
from report import WHERE

from forebay.changelog import from_changes, materialize
from forebay.text_tables import text_table

CORES = 2
EVENTS_A_BATCH = 100_000
OURS = "forebay materialize"
WITHOUT_OLD_ROWS = "… without update_preimage"
BY_POSITION = "… by position"
"""Only where a key has one row: the changes of several rows of a key have no order that says which one is live."""
ALL_OURS = (OURS, WITHOUT_OLD_ROWS, BY_POSITION)
SPARKS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "transformWithState (rows)": transform_with_state,
    "applyInPandasWithState": apply_in_pandas_with_state,
}
FLINKS = {"Flink V1, heap": "hashmap", "Flink V1, RocksDB": "rocksdb"}


def session() -> SparkSession:
    """Return a session with the state store that `transformWithState` needs."""
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    spark = (
        SparkSession.builder.master(f"local[{CORES}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "3g")
        .config("spark.sql.shuffle.partitions", str(CORES))
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "100000")
        .config("spark.sql.streaming.stateStore.providerClass", provider)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


class Bench:
    """Runs engines on files of changes.

    Args:
        spark: The session.
        work: A directory for data, checkpoints and states.
    """

    def __init__(self, spark: SparkSession, work: Path) -> None:
        self.spark, self.work = spark, work
        self.flink: FlinkProgram | None = None
        if javac() is not None:
            (work / "classes").mkdir()
            self.flink = FlinkProgram(Path(__file__).parent / "flink" / "MaterializerJob.java", work / "classes")

    def spark_run(
        self, engine: str, data: Path, batches: Callable[[DataFrame, int], None] | None = None
    ) -> StreamingQueryProgress | None:
        """Run a query of Spark to its end; return its last progress."""
        shutil.rmtree(self.work / "run", ignore_errors=True)
        df = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(data))
        state = str(self.work / "run" / "state")
        out = SPARKS[engine](df) if engine in SPARKS else _ours(df, state, engine)
        writer = out.writeStream.outputMode("update").option(
            "checkpointLocation", str(self.work / "run" / "checkpoint")
        )
        writer = writer.foreachBatch(batches) if batches else writer.format("noop")
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return query.lastProgress

    def check(self, workload: Workload) -> None:
        """Refuse an engine of Spark whose folded result is wrong."""
        workload.write_parquet(self.work / "small", 4)
        right = workload.right()
        for engine in (*_of(workload), *SPARKS):
            view: dict[int, int] = {}

            def fold(batch: DataFrame, _: int, view: dict[int, int] = view) -> None:
                for row in batch.collect():
                    if row["_change_type"] == "delete":
                        del view[row["key"]]
                    elif row["_change_type"] != "update_preimage":
                        view[row["key"]] = row["value"]

            self.spark_run(engine, self.work / "small", fold)
            if view != right:
                raise SystemExit(f"{engine} is wrong: {len(view.items() ^ right.items())} of {len(right)} rows differ")

    def compare(self, workload: Workload, rounds: int, peer_events: int) -> list[dict[str, Any]]:
        """Let all engines take turns, and return what each took."""
        size = min(EVENTS_A_BATCH, len(workload.kinds))
        files = round(len(workload.kinds) / size)
        peer_files = min(files, -(-peer_events // size))
        part = workload.first(size * peer_files)
        workload.write_parquet(self.work / "whole", files)
        part.write_parquet(self.work / "part", peer_files)
        workload.write_bytes(self.work / "bytes", CORES)
        workload.first(size).write_bytes(self.work / "warm", CORES)
        cells: dict[str, dict[str, Any]] = {}
        for number in range(rounds + 1):  # the first one warms up, and does not count
            for engine in (*_of(workload), *SPARKS, *(FLINKS if self.flink else ())):
                if number == 0 and engine in FLINKS:
                    continue
                cell = cells.setdefault(engine, {"workload": workload.name, "engine": engine, "s": [], "cpu_s": []})
                took, cpu = self._turn(engine, cell)
                cell["events"] = len((part if engine in SPARKS else workload).kinds)
                print(f"round {number}, {workload.name}, {engine}: {took:.1f} s, {cpu:.1f} s of CPU", flush=True)
                if number:
                    cell["s"].append(took)
                    cell["cpu_s"].append(cpu)
        return list(cells.values())

    def _turn(self, engine: str, cell: dict[str, Any]) -> tuple[float, float]:
        """Run an engine once; return its seconds by the clock and of CPU."""
        if self.flink and engine in FLINKS:
            arguments = (FLINKS[engine], CORES, self.work / "warm", self.work / "bytes")
            took, cpu = self.flink.run(*arguments, options=["-Xmx3g", "-XX:+UseParallelGC"]).split()
            return float(took), float(cpu)
        before, began = tree(), time.perf_counter()
        progress = self.spark_run(engine, self.work / ("part" if engine in SPARKS else "whole"))
        elapsed = time.perf_counter() - began
        cell["state"] = _state_size(self.work / "run", progress, engine)
        return elapsed, seconds_since(before)


def _of(workload: Workload) -> tuple[str, ...]:
    """Return our engines that are right for a workload."""
    return ALL_OURS[:2] if "live rows" in workload.name else ALL_OURS


def _ours(df: DataFrame, state: str, engine: str) -> DataFrame:
    options: dict[str, Any] = {"state_location": state, "shards": CORES, "preimages": engine != WITHOUT_OLD_ROWS}
    if engine == BY_POSITION:
        placed = df.withColumn("_split", lit("t/0")).withColumnRenamed("_sequence", "_pos")
        return materialize(from_changes(placed, "key", images="full"), ["key"], strategy="position", **options)
    return materialize(df, ["key"], strategy="retract", on_missing_retraction="hold", **options)


def _state_size(run: Path, progress: StreamingQueryProgress | None, engine: str) -> dict[str, int]:
    """Return how many bytes the newest version of the state has, and how many rows RocksDB counts."""
    if engine not in ALL_OURS and progress:
        operator = progress.stateOperators[0]
        return {"bytes": operator.customMetrics.get("rocksdbSstFileSize", 0), "rows": operator.numRowsTotal}
    manifests: dict[Path, Path] = {}
    for path in sorted((run / "state").rglob("v*.json")):
        manifests[path.parent] = path
    text = "".join(path.read_text() for path in manifests.values())
    segments = [path for path in (run / "state").rglob("*") if path.is_file() and path.suffix != ".json"]
    return {"bytes": sum(path.stat().st_size for path in segments if path.name in text), "rows": 0}


def table(cells: list[dict[str, Any]]) -> None:
    """Print rates and ratios."""
    rows = []
    ours: dict[str, tuple[float, float]] = {}
    for cell in cells:
        rate, cpu = cell["events"] / median(cell["s"]), median(cell["cpu_s"]) / cell["events"] * 1e6
        our_rate, our_cpu = ours.setdefault(cell["workload"], (rate, cpu))
        cell |= {"events_a_second": rate, "ratio": our_rate / rate, "cpu_ratio": cpu / our_cpu}
        state = cell.get("state", {}).get("bytes", 0)
        rows.append(
            [
                cell["workload"],
                cell["engine"],
                f"{cell['events']:,}",
                f"{median(cell['s']):.1f} ({min(cell['s']):.1f}-{max(cell['s']):.1f})",
                f"{rate:,.0f}",
                f"{cell['ratio']:.2f}×",
                f"{cpu:.1f}",
                f"{cell['cpu_ratio']:.2f}×",
                f"{state / 1e6:.1f} MB" if state else "",
            ]
        )
    header = ["changelog", "engine", "events", "s: median (min-max)", "events/s", "ours is"]
    print(text_table([*header, "CPU s/M events", "by CPU", "state"], rows))


def main() -> None:
    """Run the comparison and the cells of stored keys."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of events and keys")
    parser.add_argument("--peer-events", type=int, default=200_000, help="how many events Spark's peers read, at least")
    parser.add_argument("--sizes", type=int, nargs="*", default=STORED, help="numbers of stored keys")
    given = parser.parse_args()
    found: dict[str, Any] = {"cells": []}
    if given.rounds:
        with tempfile.TemporaryDirectory() as work:
            bench = Bench(session(), Path(work))
            bench.check(one_row_a_key(20_000, 4_000))
            bench.check(many_rows_a_key(10_000, 100, 20))
            size = given.scale
            for workload in (
                one_row_a_key(round(1_000_000 * size), round(200_000 * size)),
                many_rows_a_key(round(200_000 * size), round(2_000 * size), 50),
            ):
                found["cells"] += bench.compare(workload, given.rounds, given.peer_events)
        table(found["cells"])
    if given.sizes:
        found["stored"] = state_cells(tuple(given.sizes))
        show(found["stored"])
    WHERE.mkdir(parents=True, exist_ok=True)
    (WHERE / "changelog.json").write_text(json.dumps(found, indent=2) + "\n")
    print(f"figures: {WHERE}/changelog.json")


if __name__ == "__main__":
    main()
