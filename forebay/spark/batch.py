# SPDX-License-Identifier: Apache-2.0
"""The Spark batch host: plans a bounded read once per `load()`, and reads each partition in a task."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.framework.tasks.assign_tasks import plan_bounded
from forebay.framework.tasks.read_task import ReadTask, run_task
from forebay.options import hide_options
from forebay.spark.conform import Conformer
from forebay.spark.errors import as_spark_error
from forebay.spark.processes import freeze_modules
from forebay.spark.session import in_zone_of_task


@dataclass(frozen=True)
class Readable:
    """A source that Spark can read, with its resolved schema.

    Args:
        source: The source.
        options: The host's options.
        promised: The names of the columns in the source's record batches.
        parallelism: The number of parallel tasks, if known.
        follows_zone: Whether tasks use the time zone of their query. True if the user set no time zone.
    """

    source: Source
    options: HostOptions
    promised: tuple[str, ...]
    parallelism: int | None
    follows_zone: bool = False


@dataclass(frozen=True)
class SparkTask:
    """The content of one InputPartition: everything that `read` needs in a task (S3)."""

    task: ReadTask
    target: pa.Schema
    promised: tuple[str, ...]
    follows_zone: bool = False


class BatchReader(DataSourceReader):
    """Plans in Spark's planner process, and reads in its tasks. Only InputPartitions are sent to the tasks.

    Spark requests the partitions once per `load()`, so every action on the DataFrame reads the same splits up to the
    same ends; call `load()` again to read newer data. Filters are not pushed down (S10): Spark 4.2 and 4.3 mix up the
    filters of several scans of one `load()`.
    """

    def __init__(self, readable: Readable, target: pa.Schema) -> None:
        self._readable = readable
        self._target = target

    def __getstate__(self) -> dict[str, object]:
        # Spark pickles the reader into its read function before it requests the partitions. `read` needs no state.
        return {}

    def partitions(self) -> list[InputPartition]:
        """Plan the read, and return one partition per task. Called in the planner process, once per `load()`."""
        freeze_modules()
        readable = self._readable
        source = readable.source
        with as_spark_error(source.name, "planning"):
            hide_options(source)
            plan = plan_bounded(source, readable.options, parallelism=readable.parallelism)
            return [PlannedPartition(plan, index, readable, self._target) for index in range(len(plan))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of one partition. Called in tasks, again for each retry and each action."""
        return read_partition(partition)


class PlannedPartition(InputPartition):
    """The InputPartition of one task. Its splits are created only when Spark pickles it, one partition at a time.

    Args:
        plan: The slices of each task.
        index: The number of the task.
        readable: The source.
        target: The schema that Spark expects.
    """

    def __init__(self, plan: Sequence[tuple[Split, ...]], index: int, readable: Readable, target: pa.Schema) -> None:
        super().__init__(None)
        self._plan, self._index, self._readable, self._target = plan, index, readable, target

    def __reduce__(self) -> tuple[Callable[..., InputPartition], tuple[object, ...]]:
        readable, index = self._readable, self._index
        task = ReadTask(readable.source, self._plan[index], readable.options, index, len(self._plan))
        return InputPartition, (spark_task(task, readable, self._target),)


def spark_task(task: ReadTask, readable: Readable, target: pa.Schema) -> SparkTask:
    """Return the content of the InputPartition for `task`. `target` is the schema that Spark expects."""
    return SparkTask(task, target, readable.promised, readable.follows_zone)


def read_partition(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a partition, converted to Spark's types and cut to the host's limits."""
    value = partition.value
    if value is None:  # Spark makes such a partition from an empty plan
        return
    freeze_modules()
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
        batches = (
            batch
            for delivered in run_task(task)
            for batch in conformer.conform(delivered.batch, split=delivered.split_id, position=delivered.position)
        )
        yield from coalesced(batches, max_rows=options.max_rows_per_batch, max_bytes=options.max_bytes_per_batch)


# -- Combines small record batches, because each one costs Spark about as much as a thousand rows.


_SMALL_ROWS: Final = 5_000
_SMALL_BYTES: Final = 1 << 20
_BURST_SECONDS: Final = 0.05
"""A batch is held back only if it arrives within this time after the last yielded batch."""


def coalesced(batches: Iterable[pa.RecordBatch], *, max_rows: int, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `batches` in order, in fewer record batches. Called on the thread of a task.

    A batch that arrives 0.05 s or more after the last yielded one is yielded at once, and so is the first batch.

    Args:
        batches: Record batches of one schema, each within the two limits.
        max_rows: Maximum rows of a batch.
        max_bytes: Maximum bytes of a batch.
    """
    held: list[pa.RecordBatch] = []
    rows = size = 0
    last = -_BURST_SECONDS
    most_rows, most_bytes = min(max_rows, _SMALL_ROWS), min(max_bytes, _SMALL_BYTES)
    for batch in batches:
        batch_bytes = batch.nbytes
        if held and (rows + batch.num_rows > most_rows or size + batch_bytes > most_bytes):
            yield _combined(held)
            held, rows, size = [], 0, 0
        held.append(batch)
        rows += batch.num_rows
        size += batch_bytes
        if time.monotonic() - last >= _BURST_SECONDS or rows >= most_rows or size >= most_bytes:
            yield _combined(held)
            held, rows, size = [], 0, 0
            last = time.monotonic()
    if held:
        yield _combined(held)


def _combined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (batch,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return batch
