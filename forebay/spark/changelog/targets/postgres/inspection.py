# SPDX-License-Identifier: Apache-2.0
"""Checks that an existing table can hold the changes, before anything is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay.errors import ConfigurationError
from forebay.spark.changelog.targets.postgres.statements import Statements
from forebay.spark.changelog.targets.postgres.types import fits, postgres_type

if TYPE_CHECKING:
    import psycopg

_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.atthasdef OR a.attidentity <> ''
FROM pg_attribute a WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
"""
_UNIQUE = """
SELECT array_agg(a.attname::text) FROM pg_index i
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY((i.indkey::int2[])[0:i.indnkeyatts - 1])
WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL
GROUP BY i.indexrelid
"""


def check_table(connection: psycopg.Connection[Any], statements: Statements) -> None:
    """Compare the columns and unique indexes of the target with the changes.

    Raises:
        ConfigurationError: A column is missing on either side or has another type, or the key has no unique index.
    """
    table = statements.target
    columns = {name: (kind, filled) for name, kind, filled in connection.execute(_COLUMNS, (table,))}
    for field in statements.changes.fields:
        if field.name not in columns:
            raise _missing(table, field.name, postgres_type(field))
        if not fits(field, columns[field.name][0]):
            raise ConfigurationError(
                f"the column {field.name!r} is {columns[field.name][0]} in the table {table}, and "
                f"{field.dataType.simpleString()} in the changes, which need {postgres_type(field)}",
                advice="cast the column first, or change the type of the table's column",
            )
    for name, kind in statements.definitions().items():
        if name not in columns:
            raise _missing(table, name, kind)
    for name, (kind, filled) in columns.items():
        if name not in statements.definitions() and not filled:
            raise ConfigurationError(
                f"the table {table} has a column {name!r} ({kind}) without a default, and the changes do not have it",
                advice="add the column to the changes, or give it a default in the table",
            )
    indexes = [set(found) for (found,) in connection.execute(_UNIQUE, (table,))]
    if set(statements.identity) not in indexes:
        raise ConfigurationError(
            f"the table {table} has no primary key or unique index on {', '.join(statements.identity)}",
            option="keys",
            advice="create such an index, or give the columns of an existing one as keys",
        )


def _missing(table: str, name: str, kind: str) -> ConfigurationError:
    return ConfigurationError(
        f"the table {table} has no column {name!r}",
        advice=f'ALTER TABLE {table} ADD COLUMN "{name}" {kind}, or name the column in except_column_list',
    )
