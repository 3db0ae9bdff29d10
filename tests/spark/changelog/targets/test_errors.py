# SPDX-License-Identifier: Apache-2.0
"""Errors of a real server: what a person must correct is never a RetriableError."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import contextmanager, suppress

import psycopg
import pytest
from psycopg import errors

from forebay.errors import ConfigurationError, DataError, FatalError, ForebayError, RetriableError
from forebay.options import Secret
from forebay.spark.changelog.targets.postgres_inspection import connected, typed_error

WAIT = {"08", "40", "53", "57", "58", "72", "55006", "55P03", "HV00N"}
"""The classes and states that end without a correction of the job or the server."""
NEVER = {"53400", "57P04", "57P05"}
STATES = sorted(
    state for state, kind in vars(errors)["_sqlcodes"].items() if kind.sqlstate == state and state[:2] > "03"
)


def test_the_error_for_each_sqlstate_is_retriable_only_where_waiting_helps(postgres):
    """The server itself raises them all."""
    typed = {}
    with psycopg.connect(postgres, autocommit=True) as connection:
        for state in STATES:
            with pytest.raises(psycopg.Error) as failed:
                connection.execute(f"DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '{state}'; END $$")
            assert failed.value.sqlstate == state
            typed[state] = typed_error(failed.value, "t")
    assert all(error.advice for error in typed.values()) and len(typed) > 200
    retriable = {state for state, error in typed.items() if isinstance(error, RetriableError)}
    assert retriable == {state for state in STATES if state not in NEVER and {state, state[:2]} & WAIT}
    for kind, states in {
        DataError: ["22021", "22001", "23505", "23514", "54000", "P0001"],
        ConfigurationError: ["0A000", "25006", "28P01", "42P01", "42501", "55000", "54011"],
        FatalError: ["XX000", "XX001", "25P02"],
    }.items():
        assert {type(typed[state]) for state in states} == {kind}


@pytest.mark.parametrize(
    ("dsn", "statement", "kind", "text"),
    [
        ("dbname=nope", "SELECT", ConfigurationError, 'database "nope" does not exist'),
        ("user=nope", "SELECT", ConfigurationError, 'role "nope" does not exist'),
        ("user=not_in", "SELECT", ConfigurationError, "not permitted to log in"),
        ("user=full_up", "SELECT", RetriableError, "too many connections"),
        ("host=127.0.0.1 port=1", "SELECT", RetriableError, "refused"),
        ("hostaddr=300.1.1.1", "SELECT", ConfigurationError, "could not parse network address"),
        (f"host=/{'x' * 200}", "SELECT", ConfigurationError, "is too long"),
        ("channel_binding=require", "SELECT", ConfigurationError, "channel binding"),
        ("require_auth=scram-sha-256", "SELECT", ConfigurationError, "authentication method"),
        ("gssencmode=require", "SELECT", ConfigurationError, "GSSAPI encryption required"),
        ("options='-c default_transaction_read_only=on'", "CREATE TABLE n ()", ConfigurationError, "read-only"),
        ("options='-c statement_timeout=20'", "SELECT pg_sleep(9)", RetriableError, "statement timeout"),
        ("", "SELECT pg_terminate_backend(pg_backend_pid())", RetriableError, "terminating connection"),
        ("", "CREATE TABLE pg_catalog.x ()", ConfigurationError, "permission denied"),
        ("", "SELECT repeat('x', 2000000000)", DataError, "length too large"),
    ],
)
def test_real_errors_have_the_class_of_what_their_reader_does(postgres, dsn, statement, kind, text):
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS not_in, full_up")
        connection.execute("CREATE ROLE not_in NOLOGIN")
        connection.execute("CREATE ROLE full_up LOGIN CONNECTION LIMIT 0")
    with pytest.raises(ForebayError, match=text) as failed, connected(Secret(f"{postgres} {dsn}"), "t") as connection:
        connection.execute(statement)
    assert type(failed.value) is kind
    assert "correct" in failed.value.advice or kind is not ConfigurationError or "primary" in failed.value.advice


@contextmanager
def answering(reply):
    """Give the port of a server that answers each connection so."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            with suppress(OSError):
                while True:
                    connection = server.accept()[0]
                    with connection:
                        connection.recv(100)
                        connection.sendall(reply)

        threading.Thread(target=answer, daemon=True).start()
        yield server.getsockname()[1]


@pytest.mark.parametrize("sslmode", ["disable", "require"])
def test_a_server_that_is_no_postgresql_is_for_a_person_to_correct(sslmode):
    with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        dsn = Secret(f"host=127.0.0.1 port={port} sslmode={sslmode}")
        with pytest.raises(ConfigurationError, match="received"), connected(dsn, "t"):
            pass


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (RetriableError, "the database system is starting up"),
        (RetriableError, "das Datenbanksystem startet gerade"),
        (RetriableError, "désolé, trop de clients sont déjà connectés"),
        (RetriableError, "no more connections allowed (max_client_conn)"),
        (RetriableError, "server login has been failing, try again later (server_login_retry)"),
        (RetriableError, "query_wait_timeout"),
        (RetriableError, "pgbouncer cannot connect to server"),
        (RetriableError, "Max client connections reached"),
        (RetriableError, "canceling authentication due to timeout"),
        (RetriableError, "terminating connection due to administrator command"),
        (RetriableError, "out of memory"),
        (RetriableError, 'too many connections for role "requirements_etl"'),
        (RetriableError, 'out of memory of database "invalid_rows"'),
        (RetriableError, "must be superuser to connect during database shutdown"),
        (RetriableError, "server login has been failing, cached error: host not found (server_login_retry)"),
        (ConfigurationError, 'password authentication failed for user "u"'),
        (ConfigurationError, 'no pg_hba.conf entry for host "10.0.0.1", user "u", database "d", no encryption'),
        (ConfigurationError, 'permission denied for database "d"'),
        (ConfigurationError, 'database "d" is not currently accepting connections'),
        (ConfigurationError, "no such database: d"),
        (ConfigurationError, "Tenant or user not found"),
        (ConfigurationError, "Invalid password"),
        (ConfigurationError, "The password that was provided for the role x is wrong."),
        (ConfigurationError, "This RDS proxy has no credentials for the role x. Check the credentials"),
        (ConfigurationError, "auth failed"),
        (ConfigurationError, "The access token has expired"),
        (ConfigurationError, "Address not in tenant allow_list: 10.0.0.1"),
        (ConfigurationError, "unsupported startup parameter: search_path"),
    ],
)
def test_what_servers_and_poolers_say_when_they_refuse_a_connection(kind, text):
    fields = f"SFATAL\0VFATAL\0C08P01\0M{text}\0\0".encode()
    with answering(b"E" + struct.pack("!I", len(fields) + 4) + fields) as port:
        dsn = Secret(f"host=127.0.0.1 port={port} sslmode=disable user=u dbname=d")
        with pytest.raises(ForebayError) as failed, connected(dsn, "t"):
            pass
    assert type(failed.value) is kind and text in str(failed.value)
