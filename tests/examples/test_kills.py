# SPDX-License-Identifier: Apache-2.0
"""Streams of the examples are killed ten times each: no row is lost, and none comes twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from feed_service import FeedService  # type: ignore[import-not-found]
from job_queue import JobQueue, add_job
from postgres_table import PostgresChanges  # type: ignore[import-not-found]
from rest_feed import RestFeed  # type: ignore[import-not-found]  # see conftest.py

import forebay
from forebay.testkit.kills import Kill, Killable, KillList, MicroBatchFiles, restart_until_done

pytestmark = pytest.mark.soak

KILLS = [
    Kill("plan-begins", at=3),
    Kill("plan-ends", at=2),
    Kill("tasks-begin", at=2),
    Kill("tasks-end", at=3),
    Kill("commit-begins", at=2),
    Kill("commit-ends", at=3),
    Kill("read-begins", at=2),
    Kill("read-first", at=4),
    Kill("read-middle", at=6),
    Kill("read-ends", at=8),
]


class KillableChanges(Killable, PostgresChanges):  # type: ignore[misc]
    """Changes of a table of PostgreSQL."""


class KillableFeed(Killable, RestFeed):  # type: ignore[misc]
    """Events by cursors."""


class KillableQueue(Killable, JobQueue):  # type: ignore[misc]
    """Jobs of a queue."""


Case = tuple[type[forebay.Source], dict[str, Any], list[list[Any]]]


@contextmanager
def changes(_place: Path, postgres: str) -> Iterator[Case]:
    """A first backfill by (updated_at, id), cut into micro-batches; seven orders have one time."""
    with psycopg.connect(postgres, autocommit=True) as database:
        database.execute("DROP TABLE IF EXISTS orders")
        database.execute(
            "CREATE TABLE orders AS SELECT n::bigint AS id, 'c' AS customer, n::float8 AS total, "
            "timestamptz '2025-01-01' + n / 7 * interval '1 hour' AS updated_at FROM generate_series(0, 1999) n"
        )
    options = {"dsn": postgres, "table": "orders", "maxRowsPerTrigger": 300}
    yield KillableChanges, options, [["c", n] for n in range(2_000)]


@contextmanager
def feed(place: Path, _postgres: str) -> Iterator[Case]:
    with FeedService(refuse_each=40, fail_each=70, pause="0") as service:
        rows = [row for region in ("north", "south", "west") for row in service.add_events(region, 600)]
        options = {"url": service.url, "maxRowsPerTrigger": 300, "stateLocation": str(place / "state")}
        yield KillableFeed, options, [[row["region"], row["n"]] for row in rows]


@contextmanager
def queue(place: Path, _postgres: str) -> Iterator[Case]:
    jobs = [add_job(place / "queue.db", [f"item {n}" for n in range(100)]) for _ in range(20)]
    options = {"path": str(place / "queue.db"), "maxFilesPerTrigger": 4}
    yield KillableQueue, options, [[job, n] for job in jobs for n in range(100)]


KEYS = {changes: ["customer", "cast(total as int)"], feed: ["region", "n"], queue: ["job", "n"]}


@pytest.mark.parametrize("case", KEYS, ids=lambda case: case.__name__)
def test_ten_kills_lose_and_double_nothing(case, spark, postgres, tmp_path):
    kills = KillList(tmp_path / "kills")
    kills.arm(*KILLS)
    with case(tmp_path, postgres) as (source, options, expected):
        forebay.register(spark, source)

        def start():
            stream = spark.readStream.format(source.name).options(kills=kills.directory, pageRows=40, **options).load()
            writer = stream.selectExpr(*KEYS[case]).writeStream.foreachBatch(MicroBatchFiles(tmp_path / "rows", kills))
            writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
            return writer.trigger(availableNow=True).start()

        restart_until_done(start, kills)
    assert MicroBatchFiles(tmp_path / "rows").rows() == sorted(map(json.dumps, expected))
    assert kills.armed() == []
