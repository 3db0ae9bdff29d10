# SPDX-License-Identifier: Apache-2.0
"""The current view of a changelog or of rows with a deletion flag."""

from __future__ import annotations

import datetime as dt
from random import Random

import pytest
from pyspark.errors import PySparkException

from forebay.errors import ConfigurationError, DataError, unwrap
from forebay.spark.changelog.current_view import current_view
from forebay.spark.keys.set_keys import key_by

NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
FLAGGED = "k string, v string, gone boolean, o int"
CHANGES = "k int, v string, _change_type string, _split string, _pos long"


def changes(spark, values):
    """Changes of one split: (key, value, kind, position)."""
    return spark.createDataFrame([(*value[:3], "s", value[3]) for value in values], CHANGES)


def rows(df):
    return sorted((tuple(row) for row in df.collect()), key=repr)


def error_of(df):
    with pytest.raises(PySparkException) as caught:
        df.collect()
    found = unwrap(caught.value)
    assert isinstance(found, DataError)
    return found


def test_the_newest_row_of_a_key_is_kept_whole(spark):
    """A1, K7: NULL is data, and a deleted key has no row."""
    df = spark.createDataFrame(
        [
            ("Key1", "firstVal", False, 1),
            ("Key2", "secondVal", False, 2),
            ("Key1", "thirdVal", True, 3),
            ("Key2", None, False, 4),
        ],
        FLAGGED,
    )
    assert rows(current_view(df, key="k", deleted="gone", ordering="o")) == [("Key2", None, False, 4)]


def test_a_null_flag_is_not_deleted(spark):
    """A6, K7."""
    df = spark.createDataFrame([("a", "x", None, 1), ("b", "y", True, 1)], FLAGGED)
    assert rows(current_view(df, key="k", deleted="gone", ordering="o")) == [("a", "x", None, 1)]


def test_an_update_at_one_position_leaves_its_new_row(spark):
    """K8: `update_preimage` comes before `update_postimage`; a changed key deletes the old one."""
    df = changes(
        spark,
        [
            (1, "a", "insert", 1),
            (1, "a", "update_preimage", 2),
            (1, "b", "update_postimage", 2),
            (2, "x", "update_preimage", 3),
            (3, "x", "update_postimage", 3),
            (2, "x", "insert", 1),
        ],
    )
    assert rows(current_view(df, key=["k"])) == [(1, "b"), (3, "x")]


@pytest.mark.parametrize(
    ("values", "schema"),
    [
        ([("a", "x", False, 1), ("a", "y", False, 1)], FLAGGED),
        ([("a", None, False, 1), ("a", "", False, 1)], FLAGGED),
        ([("a", {"m": None}, 1), ("a", {}, 1)], "k string, v map<string, string>, o int"),
        ([("a", [moment], 1) for moment in (NOON, NOON.replace(microsecond=1))], "k string, v array<timestamp>, o int"),
    ],
)
def test_two_different_newest_rows_are_an_error_that_names_the_key(spark, values, schema):
    """K8."""
    error = error_of(current_view(spark.createDataFrame(values, schema), key="k", ordering="o"))
    assert '{"k":"a"}' in error.message and "order" in error.message
    assert "one place in the order" in error.advice and "latest_per_key" in error.advice


def test_positions_of_two_splits_have_no_order(spark):
    """K8: the key moved to another partition, and no sequence tells which change is the last one."""
    df = spark.createDataFrame([(1, "a", 9, "t-3"), (1, "b", 2, "t-10")], "k int, v string, _pos long, _split string")
    assert '{"k":1}' in error_of(current_view(df, key="k")).message


def test_a_change_that_was_delivered_twice_is_one(spark):
    df = spark.createDataFrame([(1, "a", 9, "t-3"), (1, "a", 2, "t-10")], "k int, v string, _pos long, _split string")
    assert rows(current_view(df, key="k")) == [(1, "a")]


def test_a_null_key_is_an_error_a_value_or_dropped(spark):
    """K7."""
    df = changes(spark, [(None, "a", "insert", 7), (1, "b", "insert", 8)])
    error = error_of(current_view(df, key="k"))
    assert "'k' is NULL, _split s, _pos 7" in error.message
    assert rows(current_view(df, key="k", null_keys="drop")) == [(1, "b")]
    assert rows(current_view(df, key="k", null_keys="allow")) == [(1, "b"), (None, "a")]
    not_a_number = spark.createDataFrame([(float("nan"), "a"), (None, "b")], "k double, v string")
    assert [row[1] for row in rows(current_view(not_a_number, key="k", null_keys="drop"))] == ["a"]


def test_an_unknown_kind_is_an_error_even_before_the_newest_change(spark):
    """C2."""
    df = changes(spark, [(1, "a", "upsert", 7), (1, "b", "insert", 8)])
    assert error_of(current_view(df, key="k")).message == "unknown change kind upsert, _split s, _pos 7"


def test_a_declared_key_is_the_default(spark):
    """K5, K7: with its deletion flag and ordering columns."""
    df = spark.createDataFrame([("a", "x", None, 1), ("a", "y", True, 2), ("b", "z", None, 1)], FLAGGED)
    keyed = key_by(df, "k", cdc=True, deleted="gone", ordering=["o"])
    assert rows(current_view(keyed)) == [("b", "z", None, 1)]
    with pytest.raises(ConfigurationError, match="no primary key"):
        current_view(df)


def test_wrong_arguments_are_refused_before_reading(spark):
    df = spark.createDataFrame([("a", "x", None, 1)], FLAGGED)
    with pytest.raises(ConfigurationError, match="'o' is int, not boolean"):
        current_view(df, key="k", deleted="o", ordering="o")
    with pytest.raises(ConfigurationError, match="'missing' does not exist"):
        current_view(df, key="missing")
    with pytest.raises(ConfigurationError, match="state_location is given, but current_view keeps no state"):
        current_view(df, key="k", ordering="o", state_location="/tmp")
    with pytest.raises(ConfigurationError, match="'_Change_Type' has a reserved name"):
        current_view(df.withColumnRenamed("v", "_Change_Type"), key="k", ordering="o")
    stream = spark.readStream.format("rate").load()
    with pytest.raises(ConfigurationError, match="its own state_location"):
        current_view(stream, key="value")
    with pytest.raises(ConfigurationError, match="takes only 'error' or 'drop'"):
        current_view(stream, key="value", null_keys="allow")


@pytest.mark.soak
def test_the_view_of_a_stream_is_a_changelog(micro_batches):
    """K7, K8: flags are deletes; the largest ordering value is the newest row, whenever it comes."""
    query = micro_batches(
        lambda df, state: current_view(
            df, "id", deleted="gone", ordering="level", null_keys="drop", state_location=state
        ),
        "id long, level int, name string, gone boolean",
    )
    query.write([(1, 1, "a", False), (2, 1, "b", None), (None, 9, "x", False)])
    query.write([(1, 3, None, False), (1, 2, "late", True), (2, 2, None, True)])
    query.write([(2, 1, "late", False), (3, 1, "c", True)])
    found = [sorted(row[:5] for row in rows) for _, rows in sorted(query.run().items())]
    assert found == [
        [(1, 1, "a", False, "insert"), (2, 1, "b", None, "insert")],
        [(1, 1, "a", False, "update_preimage"), (1, 3, None, False, "update_postimage"), (2, 1, "b", None, "delete")],
        [],
    ]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 50))])
def test_the_view_is_that_of_the_last_writer(spark, seed):
    """P5: in any order of the input, in any number of partitions. One read has fifty tables."""
    rng = Random(seed)
    numbered = [
        (table, str(rng.randrange(4)), rng.choice(["x", "y", None]), rng.choice([True, False, None]), number)
        for table in range(50)
        for number in range(rng.randrange(26))
    ]
    last = {row[:2]: row for row in numbered}
    rng.shuffle(numbered)
    df = spark.createDataFrame(numbered, f"t int, {FLAGGED}").repartition(rng.randint(2, 5))
    expected = sorted((row for row in last.values() if not row[3]), key=repr)
    assert rows(current_view(df, key=["t", "k"], deleted="gone", ordering="o")) == expected
