# SPDX-License-Identifier: Apache-2.0
"""A client of Spark Connect: sources of its own, streams, progress and errors. Prints what it saw as JSON.

Run by the tests as `python -P connect_program.py address directory`.
"""

from __future__ import annotations

import io
import json
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql import SparkSession

import forebay
from forebay.spark.register import capture


class Numbers(forebay.SimpleSource):
    """Counts to `count` in two splits; raises at `bad`."""

    name: ClassVar[str] = "numbers"

    count: int = 3
    bad: int = -1

    def schema(self) -> pa.Schema:
        return pa.schema({"n": pa.int64()})

    def splits(self) -> list[str]:
        return ["a", "b"]

    def read(self, split: forebay.Split) -> Any:
        for n in range(split.position or 0, self.count):  # type: ignore[arg-type]
            if n == self.bad:
                raise ValueError(f"no number {n}")
            yield {"n": n}


def numbers(frame: Any) -> list[int]:
    """Return the column `n`, sorted."""
    return sorted(row.n for row in frame.collect())


def error(action: Any) -> dict[str, object]:
    """Return what `unwrap` makes of the error of an action."""
    try:
        action()
    except Exception as raised:  # noqa: BLE001 - it is what is looked at
        found = forebay.unwrap(raised)
        names = ("message", "source", "split", "position", "option")
        labels = {name: getattr(found, name, None) for name in names}
        return {"raised": type(raised).__name__, "type": type(found).__name__, "cause": str(found.__cause__), **labels}  # type: ignore[union-attr]
    return {"type": "no error"}


def streams(spark: SparkSession, place: Path) -> dict[str, object]:
    """Run a stream under `progress`, recorded, and one that fails."""

    def start(name: str, **options: object) -> Any:
        frame = spark.readStream.format("numbers").options(**options).load()
        writer = frame.writeStream.format("memory").queryName(name).trigger(availableNow=True)
        return writer.option("checkpointLocation", str(place / name)).start()

    listener = forebay.record_progress(spark, str(place / "recorded"))
    shown = io.StringIO()
    query = start("counted", count=50)
    forebay.progress(query, file=shown)
    end = time.monotonic() + 60
    while not list((place / "recorded").glob("*.jsonl")) and time.monotonic() < end:
        time.sleep(0.1)
    spark.streams.removeListener(listener)
    failed = start("failed", bad=2)
    return {
        "rows": spark.table("counted").count(),
        "progress": shown.getvalue(),
        "recorded": [path.stem == query.id for path in (place / "recorded").glob("*.jsonl")],
        "offsets": str(forebay.offsets(str(place / "counted"))),
        "failed in progress": error(lambda: forebay.progress(failed, file=io.StringIO())),
        "exception()": type(forebay.unwrap(failed.exception())).__name__,
    }


def main() -> None:
    """Do all of it on the server."""
    address, place = sys.argv[1], Path(sys.argv[2])
    spark = SparkSession.builder.remote(address).getOrCreate()
    (place / "files").mkdir()
    (place / "files" / "a.csv").write_text("1\n2\n")
    registered = [*forebay.register(spark), *forebay.register(spark, Numbers)]
    files = spark.read.format("forebay_files").option("fileFormat", "csv").schema("n bigint")
    seen = {
        "registered": registered,
        "parallelism": capture(spark).parallelism,
        "files": numbers(files.load(str(place / "files"))),
        "class": numbers(spark.read.format("numbers").option("count", 2).load()),
        "object": numbers(forebay.read(spark, Numbers(count=1))),
        "failed": error(lambda: spark.read.format("numbers").option("bad", 2).load().collect()),
        "no option": error(lambda: spark.read.format("numbers").option("cuont", 2).load().collect()),
        "no path": error(lambda: files.load("/no/such/place").collect()),
        "no format": error(lambda: spark.read.format("nmubers").load().collect()),
        **streams(spark, place),
    }
    print(json.dumps(seen))  # noqa: T201 - the test reads it
    spark.stop()


if __name__ == "__main__":
    main()
