# SPDX-License-Identifier: Apache-2.0
"""Converts errors of PostgreSQL to typed errors, and opens connections that raise them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from forebay.errors import ConfigurationError, DataError, ForebayError, RetriableError
from forebay.options import Secret

if TYPE_CHECKING:
    import psycopg

_SETTINGS = ("28", "3D", "3F", "42")
"""SQLSTATE classes that need another setting: authorization, database, schema, syntax or access rule."""
_NUMBERS = {
    *("connect_timeout", "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count"),
    *("port", "tcp_user_timeout"),
}
"""Options of libpq that are numbers."""
_DATA = ("21", "22", "23")
"""SQLSTATE classes that a value causes: cardinality, data exception, constraint."""


@contextmanager
def connected(dsn: Secret, table: str) -> Iterator[psycopg.Connection[Any]]:
    """Connect without autocommit, and close the connection at the end. Errors of PostgreSQL become typed errors.

    Raises:
        ConfigurationError: psycopg is missing, the DSN is malformed, or the server refuses the user, a name or a
            permission.
        DataError: A value does not fit.
        RetriableError: The server does not answer, or ended the connection.
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
        raise _typed(error, table) from error


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


def _typed(error: psycopg.Error, table: str) -> ForebayError:
    state, diagnosis = error.sqlstate or "", error.diag
    text = diagnosis.message_primary or str(error).strip().splitlines()[0]
    where = "; ".join(part for part in (diagnosis.message_detail, diagnosis.context) if part)
    message = f"the table {table}: {text}" + (f" ({where})" if where else "")
    if state.startswith(_DATA):
        return DataError(message, advice="correct the value in the changes, or the type or constraint of the column")
    if state.startswith(_SETTINGS):
        return ConfigurationError(message, option="dsn", advice="correct the connection, the table or its permissions")
    return RetriableError(message, advice="check that the server runs, then start the query again; it continues")
