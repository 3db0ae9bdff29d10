# SPDX-License-Identifier: Apache-2.0
"""The Spark batch host: plan a bounded read once per `load()`, read each part in a task."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from forebay.framework.host_options import HostOptions
from forebay.framework.microbatch.bounded import plan_bounded
from forebay.framework.microbatch.read_task import ReadTask, run_task
from forebay.framework.source import Source
from forebay.options import hide_options
from forebay.spark.conform import Conformer
from forebay.spark.errors import as_spark_error
from forebay.spark.session_zone import in_zone_of_task


@dataclass(frozen=True)
class Readable:
    """A source that is ready to be read by Spark: its schema is settled.

    Args:
        source: What to read.
        options: The host's options.
        promised: The names of the columns that its record batches have.
        parallelism: How many tasks run at once, if it is known.
        follows_zone: Whether tasks read in the time zone of their query: the user gave none.
    """

    source: Source
    options: HostOptions
    promised: tuple[str, ...]
    parallelism: int | None
    follows_zone: bool = False


@dataclass(frozen=True)
class SparkTask:
    """The value of one InputPartition: all that `read` needs (S3)."""

    task: ReadTask
    target: pa.Schema
    promised: tuple[str, ...]
    follows_zone: bool = False


class BatchReader(DataSourceReader):
    """Plans in Spark's planner process, reads in its tasks. Between the two only InputPartitions travel.

    Spark asks for the partitions once per `load()`, so every action on the DataFrame sees the same splits, up to the
    same ends; `load()` again to see newer data. Filters are not taken (S10): Spark 4.2 and 4.3 mix up those of
    several scans of one `load()`.

    Args:
        readable: What to read.
        target: The Arrow schema that Spark expects.
    """

    def __init__(self, readable: Readable, target: pa.Schema) -> None:
        self._readable = readable
        self._target = target

    def __getstate__(self) -> dict[str, object]:
        # Spark pickles the reader into its read function, before it asks for the partitions: nothing may hang on it.
        return {}

    def partitions(self) -> list[InputPartition]:
        """Run the enumerator and return one partition per task. Called in the planner's process, once per `load()`.

        Raises:
            ForebayError: The source failed or broke a rule.
        """
        readable = self._readable
        source = readable.source
        with as_spark_error(source.name, "planning"):
            hide_options(source)
            tasks = plan_bounded(source, readable.options, parallelism=readable.parallelism)
            return [
                InputPartition(
                    SparkTask(
                        ReadTask(source, slices, readable.options, index, len(tasks)),
                        self._target,
                        readable.promised,
                        readable.follows_zone,
                    )
                )
                for index, slices in enumerate(tasks)
            ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of one partition. Called in a task, also again after a failure or by an action.

        Raises:
            ForebayError: The source failed or broke a rule.
        """
        value = partition.value
        if value is None:  # Spark makes one such partition of an empty plan
            return iter(())
        return read_task(value)


def read_task(value: SparkTask) -> Iterator[pa.RecordBatch]:
    """Yield what Spark accepts: the record batches of a task, conformed and cut to size."""
    task, options = value.task, value.task.options
    name = task.source.name
    conformer = Conformer(
        value.target,
        value.promised,
        name,
        max_rows=options.max_rows_per_batch,
        max_bytes=options.max_bytes_per_batch,
    )
    with as_spark_error(name, "reading"):
        hide_options(task.source)
        if value.follows_zone:
            task = dataclasses.replace(task, source=in_zone_of_task(task.source))
        for delivered in run_task(task):
            yield from conformer.conform(delivered.batch, split=delivered.split_id, position=delivered.position)
