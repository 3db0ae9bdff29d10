# SPDX-License-Identifier: Apache-2.0
"""A streaming query of files, one file in a micro-batch; and the same micro-batches without a streaming query."""

from __future__ import annotations

import os

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext
from pyspark.sql import functions as F  # noqa: N812 - as users write it
from pyspark.sql.types import StructType

from forebay.spark.changelog import stateful
from forebay.spark.conform import arrow_schema

SCHEMA = "id long, level int, name string, _change_type string"


def table_of(rows, schema):
    """An Arrow table of tuples, with the types of a DDL text."""
    types = arrow_schema(StructType.fromDDL(schema))
    columns = zip(*rows, strict=True) if rows else [[] for _ in types]
    return pa.table([pa.array(values, one.type) for values, one in zip(columns, types, strict=True)], schema=types)


class StreamOfFiles:
    """A stream of files of changes; `run` processes all files that are there, one in a micro-batch."""

    def __init__(self, spark, directory, transform, schema):
        self.spark, self.directory, self.transform, self.schema = spark, directory, transform, schema
        (directory / "in").mkdir(exist_ok=True)
        self.files = 0
        self.state = str(directory / "state")

    def write(self, rows):
        """Write a file, without Spark; its time puts it behind the earlier ones."""
        path = self.directory / "in" / f"{self.files:05d}.parquet"
        pq.write_table(table_of(rows, self.schema), path)
        os.utime(path, (self.files, self.files))
        self.files += 1

    def run(self):
        """Return the changes of each new micro-batch."""
        batches = {}
        df = (
            self.spark.readStream.schema(self.schema)
            .option("maxFilesPerTrigger", 1)
            .parquet(str(self.directory / "in"))
        )

        def keep(batch, number):
            batches[number] = [tuple(row) for row in batch.collect()]

        query = (
            self.transform(df, self.state)
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(self.directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return batches


@pytest.fixture
def stream_of_files(spark, tmp_path):
    """Make a `StreamOfFiles` of a function of a DataFrame and a state location."""
    return lambda transform, schema=SCHEMA: StreamOfFiles(spark, tmp_path, transform, schema)


class TasksHere:
    """Runs the tasks of stateful functions in this process, on the rows that Spark prepared and gave a shard.

    A failure costs no Python worker, and a micro-batch no streaming query.
    """

    def __init__(self, monkeypatch):
        self.shard, self.version = 0, None
        monkeypatch.setattr(stateful, "map_in_arrow", self.run)
        monkeypatch.setattr(TaskContext, "get", lambda: self)

    def partitionId(self):  # noqa: N802 - Spark's name
        return self.shard

    def getLocalProperty(self, key):  # noqa: N802 - Spark's name
        return {stateful.BATCH_ID: str(self.version), stateful.QUERY_ID: "the query"}[key]

    def run(self, df, task, schema):
        rows = df.withColumn("shard", F.spark_partition_id()).toArrow()
        found = []
        for self.shard in range(task.shards):
            mine = rows.filter(pc.equal(rows["shard"], self.shard)).drop_columns("shard")
            found += task(iter(mine.to_batches()))
        types = arrow_schema(schema)
        table = pa.Table.from_batches(found, types) if found else types.empty_table()
        return df.sparkSession.createDataFrame(table, schema)


@pytest.fixture
def tasks_here(monkeypatch):
    """Run the tasks of stateful functions in this process."""
    return TasksHere(monkeypatch)


class MicroBatches:
    """As `StreamOfFiles`, but without a streaming query: each write is a micro-batch whose tasks run in this process.

    It is for what functions do with changes. What Spark does with plans, tasks and checkpoints is tested with queries.
    """

    def __init__(self, spark, tasks, state, transform, schema):
        self.spark, self.tasks, self.state, self.transform, self.schema = spark, tasks, state, transform, schema
        self.written, self.done = [], 0

    def write(self, rows):
        self.written.append(table_of(rows, self.schema))

    def run(self):
        """Return the changes of each new micro-batch."""
        batches = {}
        for table in self.written[self.done :]:
            self.tasks.version = self.done
            df = self.spark.createDataFrame(table, StructType.fromDDL(self.schema))
            batches[self.done] = [tuple(row) for row in self.transform(df, self.state).collect()]
            self.done += 1
        return batches


@pytest.fixture
def micro_batches(spark, tasks_here, tmp_path, monkeypatch):
    """Make a `MicroBatches` of a function of a DataFrame and a state location."""
    kind = type(spark.range(0))
    monkeypatch.setattr(kind, "isStreaming", True)
    return lambda transform, schema=SCHEMA: MicroBatches(spark, tasks_here, str(tmp_path / "state"), transform, schema)
