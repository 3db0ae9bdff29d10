# SPDX-License-Identifier: Apache-2.0
"""A record that arrives in a quiet stream: how long until it is collected, and what waiting for it costs.

Both queries run in one session; a file with one record is moved into the directory of one and then of the other, in
turn, and the time is taken until its record has been collected in `foreachBatch`. Then each query idles alone. Run it:
``make bench BENCH=stream_latency``, or quicker with ``BENCH_ARGS='--records 10 --idle 5'``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from pathlib import Path

from cpu import idle_cores
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from report import Cell, publish

import forebay

SCHEMA = "id long, note string"
FORMATS = {"forebay_files": "ours", "json": "Spark's file stream"}


class Stream:
    """One query over a directory, and the moment when its last record was collected.

    Args:
        spark: The session.
        reader: The format name.
        where: A directory for input, drafts and checkpoint.
    """

    def __init__(self, spark: SparkSession, reader: str, where: Path) -> None:
        self._spark = spark
        self._reader = reader
        self._where = where
        self._count = 0
        self._collected = threading.Event()
        self._at = 0.0
        for name in ("in", "draft"):
            (where / name).mkdir(parents=True)

    def start(self) -> StreamingQuery:
        """Start or restart the query."""
        frame = self._spark.readStream.format(self._reader).schema(SCHEMA)
        if self._reader != "json":
            frame = frame.option("fileFormat", "json")
        writer = frame.load(str(self._where / "in")).writeStream.foreachBatch(self._collect)
        return writer.option("checkpointLocation", str(self._where / "checkpoint")).start()

    def record(self) -> float:
        """Let one record arrive; return the seconds until it was collected."""
        self._count += 1
        draft = self._where / "draft" / f"{self._count}.json"
        draft.write_text(f'{{"id": {self._count}, "note": "a record"}}\n')
        self._collected.clear()
        began = time.perf_counter()
        draft.rename(self._where / "in" / draft.name)
        if not self._collected.wait(120):
            raise TimeoutError(f"{self._reader} did not bring record {self._count} within two minutes")
        return self._at - began

    def _collect(self, frame: DataFrame, _batch_id: int) -> None:
        rows = frame.collect()
        if any(row["id"] == self._count for row in rows):
            self._at = time.perf_counter()
            self._collected.set()


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=50, help="records for each (50)")
    parser.add_argument("--idle", type=float, default=20.0, help="seconds each query idles alone (20)")
    given = parser.parse_args()
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    forebay.register(spark)
    with tempfile.TemporaryDirectory() as directory:
        streams = {name: Stream(spark, name, Path(directory) / name) for name in FORMATS}
        queries = [stream.start() for stream in streams.values()]
        taken: dict[str, list[float]] = {name: [] for name in FORMATS}
        for turn in range(given.records + 3):
            for name, stream in streams.items():
                seconds = stream.record()
                if turn >= 3:  # the first ones start workers and compile
                    taken[name].append(seconds)
            print(f"\rrecord {turn + 1} of {given.records + 3}", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        for query in queries:
            query.stop()
        idle = {}
        for name, stream in streams.items():
            query = stream.start()
            idle[name] = idle_cores(given.idle)
            query.stop()
    spark.stop()
    ours, peer = FORMATS
    publish(
        "stream_latency",
        [Cell("one record", FORMATS[peer], taken[ours], taken[peer], [idle[ours]], [idle[peer]], 1_000_000)],
    )
    print("In this table the last two columns are cores used while the query waits alone.")


if __name__ == "__main__":
    main()
