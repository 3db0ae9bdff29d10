# SPDX-License-Identifier: Apache-2.0
"""What a stream of files costs that has read very many and has no `stateLocation`: its memory is in every offset.

For each number of files: a planner without Spark takes them all at once, and nobody reads them. Then Spark goes on from
the last offset: it idles, and then some files come, one after the other. Run it: ``make bench BENCH=files_in_offset``,
or with less to do by ``BENCH_ARGS='--files 10000'``. It has no peer: `stream_files` compares with Spark's own stream.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from cpu import seconds_since, tree
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import forebay
from forebay.framework.microbatch import offset_codec as codec
from forebay.framework.microbatch.offset import canonical
from forebay.framework.microbatch.stream_planner import StreamPlanner, open_stream
from forebay.framework.runtime.host_options import HostOptions
from forebay.sources.files import FileSource
from forebay.text_tables import text_table

TEXT = pa.schema([("value", pa.string())])
RESULT = Path("build/bench/files_in_offset.json")


def make(directory: Path, first: int, count: int) -> None:
    """Write small files."""
    directory.mkdir(exist_ok=True)
    for number in range(first, first + count):
        (directory / f"part-{number:07}-{number * 2654435761 % 2**32:08x}.txt").write_text(f"{number}\n")


def opened(directory: Path) -> StreamPlanner:
    """Return a planner as Spark's is."""
    source = FileSource(path=str(directory), file_format="text").with_schema(TEXT)
    return open_stream(source, HostOptions(), parallelism=2)


def taken(planner: StreamPlanner, offset: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the offset at which everything there was is read."""
    while True:
        end = json.loads(canonical(planner.latest(offset)))
        if end == offset:
            return offset
        planner.commit(end)
        offset = end


def filled(directory: Path, offset: Mapping[str, Any], files: int) -> Mapping[str, Any]:
    """Return the offset at which so many files are read: in one micro-batch, where a stream takes hundreds."""
    make(directory, 1, files - 3)
    no_limit = 1 << 30
    planner = opened(directory)
    with patch.multiple(codec, _MOST_PLAN=no_limit, MOST_INLINE=no_limit, MOST_OFFSET=no_limit):
        offset = taken(planner, offset)
        for number in (files - 2, files - 1):  # what the last micro-batch read stays whole
            make(directory, number, 1)
            _, offset = timed(planner, offset)
            offset = json.loads(canonical(offset))
    planner.close()
    return offset


def timed(planner: StreamPlanner, offset: Mapping[str, Any]) -> tuple[float, Mapping[str, Any]]:
    """Return how many milliseconds the planner takes to find something new."""
    while True:
        began = time.perf_counter()
        end = planner.latest(offset)
        if end is not offset:
            return 1000 * (time.perf_counter() - began), end


def stream(spark: SparkSession, directory: Path) -> DataFrame:
    """Return the stream."""
    return (
        spark.readStream.format("forebay_files")
        .schema("value string")
        .option("fileFormat", "text")
        .load(str(directory))
    )


def start(frame: DataFrame, checkpoint: Path) -> StreamingQuery:
    """Start the query."""
    return frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()


def wait(query: StreamingQuery, checkpoint: Path, n: int) -> tuple[float, dict[str, Any]]:
    """Return when a micro-batch was done, and its report, which is long: it is asked for once."""
    deadline = time.monotonic() + 120
    while not (checkpoint / "commits" / str(n)).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"micro-batch {n} does not come")
        time.sleep(0.01)
    done = time.perf_counter()
    time.sleep(0.5)
    report = query.lastProgress
    return done, {} if report is None else dict(report["durationMs"])


def go_on(checkpoint: Path, offset: Mapping[str, Any]) -> int:
    """Let the checkpoint say that another micro-batch, with this offset, is done; return its number."""
    last = max(int(path.name) for path in (checkpoint / "offsets").iterdir() if path.name.isdigit())
    lines = (checkpoint / "offsets" / str(last)).read_text().split("\n")
    (checkpoint / "offsets" / str(last + 1)).write_text("\n".join([*lines[:2], canonical(offset)]))
    shutil.copy(checkpoint / "commits" / str(last), checkpoint / "commits" / str(last + 1))
    return last + 1


def measure(spark: SparkSession, where: Path, files: int, arriving: int, seconds: float) -> dict[str, float]:
    """Return the figures of one number of files."""
    directory, checkpoint = where / f"in-{files}", where / f"checkpoint-{files}"
    make(directory, 0, 1)
    frame = stream(spark, directory)
    query = start(frame, checkpoint)
    wait(query, checkpoint, 0)
    query.stop()
    offset = filled(directory, json.loads((checkpoint / "offsets" / "0").read_text().split("\n")[2]), files)
    planner = opened(directory)
    offset = taken(planner, offset)
    make(directory, files, 1)
    found, offset = timed(planner, offset)
    planner.close()
    began = time.perf_counter()
    planner = opened(directory)
    offset = taken(planner, json.loads(canonical(offset)))
    restart = time.perf_counter() - began
    planner.close()
    last = go_on(checkpoint, offset)
    query = start(frame, checkpoint)
    make(directory, files + 1, 1)
    wait(query, checkpoint, last + 1)
    time.sleep(7)
    before, began = tree(), time.perf_counter()
    time.sleep(seconds)
    cores = seconds_since(before) / (time.perf_counter() - began)
    reports, latencies = [], []
    for number in range(arriving):
        began = time.perf_counter()
        make(directory, files + 2 + number, 1)
        done, report = wait(query, checkpoint, last + 2 + number)
        reports.append(report)
        latencies.append(1000 * (done - began))
    query.stop()
    size = len(canonical(offset))
    shutil.rmtree(directory)
    return {
        "files": files,
        "offset_characters": size,
        "characters_a_file": round(size / files, 1),
        "planner_one_new_file_ms": round(found),
        "planner_restart_ms": round(1000 * restart),
        "idle_cores": round(cores, 3),
        "latest_offset_ms": median(report["latestOffset"] for report in reports),
        "micro_batch_log_ms": median(report.get("walCommit", 0) + report.get("commitOffsets", 0) for report in reports),
        "trigger_ms": median(report["triggerExecution"] for report in reports),
        "arrival_to_done_ms": round(median(latencies)),
        "wal_mb_of_100": round(size / 1e4, 1),
    }


def main() -> None:
    """Measure each number of files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, nargs="+", default=[10_000, 50_000, 200_000, 400_000])
    parser.add_argument("--arriving", type=int, default=5, help="files that come one by one")
    parser.add_argument("--idle", type=float, default=20.0, help="seconds that the query idles")
    args = parser.parse_args()
    where = Path(tempfile.mkdtemp(prefix="forebay-offset-"))
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False)
    spark = builder.config("spark.ui.showConsoleProgress", False).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    forebay.register(spark)
    try:
        figures = []
        for files in args.files:
            figures.append(measure(spark, where, files, args.arriving, args.idle))
            print(f"  {figures[-1]}", file=sys.stderr)
    finally:
        spark.stop()
        shutil.rmtree(where)
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(figures, indent=2) + "\n")
    rows = [[name.replace("_", " "), *(f"{one[name]:,}" for one in figures)] for name in figures[0]]
    print(text_table(["", *(f"{one['files']:,} files" for one in figures)], rows))


if __name__ == "__main__":
    main()
