# SPDX-License-Identifier: Apache-2.0
"""Micro-batches applied to a table of a real PostgreSQL server."""

from __future__ import annotations

import datetime as dt
import traceback
from decimal import Decimal

import psycopg
import pytest

from forebay.errors import ConfigurationError, DataError, RetriableError
from forebay.spark.changelog.targets.postgres import PostgresTarget

CHANGES = "id int, v string, _change_type string, _split string, _pos long"
UTC = dt.timezone.utc  # noqa: UP017 - as the server gives it


def in_one_split(rows):
    """Changes as (id, v, kind, position), with the split."""
    return [(*row[:3], "s", row[3]) for row in rows]


def test_inserts_updates_and_deletes_of_two_micro_batches(spark, table):
    """C4, K8: several changes of a key in one micro-batch are folded to the last one."""
    first = [(1, "a", "insert", 1), (2, "b", "insert", 2), (3, "c", "insert", 3), (3, "c", "delete", 4)]
    second = [
        (1, "a", "update_preimage", 5),
        (1, "a2", "update_postimage", 5),
        (2, None, "delete", 6),
        (4, None, "insert", 7),
    ]
    assert table.target.apply(
        spark.createDataFrame(in_one_split(first), CHANGES), 0, "q", keys="id", except_column_list=[]
    )
    assert table.rows("id, v") == [(1, "a"), (2, "b")]
    assert table.target.apply(spark.createDataFrame(in_one_split(second), CHANGES), 1, "q", keys="id")
    assert table.rows("id, v") == [(1, "a2"), (4, None)]
    assert table.staging() == []


def test_a_repeated_or_older_micro_batch_is_skipped(spark, table):
    """§3.2: exactly once by (query, batch)."""
    old, new = (spark.createDataFrame(in_one_split([(1, text, "insert", 1)]), CHANGES) for text in ("old", "new"))
    assert table.target.apply(old, 4, "q", keys="id")
    assert table.target.apply(new, 5, "q", keys="id")
    assert not table.target.apply(old, 5, "q", keys="id")
    assert not table.target.apply(old, 4, "q", keys="id")
    assert table.rows("v") == [("new",)]


@pytest.mark.soak
def test_another_query_is_refused_until_it_adopts_the_table(spark, table):
    """§3.2: a new checkpoint is a new query."""
    df = spark.createDataFrame(in_one_split([(1, "a", "insert", 1)]), CHANGES)
    other = spark.createDataFrame(in_one_split([(1, "b", "insert", 1)]), CHANGES)
    table.target.apply(df, 7, "q1", keys="id")
    with pytest.raises(ConfigurationError, match="was written by the query q1") as refused:
        table.target.apply(other, 0, "q2", keys="id")
    assert "adopt=True" in refused.value.advice
    assert table.target.apply(other, 0, "q2", keys="id", adopt=True)
    assert table.rows("v") == [("b",)]
    with pytest.raises(ConfigurationError, match="was written by the query q2"):
        table.target.apply(df, 8, "q1", keys="id")
    assert not table.target.apply(df, 7, "q1", keys="id", adopt=True)  # it was applied before


def test_every_type_arrives_as_it_is(spark, table):
    schema = (
        "id long, b boolean, y byte, s short, i int, f float, d double, n decimal(20,5), t string, x binary, day date, "
        "at timestamp, local timestamp_ntz, a array<int>, m map<string,int>, r struct<p:int,q:string>"
    )
    at = dt.datetime(2024, 2, 29, 23, 59, 59, 123456)
    row = (
        *(2**62, True, -128, 7, -5, 0.5, float("nan"), Decimal("123456789012345.67891"), 'a"b,\n\\.\né', b"\x00\xff"),
        *(dt.date(1, 1, 1), at.replace(tzinfo=UTC), at, [1, None], {"k": 1}, (1, None)),
    )
    nothing = (1, *[None] * 15)
    empty = (2, *[None] * 7, "", b"", None, None, None, [], {}, None)
    table.target.apply(spark.createDataFrame([row, nothing, empty], schema), 0, "q", keys="id")
    found = {line[0]: line for line in table.sql("SELECT * FROM {t}")}
    expected = [*row]
    expected[15] = {"p": 1, "q": None}
    assert repr(found[2**62]) == repr((*expected[:11], found[2**62][11], *expected[12:]))
    assert found[2**62][11] == at.replace(tzinfo=UTC)
    assert found[1] == nothing
    assert found[2] == empty


@pytest.mark.soak
def test_a_payload_of_5_mb(spark, table):
    text = "x" * 5_000_000
    df = spark.createDataFrame(in_one_split([(1, text, "insert", 1), (2, "y", "insert", 2)]), CHANGES)
    table.target.apply(df, 0, "q", keys="id")
    assert table.rows("id, length(v)") == [(1, 5_000_000), (2, 1)]


def test_a_null_key_is_an_error_or_dropped_before_the_table_changes(spark, table):
    """K7."""
    df = spark.createDataFrame(in_one_split([(None, "a", "insert", 3), (1, "b", "insert", 4)]), CHANGES)
    with pytest.raises(DataError, match="'id' is NULL, _split s, _pos 3"):
        table.target.apply(df, 0, "q", keys="id")
    assert table.rows() == [] and table.staging() == []
    assert table.target.apply(df, 0, "q", keys="id", null_keys="drop")
    assert table.rows("id") == [(1,)]


def test_an_unknown_order_is_an_error_that_names_the_key(spark, table):
    """K8."""
    df = spark.createDataFrame(
        [(1, "a", "insert"), (1, "b", "update_postimage")], "id int, v string, _change_type string"
    )
    with pytest.raises(DataError, match='key {"id":1} is unknown'):
        table.target.apply(df, 0, "q", keys="id")
    assert table.rows() == []


@pytest.mark.soak
def test_plain_rows_with_a_flag(spark, table):
    """K7: a NULL flag is false."""
    df = spark.createDataFrame([(1, "a", "d"), (2, "b", None), (3, "c", "u")], "id int, v string, op string")
    table.target.apply(df, 0, "q", keys="id")
    gone = spark.createDataFrame([(1, "a", "d"), (2, "b2", None), (3, "c", "d")], "id int, v string, op string")
    table.target.apply(gone, 1, "q", keys="id", apply_as_deletes="op = 'd'")
    assert table.rows("id, v") == [(2, "b2")]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("id int PRIMARY KEY", "has no column 'v'"),
        ("id int PRIMARY KEY, v int", "'v' is integer in the table .* and string in the changes, which need text"),
        (
            "id int PRIMARY KEY, v varchar(9), n int",
            "has a column 'n' .integer. without a default, and the changes do not have it",
        ),
        ("id int, v text", "no primary key or unique index on id"),
        ("id smallint PRIMARY KEY, v text", "'id' is smallint in the table"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_before_any_write(spark, table, columns, message):
    table.sql(f"CREATE TABLE {{t}} ({columns})")
    with pytest.raises(ConfigurationError, match=message):
        table.target.apply(spark.createDataFrame(in_one_split([(1, "a", "insert", 1)]), CHANGES), 0, "q", keys="id")
    assert table.rows() == [] and table.staging() == []


@pytest.mark.soak
def test_a_wider_table_with_defaults_takes_the_changes(spark, table):
    table.sql("CREATE TABLE {t} (v varchar(9), id bigint, n int DEFAULT 7, UNIQUE (id) INCLUDE (v))")
    table.target.apply(spark.createDataFrame(in_one_split([(1, "a", "insert", 1)]), CHANGES), 0, "q", keys="id")
    assert table.rows("id, v, n") == [(1, "a", 7)]


def test_a_value_that_does_not_fit_leaves_the_table_as_it_was(spark, table):
    """Half a micro-batch is never seen."""
    table.sql("CREATE TABLE {t} (id int PRIMARY KEY, v varchar(3))")
    df = spark.createDataFrame(in_one_split([(1, "abc", "insert", 1), (2, "abcd", "insert", 2)]), CHANGES)
    with pytest.raises(DataError, match="too long") as failed:
        table.target.apply(df, 0, "q", keys="id")
    assert table.name in failed.value.message and """the column 'v' of the key {"id": 2}""" in failed.value.message
    assert table.rows() == [] and table.staging() == []
    with pytest.raises(DataError, match="0x00"):
        table.target.apply(spark.createDataFrame(in_one_split([(1, "a\x00", "insert", 1)]), CHANGES), 0, "q", keys="id")


@pytest.mark.soak
def test_names_that_need_quotes(spark, postgres):
    name = 'Mixed "case" % table'
    target = PostgresTarget(postgres, name)
    df = spark.createDataFrame(
        [(1, "a", "insert", 1), (2, "b", "delete", 1)], 'Id int, `a.b %s "x"` string, _change_type string, _pos long'
    )
    assert target.apply(df, 0, "q", keys="Id")
    with psycopg.connect(postgres) as connection:
        assert connection.execute('SELECT * FROM "Mixed ""case"" % table"').fetchall() == [(1, "a")]


@pytest.mark.soak
def test_a_long_name_has_a_staging_table_of_its_own(spark, postgres):
    df = spark.createDataFrame(in_one_split([(1, "a", "insert", 1)]), CHANGES)
    names = ["t" * 62 + end for end in "ab"]
    for name in names:
        assert PostgresTarget(postgres, name).apply(df, 0, "q", keys="id", sequence_by="_pos")
    with psycopg.connect(postgres) as connection:
        made = connection.execute("SELECT relname FROM pg_class WHERE relname LIKE 'ttt%tombstones'").fetchall()
        assert len(made) == 2
        for name in names:
            assert connection.execute(f'SELECT id, v FROM "{name}"').fetchall() == [(1, "a")]


def test_a_staging_table_that_a_dead_driver_left_is_dropped(spark, table):
    df = spark.createDataFrame(in_one_split([(1, "a", "insert", 1)]), CHANGES)
    (left,) = [name for (name,) in _leave_staging(table, df)]
    assert left.startswith(f"{table.name}__staging_")
    table.target.apply(df, 0, "q", keys="id")
    assert table.staging() == [] and table.rows("v") == [("a",)]


def _leave_staging(table, df):
    """Make a staging table as a driver does that is killed before it merges."""
    from forebay.spark.changelog.targets.postgres_statements import staging_name

    name, _ = staging_name(table.name, "q")
    table.sql(f'CREATE UNLOGGED TABLE "{name}" (id int)')
    return table.staging()


def test_a_server_that_does_not_answer_is_retriable_and_the_password_is_not_shown(spark):
    target = PostgresTarget("host=127.0.0.1 port=1 user=u password=hunter2", "t", retry_timeout=0)
    with pytest.raises(RetriableError) as failed:
        target.apply(spark.createDataFrame(in_one_split([(1, "a", "insert", 1)]), CHANGES), 0, "q", keys="id")
    assert "hunter2" not in str(failed.value) + repr(target)


def test_wrong_arguments_are_refused(spark, table):
    df = spark.createDataFrame(in_one_split([(1, "a", "insert", 1)]), CHANGES)
    for wrong, message in [
        ({"keys": "missing"}, "'missing' does not exist"),
        ({"keys": "id", "except_column_list": ["id"]}, "'id' is a key"),
        ({"keys": "id", "except_column_list": ["w"]}, "'w' does not exist"),
        ({"keys": "id", "apply_as_deletes": "v = 'd'"}, "apply_as_deletes is given, but"),
        ({"keys": "id", "stored_as_scd_type": 2}, "needs the order of all changes"),
        ({"keys": "id", "stored_as_scd_type": 3}, "unknown SCD type 3"),
        ({"keys": "id", "sequence_by": "array(1)"}, "sequence_by is array<int>"),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            table.target.apply(df, 0, "q", **wrong)
    with pytest.raises(ConfigurationError, match="'gap' is interval"):
        table.target.apply(df.selectExpr("id", "make_dt_interval(1) gap"), 0, "q", keys="id")
    debezium = spark.createDataFrame([(1, "a", "true"), (2, "b", "false")], "id int, v string, __deleted string")
    options = {"keys": "id", "apply_as_deletes": "__deleted = 'true'"}
    with pytest.raises(ConfigurationError, match="'__deleted' has a name that targets reserve"):
        table.target.apply(debezium, 0, "q", **options)
    table.target.apply(debezium, 0, "q", **options, except_column_list=["__deleted"])
    assert table.rows() == [(2, "b")]


@pytest.mark.soak
def test_times_in_nested_columns_keep_their_microseconds(spark, table):
    at, local = "timestamp '2024-01-02 03:04:05.000006+00:00'", "timestamp_ntz '2024-01-02 03:04:05.000006'"
    df = spark.sql(f"SELECT 1 AS id, array({at}) AS a, named_struct('t', {local}) AS s")
    table.target.apply(df, 0, "q", keys="id")
    ((moments, struct),) = table.sql("SELECT a, s FROM {t}")
    assert [dt.datetime.fromisoformat(one) for one in moments] == [dt.datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=UTC)]
    assert struct == {"t": "2024-01-02T03:04:05.000006"}


MALFORMED = [
    "postgres//u:hunter2@h/x",
    "host=h passwd=hunter2",
    "host=h bogus=1 password=hunter2",
    "host=h password=a hunter2",
    "host=h port=notaport password=hunter2",
    "postgresql://u:hunter2/s@h/x",
    "postgresql://u:s@hunter2@h/x",
    "postgresql://u:hunter2%zz@h/x",
    "host=h port=99999 password=hunter2",
    "host=h sslmode=often password=hunter2",
    "host=h connect_timeout=soon password=hunter2",
    "service=nosuch password=hunter2",
]


@pytest.mark.parametrize("dsn", MALFORMED)
@pytest.mark.soak(
    but=[
        "postgres//u:hunter2@h/x",
        "host=h password=a hunter2",
        "postgresql://u:hunter2%zz@h/x",
        "service=nosuch password=hunter2",
    ]
)
def test_a_malformed_dsn_is_refused_at_once_without_its_text(spark, dsn):
    target = PostgresTarget(dsn, "t")
    with pytest.raises(ConfigurationError, match="malformed") as refused:
        target.apply(spark.createDataFrame(in_one_split([(1, "a", "insert", 1)]), CHANGES), 0, "q", keys="id")
    assert refused.value.option == "dsn"
    assert "hunter2" not in "".join(traceback.format_exception(refused.value))


@pytest.mark.soak(but=["host=/nowhere"])
@pytest.mark.parametrize(
    "dsn", ["host=/nowhere", "postgresql://u:p%40ss@[::1]:1/x?sslmode=require", "host=/a,/b port=1,2"]
)
def test_a_well_formed_dsn_is_tried_until_retry_timeout(spark, dsn):
    target = PostgresTarget(dsn, "t", retry_timeout="1s")
    with pytest.raises(RetriableError, match=r"[0-9] tr(y|ies) in") as ended:
        target.apply(spark.createDataFrame(in_one_split([(1, "a", "insert", 1)]), CHANGES), 0, "q", keys="id")
    assert "retry_timeout" in ended.value.advice


def test_a_retry_timeout_that_is_no_duration_is_refused():
    with pytest.raises(ConfigurationError, match="retry_timeout"):
        PostgresTarget("host=h", "t", retry_timeout="soon")


def end_sessions(dsn):
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'forebay'")


@pytest.mark.soak("_copy", "_is_new")
@pytest.mark.parametrize("moment", ["_is_new", "_copy", "_merge"])
def test_a_session_that_the_server_ends_is_retried_and_the_micro_batch_is_applied_once(
    spark, table, moment, monkeypatch
):
    work, calls = getattr(PostgresTarget, moment), []

    def interrupted(self, *arguments, **keywords):
        calls.append(moment)
        if len(calls) == 1:
            end_sessions(table.dsn)
        return work(self, *arguments, **keywords)

    monkeypatch.setattr(PostgresTarget, moment, interrupted)
    df = spark.createDataFrame(in_one_split([(1, "a", "insert", 1), (2, "b", "insert", 2)]), CHANGES)
    assert table.target.apply(df, 0, "q", keys="id")
    assert len(calls) == 2
    assert table.rows("id, v") == [(1, "a"), (2, "b")]
    assert table.staging() == []


def test_a_commit_whose_answer_is_lost_is_found_and_not_applied_twice(spark, table, monkeypatch):
    merge, calls = PostgresTarget._merge, []

    def committed(self, *arguments):
        calls.append(merge(self, *arguments))
        end_sessions(table.dsn)
        arguments[0].execute("SELECT 1")  # fails, as the answer to the commit would

    monkeypatch.setattr(PostgresTarget, "_merge", committed)
    assert table.target.apply(spark.createDataFrame(in_one_split([(1, "a", "insert", 1)]), CHANGES), 0, "q", keys="id")
    assert calls == [True]
    assert table.rows("id, v") == [(1, "a")]
