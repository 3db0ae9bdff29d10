# SPDX-License-Identifier: Apache-2.0
"""Values in columns of tables that exist, and values that PostgreSQL refuses."""

from __future__ import annotations

import uuid
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    DateType,
    IntegerType,
    StringType,
    StructField,
    TimestampNTZType,
    TimestampType,
)

from forebay.errors import ConfigurationError, DataError

ID = "6f1c7c9e-9d3b-4a5e-8a52-1b8f6f0a2c11"


@pytest.mark.soak
def test_strings_for_types_that_spark_does_not_have(spark, table):
    table.sql(f"CREATE TYPE \"Mood {table.name}\" AS ENUM ('sad', 'it''s ok')")
    table.sql(
        f'CREATE TABLE {{t}} (id uuid PRIMARY KEY, e "Mood {table.name}", t text[], n int[], j jsonb, o json, i inet)'
    )
    schema = "id string, e string, t string, n string, j string, o string, i string"
    row = (ID, "it's ok", '{"a,b",NULL,"\\"q\\""}', "{{1,2},{3,4}}", '{"a": [1, null]}', '{"b": 2}', "10.0.0.1")
    for number, df in enumerate([[(ID, *[None] * 6)], [row]]):
        table.target.apply(spark.createDataFrame(df, schema), number, "q", keys="id")
    assert table.rows("id, e::text, t, n, j, o, i::text") == [
        (uuid.UUID(ID), "it's ok", ["a,b", None, '"q"'], [[1, 2], [3, 4]], {"a": [1, None]}, {"b": 2}, "10.0.0.1/32")
    ]


@pytest.mark.soak("2")
@pytest.mark.parametrize("kind", [1, 2])
@pytest.mark.soak
def test_a_uuid_as_the_key_and_others_in_versions_and_deletes(spark, table, kind):
    table.sql(f"CREATE TYPE mood_{table.name} AS ENUM ('sad', 'ok')")
    own = '"__START_AT" bigint, "__END_AT" bigint, PRIMARY KEY (id, "__START_AT")'
    own = own if kind == 2 else '"__SEQUENCE" bigint, PRIMARY KEY (id)'
    table.sql(f"CREATE TABLE {{t}} (id uuid, e mood_{table.name}, t text[], o json, {own})")
    schema = "id string, e string, t array<string>, o string, n long, gone boolean"
    batches = [
        [(ID, "sad", ["x", None], '{"a":1}', 1, False)],
        [(ID, "ok", [], '{"a":2}', 3, False)],
        [(ID, None, None, None, 2, True)],
        [(ID, None, None, None, 4, True)],
    ]
    options = {"keys": "id", "sequence_by": "n", "apply_as_deletes": "gone", "except_column_list": ["n", "gone"]}
    for number, rows in enumerate(batches):
        df = spark.createDataFrame(rows, schema)
        table.target.apply(df, number, "q", **options, stored_as_scd_type=kind)
    expected = [("ok", [], {"a": 2}, 3, 4), ("sad", ["x", None], {"a": 1}, 1, 2)] if kind == 2 else []
    assert table.rows("e::text, t, o, " + ('"__START_AT", "__END_AT"' if kind == 2 else "1")) == expected


def test_arrays_of_spark_in_arrays_of_postgresql(spark, table):
    table.sql(
        "CREATE TABLE {t} (id int PRIMARY KEY, t text[], v varchar(9)[], n bigint[], d numeric(9,2)[], f float8[], "
        "b bool[], j jsonb, u uuid[])"
    )
    schema = (
        "id int, t array<string>, v array<string>, n array<int>, d array<decimal(5,2)>, f array<double>, "
        "b array<boolean>, j array<array<int>>, u array<string>"
    )
    odd = ['a"b', "c\\d", "e,f", "{g}", "NULL", "", None, "x\ny", "$1"]
    row = (1, odd, ["v"], [1, None], [Decimal("1.50")], [0.5, float("inf")], [True, False], [[1], []], [ID])
    empty = (2, *[[]] * 8)
    nulls = (3, *[None] * 8)
    table.target.apply(spark.createDataFrame([row, empty, nulls], schema), 0, "q", keys="id")
    assert table.rows() == [(*row[:-1], [uuid.UUID(ID)]), empty, nulls]
    moments = spark.sql("SELECT 1 AS id, array(current_timestamp()) AS t")
    with pytest.raises(ConfigurationError, match="'t' is text.. in the table .* which need jsonb"):
        table.target.apply(moments, 1, "q", keys="id")


@pytest.mark.parametrize(
    ("kind", "spark_kind", "value", "reason"),
    [
        ("uuid", StringType(), "6f1c7c9e", "invalid input syntax for type uuid"),
        ("text[]", StringType(), "a", "malformed array literal"),
        ("varchar(2)[]", ArrayType(StringType()), '{"abc"}', "too long"),
        ("uuid[]", ArrayType(StringType()), '{"abc"}', "invalid input syntax for type uuid"),
        ("jsonb", StringType(), "{", "invalid input syntax for type json"),
        ("varchar(3)", StringType(), "abcd", "too long"),
        ("text", StringType(), "a\0b", "0x00"),
        ("jsonb", ArrayType(StringType()), '["\\u0000"]', "unsupported Unicode escape"),
        (
            "timestamptz",
            TimestampType(),
            pa.scalar(2_070_000_000_000_000_000, pa.timestamp("us", "UTC")),
            "year is not",
        ),
        (
            "timestamp",
            TimestampNTZType(),
            pa.scalar(-70_000_000_000_000_000, pa.timestamp("us")),
            "year is not between",
        ),
        ("date", DateType(), pa.scalar(24_000_000, pa.int32()).cast(pa.date32()), "year is not between"),
        ("date", DateType(), pa.scalar(-719_163, pa.int32()).cast(pa.date32()), "year is not between"),
    ],
)
def test_a_value_that_does_not_fit_is_an_error_with_column_and_key(table, kind, spark_kind, value, reason):
    """Whatever rows come before and after it in the partition; nothing is written."""
    table.sql(f'CREATE TABLE {{t}} (id int, "k 2" text, v {kind}, PRIMARY KEY (id, "k 2"))')
    wrong = value if isinstance(value, pa.Scalar) else pa.scalar(value)
    values = pa.concat_arrays([pa.nulls(17, wrong.type), pa.array([wrong]), pa.nulls(22, wrong.type)])
    columns = {"id": pa.array(range(40), pa.int32()), "k 2": pa.array(["x\ny"] * 40), "v": values}
    names = (StructField("id", IntegerType()), StructField("k 2", StringType()), StructField("v", spark_kind))
    with pytest.raises(DataError, match=reason) as failed:
        table.write(0, columns, fields=names, keys=("id", "k 2"))
    assert r"""the column 'v' of the key {"id": 17, "k 2": "x\ny"}""" in failed.value.message
    assert table.rows() == [] and table.staging() == []


def test_years_up_to_32767_arrive(spark, table):
    df = spark.sql("SELECT 1 AS id, date '0001-01-01' AS d, timestamp '+32767-12-31 23:59:59.999999Z' AS t")
    table.target.apply(df, 0, "q", keys="id")
    assert table.sql("SELECT d::text, (t AT TIME ZONE 'UTC')::text FROM {t}") == [
        ("0001-01-01", "32767-12-31 23:59:59.999999")
    ]


def test_times_before_zones_had_whole_minutes_arrive(spark, table):
    """The session is in Asia/Tokyo, whose offset was 9:18:59 until 1888."""
    df = spark.sql("SELECT 1 AS id, timestamp '1850-01-01 00:00:00Z' AS t")
    table.target.apply(df, 0, "q", keys="id")
    assert table.sql("SELECT (t AT TIME ZONE 'UTC')::text FROM {t}") == [("1850-01-01 00:00:00",)]


def test_a_time_of_the_key_that_python_does_not_have_is_named(spark, table):
    df = spark.sql("SELECT date_from_unix_date(24000000) AS d, 1 AS v")
    with pytest.raises(DataError, match="the column 'd' of the key {\"d\": 24000000}"):
        table.target.apply(df, 0, "q", keys="d")


@pytest.mark.soak("varchar(3)-twice1")
@pytest.mark.parametrize(("kind", "twice"), [("uuid", [ID, ID.upper()]), ("varchar(3)", ["abc", "abc "])])
def test_two_spellings_of_a_key_in_one_micro_batch_are_refused(spark, table, kind, twice):
    """Spark takes them for two keys, so their order is lost."""
    table.sql(f"CREATE TABLE {{t}} (id {kind} PRIMARY KEY, v int)")
    df = spark.createDataFrame([(key, 1) for key in twice], "id string, v int")
    with pytest.raises(DataError, match="in two spellings"):
        table.target.apply(df, 0, "q", keys="id")
    assert table.target.apply(df.limit(1), 0, "q", keys="id") and table.target.apply(df.limit(1), 1, "q", keys="id")
    assert len(table.rows()) == 1


def test_a_sequence_of_another_type_than_the_stored_one_is_refused(spark, table):
    table.sql('CREATE TABLE {t} (id int PRIMARY KEY, v text, "__SEQUENCE" bigint)')
    df = spark.createDataFrame([(1, "a", "s")], "id int, v string, s string")
    with pytest.raises(ConfigurationError, match="'__SEQUENCE' is bigint in the table .* string in the changes"):
        table.target.apply(df, 0, "q", keys="id", sequence_by="s", except_column_list=["s"])
