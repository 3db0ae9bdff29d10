# SPDX-License-Identifier: Apache-2.0
"""`forebay_kafka` beside Spark's own Kafka source: same broker, same topics, in turn.

Each read is checked: both sources must give the same rows. Run it: ``make bench-kafka``, or quicker with
``make bench-kafka BENCH_ARGS='--megabytes 50 --repeats 3 --cells "100 B,one partition"'``. Needs Java and Spark 4.2.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from cpu import by_program_since, tree
from kafka_breakdown import breakdown
from kafka_peer import both
from kafka_topics import KINDS, Kind, fill
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from report import Cell, publish

from forebay.testkit.kafka_broker import KafkaBroker
from forebay.text_tables import text_table

OURS, PEER = "forebay_kafka", "kafka"
SMALL = 1000
"""Partitions of the topic of many."""
_LEAST, _SLACK = 3, 60.0


@dataclass(frozen=True)
class Work:
    """What is read, and into what.

    Args:
        name: Of the topic, for the table.
        kind: What its records are like.
        partitions: How many it has.
        columns: The only ones that are read, between commas; None: all.
        sinks: Names of `SINKS`.
        turns: Read it so often, all of which count; None: as often as the command line says, after a turn to warm up.
            If the command line names the cell, it is as often as that says, and still without a turn to warm up.
    """

    name: str
    kind: Kind
    partitions: int = 4
    columns: str | None = None
    sinks: tuple[str, ...] = ("noop", "count", "aggregate")
    turns: int | None = None


_PLAIN = KINDS["100 B"]
WORKS = [
    *(Work(kind.name, kind) for kind in KINDS.values()),
    Work("one partition", _PLAIN, 1),
    *(Work(name, kind, columns="value", sinks=("noop",)) for name, kind in KINDS.items() if "zstd" not in name),
    Work("100 B", _PLAIN, columns="offset,timestamp", sinks=("noop",)),
    # Spark's source makes a task and a consumer for each, which takes it a minute or more.
    Work(f"{SMALL} partitions", _PLAIN, SMALL, sinks=("noop",), turns=2),
]


def noop(frame: DataFrame) -> object:
    """Let every row come, and go."""
    frame.write.format("noop").mode("overwrite").save()
    return None


def count(frame: DataFrame) -> object:
    """Count them."""
    return frame.count()


def aggregate(frame: DataFrame) -> object:
    """Use all bytes of all columns, whatever the order of the rows."""
    return tuple(frame.agg(fn.count("*"), fn.bit_xor(fn.xxhash64(*frame.columns))).first() or ())


SINKS: dict[str, Callable[[DataFrame], object]] = {"noop": noop, "count": count, "aggregate": aggregate}


def reading(spark: SparkSession, source: str, broker: KafkaBroker, topic: str, work: Work) -> DataFrame:
    """Return what one of the sources reads."""
    reader = spark.read.format(source).option("kafka.bootstrap.servers", broker.address).option("subscribe", topic)
    if work.kind.headers:
        reader = reader.option("includeHeaders", "true")
    if work.columns is None:
        return reader.load()
    if source == OURS:
        return reader.option("columns", work.columns).load()
    return reader.load().select(*work.columns.split(","))


class Turns:
    """Lets both read the same, in turn.

    Args:
        spark: The session.
        broker: The broker.
        repeats: How often, after a round to warm up.
        pace: Seconds that a cell may take, on average: one that begins behind time is read `_LEAST` times only.
    """

    def __init__(self, spark: SparkSession, broker: KafkaBroker, repeats: int, pace: float) -> None:
        self._spark = spark
        self._broker = broker
        self._repeats = repeats
        self._pace = pace
        self._began = time.monotonic()
        self._cells = 0
        self.parts: list[list[str]] = []
        """Where CPU time went, for a table: in the JVM, or in Python."""

    def compare(self, work: Work, sink: str, topic: str, rows: int) -> Cell:
        """Take turns, and check that both found the same."""
        label = f"{work.name}{f', {work.columns}' if work.columns else ''}, {sink}"
        taken: dict[str, list[tuple[float, dict[str, float]]]] = {OURS: [], PEER: []}
        results = []
        warm = 0 if work.turns else 1
        late = time.monotonic() - self._began > self._pace * self._cells + _SLACK
        self._cells += 1
        repeats = work.turns or (min(self._repeats, _LEAST) if late else self._repeats)
        for turn in range(warm + repeats):
            # Who comes first changes, so that nobody always finds the other's garbage.
            for source in (OURS, PEER) if turn % 2 else (PEER, OURS):
                before, began = tree(self._broker.pid), time.perf_counter()
                results.append(SINKS[sink](reading(self._spark, source, self._broker, topic, work)))
                seconds = time.perf_counter() - began
                taken[source].append((seconds, by_program_since(before, self._broker.pid)))
            _say(f"  {label}, turn {turn}: ours {taken[OURS][-1][0]:.2f} s, Spark {taken[PEER][-1][0]:.2f} s")
        if any(result != results[0] for result in results) or (sink == "count" and results[0] != rows):
            raise SystemExit(f"{label}: not the same rows: {results} of {rows}")
        ours, peer = taken[OURS][warm:], taken[PEER][warm:]
        for source, found in taken.items():
            self._note(label, source, found[warm:], rows)
        return Cell(
            label,
            "Spark's own Kafka source",
            [wall for wall, _ in ours],
            [wall for wall, _ in peer],
            [sum(used.values()) for _, used in ours],
            [sum(used.values()) for _, used in peer],
            rows,
        )

    def _note(self, label: str, source: str, found: list[tuple[float, dict[str, float]]], rows: int) -> None:
        each = 1e6 / rows / len(found)
        java = sum(used.get("java", 0.0) for _, used in found) * each
        python = sum(sum(used.values()) for _, used in found) * each - java
        self.parts.append([label, "ours" if source == OURS else "Spark's", f"{java:.2f}", f"{python:.2f}"])


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def chosen(args: argparse.Namespace) -> list[Work]:
    """Return what the command line asks for."""
    names = args.cells.split(",") if args.cells else [work.name for work in WORKS]
    unknown = set(names) - {work.name for work in WORKS}
    if unknown:
        raise SystemExit(f"no such cells: {', '.join(sorted(unknown))}; there are {', '.join(w.name for w in WORKS)}")
    sinks = args.sinks.split(",")
    works = [replace(work, sinks=tuple(one for one in work.sinks if one in sinks)) for work in WORKS]
    if args.cells:
        works = [replace(work, turns=args.repeats) if work.turns else work for work in works]
    return [work for work in works if work.name in names and work.sinks and (args.columns or work.columns is None)]


def compare_all(works: list[Work], turns: Turns, broker: KafkaBroker, megabytes: int, cells: list[Cell]) -> None:
    """Compare everything; all that read one topic come together, so that no more than one is there."""
    for name in dict.fromkeys(work.name for work in works):
        mine = [work for work in works if work.name == name]
        topic = name.replace(" ", "-")
        wanted = megabytes * 1_000_000 // mine[0].kind.size
        rows = mine[0].partitions * fill(broker, topic, mine[0].kind, wanted, mine[0].partitions)
        for work in mine:
            for sink in work.sinks:
                cells.append(turns.compare(work, sink, topic, rows))  # noqa: PERF401 - the list is published if this ends early
        broker.delete_topic(topic)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=120, help="values of each topic (120)")
    parser.add_argument("--repeats", type=int, default=5, help="turns that count, after one that warms up (5)")
    parser.add_argument("--minutes", type=float, default=10, help="a slow machine reads less often to keep to it (10)")
    parser.add_argument("--cells", help="only these topics, by name, between commas")
    parser.add_argument("--sinks", default=",".join(SINKS), help="into what")
    parser.add_argument("--no-columns", dest="columns", action="store_false", help="leave out what reads some columns")
    parser.add_argument("--no-breakdown", dest="breakdown", action="store_false", help="leave out where time goes")
    args = parser.parse_args()
    began = time.monotonic()
    _say(f"load average before: {' '.join(f'{load:.1f}' for load in os.getloadavg())}; cores: {os.cpu_count()}")
    works = chosen(args)
    spark = both()
    cells: list[Cell] = []
    with KafkaBroker(heap=512) as broker:
        turns = Turns(spark, broker, args.repeats, args.minutes * 60 / sum(len(work.sinks) for work in works))
        try:
            compare_all(works, turns, broker, args.megabytes, cells)
        finally:  # what was measured before somebody lost patience is worth a look too
            if cells:
                publish("kafka_throughput", cells)
                print("\nCPU seconds for a million rows, without the broker:")
                print(text_table(["cell", "source", "JVM", "Python"], turns.parts))
        spark.stop()
        if args.breakdown:
            breakdown(broker, args.megabytes)
    print(
        f"load average after: {' '.join(f'{load:.1f}' for load in os.getloadavg())}; "
        f"{(time.monotonic() - began) / 60:.1f} minutes"
    )


if __name__ == "__main__":
    main()
