# SPDX-License-Identifier: Apache-2.0
"""Checks that a table can hold the changes, before anything is written, and finds what the merge must know of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import NullType, StructField

from forebay.errors import ConfigurationError, DataError, FatalError, ForebayError, RetriableError
from forebay.options import Secret
from forebay.spark.changelog.targets.postgres_statements import (
    Statements,
    TableColumn,
    TableInfo,
    fits,
    postgres_type,
    quoted_name,
)

if TYPE_CHECKING:
    import psycopg


# -- Converts errors of PostgreSQL to typed errors, and opens connections that raise them.


_WAIT = (RetriableError, "check that the server runs and read its log, then start the query again; it continues")
_VALUE = (DataError, "correct the value in the changes, or the type or constraint of the column")
_SETTING = (ConfigurationError, "correct the connection, the table or its permissions")
_DEFECT = (FatalError, "read the log of the server; if the server is sound, report a defect of forebay with this text")

_DUPLICATE = (
    DataError,
    (
        "correct the changes, which give two rows this value; if a later micro-batch has the change of the other row, "
        "drop this constraint of the target"
    ),
)

_BY_STATE: Final[dict[str, tuple[type[ForebayError], str]]] = {
    "08": _WAIT,  # connection
    "09": _VALUE,  # triggered action
    "0A": _SETTING,  # feature not supported
    "0L": _SETTING,  # grantor
    "0P": _SETTING,  # role
    "21": _VALUE,  # cardinality
    "22": _VALUE,  # data
    "23": _VALUE,  # constraint
    "23505": _DUPLICATE,
    "23P01": _DUPLICATE,
    "25006": (ConfigurationError, "connect to the primary server, with a role whose transactions may write"),
    "25P03": (ConfigurationError, "raise idle_in_transaction_session_timeout for this role"),
    "25P04": (ConfigurationError, "raise transaction_timeout for this role"),
    "26": (ConfigurationError, "connect without a pooler, or with one that keeps a session"),
    "27": (ConfigurationError, "correct the trigger of the table, which changes the rows that are written"),
    "28": _SETTING,  # authorization
    "2B": _SETTING,  # privileges
    "2F": _VALUE,  # SQL routine, such as that of a trigger
    "38": _VALUE,  # external routine
    "39": _VALUE,  # external routine invocation
    "3D": _SETTING,  # database
    "3F": _SETTING,  # schema
    "40": _WAIT,  # transaction rollback, such as a deadlock
    "42": _SETTING,  # syntax, names, access
    "44": _VALUE,  # check option of a view
    "53": _WAIT,  # resources
    "53100": (RetriableError, "free space on the disk of the server, then start the query again; it continues"),
    "53400": _SETTING,  # configured limit
    "54": (DataError, "shorten the value in the changes, such as that of an indexed column"),
    "54001": (ConfigurationError, "raise max_stack_depth of the server"),
    "54011": (ConfigurationError, "name columns in except_column_list: PostgreSQL has no room for all"),
    "54023": _SETTING,  # arguments of a function
    "55": _SETTING,  # state of an object
    "55006": _WAIT,  # object in use
    "55P03": (RetriableError, "end the transaction that holds the lock, then start the query again; it continues"),
    "57": _WAIT,  # intervention of an operator
    "57014": (
        RetriableError,
        "start the query again; it continues. If statement_timeout ended it, raise this setting of the role first",
    ),
    "57P04": _SETTING,  # database dropped
    "57P05": (ConfigurationError, "raise idle_session_timeout for this role: tasks copy while the session is idle"),
    "58": _WAIT,  # system
    "72": _WAIT,  # snapshot too old
    "F0": _SETTING,  # configuration file
    "HV": _SETTING,  # foreign data
    "HV00N": _WAIT,  # connection of foreign data
    "P0": _VALUE,  # PL/pgSQL, such as RAISE of a trigger
}
"""The error and its advice by SQLSTATE, or by its class: the longest prefix counts. All others are defects."""

_REFUSED = re.compile(
    r"no password supplied|SSL was required|certificate|private key file|channel binding|authentication method"
    r"|GSSAPI encryption required|response to SSL negotiation|expected authentication request"
    r"|could not parse network address|socket path .* is too long|definition of service|service file"
    r"|(FATAL|ERROR): .*(auth\w* failed|pg_hba|does not exist|no such|not found|not specified|not permitted|not allowed"
    r"|does not allow|permission denied|unrecognized|invalid|not valid|expired|wrong|cannot be changed|unable to set"
    r"|unsupported|not supported|supports only|incompatible|require|must be|insecure|no credentials|allow_list"
    r"|no pool configured|not currently accepting)",
    re.IGNORECASE | re.DOTALL,
)
_FOR_A_TIME = re.compile(r"starting up|shutting down|shutdown|recovery|too many|try again|_retry\b", re.IGNORECASE)
"""Texts of a server that refuses a connection, or is no PostgreSQL, and of a DSN that no server can satisfy.

They have no SQLSTATE. Names are left out: they are in quotes. A server refuses `_FOR_A_TIME` whatever else it says. All
other refusals are waited out too, also those of poolers and in other languages: a server that starts, ends, or has no
free connection says so in many ways.
"""
_NUMBERS = {
    *("connect_timeout", "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count"),
    *("port", "tcp_user_timeout"),
}
"""Options of libpq that are numbers."""


@contextmanager
def connected(dsn: Secret, table: str) -> Iterator[psycopg.Connection[Any]]:
    """Connect without autocommit, and close the connection at the end. Errors of PostgreSQL become typed errors.

    Raises:
        ConfigurationError: psycopg is missing, the DSN is malformed, or the server refuses the user, a name or a
            permission.
        DataError: A value does not fit.
        RetriableError: The server does not answer, or ended the connection.
        FatalError: The server reports a defect.
    """
    try:
        import psycopg
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "PostgresTarget needs psycopg, which is not installed", advice='pip install "forebay[postgres]"'
        ) from error
    if (wrong := _malformed(dsn.reveal())) is not None:
        # No text of libpq, and no error of psycopg as the cause: both repeat parts of the DSN.
        raise ConfigurationError(
            f"the table {table}: the connection string is malformed: {wrong}",
            option="dsn",
            advice="give options of libpq, 'host=… port=5432 dbname=… user=… password=…', or "
            "'postgresql://user:password@host:5432/dbname' with special characters percent-encoded",
        )
    try:
        with psycopg.connect(dsn.reveal(), application_name="forebay") as connection:
            yield connection
    except psycopg.Error as error:
        raise typed_error(error, table) from error


def _malformed(dsn: str) -> str | None:
    """Return what libpq cannot use of a DSN, without any part of the DSN; None if the DSN is well-formed."""
    import psycopg
    from psycopg import pq

    try:
        options = {name: str(value) for name, value in psycopg.conninfo.conninfo_to_dict(dsn).items() if value}
    except psycopg.ProgrammingError:
        return "it is neither a list of options nor a URL, or names an option that libpq does not know"
    for name in _NUMBERS & options.keys():
        if not all(re.fullmatch(r"\s*(-?[0-9]+)?\s*", part) for part in options[name].split(",")):
            return f"{name} is no number"
    hosts = options.get("host", options.get("hostaddr", "")).split(",")
    if any("@" in host[1:] for host in hosts):
        return "the host has an @"
    # libpq checks the other options, and then this address, which it cannot parse: its text then repeats the address.
    marker = "forebay.invalid/"
    probe = psycopg.conninfo.make_conninfo(dsn, hostaddr=",".join([marker] * len(hosts)))
    text = pq.PGconn.connect_start(probe.encode()).error_message.decode(errors="replace")
    if marker in text:
        return None
    named = next((name for name in sorted(options) if name in text), "")
    return f"libpq does not accept the value of {named or 'an option'}"


def typed_error(error: psycopg.Error, table: str) -> ForebayError:
    """Return the typed error for an error of PostgreSQL, with the name of the table."""
    import psycopg

    state, diagnosis = error.sqlstate or "", error.diag
    text = diagnosis.message_primary or str(error).strip().splitlines()[0]
    where = "; ".join(part for part in (diagnosis.message_detail, diagnosis.context) if part)
    message = f"the table {table}: {text}" + (f" ({where})" if where else "")
    if not state:
        unquoted = re.sub(r'"[^"]*"', '""', text)
        refused = _REFUSED.search(unquoted) and not _FOR_A_TIME.search(unquoted)
        if isinstance(error, psycopg.ProgrammingError) or refused:
            return ConfigurationError(message, option="dsn", advice="correct the connection string or the server")
        return RetriableError(message, advice=_WAIT[1])
    kind, advice = next((_BY_STATE[state[:size]] for size in (5, 2) if state[:size] in _BY_STATE), _DEFECT)
    return kind(message, advice=advice)


# -- Checks that a table can hold the changes, before anything is written, and finds what the merge must know of it.


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
        field.name
        for field in statements.changes.fields
        if postgres_type(field) == "text" != columns[field.name].kind and not columns[field.name].is_enum
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
    fields = {field.name: field for field in statements.changes.fields}
    for name, definition in definitions.items():
        if name not in columns:
            raise ConfigurationError(
                f"the table {table} has no column {name!r}",
                advice=f"ALTER TABLE {table} ADD COLUMN {quoted_name(name)} {definition}, or name the column in "
                "except_column_list",
            )
        field = fields.get(name) or StructField(name, sequence or NullType())
        if not fits(field, columns[name]):
            raise ConfigurationError(
                f"the column {name!r} is {columns[name].kind} in the table {table}, and "
                f"{field.dataType.simpleString()} in the changes, which need {postgres_type(field)}",
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
