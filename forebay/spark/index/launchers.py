# SPDX-License-Identifier: Apache-2.0
"""Runs the shards of a transaction or of a build: in the driver if there is little to do, else in tasks of Spark."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as every user of PySpark writes it
from pyspark.sql.types import StringType, StructField, StructType

from forebay.errors import RetriableError, unwrap
from forebay.spark.changelog.columns import map_in_arrow
from forebay.spark.errors import as_spark_error
from forebay.spark.index.rows import SHARD
from forebay.spark.processes import freeze_modules
from forebay.table.index.changelog import DIGESTS, ShardResult, ShardTask, combined, rows_digest, run_shard
from forebay.table.index.follower import BuildResult, BuildTask, build_shard

_RESULT: Final = StructType([StructField("result", StringType())])
_TRIES: Final = 3
"""How often a job is run if Spark read parts of its input again."""
_NICENESS: Final = 10
"""The niceness of the parts of a replacement. Beside others of the usual priority it gets a tenth of a processor."""


def run_transaction(df: DataFrame, tasks: Sequence[ShardTask], small: int) -> list[ShardResult]:
    """Run the tasks of a transaction on its rows.

    Args:
        df: The rows, with the column of their shard.
        tasks: The task of each shard.
        small: Rows up to which the driver runs the tasks.

    Raises:
        DataError: A key is NULL.
        RetriableError: Spark read parts of the input again each time, so that tasks may have seen different rows.
    """
    stored = sum(segment.rows for task in tasks if task.snapshot for run in task.runs for segment in run)
    if stored <= small and small > 0:
        rows = df.limit(small + 1).toArrow()
        if rows.num_rows <= small:
            return _in_driver(rows, tasks)
    for _ in range(_TRIES):
        results, same = _in_tasks(df, tasks)
        if same:
            return results
    raise RetriableError(
        f"Spark read parts of the rows of the datasource {tasks[0].datasource!r} more than once, as after the loss of "
        "an executor: its tasks may have seen different rows",
        option="df",
        advice="commit again; if it happens often, write the DataFrame to files first, and commit these",
    )


def digest_of(df: DataFrame) -> str:
    """Return the digest of rows that were committed before, to compare it with the one of the log."""
    return _digest(df.agg(*_sums()).collect()[0].asDict())


def launch_builds(spark: SparkSession) -> Callable[[Sequence[BuildTask]], Sequence[BuildResult]]:
    """Return a function that runs the parts of a step of a follower in tasks of Spark."""

    def launch(tasks: Sequence[BuildTask]) -> list[BuildResult]:
        try:
            frame = spark.range(0, len(tasks), 1, len(tasks))
            rows = map_in_arrow(frame, _InTasks(_build, tuple(tasks)), _RESULT).collect()
        except Exception as error:
            raise unwrap(error) or RetriableError(  # the job was cancelled, or lost what it ran on
                f"Spark did not build the index: {error!s:.500}",
                advice="look at the log of Spark, and call it again: nothing is lost",
            ) from error
        return [BuildResult.from_facts(json.loads(row["result"])) for row in rows]

    return launch


@dataclass(frozen=True)
class _InTasks:
    """The function that `mapInArrow` runs for the task of its partition. Spark pickles it to the workers."""

    run: Callable[[Any, Iterator[pa.RecordBatch]], ShardResult | BuildResult]
    tasks: Sequence[ShardTask | BuildTask]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None  # noqa: S101 - in a task
        freeze_modules()
        with as_spark_error("index", "writing a shard"):
            result = self.run(self.tasks[context.partitionId()], batches)
        yield pa.record_batch({"result": [json.dumps(asdict(result))]})


def _build(task: BuildTask, batches: Iterator[pa.RecordBatch]) -> BuildResult:
    list(batches)  # a row that only says where to run
    if not task.low_priority:
        return build_shard(task)
    return _low_priority_thread().submit(build_shard, task).result()


@cache
def _low_priority_thread() -> ThreadPoolExecutor:
    """Return the thread of this worker that builds what does not serve yet. Its threads have its priority too.

    There is one, because glibc keeps the heap of each new thread. The main thread cannot get its priority back.
    """
    return ThreadPoolExecutor(1, initializer=_lower_priority)


def _lower_priority() -> None:
    if sys.platform == "linux":  # elsewhere a priority is of the whole process, which Spark uses for other tasks too
        thread = threading.get_native_id()
        with suppress(OSError):  # a sandbox may refuse it; then it builds at the usual priority
            os.setpriority(os.PRIO_PROCESS, thread, max(_NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))


def _in_driver(rows: pa.Table, tasks: Sequence[ShardTask]) -> list[ShardResult]:
    results = []
    for task in tasks:
        shard_rows = rows.filter(pc.equal(rows[SHARD], task.shard)) if rows.num_rows else rows
        if task.snapshot or shard_rows.num_rows:
            results.append(run_shard(task, shard_rows.combine_chunks().to_batches()))
        else:
            results.append(ShardResult(task.shard, task.runs, (), 0, (0, 0)))
    return results


def _in_tasks(df: DataFrame, tasks: Sequence[ShardTask]) -> tuple[list[ShardResult], bool]:
    """Return the results of the tasks, and whether these saw each row that Spark read exactly once."""
    observation = Observation()
    shuffled = df.observe(observation, *_sums()).repartitionById(len(tasks), F.col(SHARD))
    rows = map_in_arrow(shuffled, _InTasks(run_shard, tuple(tasks)), _RESULT).collect()
    results = [ShardResult.from_facts(json.loads(row["result"])) for row in rows]
    there = {result.shard for result in results}
    results += [run_shard(task, []) for task in tasks if task.shard not in there]  # Spark prunes an empty input
    _, digest, _ = combined(results)
    return results, digest == _digest(observation.get if there else {})


def _sums() -> list[Column]:
    """Return the number of rows, and the sums of the digest columns as decimals, which do not overflow."""
    sums = (F.sum(F.col(name).cast("decimal(38,0)")).alias(name) for name in DIGESTS)
    return [F.count(F.lit(1)).alias("rows"), *sums]


def _digest(sums: Mapping[str, Any]) -> str:
    return rows_digest(sums.get("rows") or 0, *(int(sums.get(name) or 0) for name in DIGESTS))
