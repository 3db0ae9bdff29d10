# SPDX-License-Identifier: Apache-2.0
"""The demo of change data capture: two tables as Debezium sends them, joined, and written to a table of PostgreSQL.

A join by the level of a student sends the two halves of an update through different tasks, so they arrive in any order.
The demo applies the same changes twice: as they arrive, and through `materialize` and `apply_changes`.

Run it: ``make demo-cdc``, or ``python examples/demo_cdc.py``.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from kafka.record.memory_records import MemoryRecordsBuilder
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "servers")]

from demo import lines_of, title  # noqa: E402 - the examples are programs, found beside this one
from kafka_orders import spark_session  # noqa: E402
from postgres_server import has_postgres, postgres_server  # noqa: E402

from forebay.changelog import (  # noqa: E402
    ArchiveTarget,
    PostgresTarget,
    apply_changes,
    changelog_join,
    materialize,
    normalize,
    read_archive,
)
from forebay.testkit.kafka_broker import KafkaBroker  # noqa: E402

LEVELS = 8
SHOWN = 10
Rows = dict[int, tuple[Any, ...]]


def changes_of(spark: SparkSession, servers: str, topic: str, limit: int, **schemas: str) -> DataFrame:
    return (
        spark.readStream.format("forebay_kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", limit)  # so that there are several micro-batches
        .option("changelogFormat", "debezium-json")
        .options(mode="FAILFAST", **schemas)
        .load()
    )


def report(spark: SparkSession, servers: str, state: str, limit: int) -> DataFrame:
    row = "id INT, name STRING, level INT"
    students = changes_of(spark, servers, "students", limit, keySchema="id INT", valueSchema=row)
    row = "level INT, award STRING"
    performance = changes_of(spark, servers, "performance", limit, keySchema="level INT", valueSchema=row)
    # A join counts rows, so it needs each change once, with the whole old row: normalize makes it so.
    students = normalize(students, "id", state_location=state, name="students")
    performance = normalize(performance, "level", state_location=state, name="performance")
    return changelog_join(students, performance, on="level", state_location=state)


def right(joined: DataFrame, target: Any, state: str, checks: str) -> None:
    changes = materialize(joined, key=["id"], state_location=state)
    trigger = {"availableNow": True}
    apply_changes(changes, target, keys="id", checkpoint_location=checks, trigger=trigger).awaitTermination()


def naive(joined: DataFrame, table: Rows, checks: str) -> None:
    def write(batch: DataFrame, _: int) -> None:
        for row in batch.collect():  # in the order in which the tasks have them
            if row["_change_type"] in ("insert", "update_postimage"):
                table[row["id"]] = (row["name"], row["level"], row["award"])  # upsert
            else:
                table.pop(row["id"], None)  # delete

    writer = joined.writeStream.foreachBatch(write).option("checkpointLocation", checks)
    writer.trigger(availableNow=True).start().awaitTermination()


class Database:
    """Two tables, and what Debezium sends of their changes. It knows what the report must be."""

    def __init__(self, broker: KafkaBroker, seed: int) -> None:
        self._random = random.Random(seed)
        self._stack = ExitStack()
        self._append = self._stack.enter_context(broker.appending())
        self._lsn = 0
        self.events: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {"students": [], "performance": []}
        self._rows: dict[str, dict[int, dict[str, Any]]] = {"students": {}, "performance": {}}
        for topic, partitions in (("students", 2), ("performance", 1)):
            broker.create_topic(topic, partitions)

    def put(self, table: str, key: str, row: dict[str, Any]) -> None:
        self._change(table, key, row[key], row)

    def delete(self, table: str, key: str, value: int) -> None:
        self._change(table, key, value, None)

    def work(self, students: int, moves: int) -> None:
        """Fill both tables, then move students between levels, rename awards and remove some students."""
        for level in range(10, 10 + LEVELS):
            self.put("performance", "level", {"level": level, "award": f"award {level}"})
        for number in range(1, students + 1):
            self.put("students", "id", self._student(number))
        for step in range(moves):
            number = self._random.randrange(1, students + 1)
            if step % 25 == 24:
                self.delete("students", "id", number)
            elif step % 40 == 39:
                level = self._random.randrange(10, 10 + LEVELS)
                self.put("performance", "level", {"level": level, "award": f"award {level}.{step // 40 + 1}"})
            else:
                self.put("students", "id", self._student(number))

    def send(self) -> None:
        """Write all events: those of a row to one partition, in order."""
        for topic, events in self.events.items():
            partitions = 2 if topic == "students" else 1
            for partition in range(partitions):
                own = [one for one in events if next(iter(one[0].values())) % partitions == partition]
                batch = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 24)
                for key, value in own:
                    now = int(time.time() * 1000)
                    batch.append(timestamp=now, key=json.dumps(key).encode(), value=json.dumps(value).encode())
                batch.close()
                self._append(topic, {partition: bytes(batch.buffer())})
        self._stack.close()

    def truth(self) -> Rows:
        """Return the report as the database would answer it now."""
        awards = {level: row["award"] for level, row in self._rows["performance"].items()}
        students = self._rows["students"].items()
        return {number: (row["name"], row["level"], awards[row["level"]]) for number, row in students}

    def _student(self, number: int) -> dict[str, Any]:
        return {"id": number, "name": f"student {number}", "level": self._random.randrange(10, 10 + LEVELS)}

    def _change(self, table: str, key: str, value: int, row: dict[str, Any] | None) -> None:
        rows = self._rows[table]
        before = rows.pop(value, None)
        if row is not None:
            rows[value] = row
        elif before is None:
            return
        self._lsn += 8
        kind = "d" if row is None else "c" if before is None else "u"
        source = {"connector": "postgresql", "table": table, "lsn": self._lsn}
        event = {"before": before, "after": row, "source": source, "op": kind, "ts_ms": 1_767_225_600_000 + self._lsn}
        self.events[table].append(({key: value}, event))


@contextmanager
def target(spark: SparkSession, directory: str) -> Iterator[tuple[Any, str, Any]]:
    """A table of PostgreSQL if its programs are installed, else an archive; with its name and what reads it."""
    if not has_postgres():
        path = f"{directory}/archive"
        yield ArchiveTarget(path), "an archive of Parquet files", lambda: read_archive(spark, path).collect()
        return
    import psycopg

    with postgres_server() as dsn:

        def read() -> list[Any]:
            with psycopg.connect(dsn) as connection:
                return connection.execute("SELECT level, id, name, award FROM performance_report").fetchall()

        yield PostgresTarget(dsn, "performance_report"), "a table of PostgreSQL", read


def picture(truth: Rows, found: dict[str, Rows]) -> Table:
    """The rows of some students: those that one of the ways has wrong, then others."""
    table = Table("student", "the database", *found, title="performance_report, by student", title_justify="left")
    numbers = sorted({number for rows in (truth, *found.values()) for number in rows})
    wrong = [number for number in numbers if any(rows.get(number) != truth.get(number) for rows in found.values())]
    for number in sorted([*wrong, *(one for one in numbers if one not in wrong)][:SHOWN]):
        expected = truth.get(number)
        cells = []
        for rows in found.values():
            good = rows.get(number) == expected
            cells.append(f"[{'green' if good else 'red'}]{'✓' if good else '✗'} {_shown(rows.get(number))}[/]")
        table.add_row(str(number), _shown(expected), *cells)
    return table


def _shown(row: tuple[Any, ...] | None) -> str:
    return "no row" if row is None else f"level {row[1]}, {row[2]}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--students", type=int, default=60)
    options.add_argument("--moves", type=int, default=600, help="changes after the tables are filled")
    options.add_argument("--limit", type=int, default=250, help="events of a topic in a micro-batch")
    options.add_argument("--seed", type=int, default=4)
    args = options.parse_args()

    title("1. Two tables of a database, as Debezium sends their changes to Kafka")
    print("Starting Apache Kafka; the first time ever this downloads 43 MB …", flush=True)
    with KafkaBroker() as broker, tempfile.TemporaryDirectory() as directory:
        database = Database(broker, args.seed)
        database.work(args.students, args.moves)
        database.send()
        moved = next(event for _, event in database.events["students"] if event["op"] == "u")
        print(
            f"{sum(map(len, database.events.values())):,} events in the topics students and performance; one of them:"
        )
        print(f"  {json.dumps({name: moved[name] for name in ('op', 'before', 'after')})}")
        with (
            spark_session("forebay demo of change data capture") as spark,
            target(spark, directory) as (to, name, read),
        ):
            title("2. The report: students joined with performance by level")
            lines_of(report)
            print("An update of a level is two changes, which go to the tasks of two levels: their order is lost.")
            title("3. The changes are applied by student, as they arrive: upsert, or delete")
            lines_of(naive)
            wrong: Rows = {}
            naive(report(spark, broker.address, f"{directory}/state-1", args.limit), wrong, f"{directory}/checks-1")
            title(f"4. The same changes through materialize and apply_changes, into {name}")
            lines_of(right)
            joined = report(spark, broker.address, f"{directory}/state-2", args.limit)
            right(joined, to, f"{directory}/state-2", f"{directory}/checks-2")
            good = {row[1]: (row[2], row[0], row[3]) for row in read()}
    title("What you saw")
    truth = database.truth()
    found = {"as they arrive": wrong, "materialize": good}
    Console().print(picture(truth, found))
    for way, rows in found.items():
        bad = sum(rows.get(number) != truth.get(number) for number in {*rows, *truth})
        print(f"  {way:14}  {len(truth) - bad} of {len(truth)} students right, {bad} wrong")
    print("  Continue with docs/targets.md.")
    if good != truth:
        raise SystemExit("WRONG: the report is not that of the database")


if __name__ == "__main__":
    main()
