# SPDX-License-Identifier: Apache-2.0
"""A directory of very many files, streamed: what a look at it costs, and how Spark's own file stream does.

Prints two tables. The first has no Spark in it: one planner over `--planned` files in one directory. The second reads
`--drained` files with the same cap by both, in turn, restarts both with nothing new, and lets each idle alone: how long
a trigger takes that finds nothing, and what it costs. Spark's own lists all files in each trigger; ours lists as often
as follows from what it costs, and is measured with a listing in each trigger too. Run it:
``make bench BENCH=stream_files``, or with less to do by ``BENCH_ARGS='--planned 0 --drained 5000'``.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
from cpu import seconds_since, tree
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

import forebay
from forebay.framework.microbatch.stream_planner import open_stream
from forebay.framework.runtime.host_options import HostOptions
from forebay.options import Duration
from forebay.sources.files import FileSource
from forebay.text_tables import text_table

TEXT = pa.schema([("value", pa.string())])


def make(directory: Path, first: int, count: int) -> None:
    """Write small files; none is like another."""
    directory.mkdir(exist_ok=True)
    for number in range(first, first + count):
        (directory / f"part-{number:07}.txt").write_text(f"{number}\n")


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Run it; return the seconds it took and what it gave."""
    began = time.perf_counter()
    found = work()
    return time.perf_counter() - began, found


def resident() -> float:
    """Return the megabytes this process has ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def plan(where: Path, files: int, cap: int) -> list[list[str]]:
    """Plan a stream over one directory, and return what each step took."""
    directory = where / "planned"
    make(directory, 0, files)
    source = FileSource(path=str(directory), file_format="text").with_schema(TEXT)
    options = HostOptions(
        max_files_per_trigger=cap, state_location=str(where / "state"), discovery_interval=Duration(0)
    )
    before = resident()
    listed, _ = timed(source.list)
    table = [["list once, no stream", f"{listed:.2f} s", f"{resident() - before:.0f} MB"]]
    planner = open_stream(source, options, parallelism=2)
    offset = planner.initial()
    taken, offset = timed(lambda: planner.latest(offset))
    table.append([f"first micro-batch of {cap:,}: list and plan", f"{taken:.2f} s", f"{resident() - before:.0f} MB"])
    steps = []
    for _ in range(5):
        taken, end = timed(lambda offset=offset: planner.latest(offset))  # type: ignore[misc]  # bound at once
        planner.tasks(offset, end)
        planner.commit(end)
        steps.append(taken)
        offset = end
    table.append(["each further one, with a listing", f"{median(steps):.2f} s", f"{resident() - before:.0f} MB"])
    taken, offset = timed(lambda: planner.latest(offset, limited=False))
    table.append(["all the rest in one", f"{taken:.2f} s", f"{resident() - before:.0f} MB"])
    size = len(str(offset))
    planner.latest(offset)
    idle = [timed(lambda: planner.latest(offset))[0] for _ in range(3)]
    table.append(["idle, with a listing", f"{median(idle):.2f} s", f"{resident() - before:.0f} MB"])
    make(directory, files, 1)
    taken, offset = timed(lambda: planner.latest(offset))
    table.append(["one new file among them", f"{taken:.2f} s", f"offset {size:,} characters"])
    planner.close()
    again = open_stream(source, options, parallelism=2)
    taken, _ = timed(lambda: again.latest(offset))
    table.append(["a restart, to the first answer", f"{taken:.2f} s", f"{resident() - before:.0f} MB"])
    again.close()
    return table


def frame(spark: SparkSession, ours: bool, directory: Path, cap: int, state: Path, **options: str) -> DataFrame:
    """Return the stream, ours or Spark's own."""
    reader = spark.readStream.schema("value string").option("maxFilesPerTrigger", cap)
    if ours:
        reader = reader.format("forebay_files").option("fileFormat", "text").option("stateLocation", str(state))
        return reader.options(**options).load(str(directory))
    return reader.format("text").load(str(directory))


class Idle(StreamingQueryListener):
    """Counts the triggers that found nothing: Spark tells no times of them, but is told to speak of each."""

    def __init__(self) -> None:
        self.triggers = 0

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Nothing."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Count."""
        self.triggers += 1

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Nothing."""


def idle(spark: SparkSession, stream: DataFrame, checkpoint: Path, seconds: float) -> tuple[float, float, float]:
    """Let a caught-up query find nothing, as often as Spark asks it.

    Returns:
        The milliseconds of a trigger, the CPU milliseconds of it, and the cores that are in use.
    """
    counting = Idle()
    spark.streams.addListener(counting)
    query = stream.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    deadline = time.monotonic() + 60
    while counting.triggers < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(2)  # for the compilers
    triggers, before, began = counting.triggers, tree(), time.perf_counter()
    time.sleep(seconds)
    lasted, used, count = time.perf_counter() - began, seconds_since(before), counting.triggers - triggers
    query.stop()
    spark.streams.removeListener(counting)
    return 1000 * lasted / max(1, count), 1000 * used / max(1, count), used / lasted


def drain(spark: SparkSession, ours: bool, checkpoint: Path, directory: Path, cap: int) -> tuple[float, float]:
    """Read all there is, into nothing; then start again, with nothing new to read.

    Returns:
        The seconds of the first, and the milliseconds of the trigger that finds nothing.
    """
    stream = frame(spark, ours, directory, cap, checkpoint / "ours")
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    taken, _ = timed(lambda: writer.trigger(availableNow=True).start().awaitTermination())
    query = writer.start()
    deadline = time.monotonic() + 60
    while not query.recentProgress and time.monotonic() < deadline:
        time.sleep(0.1)
    spent = [float(dict(one["durationMs"]).get("triggerExecution", 0)) for one in query.recentProgress]
    query.stop()
    return taken, spent[0] if spent else float("nan")


def compare(where: Path, files: int, cap: int, repeats: int, seconds: float) -> list[list[str]]:
    """Let both take turns."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False)
    builder = builder.config("spark.sql.streaming.noDataProgressEventInterval", 0)
    spark = builder.config("spark.ui.showConsoleProgress", False).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    forebay.register(spark)
    drained = where / "drained"
    make(drained, 0, files)
    found: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for turn in range(repeats):
        for ours in (True, False):
            checkpoint = where / f"checkpoint-{turn}-{ours}"
            found[ours].append(drain(spark, ours, checkpoint, drained, cap))
            print(f"  turn {turn}, {'ours' if ours else 'Spark'}: {found[ours][-1]}", file=sys.stderr)
    waits = []
    for ours, options in ((True, {"discoveryInterval": "0s"}), (True, {}), (False, {})):
        checkpoint = where / f"checkpoint-0-{ours}"
        stream = frame(spark, ours, drained, cap, checkpoint / "ours", **options)
        waits.append(idle(spark, stream, checkpoint, seconds))
        print(f"  idle, {'ours' if ours else 'Spark'} {options}: {waits[-1]}", file=sys.stderr)
    spark.stop()

    listing, usual, peer = waits

    def waited(name: str, column: int, *found: tuple[float, float, float]) -> list[str]:
        return [name, *(f"{one[column]:.1f} ms" for one in found)]

    def row(name: str, column: int, unit: str) -> list[str]:
        return [name, *(f"{median(one[column] for one in found[ours]):.1f} {unit}" for ours in (True, False))]

    return [
        row(f"drain {files:,} files, {cap:,} at a time", 0, "s"),
        row("a restart, the trigger that finds nothing new", 1, "ms"),
        waited("an idle trigger, with a listing", 0, listing, peer),
        waited("an idle trigger", 0, usual, peer),
        waited("CPU of an idle trigger, with a listing", 1, listing, peer),
        waited("CPU of an idle trigger", 1, usual, peer),
        ["cores while idle", *(f"{one[2]:.2f}" for one in (usual, peer))],
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--planned", type=int, default=200_000, help="files of the first table; 0 leaves it out")
    parser.add_argument("--drained", type=int, default=20_000, help="files of the second; 0 leaves it out")
    parser.add_argument("--cap", type=int, default=1000, help="most files of a micro-batch")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--idle", type=float, default=15.0, help="seconds that each query idles alone")
    args = parser.parse_args()
    where = Path(tempfile.mkdtemp(prefix="forebay-files-"))
    try:
        if args.planned:
            print(text_table(["one directory, no Spark", "time", "memory"], plan(where, args.planned, args.cap)))
        if args.drained:
            print(text_table(["", "ours", "Spark"], compare(where, args.drained, args.cap, args.repeats, args.idle)))
    finally:
        shutil.rmtree(where)


if __name__ == "__main__":
    main()
