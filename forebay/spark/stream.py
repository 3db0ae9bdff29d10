# SPDX-License-Identifier: Apache-2.0
"""The Spark streaming host: plan micro-batches in the stream's own process, read each part in a task."""

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

from forebay.framework.arrow.resolved_schema import resolved_schema
from forebay.framework.microbatch.planner_factory import open_stream
from forebay.framework.microbatch.stream_planner import StreamPlanner
from forebay.options import hide_options
from forebay.spark.batch import Readable, SparkTask, read_task
from forebay.spark.errors import as_spark_error

_GRACE: Final = 5.0
"""Seconds that everything but the author's `close()` gets to end in."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Hands Spark's calls to a `StreamPlanner`.

    Spark makes two of these for each query: one plans, in a process of its own for as long as the query runs, its
    calls one at a time; the other is only pickled, for the tasks. Between the two only InputPartitions travel (S3).

    Args:
        readable: What to read.
        target: The Arrow schema that Spark expects.
        inferred: Whether the schema was inferred from what there is.
    """

    def __init__(self, readable: Readable, target: pa.Schema, *, inferred: bool) -> None:
        self._readable = readable
        self._target = target
        self._inferred = inferred
        self._planner: StreamPlanner | None = None
        self._called = False

    def __getstate__(self) -> dict[str, object]:
        # What tasks get: `read` needs nothing of it.
        return {}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the start, which is always the same: asked more than once, and again after a restart (S2)."""
        with self._call() as planner:
            return dict(planner.initial())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return anything but `ReadAllAvailable`, by which `Trigger.Once` replaces it: the real limits are options."""
        return ReadMaxRows(self._readable.options.max_rows_per_trigger or sys.maxsize)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Note that the run ends at what there is when it asks first (S17)."""
        with self._call() as planner:
            planner.prepare_available_now()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the end of the next micro-batch, or `start` itself. Called up to 90 times a second while idle.

        Raises:
            ForebayError: The source failed, or the checkpoint cannot be gone on from.
        """
        with as_spark_error(self._readable.source.name, "planning"), self._call() as planner:
            found = planner.latest(start, limited=not isinstance(limit, ReadAllAvailable))
            return found if isinstance(found, dict) else dict(found)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return what Spark shows as `latestOffset` in its progress reports (S12)."""
        with self._call() as planner:
            return planner.report() or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of a micro-batch: a pure function of `end` (S2, S5).

        Raises:
            ForebayError: The source failed or broke a rule.
        """
        readable = self._readable
        with as_spark_error(readable.source.name, "planning"), self._call() as planner:
            tasks = planner.tasks(start, end)
            return [
                InputPartition(SparkTask(task, self._target, readable.promised, readable.follows_zone))
                for task in tasks
            ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of one partition. Called in a task, also again: for retries and by every action.

        Raises:
            ForebayError: The source failed or broke a rule.
        """
        value = partition.value
        return iter(()) if value is None else read_task(value)

    def commit(self, end: dict[str, Any]) -> None:
        """Do what may be done only after a micro-batch. Never raises."""
        with self._call() as planner:
            planner.commit(end)

    def stop(self) -> None:
        """Free what the source holds; Spark rarely calls it (S11)."""
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
            _end_orderly(lambda: self._called, within=math.ceil(timeout + _GRACE))
        return self._planner

    @contextmanager
    def _call(self) -> Iterator[StreamPlanner]:
        """Note that Spark waits for an answer: while it does, SIGTERM means that nobody does any more."""
        planner = self._planning()
        self._called = True
        try:
            yield planner
        finally:
            self._called = False


def _end_orderly(called: Callable[[], bool], *, within: int) -> None:
    """Let Spark's SIGTERM end the process in order, so that `stop` and `atexit` run, and soon (S11).

    Where the process waits for Spark's next call, it is enough to go on waiting: Spark closes the connection. A call
    that is being answered, perhaps by a server that says nothing, is left at once.

    Args:
        called: Whether a call is being answered.
        within: Seconds after which the process is killed, whatever still runs.
    """

    def end(_number: int, _frame: object) -> None:
        signal.alarm(within)
        if called():
            raise SystemExit(128 + signal.SIGTERM)

    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end)
