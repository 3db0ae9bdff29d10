# SPDX-License-Identifier: Apache-2.0
"""What each operation of Spark does to a key: the table of the page on keys."""

from __future__ import annotations

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import LongType

from forebay.errors import ConfigurationError
from forebay.keys import KeySpec, key_by, keys_of, strip_keys


def same(rows):
    return rows


def plus_one(number):
    return number + 1


WHOLE = KeySpec(("a", "b"), ("a", "b"), "f")
PARTITION = KeySpec(("a", "b"))
NO_KEY = KeySpec()

KEPT = {
    "select": lambda df: df.select("v", "f", "b", "a"),
    "filter": lambda df: df.filter("a > 0"),
    "sort": lambda df: df.orderBy("v"),
    "limit": lambda df: df.limit(3),
    "repartition": lambda df: df.repartition(3),
    "explode": lambda df: df.withColumn("e", F.explode(F.array("a", "b"))),
    "window": lambda df: df.withColumn("r", F.row_number().over(Window.partitionBy("a").orderBy("b"))),
    "cache": lambda df: df.cache(),
    "checkpoint": lambda df: df.localCheckpoint(),
    "hint": lambda df: df.hint("broadcast"),
    "sample": lambda df: df.sample(0.5),
    "a new column": lambda df: df.withColumn("new", F.col("a") + 1),
    "a function that makes another column": lambda df: df.withColumn("u", F.udf(plus_one, LongType())("s")),
    "a second copy": lambda df: df.select("*", F.col("a").alias("k")),
}


@pytest.mark.parametrize("operation", KEPT)
def test_operations_that_keep_the_key(table, operation, warnings):
    """§2.2: and nothing is said. A function on another column does not hurt (K16)."""
    assert keys_of(KEPT[operation](table)) == WHOLE
    assert warnings() == []


def test_a_view_of_sql_keeps_the_key(session, table):
    """§2.2: also a common table expression."""
    table.createOrReplaceTempView("keyed")
    assert keys_of(session.sql("SELECT * FROM keyed WHERE a > 0")) == WHOLE
    assert keys_of(session.sql("WITH c AS (SELECT * FROM keyed) SELECT a, b, f FROM c")) == WHOLE


def test_a_renamed_column_stays_in_the_key(table):
    """K11: key (a, b), rename a to x: (x, b)."""
    assert keys_of(table.withColumnRenamed("a", "x")) == KeySpec(("x", "b"), ("x", "b"), "f")
    assert keys_of(table.select(F.col("a").alias("x"), "b", F.col("f").alias("g"))) == KeySpec(
        ("x", "b"), ("x", "b"), "g"
    )


def test_a_dropped_column_leaves_the_key(table, warnings):
    """K12: key (x, b), drop x: (b); the primary key is lost with it (K14)."""
    assert keys_of(table.drop("a")) == KeySpec(("b",))
    assert warnings() == [
        "the column 'a' left the key: dropped",
        "the primary key (a, b) is lost with the column a",
    ]


LOSSES = {
    "upper(CAST(a AS STRING))": lambda df: df.withColumn("a", F.upper(F.col("a").cast("string"))),
    "CAST(a AS STRING)": lambda df: df.withColumn("a", F.col("a").cast("string")),
    "coalesce(a, CAST(0 AS BIGINT))": lambda df: df.withColumn("a", F.coalesce("a", F.lit(0))),
    "coalesce(a, CAST(0.0D AS BIGINT))": lambda df: df.fillna(0, ["a"]),
    "plus_one(a)": lambda df: df.withColumn("a", F.udf(plus_one, LongType())("a")),
    "s": lambda df: df.withColumn("a", F.col("s")),
}


@pytest.mark.parametrize("expression", LOSSES)
def test_an_overwritten_column_leaves_the_key_and_the_warning_names_the_expression(table, expression, warnings):
    """K13, K16: its new content may mean another order."""
    assert keys_of(LOSSES[expression](table)) == KeySpec(("b",))
    assert f"the column 'a' left the key: overwritten by {expression}" in warnings()


def test_a_key_column_overwritten_by_another_key_column_has_that_ones_place(table):
    """§2.2: withColumn("a", col("b")) carries the metadata of b."""
    assert keys_of(table.withColumn("a", F.col("b"))) == KeySpec(("b",))


def test_a_lenient_reader_shrinks_the_primary_key(table):
    """K14: as Foundry does."""
    assert keys_of(table.drop("a"), lenient=True) == KeySpec(("b",), ("b",), "f")


def test_a_key_that_lost_all_columns_is_gone(table, warnings):
    """K14: and the warning names what was dropped."""
    assert keys_of(table.select("v")) == NO_KEY
    assert "the column 'a' left the key, and the key is gone: dropped" in warnings()


STATEFUL = {
    "groupBy": lambda df: df.groupBy("a", "b").count(),
    "dropDuplicates": lambda df: df.dropDuplicates(["a"]),
    "distinct": lambda df: df.distinct(),
    "pivot": lambda df: df.groupBy("a", "b").pivot("v", ["x"]).count(),
}


@pytest.mark.parametrize("operation", STATEFUL)
def test_state_loses_the_primary_key_and_keeps_the_partition_key(table, operation, warnings):
    """K17: groupBy("id").count() has the partition key (id)."""
    assert keys_of(STATEFUL[operation](table)) == PARTITION
    assert any("primary key" in text for text in warnings())


def test_state_in_the_plan_is_named(table, warnings):
    """K17: the operator, as Spark prints it."""
    keys_of(table.dropDuplicates(["a"]))
    assert [text.partition("#")[0] for text in warnings()] == [
        "the primary key is lost in the stateful operator Deduplicate [a"
    ]


def test_grouping_by_a_part_of_the_key_keeps_that_part(table):
    """K12, K17: key (a, b), grouped by a."""
    assert keys_of(table.groupBy("a").agg(F.max("b"), F.first("f"))) == KeySpec(("a",))


def test_an_aggregate_of_a_key_column_is_no_key_column(table):
    """§2.2: max, first, max_by."""
    assert keys_of(table.groupBy("v").agg(F.max("a").alias("a"), F.first("b").alias("b"))) == NO_KEY


def test_a_key_that_is_set_after_state_holds(table):
    """K18: key_by replaces what was lost."""
    again = key_by(table.groupBy("a", "b").count(), "a", "b", cdc=True)
    assert keys_of(again) == KeySpec(("a", "b"), ("a", "b"))
    assert keys_of(again.groupBy("a", "b").agg(F.max("count"))) == PARTITION


FUNCTIONS = {
    "mapInPandas": lambda df: df.mapInPandas(same, df.schema),
    "mapInArrow": lambda df: df.mapInArrow(same, df.schema),
    "applyInPandas": lambda df: df.groupBy("a").applyInPandas(lambda group: group, df.schema),
    "applyInArrow": lambda df: df.groupBy("a").applyInArrow(lambda group: group, df.schema),
    "cogroup": lambda df: df.groupBy("a").cogroup(df.groupBy("a")).applyInPandas(lambda left, right: left, df.schema),
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_over_whole_rows_loses_the_key(table, function, warnings):
    """K16: although Spark takes the metadata from the schema that is passed."""
    after = FUNCTIONS[function](table)
    assert "forebay.key" in after.schema["a"].metadata
    assert keys_of(after) == NO_KEY
    assert any("a user-defined function gets whole rows" in text for text in warnings())
    assert keys_of(key_by(after, "a", "b", cdc=True, deleted="f")) == WHOLE


def test_a_schema_can_be_stripped_for_a_function(table):
    """§2.2: so that other readers of the metadata are not misled."""
    after = table.mapInArrow(same, strip_keys(table.schema))
    assert after.schema == strip_keys(after).schema


@pytest.mark.parametrize(
    ("how", "kept"),
    [("inner", WHOLE), ("left", WHOLE), ("left_semi", WHOLE), ("left_anti", WHOLE), ("right", KeySpec(("n",)))],
)
def test_a_join_keeps_the_key_of_the_side_whose_rows_are_kept(session, table, how, kept):
    """§2.2: by an expression, so that both columns are there."""
    other = key_by(session.range(3).withColumnRenamed("id", "n"), "n")
    assert keys_of(table.join(other, table["a"] == other["n"], how)) == kept


def test_a_join_by_name_keeps_the_key_of_the_side_whose_column_is_kept(session, table):
    """§2.2: USING."""
    other = key_by(session.range(3).withColumnRenamed("id", "a"), "a")
    assert keys_of(table.join(other, "a")) == WHOLE
    assert keys_of(table.join(other, "a", "left")) == WHOLE
    assert keys_of(table.join(other, "a", "right")) == KeySpec(("a",))


def test_a_full_outer_join_keeps_no_key(session, table, warnings):
    """§2.2: Spark keeps the metadata of both sides if the condition is an expression."""
    other = key_by(session.range(3).withColumnRenamed("id", "n"), "n")
    assert keys_of(table.join(other, table["a"] == other["n"], "full")) == NO_KEY
    assert any("a join of type full" in text for text in warnings())
    assert keys_of(table.join(other.withColumnRenamed("n", "a"), "a", "full")) == NO_KEY


def test_the_keys_of_a_table_joined_with_itself_are_one(table):
    """§2.2: each column of the key stands there once."""
    assert keys_of(table.alias("l").join(table.alias("r"), ["a", "b"]).select("a", "b", "l.f")) == WHOLE


SET_OPERATIONS = {
    "union": lambda left, right: left.union(right),
    "unionByName": lambda left, right: left.unionByName(right),
    "intersect": lambda left, right: left.intersect(right),
    "subtract": lambda left, right: left.subtract(right),
}


@pytest.mark.parametrize("operation", SET_OPERATIONS)
def test_both_sides_of_a_set_operation_must_have_the_key(table, operation, warnings):
    """§2.2: Spark takes the metadata of the left side alone."""
    combine = SET_OPERATIONS[operation]
    assert keys_of(combine(table, table.filter("a > 0"))) == WHOLE
    assert keys_of(combine(table, key_by(strip_keys(table), "a", "b", cdc=True, deleted="f"))) == WHOLE
    assert warnings() == []
    assert keys_of(combine(table, strip_keys(table))) == NO_KEY
    assert any("have different keys" in text for text in warnings())
    assert keys_of(combine(table, key_by(table, "a"))) == NO_KEY


def test_the_sides_of_a_union_may_name_the_key_differently(table):
    """§2.2: union goes by place."""
    assert keys_of(table.union(table.withColumnRenamed("a", "x"))) == WHOLE
    by_a = key_by(table, "a").select("a", "b")
    assert keys_of(by_a.union(by_a.select("b", "a"))) == NO_KEY


def test_a_key_on_the_right_side_alone_is_no_key(table):
    """§2.2: of a union."""
    assert keys_of(strip_keys(table).union(table)) == NO_KEY


def test_two_copies_of_a_key_column_are_ambiguous(table):
    """§2.2: id AS k, id AS l."""
    twice = table.select(F.col("a").alias("k"), F.col("a").alias("l"), "b", "f")
    with pytest.raises(ConfigurationError, match="'k' and 'l' are copies of the key column 'a'"):
        keys_of(twice)
    assert keys_of(twice, lenient=True) == KeySpec(("k", "b"), ("k", "b"), "f")


def test_parquet_keeps_the_key(session, table, tmp_path):
    """§2.2: in the schema of Spark that it has in its footer."""
    table.write.parquet(str(tmp_path / "p"))
    assert keys_of(session.read.parquet(str(tmp_path / "p"))) == WHOLE


@pytest.mark.soak("csv", "json")
@pytest.mark.parametrize("file_format", ["json", "csv", "orc"])
def test_other_files_do_not_keep_the_key(session, table, tmp_path, file_format):
    """§2.2: nor does a DataFrame made from rows."""
    table.write.format(file_format).option("header", True).save(str(tmp_path / "f"))
    assert keys_of(session.read.format(file_format).option("header", True).load(str(tmp_path / "f"))) == NO_KEY
    assert keys_of(session.createDataFrame(table.collect(), "a long, b long, f boolean, v string, s long")) == NO_KEY
