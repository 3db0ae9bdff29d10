# SPDX-License-Identifier: Apache-2.0
"""`PostgresTarget`: the rows of a changelog in a table of PostgreSQL."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame

from forebay.clock import SystemClock
from forebay.errors import ConfigurationError, ForebayError, RetriableError, unwrap
from forebay.options import DurationLike, Secret
from forebay.options.quantities import to_seconds
from forebay.retry import RetryCount, RetryPolicy
from forebay.spark.changelog.columns import quoted
from forebay.spark.changelog.targets.changes import Changes
from forebay.spark.changelog.targets.postgres.copying import COPIED, CopyPartition
from forebay.spark.changelog.targets.postgres.errors import connected
from forebay.spark.changelog.targets.postgres.inspection import inspect_table
from forebay.spark.changelog.targets.postgres.merging import merge
from forebay.spark.changelog.targets.postgres.statements import (
    LONGEST,
    TOMBSTONES,
    Statements,
    check_names,
    is_name,
    quoted_name,
    staging_name,
)
from forebay.spark.changelog.targets.postgres.types import copied
from forebay.spark.changelog.targets.target import Target, check_owner

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
            except BaseException:
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
        columns = [copied(quoted(one.name), one.dataType, to_array=one.name in arrays) for one in changes.df.schema]
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
