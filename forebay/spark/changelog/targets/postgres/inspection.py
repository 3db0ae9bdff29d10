# SPDX-License-Identifier: Apache-2.0
"""Checks that a table can hold the changes, before anything is written, and finds what the merge must know of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import NullType, StructField

from forebay.errors import ConfigurationError
from forebay.spark.changelog.targets.postgres.statements import Statements, TableInfo, quoted_name
from forebay.spark.changelog.targets.postgres.types import TableColumn, fits, postgres_type

if TYPE_CHECKING:
    import psycopg

_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), t.typtype = 'e',
  CASE WHEN t.typcategory = 'A' THEN format_type(e.oid, a.atttypmod) END, e.typtype = 'e',
  a.atthasdef OR a.attidentity <> '', coalesce(c.collisdeterministic, true),
  CASE WHEN c.collname <> 'default' THEN format('%%I.%%I', n.nspname, c.collname) END
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_type e ON e.oid = t.typelem
LEFT JOIN pg_collation c ON c.oid = a.attcollation LEFT JOIN pg_namespace n ON n.oid = c.collnamespace
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
"""
_INDEXES = """
SELECT c.relname, i.indimmediate, CASE WHEN NOT i.indisexclusion AND i.indpred IS NULL AND i.indexprs IS NULL THEN (
  SELECT array_agg(a.attname::text) FROM pg_attribute a
  WHERE a.attrelid = i.indrelid AND a.attnum = ANY((i.indkey::int2[])[0:i.indnkeyatts - 1])) END
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE i.indrelid = to_regclass(%s) AND (i.indisunique OR i.indisexclusion)
"""
_PINNED = """
SELECT format('the foreign key %%I of %%s references them', conname, conrelid::regclass)
FROM pg_constraint WHERE contype = 'f' AND confrelid = to_regclass(%(table)s)
UNION ALL SELECT format('the trigger %%I would run for them', tgname)
FROM pg_trigger WHERE NOT tgisinternal AND tgrelid = to_regclass(%(table)s)
UNION ALL SELECT format('the changes do not have their column %%I', attname)
FROM pg_attribute WHERE attrelid = to_regclass(%(table)s) AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
  AND attname <> ALL(%(names)s)
"""


def inspect_table(connection: psycopg.Connection[Any], statements: Statements) -> TableInfo:
    """Compare the columns and unique indexes of the target with the changes.

    Raises:
        ConfigurationError: A column is missing on either side or has another type, or the key has no unique index.
    """
    table = statements.target
    columns, filled, inexact = {}, set(), set()
    for name, kind, is_enum, element, enum_element, has_default, deterministic, collation in connection.execute(
        _COLUMNS, (table,)
    ):
        columns[name] = TableColumn(kind, is_enum, TableColumn(element, enum_element) if element else None, collation)
        filled |= {name} if has_default else set()
        inexact |= set() if deterministic else {name}
    _check_columns(statements, columns, filled)
    inexact |= {
        one.name
        for one in statements.changes.fields
        if postgres_type(one) == "text" != columns[one.name].kind and not columns[one.name].is_enum
    }
    immediate, others = [], set()
    for name, at_each_row, indexed in connection.execute(_INDEXES, (table,)):
        if {*(indexed or ())} == {*statements.identity}:
            immediate.append(at_each_row)
        elif at_each_row:
            others.add(name)
    if not immediate:
        raise ConfigurationError(
            f"the table {table} has no primary key or unique index on {', '.join(statements.identity)}",
            option="keys",
            advice="create such an index, or give the columns of an existing one as keys",
        )
    inexact_keys = tuple(name for name in statements.changes.keys if name in inexact)
    return TableInfo(columns, all(immediate), frozenset(others), inexact_keys)


def _check_columns(statements: Statements, columns: Mapping[str, TableColumn], filled: set[str]) -> None:
    """Check that the table has the columns of the changes, and that the others are `filled` by defaults."""
    table, definitions, sequence = statements.target, statements.definitions(), statements.changes.sequence
    fields = {one.name: one for one in statements.changes.fields}
    for name, definition in definitions.items():
        if name not in columns:
            raise ConfigurationError(
                f"the table {table} has no column {name!r}",
                advice=f"ALTER TABLE {table} ADD COLUMN {quoted_name(name)} {definition}, or name the column in "
                "except_column_list",
            )
        one = fields.get(name) or StructField(name, sequence or NullType())
        if not fits(one, columns[name]):
            raise ConfigurationError(
                f"the column {name!r} is {columns[name].kind} in the table {table}, and "
                f"{one.dataType.simpleString()} in the changes, which need {postgres_type(one)}",
                advice="cast the column first, or change the type of the table's column",
            )
    for name, column in columns.items():
        if name not in definitions and name not in filled:
            raise ConfigurationError(
                f"the table {table} has a column {name!r} ({column.kind}) without a default, and the changes do not "
                "have it",
                advice="add the column to the changes, or give it a default in the table",
            )


def why_pinned(connection: psycopg.Connection[Any], table: str, names: Iterable[str]) -> str | None:
    """Return why rows of a table must not be deleted and inserted again; None if nothing forbids it.

    Args:
        connection: The connection.
        table: The quoted name of the table.
        names: The columns that the changes have.
    """
    reason = connection.execute(_PINNED, {"table": table, "names": list(names)}).fetchone()
    return None if reason is None else str(reason[0])
