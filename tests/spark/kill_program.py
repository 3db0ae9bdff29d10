# SPDX-License-Identifier: Apache-2.0
"""The driver that is killed: reads a source up to what there is now, into a sink that shows every row.

Run by the tests as `python -P kill_program.py plan.json`, again after each death.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql import SparkSession

import forebay
from forebay.sources.files import FileSource
from forebay.sources.hybrid import HybridOptions
from forebay.sources.kafka import KafkaSource
from forebay.sources.rate import RateSource
from forebay.testkit.kills import Killable, KillList, MicroBatchFiles, restart_until_done


class KillableRate(Killable, RateSource):
    """Rows by number."""

    name: ClassVar[str] = "killable_rate"


class KillableFiles(Killable, FileSource):
    """Files of a directory."""

    name: ClassVar[str] = "killable_files"


class KillableKafka(Killable, KafkaSource):
    """Topics of Apache Kafka."""

    name: ClassVar[str] = "killable_kafka"


class KillableHybrid(Killable, HybridOptions):
    """Files, then a topic."""

    name: ClassVar[str] = "killable_hybrid"


class KillableLog(Killable, forebay.SimpleSource):
    """Lines that other processes append to files; the current ends are unknown before reading."""

    name: ClassVar[str] = "killable_log"
    bounded = False

    directory: str

    def schema(self) -> pa.Schema:
        return pa.schema([("log", pa.string()), ("line", pa.string())])

    def splits(self) -> list[str]:
        return sorted(path.stem for path in Path(self.directory).glob("*.log"))

    def read(self, split: forebay.Split) -> Any:
        at = split.position or 0
        assert isinstance(at, int)
        with open(Path(self.directory) / f"{split.id}.log", "rb") as file:
            file.seek(at)
            while split.end is None or at < split.end:
                lines = []
                while (
                    len(lines) < 6
                    and (line := file.readline()).endswith(b"\n")
                    and (split.end is None or at < split.end)
                ):
                    lines.append({"log": split.id, "line": line.decode().strip()})
                    at += len(line)
                if not lines:
                    return
                yield forebay.Batch(lines, at)


SOURCES = (KillableRate, KillableFiles, KillableKafka, KillableHybrid, KillableLog)


class UntilAllIsThere:
    """A query with the ordinary trigger, which is stopped when the sink has all rows; something may come meanwhile."""

    def __init__(self, query: Any, plan: dict[str, Any], files: MicroBatchFiles) -> None:
        self._query = query
        self._plan = plan
        self._files = files

    def awaitTermination(self, timeout: int | None = None) -> None:  # noqa: N802 - Spark's name
        """Raise what ended the query, or stop it."""
        while not self._query.awaitTermination(0.1):
            expected = expected_rows(self._plan)
            if expected is not None and len(self._files.rows()) >= expected:
                self._query.stop()
                return
            if "to_come" in self._plan:
                append(self._plan, self._files.micro_batches())


def expected_rows(plan: dict[str, Any]) -> int | None:
    """Return the number of expected rows; None until the writers have reported it."""
    if "expected" in plan:
        return int(plan["expected"])
    try:
        return int(Path(plan["expected_in"]).read_text())
    except FileNotFoundError:
        return None


def append(plan: dict[str, Any], written: int) -> None:
    """Move a line of each from what is to come to the logs; so many micro-batches written, so many may be there.

    So it goes on while a micro-batch is read, whose attempts see different ends, and there are many micro-batches.
    """
    for rest in sorted(Path(plan["to_come"]).glob("*.rest")):
        lines = rest.read_bytes().splitlines(keepends=True)
        with (Path(plan["options"]["directory"]) / f"{rest.stem}.log").open("ab") as log:
            # A driver may die anywhere here: the log itself, also with a part of a line, tells what is left.
            log.write(b"".join(lines[: 10 * (written + 2)])[log.tell() :][: len(lines[0])])


def start(spark: SparkSession, plan: dict[str, Any], kills: KillList) -> Any:
    """Start the query of a plan: once more on the same checkpoint."""
    files = MicroBatchFiles(plan["rows"], kills)
    reader = spark.readStream.format(plan["format"]).options(**plan["options"], kills=kills.directory)
    if "schema" in plan:
        reader = reader.schema(plan["schema"])
    stream = reader.load().writeStream.foreachBatch(files).option("checkpointLocation", plan["checkpoint"])
    if "expected" not in plan and "expected_in" not in plan:
        return stream.trigger(availableNow=True).start()
    return UntilAllIsThere(stream.start(), plan, files)


def session(master: str) -> SparkSession:
    """Make a session that is ready soon."""
    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "600m")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


def main() -> None:
    """Run the plan in the file that is named on the command line."""
    with open(sys.argv[1], encoding="utf-8") as file:
        plan = json.load(file)
    kills = KillList(plan["kills"])
    spark = session(plan["master"])
    jvm: Any = spark._jvm
    kills.these_are(jvm=int(jvm.ProcessHandle.current().pid()), driver=os.getpid())
    forebay.register(spark, *SOURCES)
    restart_until_done(lambda: start(spark, plan, kills), kills)


if __name__ == "__main__":
    main()
