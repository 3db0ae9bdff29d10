# SPDX-License-Identifier: Apache-2.0
"""Merges staged rows into the target. Updates that exchange values of a unique column are put in an order that works.

PostgreSQL checks a unique constraint at each row of a statement, unless it is deferrable.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from forebay.errors import ConfigurationError, DataError
from forebay.spark.changelog.targets.postgres.inspection import why_pinned
from forebay.spark.changelog.targets.postgres.statements import Statements, quoted_name

if TYPE_CHECKING:
    import psycopg

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
