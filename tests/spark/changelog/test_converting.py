# SPDX-License-Identifier: Apache-2.0
"""Converters on DataFrames: batch, stream, and the errors of both."""

from __future__ import annotations

import json
import os

import pytest

from forebay import changelog
from forebay.errors import ConfigurationError, DataError, unwrap
from forebay.table.changelog.shape import CHANGE_TYPES

DDL = "id LONG, level INT, name STRING"
OLD, NEW = {"id": 1, "level": 10, "name": "a"}, {"id": 1, "level": 20, "name": None}
EVENTS = [
    {"op": "c", "after": OLD, "source": {"lsn": 7, "ts_ms": 1700000000000}},
    {"op": "u", "before": OLD, "after": NEW, "source": {"lsn": 8, "ts_ms": 1700000000001}},
    {"op": "d", "before": NEW, "source": {"lsn": 9, "ts_ms": 1700000000002}},
]
CHANGES = [
    (1, 10, "a", "insert"),
    (1, 10, "a", "update_preimage"),
    (1, 20, None, "update_postimage"),
    (1, 20, None, "delete"),
]


def events(spark, values, keys=None):
    keys = keys or [
        one and json.dumps({"id": (one.get("after") or one.get("before") or {}).get("id")}) for one in values
    ]
    values = [None if one is None else json.dumps(one) for one in values]
    rows = [("t", 0, number, *one) for number, one in enumerate(zip(keys, values, strict=True))]
    schema = "topic string, partition int, offset long, key string, value string"
    return spark.createDataFrame(rows, schema).coalesce(1)


def rows(df, *columns):
    return [tuple(row) for row in df.select("id", "level", "name", "_change_type", *columns).collect()]


def test_debezium_with_positions_of_kafka_and_a_key(spark):
    """C17, K5: the positions come from the columns of any Kafka source."""
    df = changelog.from_debezium(events(spark, EVENTS), DDL, key="id", sequence="lsn", keep=["topic"])
    places = [("t/0", 0, 7, "t"), ("t/0", 1, 8, "t"), ("t/0", 1, 8, "t"), ("t/0", 2, 9, "t")]
    assert rows(df, "_split", "_pos", "_sequence", "topic") == [
        (*change, *place) for change, place in zip(CHANGES, places, strict=True)
    ]
    from forebay.keys import keys_of

    assert keys_of(df).primary == ("id",)
    assert df.columns[-4:-1] == ["_log", "_transaction", "_commit_timestamp"]


@pytest.mark.soak("PERMISSIVE")
@pytest.mark.parametrize("mode", ["PERMISSIVE", "FAILFAST"])
def test_a_null_message_key_is_refused_where_the_key_is_read_from_the_message(spark, mode):
    """K5: a table without a primary key, whose changes are in any partition."""
    df = events(spark, EVENTS, ['{"id":1}', None, '{"id":1}'])
    with pytest.raises(Exception, match="has no message key") as failed:
        changelog.from_debezium(df, DDL, key="id", mode=mode).collect()
    found = unwrap(failed.value)
    assert isinstance(found, DataError)
    assert (found.split, found.position, found.option) == ("t/0", "1", "key")
    for other in (changelog.from_debezium(df.drop("key"), DDL, key="id"), changelog.from_debezium(df, DDL)):
        assert rows(other) == CHANGES


@pytest.mark.soak
def test_a_changed_key_in_one_event_of_maxwell(spark):
    """C17: the old row is deleted, as Debezium does it."""
    moved = {"type": "update", "data": NEW | {"id": 2}, "old": {"id": 1, "level": 10, "name": "a"}}
    df = changelog.from_maxwell(events(spark, [{"type": "insert", "data": OLD}, moved]), DDL, key="id", mode="FAILFAST")
    assert rows(df, "_pos") == [(*CHANGES[0], 0), (1, 10, "a", "delete", 1), (2, 20, None, "insert", 1)]
    assert rows(changelog.materialize(df, key="id")) == [(2, 20, None, "insert")]


def test_a_malformed_event_keeps_its_whole_row(spark):
    """C17."""
    df = changelog.from_debezium(events(spark, [*EVENTS, {"op": "c"}]), DDL)
    (bad,) = df.where("_corrupt_record IS NOT NULL").select("_change_type", "_corrupt_record.*").collect()
    assert (bad["_change_type"], bad["offset"], bad["value"]) == (None, 3, '{"op": "c"}')
    assert bad["reason"] == "value: an event with op c has no field after"


@pytest.mark.parametrize("mode", ["PERMISSIVE", "FAILFAST"])
def test_errors_of_tasks_are_typed(spark, mode):
    value = {"op": "x"} if mode == "PERMISSIVE" else {"op": "c"}
    with pytest.raises(Exception, match="at split t/0") as failed:
        changelog.from_debezium(events(spark, [None, value]), DDL, mode=mode).collect()
    found = unwrap(failed.value)
    assert isinstance(found, DataError)
    assert (found.split, found.position) == ("t/0", "1")


def test_a_stream_through_debezium_and_back(spark, tmp_path):
    """C17: in several micro-batches."""
    (tmp_path / "in").mkdir()
    for number, one in enumerate(EVENTS):
        row = {"topic": "t", "partition": 0, "offset": number, "value": json.dumps(one)}
        path = tmp_path / "in" / f"{number}.json"
        path.write_text(json.dumps(row))
        os.utime(path, (number, number))
    stream = (
        spark.readStream.schema("topic string, partition int, offset long, key string, value string")
        .option("maxFilesPerTrigger", 1)
        .json(str(tmp_path / "in"))
    )
    again = changelog.to_debezium(
        changelog.from_debezium(stream, DDL, mode="FAILFAST"), "id", tombstones=True, ordered=True
    )
    query = again.writeStream.format("memory").queryName("again").trigger(availableNow=True).start()
    query.awaitTermination()
    written = spark.table("again")
    assert [row["key"] for row in written.collect()] == ['{"id":1}'] * 4
    assert sorted(rows(changelog.from_debezium(written, DDL, key="id"))[:1]) == CHANGES[:1]
    found = rows(changelog.from_debezium(written, DDL))
    assert sorted(found, key=repr) == sorted(CHANGES, key=repr)


@pytest.mark.soak
def test_the_other_events(spark):
    """C17: Maxwell and upsert-Kafka, from and to."""
    df = changelog.from_debezium(events(spark, EVENTS), DDL, mode="FAILFAST")
    maxwell = changelog.to_maxwell(df, "id", database="d", table="t", ordered=True)
    assert [json.loads(row["value"])["type"] for row in maxwell.collect()] == ["insert", "update", "delete"]
    assert rows(changelog.from_maxwell(maxwell, DDL, key="id")) == CHANGES
    upserts = changelog.to_upsert_kafka(df, ["id"], ordered=True)
    assert [row["key"] for row in upserts.collect()] == ['{"id":1}'] * 3
    assert rows(changelog.from_upsert_kafka(upserts, DDL, key="id")) == [
        (1, 10, "a", "update_postimage"),
        (1, 20, None, "update_postimage"),
        (1, None, None, "delete"),
    ]


@pytest.mark.soak("from_hudi")
@pytest.mark.parametrize(
    ("convert", "kind", "words"),
    [
        (changelog.from_delta_cdf, "_change_type", CHANGE_TYPES),
        (changelog.from_iceberg_changes, "_change_type", ("INSERT", "UPDATE_BEFORE", "UPDATE_AFTER", "DELETE")),
        (changelog.from_hudi, "_hoodie_operation", ("I", "-U", "U", "D")),
    ],
)
def test_feeds_of_tables(spark, convert, kind, words):
    """C17, C2."""
    feed = spark.createDataFrame([(1, word) for word in words], f"id int, {kind} string")
    assert [tuple(row) for row in convert(feed).collect()] == [(1, change) for change in CHANGE_TYPES]
    other = spark.createDataFrame([(1, "upsert"), (2, None)], f"id int, {kind} string")
    for row, text in ((1, "unknown kind upsert in"), (2, "unknown kind NULL in")):
        with pytest.raises(Exception, match=text) as failed:
            convert(other.where(f"id = {row}")).collect()
        found = unwrap(failed.value)
        assert isinstance(found, DataError) and str(found).endswith(", ".join(words))
    with pytest.raises(ConfigurationError, match=f"no column '{kind}'"):
        convert(spark.range(1))


def test_columns_of_feeds(spark):
    iceberg = spark.sql("SELECT 1 AS id, 'INSERT' AS _change_type, 3 AS _change_ordinal, 77L AS _commit_snapshot_id")
    assert changelog.from_iceberg_changes(iceberg).schema.simpleString() == (
        "struct<id:int,_change_type:string,_sequence:int,_transaction:string>"
    )
    delta = spark.sql(
        "SELECT 1 AS id, 'insert' AS _change_type, 3 AS _commit_version, current_timestamp() AS _commit_timestamp"
    )
    found = changelog.to_delta_cdf(changelog.from_delta_cdf(delta).selectExpr("*", "'s' AS _split"))
    assert found.schema.simpleString() == (
        "struct<id:int,_change_type:string,_commit_version:bigint,_commit_timestamp:timestamp>"
    )


def test_deletion_flags_and_appends(spark):
    """K7: NULL is false."""
    flagged = spark.createDataFrame([(1, True), (2, None), (3, False)], "id int, is_deleted boolean")
    df = changelog.from_is_deleted(flagged)
    assert [tuple(row) for row in df.collect()] == [(1, "delete"), (2, "update_postimage"), (3, "update_postimage")]
    assert [tuple(row) for row in changelog.to_is_deleted(df).collect()] == [(1, True), (2, False), (3, False)]
    assert [tuple(row) for row in changelog.from_append(spark.range(1)).collect()] == [(0, "insert")]
    for wrong in (lambda: changelog.from_is_deleted(spark.range(1), "id"), lambda: changelog.to_is_deleted(flagged)):
        with pytest.raises(ConfigurationError):
            wrong()


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda df: changelog.from_debezium(df.drop("value"), DDL), "the column 'value' .* does not exist"),
        (lambda df: changelog.from_debezium(df.selectExpr("offset AS value"), DDL), "the column 'value' .* is bigint"),
        (lambda df: changelog.from_debezium(df, "id"), "does not contain a valid schema"),
        (lambda df: changelog.from_debezium(df, DDL, key="x"), "the key column 'x' is not in the schema"),
        (lambda df: changelog.from_debezium(df, DDL, options={"dateFormatt": "y"}), "dateFormatt"),
        (lambda df: changelog.from_upsert_kafka(df.drop("key"), DDL, key="id"), "the column 'key' .* does not exist"),
        (lambda df: changelog.from_upsert_kafka(df, DDL, key=()), "(?s)needs the columns of the .* key.*option: key"),
        (lambda df: changelog.to_maxwell(df, "x", database="d", table="t"), "the column 'x' does not exist"),
        (changelog.to_delta_cdf, "the DataFrame is not a changelog"),
    ],
)
def test_mistakes_are_reported_before_a_query_runs(spark, call, problem):
    with pytest.raises(ConfigurationError, match=problem):
        call(events(spark, EVENTS))


def test_a_changelog_materializes(spark):
    """K5, C9: events of two keys in the wrong order become the current rows, by the sequence of the database."""
    moved = {"op": "c", "after": OLD | {"id": 2}, "source": {"lsn": 6}}
    shuffled = [EVENTS[1], moved, EVENTS[0]]
    df = changelog.from_debezium(events(spark, shuffled), DDL, key="id", sequence="lsn", mode="FAILFAST")
    assert sorted(rows(changelog.materialize(df, key="id"))) == [(1, 20, None, "insert"), (2, 10, "a", "insert")]
