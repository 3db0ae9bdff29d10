# SPDX-License-Identifier: Apache-2.0
"""Converts errors of PostgreSQL to typed errors, and opens connections that raise them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from forebay.errors import ConfigurationError, DataError, FatalError, ForebayError, RetriableError
from forebay.options import Secret

if TYPE_CHECKING:
    import psycopg

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

_REFUSED = re.compile(r"FATAL: |no password supplied|SSL was required|certificate")
_NOT_YET = re.compile(r"starting up|shutting down|recovery|not (yet )?accepting|too many|remaining connection slots")
"""Texts of a server that refuses a connection. It refuses the ones of `_NOT_YET` for a time. They have no SQLSTATE."""
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
        refused = _REFUSED.search(text) and not _NOT_YET.search(text)
        if isinstance(error, psycopg.ProgrammingError) or refused:
            return ConfigurationError(message, option="dsn", advice="correct the connection string or the server")
        return RetriableError(message, advice=_WAIT[1])
    kind, advice = next((_BY_STATE[state[:size]] for size in (5, 2) if state[:size] in _BY_STATE), _DEFECT)
    return kind(message, advice=advice)
