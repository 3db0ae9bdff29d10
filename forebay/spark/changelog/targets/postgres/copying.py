# SPDX-License-Identifier: Apache-2.0
"""Copies the partitions of a micro-batch into the staging table, by COPY in the tasks of Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from pyspark import TaskContext

from forebay.errors import DataError
from forebay.options import Secret
from forebay.spark.changelog.targets.postgres.errors import connected, typed_error
from forebay.spark.changelog.targets.postgres.statements import TASK, quoted_name
from forebay.spark.processes.worker_modules import freeze_modules

if TYPE_CHECKING:
    import psycopg

COPIED: Final = "task long, rows long, deletes long"
"""The schema of the one row that each task returns."""

_QUOTED = pa_csv.WriteOptions(include_header=False, quoting_style="all_valid")
"""Quotes every value, so that COPY reads an unquoted empty field as NULL, and a quoted one as an empty text."""
_ROWS: Final = 100_000
_BYTES: Final = 16 << 20
"""Bounds of one COPY, whose rows are kept until it ends."""
_DAYS: Final = (-719162, 11248737)
"""The days from year 1 to year 32767, counted from 1970: Arrow writes wrong or unreadable years outside of them."""
_A_DAY: Final = 86_400_000_000


@dataclass(frozen=True)
class CopyPartition:
    """The function that `mapInArrow` runs to copy a partition, whose last column is `__DELETED`.

    Args:
        dsn: The connection string.
        table: The target, for errors.
        staging: The quoted name of the staging table.
        columns: The names of the columns of a partition.
        keys: Those of the key.
    """

    dsn: Secret
    table: str
    staging: str
    columns: Sequence[str]
    keys: Sequence[str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Copy all record batches in one transaction. Called by Spark in a worker.

        Yields one row with the schema `COPIED`; none for a partition without rows.

        Raises:
            DataError: A value does not fit its column.
            RetriableError: The server does not answer.
        """
        freeze_modules()
        filled = (batch for batch in batches if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return
        context = TaskContext.get()
        task = 0 if context is None else context.taskAttemptId()
        rows = deletes = 0
        with connected(self.dsn, self.table) as connection:
            batch: pa.RecordBatch | None = first
            while batch is not None:
                copied = self._copy(connection, batch, filled, task)
                rows += copied.num_rows
                deletes += pc.sum(copied.column(copied.num_columns - 1)).as_py()
                batch = next(filled, None)
            connection.commit()
        yield pa.RecordBatch.from_pydict({"task": [task], "rows": [rows], "deletes": [deletes]})

    def _copy(
        self, connection: psycopg.Connection[Any], first: pa.RecordBatch, more: Iterator[pa.RecordBatch], task: int
    ) -> pa.Table:
        """Run one COPY, and return its rows. They are kept to find the one that PostgreSQL refuses."""
        import psycopg

        kept = [first]
        rows, size = first.num_rows, first.nbytes
        try:
            with connection.cursor() as cursor, cursor.copy(self._statement([*self.columns, TASK])) as copy:
                self._check_times(first)
                copy.write(_as_csv(first, task))
                while rows < _ROWS and size < _BYTES and (batch := next(more, None)) is not None:
                    kept.append(batch)
                    rows, size = rows + batch.num_rows, size + batch.nbytes
                    self._check_times(batch)
                    copy.write(_as_csv(batch, task))
        except psycopg.Error as error:
            refused = typed_error(error, self.table)
            if not isinstance(refused, DataError):
                raise
            raise self._located(connection, pa.Table.from_batches(kept), refused) from error
        return pa.Table.from_batches(kept)

    def _located(self, connection: psycopg.Connection[Any], rows: pa.Table, refused: DataError) -> DataError:
        """Find a row and the column that COPY refuses, by copying parts of the rows again."""
        connection.rollback()
        while rows.num_rows > 1:
            half = rows.slice(0, rows.num_rows // 2)
            rows = half if self._refusal(connection, half, self.columns) else rows.slice(half.num_rows)
        for number, name in enumerate(self.columns):
            if text := self._refusal(connection, rows.select([number]), [name]):
                return self._wrong(name, self._key(rows, 0), text)
        return refused

    def _refusal(self, connection: psycopg.Connection[Any], rows: pa.Table, columns: Sequence[str]) -> str | None:
        """Return why COPY refuses these rows; None if it does not."""
        import psycopg

        try:
            with connection.cursor() as cursor, cursor.copy(self._statement(columns)) as copy:
                for batch in rows.to_batches():
                    copy.write(_csv(batch))
        except psycopg.Error as error:
            if not isinstance(typed_error(error, self.table), DataError):
                raise
            return str(error.diag.message_primary)
        finally:
            connection.rollback()
        return None

    def _check_times(self, batch: pa.RecordBatch) -> None:
        for number, name in enumerate(self.columns):
            column = batch.column(number)
            if pa.types.is_date32(column.type):
                values, unit = column.cast(pa.int32()), 1
            elif pa.types.is_timestamp(column.type):
                values, unit = column.cast(pa.int64()), _A_DAY
            else:
                continue
            first, last = _DAYS[0] * unit, (_DAYS[1] + 1) * unit - 1
            bounds = pc.min_max(values).as_py()
            if bounds["min"] is None or first <= bounds["min"] <= bounds["max"] <= last:
                continue
            outside = (row for row, value in enumerate(values.to_pylist()) if value and not first <= value <= last)
            raise self._wrong(name, self._key(batch, next(outside)), "its year is not between 1 and 32767")

    def _key(self, rows: pa.Table | pa.RecordBatch, row: int) -> str:
        values = {name: rows.column(self.columns.index(name))[row] for name in self.keys}
        return json.dumps({name: _shown(value) for name, value in values.items()}, ensure_ascii=False)

    def _wrong(self, name: str, key: str, reason: str) -> DataError:
        return DataError(
            f"the table {self.table}: the column {name!r} of the key {key}: {reason}",
            advice="correct the value in the changes, or the type of the column",
        )

    def _statement(self, columns: Sequence[str]) -> str:
        return f"COPY {self.staging} ({', '.join(map(quoted_name, columns))}) FROM STDIN (FORMAT csv)"


def _shown(value: pa.Scalar) -> object:
    try:
        text = value.as_py()
    except (OverflowError, ValueError):  # a time that Python does not have
        text = value.cast(pa.int64() if pa.types.is_timestamp(value.type) else pa.int32()).as_py()
    return text if isinstance(text, int | float | str) else str(text)


def _as_csv(batch: pa.RecordBatch, task: int) -> bytes:
    return _csv(batch.append_column(TASK, pa.array([task] * batch.num_rows, pa.int64())))


def _csv(batch: pa.RecordBatch) -> bytes:
    for number, field in enumerate(batch.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz:
            # In other zones, Arrow writes offsets without their seconds, which old times have.
            batch = batch.set_column(number, field.name, batch.column(number).cast(pa.timestamp("us", "UTC")))
    sink = pa.BufferOutputStream()
    pa_csv.write_csv(batch, sink, _QUOTED)
    return sink.getvalue().to_pybytes()
