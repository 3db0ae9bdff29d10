# SPDX-License-Identifier: Apache-2.0
"""Converts errors of PostgreSQL to typed errors, and opens connections that raise them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from forebay.errors import ConfigurationError, DataError, ForebayError, RetriableError
from forebay.options import Secret

if TYPE_CHECKING:
    import psycopg

_SETTINGS = ("28", "3D", "3F", "42")
"""SQLSTATE classes that need another setting: authorization, database, schema, syntax or access rule."""
_DATA = ("21", "22", "23")
"""SQLSTATE classes that a value causes: cardinality, data exception, constraint."""


@contextmanager
def connected(dsn: Secret, table: str) -> Iterator[psycopg.Connection[Any]]:
    """Connect without autocommit, and close the connection at the end. Errors of PostgreSQL become typed errors.

    Raises:
        ConfigurationError: psycopg is missing, or the server refuses the user, a name or a permission.
        DataError: A value does not fit.
        RetriableError: The server does not answer, or ended the connection.
    """
    try:
        import psycopg
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "PostgresTarget needs psycopg, which is not installed", advice='pip install "forebay[postgres]"'
        ) from error
    try:
        with psycopg.connect(dsn.reveal(), application_name="forebay") as connection:
            yield connection
    except psycopg.Error as error:
        raise _typed(error, table) from error


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
