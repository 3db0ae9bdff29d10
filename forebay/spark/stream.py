# SPDX-License-Identifier: Apache-2.0
"""The Spark streaming host: plans micro-batches in a process per query, and reads each partition in a task."""

from __future__ import annotations

import math
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from forebay.framework.arrow.casting import resolved_schema
from forebay.framework.microbatch.stream_planner import StreamPlanner, open_stream
from forebay.options import hide_options
from forebay.spark.batch import Readable, read_partition, spark_task
from forebay.spark.errors import as_spark_error

_GRACE: Final = 5.0
"""Seconds added to the close timeout before the process is killed."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Forwards Spark's calls to a `StreamPlanner`.

    Spark creates two readers for each query. One reader plans in a separate process, with one call at a time. The other
    reader is only pickled for the tasks. Only InputPartitions are sent to the tasks (S3).
    """

    def __init__(self, readable: Readable, target: pa.Schema, *, inferred: bool) -> None:
        self._readable = readable
        self._target = target
        self._inferred = inferred
        self._planner: StreamPlanner | None = None
        self._called = False

    def __getstate__(self) -> dict[str, object]:
        return {}  # `read` needs no state

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the start offset, which is constant: Spark requests it repeatedly, also after a restart (S2)."""
        with self._call() as planner:
            return dict(planner.initial())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return any limit except `ReadAllAvailable`, which would mean `Trigger.Once`.

        The actual limits are options.
        """
        return ReadMaxRows(self._readable.options.max_rows_per_trigger or sys.maxsize)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Make the query stop at the ends that the first `latestOffset` finds (S17)."""
        with self._call() as planner:
            planner.prepare_available_now()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the offset at which the next micro-batch ends; `start` if there is no new data.

        Called up to 90 times per second while idle.
        """
        with as_spark_error(self._readable.source.name, "planning"), self._call() as planner:
            offset = planner.latest(start, limited=not isinstance(limit, ReadAllAvailable))
            return offset if isinstance(offset, dict) else dict(offset)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the value that Spark's progress reports show as `latestOffset` (S12)."""
        with self._call() as planner:
            return planner.report() or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of a micro-batch: a pure function of `end` (S2, S5)."""
        readable = self._readable
        with as_spark_error(readable.source.name, "planning"), self._call() as planner:
            tasks = planner.tasks(start, end)
            return [InputPartition(spark_task(task, readable, self._target)) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of one partition. Called in tasks, again for each retry and each action."""
        return read_partition(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Process the commit of a micro-batch. Never raises."""
        with self._call() as planner:
            planner.commit(end)

    def stop(self) -> None:
        """Close the planner; Spark rarely calls this (S11)."""
        if self._planner is not None:
            planner, self._planner = self._planner, None
            planner.close()

    def _planning(self) -> StreamPlanner:
        if self._planner is None:
            readable = self._readable
            with as_spark_error(readable.source.name, "create_enumerator()"):
                hide_options(readable.source)
                self._planner = open_stream(
                    readable.source,
                    readable.options,
                    parallelism=readable.parallelism,
                    inferred=resolved_schema(readable.source) if self._inferred else None,
                )
            timeout = readable.options.close_timeout.total_seconds()
            _close_on_sigterm(lambda: self._called, within=math.ceil(timeout + _GRACE))
        return self._planner

    @contextmanager
    def _call(self) -> Iterator[StreamPlanner]:
        """Mark that Spark waits for an answer, so that SIGTERM interrupts the call."""
        planner = self._planning()
        self._called = True
        try:
            yield planner
        finally:
            self._called = False


def _close_on_sigterm(called: Callable[[], bool], *, within: int) -> None:
    """Make Spark's SIGTERM end the process normally, so that `stop` and `atexit` run (S11).

    If no call is running, the process goes on waiting, and ends when Spark closes the connection. A running call, which
    may be blocked in a server, is interrupted.
    """

    def end(_number: int, _frame: object) -> None:
        signal.alarm(within)
        if called():
            raise SystemExit(128 + signal.SIGTERM)

    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end)
