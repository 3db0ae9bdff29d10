# SPDX-License-Identifier: Apache-2.0
"""Which strategy brings the changes of a frame into order, beside Flink's decision for the same query."""

from __future__ import annotations

import logging

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from forebay.changelog import with_upsert_key
from forebay.errors import ConfigurationError
from forebay.keys import key_by, strip_keys
from forebay.spark.changelog.strategy import choose_strategy


def on_level(changes, table, how="inner"):
    return changes.join(table, changes["level"] == table["number"], how)


def on_id(changes, table, how="inner"):
    return changes.join(table, changes["id"] == table["number"], how)


def rows(changes):
    """The same source without kinds: its rows are only added."""
    return changes.sparkSession.read.format("students").option("plain", "true").load()


def ranked(changes):
    by_name = Window.partitionBy("level").orderBy("name")
    return rows(changes).withColumn("r", F.row_number().over(by_name)).filter("r < 3")


# The query, the key of the target, whether Flink 2.3 materializes, and what we choose.
SHAPES = {
    "the source by its key": (lambda s, t: s, "id", False, "none"),
    "a larger key": (lambda s, t: s, "id,level", False, "none"),
    "a filter, another key": (lambda s, t: s.filter("level > 1"), "name", True, "retract"),
    "a projection without the key": (lambda s, t: s.select("level", "_change_type"), "level", True, "retract"),
    "a computed key": (lambda s, t: s.withColumn("k", F.col("id") + 1), "k", True, "retract"),
    "the key cast to string": (lambda s, t: s.withColumn("k", F.col("id").cast("string")), "k", False, "none"),
    "the key cast to int": (lambda s, t: s.withColumn("k", F.col("id").cast("int")), "k", True, "retract"),
    "group by two, key one of them": (lambda s, t: rows(s).groupBy("level", "name").count(), "level", True, "retract"),
    "group by": (lambda s, t: rows(s).groupBy("level").count(), "level", False, "none"),
    "group by twice": (
        lambda s, t: rows(s).groupBy("level", "name").count().groupBy("level").agg(F.count("*").alias("n")),
        "level",
        False,
        "none",
    ),
    "join on another column": (on_level, "id", True, "retract"),
    "left join on another column": (lambda s, t: on_level(s, t, "left"), "id", True, "retract"),
    "semi join on another column": (lambda s, t: on_level(s, t, "left_semi"), "id", True, "retract"),
    "join on another column, key with it": (on_level, "id,level", True, "retract"),
    "join on the key": (on_id, "id", False, "retract"),
    "semi join on the key": (lambda s, t: on_id(s, t, "left_semi"), "id", False, "retract"),
    "lookup by the key of the table": (lambda s, t: on_level(s, t.hint("broadcast")), "id", False, "none"),
    "lookup by another column": (
        lambda s, t: on_level(s, strip_keys(t).hint("broadcast")),
        "id,title",
        True,
        "none",
    ),
    "union": (lambda s, t: s.union(s), "id", True, "retract"),
    "deduplication": (lambda s, t: rows(s).dropDuplicates(["level"]), "level", False, "none"),
    "deduplication, another key": (lambda s, t: rows(s).dropDuplicates(["level"]), "name", True, "retract"),
    "rank with its number": (lambda s, t: ranked(s), "level,r", False, "none"),
    "rank without its number": (lambda s, t: ranked(s).drop("r"), "level", True, "retract"),
    "inserts without a key": (lambda s, t: strip_keys(rows(s)).localCheckpoint(), "id", True, "retract"),
}

IN_ONE_SPLIT = {
    "join on another column",
    "left join on another column",
    "semi join on another column",
    "join on another column, key with it",
    "join on the key",
    "semi join on the key",
}
"""Where `_split` and `_pos` order the changes of a key: they are those of one row of the source."""

DIFFERENCES = {
    "join on the key": "a shuffle of Spark does not keep the order of rows, so they have to be sorted",
    "semi join on the key": "the same",
    "lookup by another column": "order is kept; several rows of one change are the user's own",
}
"""Where our decision is not Flink's."""


@pytest.mark.soak("True")
@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_verdict_stands_beside_flinks(students, levels, shape, positions):
    """C7, C9: whether a materializer is needed, for the query shapes whose plan Flink was asked for."""
    query, key, flink, strategy = SHAPES[shape]
    verdict = choose_strategy(query(students(positions=positions), levels), key.split(","))
    expected = "position" if positions and shape in IN_ONE_SPLIT else strategy
    assert verdict.strategy == expected, verdict.reason
    assert ((strategy != "none") != flink) == (shape in DIFFERENCES)


def test_students_and_their_performance_report(students, levels, caplog):
    """A14, C7: the key of the report is built from two columns: auto materializes, and says why, once."""
    joined = on_level(students(), levels)
    report = joined.select(
        "id", F.concat(F.lit("id:"), "id", F.lit(",name:"), "name").alias("report_id"), "title", "_change_type"
    )
    with caplog.at_level(logging.INFO, "forebay.spark.changelog.strategy"):
        verdict = choose_strategy(report, ["report_id"])
    assert verdict.strategy == "retract"
    assert verdict.reason == (
        "several rows of the changelog, whose key is (id), may have the same value of (report_id); nothing orders the "
        "changes"
    )
    assert [record.getMessage() for record in caplog.records] == [
        f"materialize by (report_id): retract, because {verdict.reason}"
    ]


def test_a_key_that_a_sequence_orders_is_sorted_by_it(students):
    """K28, §2.1: after a shuffle, with `_sequence`; a key that several rows share is counted."""
    verdict = choose_strategy(students(sequence=True).repartition(3), ["id"])
    assert (verdict.strategy, verdict.order.names) == ("sequence", ("_sequence",))
    assert verdict.reason.endswith("; _sequence orders the changes of a key")
    shared = key_by(students(sequence=True), "level")
    assert choose_strategy(shared, ["level"]).strategy == "retract"
    assert choose_strategy(shared, ["level"], sequence_by=["_sequence"]).strategy == "retract"


def test_the_reason_names_the_columns_that_are_gone(students):
    """C7: the source key was left out."""
    verdict = choose_strategy(students().drop("id"), ["name"])
    assert verdict.reason == "a column of their key is gone; nothing orders the changes"


def test_a_sequence_is_taken_before_a_barrier_and_that_before_retract(students, levels):
    """§2.1: position, sequence, barrier, retract."""
    verdict = choose_strategy(on_level(students(sequence=True, transactional=True), levels), ["id"])
    assert verdict.strategy == "sequence" and "; _sequence orders the changes" in verdict.reason
    both = students(sequence=True, positions=True, transactional=True)
    assert choose_strategy(on_level(both, levels), ["id"]).strategy == "position"
    verdict = choose_strategy(on_level(students(transactional=True), levels), ["id"])
    assert verdict.strategy == "barrier" and "never spreads a transaction" in verdict.reason
    verdict = choose_strategy(on_level(students(), levels), ["id"], sequence_by=["level"])
    assert verdict.strategy == "sequence" and "; level orders all changes" in verdict.reason


def test_transactions_do_not_outlive_a_union_with_other_rows(students):
    """§2.1: a barrier needs whole transactions."""
    both = students(transactional=True).union(students())
    assert choose_strategy(both, ["id"]).strategy == "retract"
    assert (
        choose_strategy(students(transactional=True).union(students(transactional=True)), ["id"]).strategy == "barrier"
    )


def test_after_a_shuffle_rows_have_to_be_sorted(students):
    """K25: positions restore the order, but a target does not know it."""
    verdict = choose_strategy(students(positions=True).repartition("level"), ["id"])
    assert (verdict.strategy, verdict.order.names) == ("position", ("_split", "_pos"))
    assert verdict.reason.startswith("rows within (id) have to be sorted again after RepartitionByExpression [level#")


def test_an_asserted_upsert_key_is_in_order(students):
    """C6: the user vouches for it."""
    hidden = students().mapInArrow(lambda batches: batches, students().schema)
    with pytest.raises(ConfigurationError, match="may have been left out by MapInArrow"):
        choose_strategy(hidden, ["id"])
    assert choose_strategy(with_upsert_key(hidden, "id"), ["id"]).strategy == "none"


def test_a_key_that_does_not_keep_order_is_materialized(students):
    """K28, C7: key_by by another column."""
    assert choose_strategy(key_by(students(), "level", cdc=True), ["level"]).strategy == "retract"
    assert choose_strategy(key_by(students(), "id", "level", cdc=True), ["id", "level"]).strategy == "none"


def test_modes(students):
    """C9: none never, force always, also without a key."""
    assert choose_strategy(students().repartition(3), ["id"], mode="none").strategy == "none"
    assert choose_strategy(students(), ["id"], mode="force").strategy == "retract"
    assert choose_strategy(students(), [], mode="force").strategy == "retract"
    assert choose_strategy(students(), ["id"], mode="force", strategy="barrier").strategy == "barrier"
    assert choose_strategy(students(), ["id"], strategy="barrier").strategy == "none"
    assert choose_strategy(students().repartition(3), ["id"], strategy="barrier").strategy == "barrier"
    assert choose_strategy(students().repartition(3), ["id"], strategy="none").strategy == "none"


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"mode": "always"}, "mode"),
        ({"strategy": "signed"}, "strategy"),
        ({"mode": "none", "strategy": "retract"}, "strategy"),
        ({"mode": "force", "strategy": "none"}, "strategy"),
        ({"strategy": "sequence", "mode": "force"}, "sequence_by"),
        ({"strategy": "position", "mode": "force"}, "strategy"),
        ({"key": ["nr"]}, "key"),
        ({"key": []}, "key"),
    ],
)
def test_contradictions_are_named(students, given, option):
    """C9: with the option that is wrong."""
    arguments = dict(given)
    with pytest.raises(ConfigurationError) as caught:
        choose_strategy(students(), arguments.pop("key", ["id"]), **arguments)
    assert caught.value.option == option


UNREPEATABLE = {
    "u": lambda df: df.withColumn("u", F.uuid()),
    "n": lambda df: df.withColumn("n", F.date_trunc("hour", F.now())),
    "r": lambda df: df.withColumn("x", F.rand()).withColumn("r", F.col("x") + 1).drop("x"),
    "p": lambda df: df.withColumn("p", F.udf(lambda: 1, "int").asNondeterministic()()),
    "Filter": lambda df: df.filter(F.rand() < 0.5),
    "Filter (d": lambda df: df.withColumn("d", F.current_date()).filter("d > '2024-01-01'").drop("d"),
}


@pytest.mark.parametrize("name", UNREPEATABLE)
def test_what_is_another_value_each_time_is_refused_by_name(students, name):
    """C12: a retraction never finds the row that it retracts, and state grows for ever."""
    changes = UNREPEATABLE[name](students())
    with pytest.raises(ConfigurationError, match="another value (at each|for the old row)") as caught:
        choose_strategy(changes, ["level"])
    assert caught.value.message.startswith(f"'{name}")


def test_what_is_not_compared_may_be_another_value_each_time(students):
    """C12: with a sequence, in order, dropped again, or in rows that are never retracted."""
    shuffled = students().withColumn("u", F.uuid()).repartition(3)
    assert choose_strategy(shuffled, ["id"], sequence_by=["level"]).strategy == "sequence"
    assert choose_strategy(students().withColumn("u", F.uuid()), ["id"]).strategy == "none"
    assert choose_strategy(students().withColumn("u", F.uuid()).drop("u"), ["level"]).strategy == "retract"
    assert choose_strategy(rows(students()).withColumn("u", F.uuid()), ["level"]).strategy == "retract"


def test_operators_that_cannot_take_changes_are_refused(students):
    """C14: the choice asks for the mode of the changelog."""
    over = students().withColumn("r", F.row_number().over(Window.partitionBy("level").orderBy("name")))
    with pytest.raises(ConfigurationError, match="needs append-only rows"):
        choose_strategy(over, ["id"])
