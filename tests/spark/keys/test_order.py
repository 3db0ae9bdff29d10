# SPDX-License-Identifier: Apache-2.0
"""What is promised about the order of rows, and which columns are upsert keys."""

from __future__ import annotations

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from forebay.changelog import changelog_mode, upsert_keys, with_upsert_key
from forebay.errors import ConfigurationError
from forebay.keys import NONE, PER_SPLIT, Guarantee, KeySpec, guarantee, key_by, strip_keys
from forebay.spark.keys.set_keys import set_key

PER_ID = Guarantee.per_key("id")


def on_level(changes, levels, how="inner"):
    return changes.join(levels, changes["level"] == levels["number"], how)


def test_a_frame_without_a_key_promises_nothing(session):
    """K3: any lane, no order at all."""
    assert guarantee(session.range(3)) == NONE


def test_a_source_that_stamps_its_key_promises_order_within_it(students):
    """K2, §3.2: in batch and in a stream."""
    assert guarantee(students()) == guarantee(students(stream=True)) == PER_ID
    assert guarantee(students(positions=True, stamped=False)) == PER_SPLIT


def test_order_outlives_the_columns_of_the_key(students):
    """K4, K15: lanes follow the columns as they were at the source, until the next key_by."""
    assert guarantee(students().drop("id")) == PER_ID
    assert guarantee(students().withColumn("id", F.col("id") + 1)) == PER_ID
    assert guarantee(students().withColumnRenamed("id", "student")) == PER_ID
    assert guarantee(students().filter("id > 1").select("name")) == PER_ID


SHUFFLES = {
    "Repartition": lambda df: df.repartition(3),
    "RepartitionByExpression": lambda df: df.repartition("level"),
    "Sort": lambda df: df.orderBy("name"),
    "Sort [": lambda df: df.sortWithinPartitions("level"),
    "GlobalLimit": lambda df: df.limit(2),
    "Deduplicate": lambda df: df.distinct(),
    "Join": lambda df: df.join(df.sparkSession.range(100).withColumnRenamed("id", "n"), F.col("level") == F.col("n")),
}


@pytest.mark.parametrize("node", SHUFFLES)
def test_a_shuffle_loses_order_and_positions_restore_it(students, node):
    """K25, K27: the weakest hop is named."""
    lost = guarantee(SHUFFLES[node](students()))
    assert lost == NONE
    assert (lost.weakest or "").startswith(node)
    assert guarantee(SHUFFLES[node](students(positions=True))) == PER_ID
    assert guarantee(SHUFFLES[node](students(positions=True)).drop("_pos")) == NONE
    assert guarantee(SHUFFLES[node](students(sequence=True))) == PER_ID


def test_what_is_no_shuffle_keeps_order(students, levels):
    """K25: fewer tasks, and a table that is sent to each task."""
    assert guarantee(students().coalesce(1)) == PER_ID
    assert guarantee(on_level(students(), levels.hint("broadcast"))) == PER_ID


def test_a_finer_key_keeps_order_within_itself(students):
    """K24: (id) → (id, level)."""
    assert guarantee(key_by(students(), "id", "level")) == Guarantee.per_key("id", "level")


def test_another_key_cannot_restore_order(students):
    """K28: rows equal in level arrive over two lanes; a sequence orders them."""
    assert guarantee(key_by(students(), "level")) == NONE
    assert guarantee(key_by(students(positions=True), "level")) == PER_SPLIT
    assert guarantee(key_by(students(sequence=True), "level")) == Guarantee.per_key("level")


def test_a_key_of_rows_without_order_promises_nothing(session):
    """K3, K28: key_by moves and sorts nothing."""
    found = guarantee(key_by(session.range(3), "id"))
    assert (found, found.weakest) == (NONE, "Range promises no order")


def test_a_converter_vouches_for_the_order_of_a_key(students):
    """§3.2: it knows that the key columns are in the message key, which no plan shows."""
    key = KeySpec(("id",), ("id",))
    vouched = set_key(students(stamped=False), key, ordered=True, transactional=True)
    assert guarantee(vouched) == guarantee(vouched.filter("level > 1")) == PER_ID
    assert upsert_keys(vouched) == [("id",)]
    assert guarantee(vouched.repartition(3)) == NONE
    assert guarantee(set_key(students(stamped=False), key)) == NONE


def test_a_union_keeps_order_within_splits(students):
    """K27: rows of one key come from both sides."""
    assert guarantee(students().union(students())) == NONE
    assert guarantee(students(positions=True).union(students(positions=True))) == PER_SPLIT


def test_a_join_that_mixes_or_invents_keys_keeps_no_order(students, levels):
    """K27: rows of two streams meet; a full outer join gives rows without the key."""
    changes = students(positions=True)
    assert guarantee(on_level(changes, levels)) == guarantee(on_level(changes, levels, "left")) == PER_ID
    assert guarantee(on_level(changes, levels, "full")) == PER_SPLIT
    left, right = students(stream=True), students(stream=True, positions=True).select("_split", "_pos", "name")
    assert guarantee(left.join(right, "name")) == PER_SPLIT
    assert guarantee(left.join(right, "name", "left_semi")) == NONE


def test_a_function_over_whole_rows_promises_nothing(students):
    """K16, K27: it may do anything."""
    assert guarantee(students().mapInArrow(lambda rows: rows, students().schema)) == NONE


def test_groups_of_a_key_change_in_order(students):
    """K17, K27: groups that are parts of lanes; groups over several lanes are mixed."""
    groups = Guarantee.per_key("id", "level")
    assert guarantee(students().groupBy("id", "level").count().repartition(3)) == groups
    assert guarantee(students().groupBy("level").count()) == NONE


@pytest.mark.soak
def test_a_plan_that_begins_with_rows_may_hide_a_shuffle(students):
    """K25: a checkpoint, or the DataFrame of foreachBatch."""
    hidden = guarantee(students().localCheckpoint())
    assert (hidden, hidden.weakest) == (NONE, "the plan behind LogicalRDD is not known")
    assert guarantee(students(positions=True).localCheckpoint()) == PER_ID
    assert upsert_keys(students().localCheckpoint()) == []
    assert upsert_keys(students(positions=True).localCheckpoint()) == [("id",)]
    finer = key_by(students(positions=True), "id", "level").localCheckpoint()
    assert guarantee(finer) == Guarantee.per_key("id", "level")
    assert guarantee(key_by(students(positions=True), "level").localCheckpoint()) == PER_SPLIT


def test_upsert_keys_are_those_of_the_source(students):
    """C6: scan → unique keys; filter and project → mapped."""
    assert upsert_keys(students()) == [("id",)]
    assert upsert_keys(students().filter("level > 1").withColumnRenamed("id", "student")) == [("student",)]
    assert upsert_keys(students().drop("id")) == []
    assert upsert_keys(strip_keys(students().select("level"))) == []


def test_a_primary_key_beside_the_lanes_is_no_upsert_key(students):
    """C6, K9: its rows come over several lanes."""
    assert guarantee(students(by_name=True)) == Guarantee.per_key("name")
    assert upsert_keys(students(by_name=True, positions=True)) == []


def test_a_key_cast_without_loss_is_the_key(students):
    """C7: precision loss, such as BIGINT to INT, makes another key."""
    assert upsert_keys(students().select(F.col("id").cast("string").alias("k"))) == [("k",)]
    assert upsert_keys(students().select(F.col("id").cast("int").alias("k"))) == []
    assert upsert_keys(students().select((F.col("id") + 1).alias("k"))) == []


def test_a_shuffle_by_other_columns_leaves_the_key_and_these_columns(students, levels):
    """C6: `{id}` lacks `level`, so Flink has no upsert key here. Rows equal in id and level take one path."""
    assert upsert_keys(on_level(students(), levels)) == [("id", "level")]
    assert upsert_keys(on_level(students(), levels, "left")) == [("id", "level")]
    assert upsert_keys(on_level(students(), levels, "left_semi")) == [("id", "level")]
    assert upsert_keys(on_level(students(), levels).drop("level")) == [("id", "number")]
    assert upsert_keys(on_level(students(), levels).drop("level", "number")) == []
    assert upsert_keys(students().repartition("level")) == [("id", "level")]
    assert upsert_keys(students().repartition(3)) == []


def test_positions_keep_the_key_over_a_shuffle(students, levels):
    """C6, K25: the changes can be put in order again."""
    assert upsert_keys(on_level(students(positions=True), levels)) == [("id",)]


def test_a_shuffle_by_columns_of_the_key_keeps_it(students, levels):
    """C6: join on the key, semi join, and a table that is sent to each task."""
    by_id = levels.withColumnRenamed("number", "student")
    changes = students()
    joined = changes.join(by_id, changes["id"] == by_id["student"])
    assert upsert_keys(joined.select("id", "title")) == [("id",)]
    assert upsert_keys(joined.select("student", "title")) == [("student",)]
    assert upsert_keys(on_level(students(), levels.hint("broadcast"))) == [("id",)]


def test_a_join_that_finds_several_rows_has_the_keys_of_both_sides(students, session):
    """C6: each row of the left side may stand there several times."""
    lines = key_by(session.createDataFrame([(1, 10, "x")], "line long, number long, title string"), "line", cdc=True)
    assert upsert_keys(on_level(students(), lines)) == []
    ordered = with_upsert_key(strip_keys(lines), "line")
    assert upsert_keys(on_level(students(), ordered)) == [("id", "level", "line")]


def test_groups_are_upsert_keys_whatever_shuffles_them(students):
    """C6, §0.2: a group changes once in a micro-batch."""
    groups = students().groupBy("level", F.upper("name").alias("n")).count()
    assert upsert_keys(groups) == upsert_keys(groups.repartition(3)) == [("level", "n")]
    assert upsert_keys(groups.drop("n")) == []
    assert upsert_keys(students().agg(F.count("*"))) == [()]


def test_the_columns_of_a_deduplication_are_a_key(students):
    """C6: in a watermark's span they are not."""
    assert upsert_keys(strip_keys(students()).dropDuplicates(["level"])) == [("level",)]
    timed = students(stream=True).withColumn("at", F.lit("2024-01-01").cast("timestamp")).withWatermark("at", "1 hour")
    assert ("level",) not in upsert_keys(timed.dropDuplicatesWithinWatermark(["level"]))


def test_rows_put_together_or_multiplied_have_no_key(students):
    """C6: union and explode."""
    assert upsert_keys(students().union(students())) == []
    assert upsert_keys(students().withColumn("e", F.explode(F.array("level", "id")))) == []


def test_an_asserted_key_is_taken_on_trust(students):
    """C6: where the plan does not show it; it follows renames and shuffles as others do."""
    hidden = strip_keys(students().mapInArrow(lambda rows: rows, students().schema))
    assert upsert_keys(hidden) == []
    asserted = with_upsert_key(hidden, "id", "level")
    assert upsert_keys(asserted.withColumnRenamed("id", "student")) == [("student", "level")]
    assert upsert_keys(asserted.repartition("name")) == [("id", "level", "name")]
    assert upsert_keys(asserted.drop("level")) == []
    with pytest.raises(ConfigurationError, match="no column 'x'"):
        with_upsert_key(hidden, "x")


def test_kinds_of_changes(students, table, session):
    """C1: an append-only frame has inserts only."""
    assert str(changelog_mode(session.range(3))) == "[+I]"
    assert changelog_mode(session.range(3)).append_only
    assert changelog_mode(students()).retracts
    assert str(changelog_mode(table)) == "[+I, +U, -D]"
    assert str(changelog_mode(table.drop("f"))) == "[+I]"
    assert str(changelog_mode(key_by(table, "a", cdc=True))) == "[+I, +U]"
    assert str(changelog_mode(students(images="upsert"))) == "[+I, +U, -D]"
    counts = students(stream=True, plain=True, stamped=False).groupBy("level").count()
    assert str(changelog_mode(counts)) == "[+I, +U]"


def test_operators_that_cannot_take_changes_are_refused(students):
    """C14: over-aggregation, and the join of two streams."""
    ranked = students().withColumn("r", F.row_number().over(Window.partitionBy("level").orderBy("name")))
    with pytest.raises(ConfigurationError, match="a window function needs append-only rows, but gets changes"):
        changelog_mode(ranked)
    left, right = students(stream=True), students(stream=True).select(F.col("level").alias("l"))
    with pytest.raises(ConfigurationError, match="a join of two streams needs append-only rows") as caught:
        changelog_mode(left.join(right, left["level"] == right["l"]))
    assert "changelog_join" in str(caught.value.advice)
