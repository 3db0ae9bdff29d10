# SPDX-License-Identifier: Apache-2.0
"""The join of two changelogs on real streaming queries."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from pyspark.sql import functions as F  # noqa: N812 - as users write it

from forebay.errors import ConfigurationError
from forebay.spark.changelog.converting import from_changes
from forebay.spark.changelog.materialize import changelog_join, materialize

SCHEMA = "side int, k int, v string, _change_type string"


def whole(df):
    """Declare that each row is retracted by an equal one, exactly once."""
    return from_changes(df, images="full", history="complete")


def sides(df):
    left = df.where("side = 0").select("k", F.col("v").alias("l"), "_change_type")
    right = df.where("side = 1").select("k", F.col("v").alias("r"), "_change_type")
    return whole(left), whole(right)


def joined(left, right, how):
    """The join of two multisets of (key, value)."""
    matches = {key for key, _ in right if key is not None}
    result = Counter()
    for (key, value), count in left.items():
        if (how == "semi" and key in matches) or (how == "anti" and key not in matches):
            result[key, value] += count
        elif how in ("inner", "left"):
            for (other, found), times in right.items():
                if key == other and key is not None:
                    result[key, value, found] += count * times
            if how == "left" and key not in matches:
                result[key, value, None] += count
    return result


@pytest.mark.soak("left", "semi", "anti")
@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
def test_the_folded_result_is_the_join_of_the_folded_inputs_after_every_micro_batch(micro_batches, how):
    """P14."""
    is_join_of_the_inputs(micro_batches, how, 3)


@pytest.mark.soak
def test_a_streaming_query_gives_the_join_after_every_micro_batch(stream_of_files):
    """P14: a left join uses every column of both inputs, and NULL for those of the right one."""
    is_join_of_the_inputs(stream_of_files, "left", 3)


def is_join_of_the_inputs(make, how, micro_batches):
    rng, tables = random.Random(how), (Counter(), Counter())
    query = make(lambda df, state: changelog_join(*sides(df), "k", how=how, state_location=state, shards=2), SCHEMA)
    expected = []
    for _ in range(micro_batches):
        rows = []
        for _ in range(30):
            side = rng.randrange(2)
            table = tables[side]
            if table and rng.random() < 0.45:
                key, value = rng.choice(sorted(table, key=repr))
                table[key, value] -= 1
                if not table[key, value]:
                    del table[key, value]
                rows.append((side, key, value, "delete"))
            else:
                key, value = rng.choice([None, 1, 2, 3, 4]), rng.choice("abc")
                table[key, value] += 1
                rows.append((side, key, value, "insert"))
        rng.shuffle(rows)
        query.write(rows)
        expected.append(joined(*tables, how))
    folded = Counter()
    for number, rows in sorted(query.run().items()):
        for row in rows:
            folded[row[:-2]] += 1 if row[-2] == "insert" else -1
        assert not any(count < 0 for count in folded.values())
        assert +folded == expected[number]
    assert len(expected) == number + 1


@pytest.mark.soak
def test_a_join_materializes_by_another_key_whatever_order_its_inputs_have(micro_batches):
    """C4: the old level of a row is retracted in a later micro-batch than its new one comes."""

    def report(df, state):
        students = df.where("side = 0").select("k", F.col("v").alias("level"), "_change_type")
        awards = df.where("side = 1").select(F.col("v").alias("level"), F.col("k").alias("award"), "_change_type")
        joined = changelog_join(whole(students), whole(awards), "level", state_location=state)
        return materialize(joined, "k", state_location=state, preimages=False)

    query = micro_batches(report, SCHEMA)
    query.write([(0, 1, "10", "insert"), (1, 100, "10", "insert"), (1, 200, "20", "insert")])
    query.write([(0, 1, "20", "update_postimage")])
    query.write([(0, 1, "10", "update_preimage")])
    assert query.run() == {
        0: [("10", 1, 100, "insert", 0)],
        1: [("20", 1, 200, "update_postimage", 1)],
        2: [],
    }


@pytest.mark.soak
def test_a_batch_join_is_the_same_operator(spark):
    df = spark.createDataFrame([(0, 1, "a", "insert"), (1, 1, "b", "insert"), (0, 2, "c", "insert")], SCHEMA)
    found = changelog_join(*sides(df), "k", how="left").drop("_commit_version").collect()
    assert sorted(map(tuple, found)) == [(1, "a", "b", "insert"), (2, "c", None, "insert")]


@pytest.mark.soak
@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
def test_keys_that_are_not_a_number_match_as_in_sparks_joins(spark, tasks_here, how):
    keys = [float("nan"), 0.0, -0.0, 1.5, None]
    left = spark.createDataFrame([(key, f"l{place}") for place, key in enumerate(keys)], "k double, l string")
    right = spark.createDataFrame([(key, f"r{place}") for place, key in enumerate(keys[:3])], "k double, r string")
    ours = changelog_join(left, right, "k", how=how).drop("_change_type", "_commit_version", "k")
    assert sorted(map(repr, ours.collect())) == sorted(map(repr, left.join(right, "k", how).drop("k").collect()))


def test_columns_on_both_sides_and_other_types_are_refused(spark):
    left = spark.createDataFrame([(1, "a")], "k int, v string")
    with pytest.raises(ConfigurationError, match="both inputs have the column 'V'"):
        changelog_join(left, spark.createDataFrame([(1, "a")], "k int, V string"), "k")
    with pytest.raises(ConfigurationError, match="is int on the left and bigint on the right"):
        changelog_join(left, spark.createDataFrame([(1, "a")], "k long, w string"), "k")
    named = left.withColumnRenamed("k", "Left")
    with pytest.raises(ConfigurationError, match="'Left' has a name that changelog_join reserves"):
        changelog_join(named, named.withColumnRenamed("v", "w"), "left")
