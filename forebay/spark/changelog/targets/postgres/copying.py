# SPDX-License-Identifier: Apache-2.0
"""Copies the partitions of a micro-batch into the staging table, by COPY in the tasks of Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from pyspark import TaskContext

from forebay.options import Secret
from forebay.spark.changelog.targets.postgres.errors import connected
from forebay.spark.processes.worker_modules import freeze_modules

TASK: Final = "__TASK"
"""The column with the id of the task attempt that copied a row. The merge skips attempts whose result Spark dropped."""

COPIED: Final = "task long, rows long, deletes long"
"""The schema of the one row that each task returns."""

_QUOTED = pa_csv.WriteOptions(include_header=False, quoting_style="all_valid")
"""Quotes every value, so that COPY reads an unquoted empty field as NULL, and a quoted one as an empty text."""


@dataclass(frozen=True)
class CopyPartition:
    """The function that `mapInArrow` runs to copy a partition, whose last column is `__DELETED`.

    Args:
        dsn: The connection string.
        table: The target, for errors.
        statement: `COPY … FROM STDIN (FORMAT csv)`, with `__TASK` as the last column.
    """

    dsn: Secret
    table: str
    statement: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Copy all record batches in one transaction. Called by Spark in a worker.

        Yields one row with the schema `COPIED`; none for a partition without rows.
        """
        freeze_modules()
        filled = (batch for batch in batches if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return
        context = TaskContext.get()
        task = 0 if context is None else context.taskAttemptId()
        rows = deletes = 0
        with connected(self.dsn, self.table) as connection, connection.cursor() as cursor:
            with cursor.copy(self.statement) as copy:
                batch: pa.RecordBatch | None = first
                while batch is not None:
                    copy.write(_as_csv(batch, task))
                    rows += batch.num_rows
                    deletes += pc.sum(batch.column(batch.num_columns - 1)).as_py()
                    batch = next(filled, None)
            connection.commit()
        yield pa.RecordBatch.from_pydict({"task": [task], "rows": [rows], "deletes": [deletes]})


def _as_csv(batch: pa.RecordBatch, task: int) -> bytes:
    numbered = batch.append_column(TASK, pa.array([task] * batch.num_rows, pa.int64()))
    sink = pa.BufferOutputStream()
    pa_csv.write_csv(numbered, sink, _QUOTED)
    return sink.getvalue().to_pybytes()
