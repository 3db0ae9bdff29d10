# SPDX-License-Identifier: Apache-2.0
"""`PostgresTarget`: the rows of a changelog in a table of PostgreSQL."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from pyspark import TaskContext
from pyspark.sql import DataFrame

from forebay.clock import SystemClock
from forebay.errors import ConfigurationError, DataError, ForebayError, RetriableError, unwrap
from forebay.options import DurationLike, Secret
from forebay.options.quantities import to_seconds
from forebay.retry import RetryCount, RetryPolicy
from forebay.spark.changelog.columns import quoted
from forebay.spark.changelog.targets.changes import Changes
from forebay.spark.changelog.targets.postgres_inspection import connected, inspect_table, typed_error, why_pinned
from forebay.spark.changelog.targets.postgres_statements import (
    LONGEST,
    TASK,
    TOMBSTONES,
    Statements,
    check_names,
    copied,
    is_name,
    quoted_name,
    staging_name,
)
from forebay.spark.changelog.targets.target import Target, check_owner
from forebay.spark.processes import freeze_modules

if TYPE_CHECKING:
    import psycopg


_log = logging.getLogger(__name__)

BOOKKEEPING: Final = "forebay_applied"
"""The table that remembers the last micro-batch of each query, in the schema of the target."""

_LOCK = "SELECT pg_advisory_xact_lock(hashtext('forebay_applied'))"
_OLD_STAGING = """
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relpersistence = 'u' AND starts_with(c.relname::text, %s)
"""


class PostgresTarget(Target):
    """A table of PostgreSQL. It is created if it does not exist, with the keys as its primary key.

    For each micro-batch, the tasks of Spark copy its folded changes into an unlogged staging table, in parallel. One
    transaction then upserts and deletes rows of the target, and records the micro-batch in `forebay_applied`. So after
    a kill at any moment, the table has either the whole micro-batch or nothing of it.

    Args:
        dsn: A connection string or URL of libpq, or a reference `env:NAME` or `file:/path` that each process resolves.
        table: The name of the table.
        schema: The schema of the table.
        retry_timeout: How long a server that does not answer is tried again, as a text (`2m`) or in seconds.

    Raises:
        ConfigurationError: PostgreSQL cannot have a table or schema of this name, targets need the name themselves, or
            `retry_timeout` is no duration.
    """

    def __init__(
        self, dsn: Secret | str, table: str, *, schema: str = "public", retry_timeout: DurationLike = "2m"
    ) -> None:
        try:
            timeout = to_seconds(retry_timeout)
        except ValueError as error:
            raise ConfigurationError(
                f"retry_timeout is no duration: {error}", option="retry_timeout", advice="give seconds, or text as 2m"
            ) from error
        self._retries = RetryPolicy(retries=sys.maxsize, max_pause=5.0, timeout=timeout)
        for kind, name in (("schema", schema), ("table", table)):
            if not is_name(name):
                raise ConfigurationError(
                    f"PostgreSQL cannot have a {kind} {name!r}: a name has 1 to {LONGEST} bytes of UTF-8 and no NUL",
                    option=kind,
                    advice="give it another name",
                )
        if table == BOOKKEEPING or table.endswith(f"__{TOMBSTONES}"):
            raise ConfigurationError(
                f"targets keep their own rows in tables with names such as {table!r}",
                option="table",
                advice="give the table another name",
            )
        self._dsn = dsn if isinstance(dsn, Secret) else Secret(dsn)
        self._schema = schema
        self._table = table
        self._name = quoted_name(schema, table)
        self._bookkeeping = quoted_name(schema, BOOKKEEPING).replace("%", "%%")  # psycopg takes % for a placeholder

    def __repr__(self) -> str:
        return f"PostgresTarget({self._name})"

    def _apply(self, changes: Changes, batch_id: int, query_id: str, *, adopt: bool) -> bool:
        """Apply the micro-batch; again if the server fails. A commit whose answer was lost is in `forebay_applied`."""
        count = RetryCount(self._retries, SystemClock(), Random())
        while True:
            try:
                return self._apply_once(changes, batch_id, query_id, adopt=adopt) or count.failures > 0
            except Exception as error:
                failure = unwrap(error)  # a task of Spark may have failed
                if not isinstance(failure, RetriableError):
                    raise
                pause = count.fail(failure)
                if count.exhausted:
                    failure = count.last_error(failure)
                    failure.advice = "check that the server runs, or raise retry_timeout; start the query: it continues"
                    raise failure from error
                _log.warning("%s; the micro-batch %d is applied again in %.1f s", failure.message, batch_id, pause)
                time.sleep(pause)

    def _apply_once(self, changes: Changes, batch_id: int, query_id: str, *, adopt: bool) -> bool:
        name, begin = staging_name(self._table, query_id)
        staging = quoted_name(self._schema, name)
        check_names(changes.names)
        statements = Statements(self._schema, self._table, changes, staging)
        with connected(self._dsn, self._name) as connection:
            if not self._is_new(connection, batch_id, query_id, adopt=adopt):
                return False
            connection.execute(statements.create_target())
            statements = replace(statements, info=inspect_table(connection, statements))
            if changes.sequence is not None:
                connection.execute(statements.create_tombstones())
            connection.commit()
            for (old,) in connection.execute(_OLD_STAGING, (self._schema, begin)).fetchall():
                connection.execute(f"DROP TABLE IF EXISTS {quoted_name(self._schema, old)}")
            connection.execute(statements.create_staging())
            connection.commit()
            try:
                tasks, deletes = self._copy(changes, statements)
                return self._merge(connection, statements, tasks, deletes, (batch_id, query_id))
            except BaseException:  # also Ctrl-C
                # Raise the first error. If the staging table remains, the next attempt drops it.
                with suppress(ForebayError), connected(self._dsn, self._name) as other:
                    connection.rollback()
                    other.execute(f"DROP TABLE IF EXISTS {staging}")
                raise

    def _is_new(self, connection: psycopg.Connection[Any], batch_id: int, query_id: str, *, adopt: bool) -> bool:
        """Return whether the micro-batch was not applied yet. Takes the lock that the creation of tables needs."""
        connection.execute(_LOCK)
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {self._bookkeeping} (target text, query text, batch bigint NOT NULL, "
            "owner boolean NOT NULL, applied_at timestamp with time zone NOT NULL DEFAULT now(), "
            "PRIMARY KEY (target, query))",
            (),
        )
        known = connection.execute(
            f"SELECT query, batch, owner FROM {self._bookkeeping} WHERE target = %s", (self._table,)
        ).fetchall()
        owner = next((query for query, _, owns in known if owns), None)
        check_owner(f"the table {self._name}", owner, query_id, adopt=adopt)
        applied = next((batch for query, batch, _ in known if query == query_id), -1)
        return batch_id > applied

    def _copy(self, changes: Changes, statements: Statements) -> tuple[list[int], int]:
        """Stage the changes. Return the ids of the task attempts whose rows are merged, and the number of deletes."""
        # `mapInArrow` does not take names with dots; COPY goes by position.
        arrays = {name for name, column in statements.info.columns.items() if column.element}
        columns = [
            copied(quoted(field.name), field.dataType, to_array=field.name in arrays) for field in changes.df.schema
        ]
        frame = changes.df.select(*(column.alias(f"c{number}") for number, column in enumerate(columns)))
        results = self._run(frame, self._copier(statements))
        return [task for task, _, _ in results], sum(deletes for _, _, deletes in results)

    def _copier(self, statements: Statements) -> CopyPartition:
        changes = statements.changes
        return CopyPartition(self._dsn, self._name, statements.staging, changes.df.columns, changes.keys)

    @staticmethod
    def _run(frame: DataFrame, copier: CopyPartition) -> Sequence[Any]:
        return frame.mapInArrow(copier, COPIED).collect()

    def _merge(
        self,
        connection: psycopg.Connection[Any],
        statements: Statements,
        tasks: list[int],
        deletes: int,
        batch: tuple[int, str],
    ) -> bool:
        """Apply staged rows and record the micro-batch in one transaction; return False if it was recorded before."""
        batch_id, query_id = batch
        recorded = connection.execute(
            f"INSERT INTO {self._bookkeeping} AS b (target, query, batch, owner) VALUES (%s, %s, %s, true) "
            "ON CONFLICT (target, query) DO UPDATE SET batch = excluded.batch, owner = true, applied_at = now() "
            "WHERE b.batch < excluded.batch RETURNING batch",
            (self._table, query_id, batch_id),
        ).fetchone()
        if recorded is not None:
            connection.execute(
                f"UPDATE {self._bookkeeping} SET owner = false WHERE target = %s AND query <> %s AND owner",
                (self._table, query_id),
            )
            if tasks:
                connection.execute(f"ANALYZE {statements.staging}")
                merge(connection, replace(statements, tasks=tasks), deletes=deletes > 0)
        connection.execute(f"DROP TABLE {statements.staging}")
        connection.commit()
        return recorded is not None


# -- Copies the partitions of a micro-batch into the staging table, by COPY in the tasks of Spark.


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

        batches = [first]
        rows, size = first.num_rows, first.nbytes
        try:
            with connection.cursor() as cursor, cursor.copy(self._statement([*self.columns, TASK])) as copy:
                self._check_times(first)
                copy.write(_as_csv(first, task))
                while rows < _ROWS and size < _BYTES and (batch := next(more, None)) is not None:
                    batches.append(batch)
                    rows, size = rows + batch.num_rows, size + batch.nbytes
                    self._check_times(batch)
                    copy.write(_as_csv(batch, task))
        except psycopg.Error as error:
            refused = typed_error(error, self.table)
            if not isinstance(refused, DataError):
                raise
            raise self._located(connection, pa.Table.from_batches(batches), refused) from error
        return pa.Table.from_batches(batches)

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


# -- Merges staged rows into the target. Updates that exchange values of a unique column are put in an order that
# works.
#
# PostgreSQL checks a unique constraint at each row of a statement, unless it is deferrable.


_CONSTRAINT = """
SELECT pg_get_constraintdef(oid) FROM pg_constraint
WHERE conrelid = to_regclass(%s) AND conname = %s AND contype IN ('u', 'x')
"""


def merge(connection: psycopg.Connection[Any], statements: Statements, *, deletes: bool) -> None:
    """Apply staged deletes and upserts in the transaction of the connection.

    Args:
        connection: The connection.
        statements: The statements, with the tasks whose rows are merged.
        deletes: Whether some rows are deletes.

    Raises:
        ConfigurationError: Rows exchange values of a unique constraint, and no order of statements is allowed.
        DataError: A key comes in two spellings.
    """
    if statements.info.inexact_keys and (twice := connection.execute(statements.respelled()).fetchone()):
        key = json.dumps(dict(zip(statements.changes.keys, map(str, twice), strict=True)), ensure_ascii=False)
        raise DataError(
            f"the table {statements.target}: the key {key} comes in two spellings, whose order is unknown",
            advice=f"spell {', '.join(statements.info.inexact_keys)} in one way first, such as by lower",
        )
    if deletes:
        for statement in statements.deletes():
            connection.execute(statement)
    if (conflict := _upsert(connection, statements)) is None:
        return
    if statements.changes.history:
        raise conflict
    pinned = why_pinned(connection, statements.target, statements.definitions())
    if pinned is None:
        for statement in (statements.removal(), *statements.upserts()):
            connection.execute(statement)
        return
    rows = [row for (row,) in connection.execute(statements.staged_upserts())]
    while rows:
        left = _upsert_parts(connection, statements, rows)
        if len(left) == len(rows):
            raise _stuck(connection, statements, conflict, pinned) from conflict
        rows = left[::-1]  # The next ones are freed by rows before or after them: try both directions in turn.


def _upsert(connection: psycopg.Connection[Any], statements: Statements) -> psycopg.Error | None:
    """Apply the upserts. If they violate a constraint that is checked at each row, undo them and return the error."""
    import psycopg

    if not statements.info.row_checks:
        for statement in statements.upserts():
            connection.execute(statement)
        return None
    try:
        with connection.transaction():
            for statement in statements.upserts():
                connection.execute(statement)
    except (psycopg.errors.UniqueViolation, psycopg.errors.ExclusionViolation) as error:
        if error.diag.constraint_name not in statements.info.row_checks:
            raise
        return error
    return None


def _upsert_parts(connection: psycopg.Connection[Any], statements: Statements, rows: Sequence[str]) -> list[str]:
    """Apply the upserts of staged rows, in parts; return the rows whose new values are not free yet."""
    if _upsert(connection, replace(statements, rows=rows)) is None:
        return []
    if len(rows) == 1:
        return list(rows)
    middle = len(rows) // 2
    left = _upsert_parts(connection, statements, rows[:middle])
    return left + _upsert_parts(connection, statements, rows[middle:])


def _stuck(
    connection: psycopg.Connection[Any], statements: Statements, conflict: psycopg.Error, pinned: str
) -> ConfigurationError:
    """Return the error for rows of which none can be first."""
    name, target = conflict.diag.constraint_name or "", statements.target
    definition, quoted = connection.execute(_CONSTRAINT, (target, name)).fetchone(), quoted_name(name)
    advice = f"DROP INDEX {quoted_name(statements.schema, name)}: an index has no deferrable check"
    if definition is not None:
        changed = f"DROP CONSTRAINT {quoted}, ADD CONSTRAINT {quoted} {definition[0]} DEFERRABLE"
        advice = f"ALTER TABLE {target} {changed}; if it is violated then, too, the changes give two rows one value"
    return ConfigurationError(
        f"the table {target}: rows of one micro-batch exchange values of {name}, which is checked at each row "
        f"({conflict.diag.message_detail}), and they cannot be deleted and inserted again: {pinned}",
        advice=advice,
    )
