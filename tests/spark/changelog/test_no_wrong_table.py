# SPDX-License-Identifier: Apache-2.0
"""Changelogs of which something is missing: the table is right, or the query is refused with the next step."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 - as users write it

import forebay
from forebay.changelog import (
    changelog_join,
    deduplicate,
    from_changes,
    from_debezium,
    from_delta_cdf,
    from_is_deleted,
    from_upsert_kafka,
    latest_per_key,
    materialize,
    normalize,
    to_delta_cdf,
    to_is_deleted,
    to_upsert_kafka,
)
from forebay.errors import ConfigurationError, DataError, unwrap
from forebay.keys import KeySpec, describe_keys, guarantee, key_by, stamp, strip_keys
from forebay.sources.kafka import KafkaSource
from forebay.spark.changelog.converting import declare
from forebay.spark.changelog.strategy import choose_strategy, fold_order
from forebay.table.changelog.shape import ChangeTraits, Images, stamp_changes

DDL = "id long, s string"
OPEN, CLOSED = {"id": 1, "s": "open"}, {"id": 1, "s": "closed"}


def event(op, before, after, **source):
    return {"op": op, "before": before, "after": after, "source": {"ts_ms": 1, **source}}


def events(spark, *values):
    """Change events of one topic, as another source than forebay's gives them."""
    rows = [(json.dumps(value), "t", 0, place) for place, value in enumerate(values)]
    return spark.createDataFrame(rows, "value string, topic string, partition int, offset long")


def debezium(spark, *values, **options):
    """By default with whole old rows."""
    options = {"missing_before": "error", "mode": "FAILFAST"} | options
    return from_debezium(events(spark, *values), DDL, key="id", **options)


def table(df):
    """The payload of the rows, sorted."""
    return sorted(tuple(v for k, v in row.asDict().items() if k[0] != "_") for row in df.collect())


def refused(function, *words):
    with pytest.raises(ConfigurationError) as caught:
        function()
    text = f"{caught.value.message} {caught.value.advice}"
    assert all(word in text for word in words), text
    return caught.value


class Levels(forebay.SimpleSource):
    """Whole changes of one row, in order, in one split."""

    name: ClassVar[str] = "levels_in_order"

    def schema(self):
        columns = pa.schema({"id": pa.int64(), "level": pa.int64(), "_change_type": pa.string()})
        return stamp_changes(stamp(columns, KeySpec(("id",), ("id",))), images="full")

    def read(self, split):
        yield {"id": 1, "level": 20, "_change_type": "insert"}
        yield {"id": 1, "level": 20, "_change_type": "update_preimage"}
        yield {"id": 1, "level": 10, "_change_type": "update_postimage"}


# ---- order: what is comparable


def kafka(spark, topics, **options):
    reader = spark.readStream.format("forebay_kafka").option("kafka.bootstrap.servers", "127.0.0.1:1")
    reader = reader.option("changelogFormat", "debezium-json").option("valueSchema", DDL).option("keySchema", "id long")
    return reader.options(**topics, **options).load()


def test_two_topics_in_one_source_have_no_order_between_them(spark):
    """1: a row that moves from one topic to the other would be deleted after it was inserted."""
    forebay.register(spark)
    assert choose_strategy(kafka(spark, {"subscribe": "shard1"}), ["id"]).strategy == "none"
    for topics in ({"subscribe": "shard1,shard2"}, {"subscribePattern": "shard.*"}):
        for options in ({}, {"changelogSequence": "lsn"}):
            changes = kafka(spark, topics, **options)
            refused(lambda changes=changes: choose_strategy(changes, ["id"]), "is the newest one", "sequence_by")
            refused(lambda changes=changes: fold_order(changes, ["id"], sequenced=False), "is the newest one")
            assert options or str(guarantee(changes)).startswith("PER_SPLIT")
    sequenced = kafka(spark, {"subscribe": "shard1,shard2"}, changelogSequence="lsn")
    assert choose_strategy(sequenced, ["id"], sequence_by=["_sequence"]).strategy == "sequence"


SEQUENCED = "id long, v int, _change_type string, _sequence long"


def test_the_sequences_of_two_databases_are_not_comparable(spark):
    """2a: each database has its own log."""
    one = spark.createDataFrame([(1, 9, "insert", 9000), (1, 9, "delete", 9001)], SEQUENCED)
    other = spark.createDataFrame([(1, 9, "insert", 500)], SEQUENCED)
    for declared in (lambda df: df, lambda df: from_changes(df, "id", images="full")):
        both = declared(one).unionByName(declared(other))
        refused(lambda both=both: materialize(both, key="id"))
        refused(lambda both=both: latest_per_key(both, "id"))
    whole = [from_changes(df, "id", images="full", history="complete") for df in (one, other)]
    assert table(materialize(whole[0].unionByName(whole[1]), key="id")) == [(1, 9)]


def test_the_versions_of_two_tables_are_not_comparable(spark):
    """2b."""
    schema = "id long, v int, _change_type string, _commit_version long"
    feeds = [[(1, 9, "insert", 70), (1, 9, "delete", 71)], [(1, 9, "insert", 5)]]
    one, other = (from_delta_cdf(spark.createDataFrame(feed, schema), key="id") for feed in feeds)
    assert choose_strategy(one, ["id"]).strategy == "sequence"
    refused(lambda: materialize(one.unionByName(other), key="id"), "different logs")


def test_a_key_that_several_rows_of_the_source_share_is_never_ordered_by_a_sequence(spark):
    """2d: the second live row would not come back when the newest one is deleted."""
    rows = [(1, 5, "insert", 1), (2, 5, "insert", 2), (2, 5, "delete", 3)]
    changes = spark.createDataFrame(rows, SEQUENCED)
    declared = from_changes(changes, "id", images="full")
    for given in ({}, {"sequence_by": "_sequence"}, {"strategy": "sequence"}):
        refused(
            lambda given=given: materialize(declared, key="v", **given), "several rows", "normalize(changes, ['id'])"
        )
    assert table(materialize(normalize(declared, "id"), key="v")) == [(1, 5)]


def hinted(spark):
    levels = spark.createDataFrame([(10, "a"), (20, "b")], "n long, title string")
    names = spark.createDataFrame([("a", 1), ("b", 2)], "tt string, x long")
    return levels, levels.join(F.broadcast(names), levels["title"] == names["tt"])


BROADCASTS = {
    "inside a join": lambda levels, inner: inner,
    "overridden": lambda levels, inner: levels.hint("broadcast").hint("merge"),
    "overridden by a hash join": lambda levels, inner: levels.hint("broadcast").hint("shuffle_hash"),
    "inside a union": lambda levels, inner: F.broadcast(levels).union(levels.limit(0)),
}


@pytest.mark.parametrize("name", BROADCASTS)
def test_a_broadcast_that_spark_does_not_follow_keeps_no_order(spark, name):
    """3: Spark drops hints below joins and unions, and the outer one of two wins."""
    changes = forebay.read(spark, Levels())
    lookup = BROADCASTS[name](*hinted(spark))
    joined = changes.join(lookup, changes["level"] == lookup["n"])
    refused(lambda: materialize(joined, key="id"), "no order is promised", "Join")
    assert "Join" in str(guarantee(joined))
    both = F.broadcast(changes).join(F.broadcast(hinted(spark)[0]), F.col("level") == F.col("n"))
    refused(lambda: materialize(both, key="id"))


def test_a_broadcast_that_spark_follows_keeps_order(spark):
    changes = forebay.read(spark, Levels())
    levels, _ = hinted(spark)
    for lookup in (
        levels.hint("broadcast"),
        F.broadcast(levels).where("n > 0"),
        levels.hint("merge").hint("broadcast"),
    ):
        for how in ("inner", "left", "left_semi"):
            joined = changes.join(lookup, changes["level"] == lookup["n"], how)
            assert choose_strategy(joined, ["id"]).strategy == "none"
    refused(
        lambda: choose_strategy(changes.join(levels.hint("broadcast"), F.col("level") == F.col("n"), "full"), ["id"])
    )


def test_a_subquery_may_be_a_join(spark):
    """Spark replaces it by one, which shuffles and filters."""
    hinted(spark)[0].createOrReplaceTempView("levels_of_a_subquery")
    changes = forebay.read(spark, Levels())
    refused(lambda: materialize(changes.where(F.expr("level IN (SELECT n FROM levels_of_a_subquery)")), key="id"))
    scalar = changes.withColumn("t", F.expr("(SELECT max(title) FROM levels_of_a_subquery WHERE n = level)"))
    refused(lambda: materialize(scalar, key="id"))


def test_groups_by_more_columns_than_the_targets_key_are_refused(spark):
    """10: a group for each name; which of them is the last one is chance."""
    rows = spark.readStream.format("rate").load().selectExpr("value AS id", "'x' AS name", "timestamp AS at")
    for groups in (rows.groupBy("id", "name"), rows.groupBy(F.window("at", "1 hour"), "id")):
        counts = groups.count()
        refused(lambda counts=counts: choose_strategy(counts, ["id"]), "several rows")
        refused(lambda counts=counts: fold_order(counts, ["id"], sequenced=False), "several rows")
    assert choose_strategy(rows.groupBy("id").count(), ["id"]).strategy == "none"


def test_what_reorders_or_drops_changes_is_noticed(spark):
    """21."""
    changes = forebay.read(spark, Levels())
    refused(lambda: materialize(changes.dropDuplicates(["id"]), key="id"), "leaves some out")
    refused(lambda: materialize(changes.sortWithinPartitions("level"), key="id"), "no order is promised", "Sort")
    for drops in (lambda df: df.limit(2), lambda df: df.sample(0.5), lambda df: df.distinct()):
        refused(lambda drops=drops: materialize(drops(changes), key="id"), "leaves some out")
    refused(lambda: materialize(changes.drop("_change_type"), key="id"), "drops _change_type")
    refused(lambda: materialize(changes.withColumn("_change_type", F.lit("insert")), key="id"), "drops _change_type")


def test_positions_that_were_dropped_are_missed_before_the_query_starts(spark):
    """16: changes arrive in order, but a target sorts a micro-batch again."""
    forebay.register(spark)
    changes = kafka(spark, {"subscribe": "t"})
    order = fold_order(changes, ["id"], sequenced=False)
    assert order is not None and order.names == ("_split", "_pos")
    bare = materialize(changes, key="id").select("id", "s", "_change_type")
    error = refused(lambda: fold_order(bare, ["id"], sequenced=False), "_split and _pos")
    assert error.option == "keys"
    reversed_ = changes.withColumn("_pos", -F.col("_pos"))
    refused(lambda: fold_order(reversed_, ["id"], sequenced=False), "_split and _pos")


# ---- images: whether there are old rows


def upserts(spark):
    values = [
        ('{"id":1}', '{"s":"open"}'),
        ('{"id":1}', '{"s":"closed"}'),
        ('{"id":2}', '{"s":"open"}'),
        ('{"id":2}', None),
    ]
    rows = [(*value, "t", 0, place) for place, value in enumerate(values)]
    df = spark.createDataFrame(rows, "key string, value string, topic string, partition int, offset long")
    return from_upsert_kafka(df, DDL, key="id", mode="FAILFAST")


def flags(spark):
    rows = [
        (1, "open", False, "s", 1),
        (1, "closed", False, "s", 2),
        (2, "open", False, "s", 3),
        (2, None, True, "s", 4),
    ]
    return from_is_deleted(
        spark.createDataFrame(rows, f"{DDL}, is_deleted boolean, _split string, _pos long"), key="id"
    )


def default_identity(spark):
    key_alone = event("d", {"id": 2, "s": None}, None)
    two = {"id": 2, "s": "open"}
    changes = [event("c", None, OPEN), event("u", None, CLOSED), event("c", None, two), key_alone]
    return debezium(spark, *changes, missing_before="postimage")


UPSERTS = {"upsert-Kafka": upserts, "flags": flags, "the default replica identity": default_identity}


@pytest.mark.soak("the default replica identity", "flags")
@pytest.mark.parametrize("name", UPSERTS)
def test_changes_without_old_rows_are_never_counted(spark, name):
    """4: a retraction with the same columns never comes, so deleted rows would stay for ever."""
    changes = UPSERTS[name](spark)
    shuffled = changes.repartition(3)
    assert choose_strategy(shuffled, ["id"]).strategy == "position"
    assert table(materialize(shuffled, key="id")) == [(1, "closed")]
    refused(lambda: materialize(shuffled, key="id", strategy="retract"), "needs whole old rows")
    refused(lambda: materialize(shuffled.drop("_pos"), key="id"), "have no old rows")
    refused(lambda: materialize(changes.union(changes), key="id"))
    refused(lambda: materialize(changes, key=["id", "s"]), "more columns", "normalize(changes, ['id'])")
    assert "images: upsert" in describe_keys(changes)


@pytest.mark.soak("upsert-Kafka", "flags")
@pytest.mark.parametrize("name", UPSERTS)
def test_a_filter_over_changes_without_old_rows_is_refused(spark, name):
    """6: the row that leaves the filter would stay."""
    changes = UPSERTS[name](spark)
    condition = "s = 'open'"
    for function in (
        lambda df: materialize(df, key="id"),
        lambda df: latest_per_key(df, "id"),
        lambda df: normalize(df, "id"),
        lambda df: to_upsert_kafka(df, "id"),
        to_is_deleted,
    ):
        refused(
            lambda function=function: function(changes.where(condition)), "ceases to meet", "normalize(changes, key)"
        )
    assert table(materialize(normalize(changes, "id").where(condition), key="id")) == []
    assert table(materialize(changes.where("id > 1"), key="id")) == []  # a condition of the key alone
    levels = spark.createDataFrame([("open", 1)], "word string, n int")
    refused(lambda: materialize(changes.join(levels, changes["s"] == levels["word"]), key="id"), "ceases to meet")
    refused(lambda: materialize(changes.withColumn("e", F.explode(F.array("s"))), key="id"), "not made any more")


def test_a_having_over_groups_is_a_filter_over_changes_without_old_rows(spark):
    """6."""
    rows = spark.readStream.format("rate").load().selectExpr("value AS id")
    groups = rows.groupBy("id").count()
    refused(lambda: choose_strategy(groups.where("count < 2"), ["id"]), "ceases to meet", "normalize")
    refused(lambda: fold_order(groups.where("count < 2"), ["id"], sequenced=False), "ceases to meet")


@pytest.mark.soak
def test_a_filter_over_whole_changes_removes_the_row_that_leaves_it(spark):
    """A plain filter, a projection and a lookup over whole images of one keyed topic."""
    changes = debezium(spark, event("c", None, OPEN), event("u", OPEN, CLOSED))
    assert table(materialize(changes.where("s = 'open'"), key="id")) == []
    assert table(materialize(changes.select("id", "_change_type", "_split", "_pos"), key="id")) == [(1,)]
    lookup = spark.createDataFrame([("closed", 7), ("open", 8)], "word string, n int")
    joined = changes.join(lookup, changes["s"] == lookup["word"]).drop("word")
    assert table(materialize(joined, key="id")) == [(1, "closed", 7)]
    assert (
        table(materialize(changes.where("_corrupt_record IS NULL"), key="id")) == [(1, "closed")]
        if ("_corrupt_record" in changes.columns)
        else True
    )


def test_malformed_events_may_be_left_out(spark):
    """Their kind is NULL; that is no filter over changes, also without old rows."""
    changes = debezium(spark, event("c", None, OPEN), "no event", missing_before="postimage", mode="PERMISSIVE")
    for good in (changes.where("_corrupt_record IS NULL"), changes.where("_change_type IS NOT NULL")):
        assert table(materialize(good.drop("_corrupt_record"), key="id")) == [(1, "open")]
    refused(lambda: materialize(changes.where("_corrupt_record IS NOT NULL"), key="id"))


@pytest.mark.soak
def test_functions_after_materialize_get_whole_old_rows(spark):
    """6, 7: `preimages` is the default."""
    rows = [(1, 10, "insert", 1), (1, 10, "update_preimage", 2), (1, 20, "update_postimage", 2)]
    changes = from_changes(spark.createDataFrame(rows, "id long, k long, _change_type string, _sequence long"), "id")
    words = spark.createDataFrame([(10, "a"), (20, "b")], "k long, t string")
    for rows_of_now in (materialize(changes, "id"), latest_per_key(changes, "id"), normalize(changes, "id")):
        assert table(changelog_join(rows_of_now, words, on="k")) == [(20, 1, "b")]
        assert table(materialize(rows_of_now, "k")) == [(1, 20)]
        assert table(materialize(rows_of_now.where("k = 10"), "id")) == []
        sign = F.when(F.col("_change_type").isin("insert", "update_postimage"), 1).otherwise(-1)
        counts = rows_of_now.groupBy("k").agg(F.sum(sign).alias("n")).where("n > 0")
        assert table(materialize(counts, "k")) == [(20, 1)]
    old = latest_per_key(changes, "id", preimages=False)
    refused(lambda: changelog_join(old, words, on="k"), "have no old rows", "normalize(changes, ['id'])")
    refused(lambda: materialize(old, "k"), "several rows")
    refused(lambda: materialize(old.where("k = 10"), "id"), "ceases to meet")
    for left in (changes, from_changes(changes, "id", images="full")):
        refused(lambda left=left: changelog_join(left, words, on="k"), "normalize(changes, ['id'])")
    refused(lambda: materialize(changes.groupBy("k").count(), "k"), "takes changes for rows")
    refused(lambda: materialize(changes.groupBy("k").agg(F.sum(sign)), "k"), "exactly once")


# ---- history: repeats and late beginnings


@pytest.mark.soak
def test_repeats_and_late_beginnings_are_not_counted(spark):
    """5: the newest change by position is right for all of them."""
    two = [(event("c", None, OPEN), event("c", None, OPEN), event("d", OPEN, None)), []]  # delivered twice
    snapshot = [
        (event("c", None, OPEN), event("r", None, OPEN), event("u", OPEN, CLOSED), event("d", CLOSED, None)),
        [],
    ]
    deletes = [
        (event("c", None, OPEN), event("d", OPEN, None), event("d", OPEN, None), event("c", None, OPEN)),
        [(1, "open")],
    ]
    late = [(event("u", OPEN, CLOSED), event("u", CLOSED, OPEN)), [(1, "open")]]  # from latest, or compacted
    for history, expected in (two, snapshot, deletes, late):
        shuffled = debezium(spark, *history).repartition(3)
        assert table(materialize(shuffled, key="id")) == expected
        refused(lambda shuffled=shuffled: materialize(shuffled.drop("_pos"), key="id"), "history is unknown")
    complete = debezium(spark, *late[0], history="complete").repartition(3).drop("_pos")
    assert choose_strategy(complete, ["id"]).strategy == "retract"


def test_a_table_that_is_looked_up_may_change_between_two_runs(spark):
    """5f: in a stream, a retraction would not find the row that was joined with the earlier title."""
    forebay.register(spark)
    changes = kafka(
        spark,
        {"subscribe": "t"},
        changelogMissingBefore="error",
        changelogHistory="complete",
        startingOffsets="earliest",
    )
    words = spark.createDataFrame([("open", 1)], "word string, n int")
    joined = changes.join(words, changes["s"] == words["word"], "left")
    assert choose_strategy(joined, ["id"]).strategy == "position"
    refused(lambda: choose_strategy(joined.drop("_pos"), ["id"]), "other values when it is retracted")
    assert choose_strategy(changes.repartition(3).drop("_pos"), ["id"]).strategy == "retract"


def test_a_complete_history_begins_at_the_beginning():
    """5d: a stream of Kafka begins at `latest` by default."""
    given = {"kafka": {"bootstrap.servers": "h:1"}, "subscribe": ["t"], "changelog_format": "debezium-json"}
    given |= {"value_schema": DDL, "changelog_history": "complete"}
    assert refused(lambda: KafkaSource(**given), "startingOffsets=earliest").option == "startingOffsets"
    assert KafkaSource(**given, starting_offsets="earliest").schema()


def test_a_complete_history_leaves_nothing_out(spark):
    """A change that was lost or dropped would only be a line in the log."""
    given = {"kafka": {"bootstrap.servers": "h:1"}, "subscribe": ["t"], "changelog_format": "debezium-json"}
    given |= {"value_schema": DDL, "changelog_history": "complete", "starting_offsets": "earliest"}
    for name, option in (("failOnDataLoss", {"fail_on_data_loss": False}), ("mode", {"mode": "DROPMALFORMED"})):
        error = refused(lambda option=option: KafkaSource(**given, **option), "every change", f"remove {name}")
        assert error.option == name
        assert KafkaSource(**given | {"changelog_history": "unknown"}, **option).schema()
    refused(lambda: debezium(spark, mode="DROPMALFORMED", history="complete"), "every change", "mode='FAILFAST'")


# ---- places in two lanes are not compared


def test_a_key_in_two_splits_is_an_error_when_it_runs(spark):
    """12: a topic whose messages have no key, or whose partitions grew."""
    schema = f"{DDL}, _change_type string, _split string, _pos long"
    rows = [(1, "closed", "insert", "t/0", 2), (1, "open", "insert", "t/1", 9), (2, "x", "insert", "t/1", 3)]
    changes = from_changes(spark.createDataFrame(rows, schema), "id").repartition(3)
    with pytest.raises(Exception, match="t/0 and t/1|t/1 and t/0") as raised:
        materialize(changes, key="id").collect()
    error = unwrap(raised.value)
    assert isinstance(error, DataError) and "(id=1)" in error.message and "sequence_by" in error.advice


def test_a_key_in_two_logs_is_an_error_when_it_runs(spark):
    """9: after a failover, numbers of another server would be compared."""
    schema = f"{DDL}, _change_type string, _sequence string, _log string"
    rows = [(1, "open", "insert", "bin.0000900", "m/1"), (1, "closed", "update_postimage", "bin.0000002", "m/2")]
    changes = from_changes(spark.createDataFrame(rows, schema), "id").repartition(2)
    with pytest.raises(Exception, match="m/1 and m/2|m/2 and m/1") as raised:
        materialize(changes, key="id").collect()
    assert isinstance(unwrap(raised.value), DataError)


# ---- what is not a column of the row, or not known of it


POSITIONED = f"{DDL}, _change_type string, _split string, _pos long"
MOVED = [
    (1, "open", "insert", "t/0", 1),
    (1, "open", "update_preimage", "t/0", 2),
    (1, "closed", "update_postimage", "t/0", 2),
]


@pytest.mark.parametrize("kinds", [("insert", "delete"), ("delete", "insert")])
def test_a_delete_and_a_row_of_one_micro_batch_have_no_order(micro_batches, kinds):
    """Nothing orders them but the micro-batch, unless the delete is of the row that was there before."""
    traits = ChangeTraits(Images.UPSERT)

    def newest(df, state):
        return latest_per_key(declare(df, traits, ("id",), ordered=True), "id", state_location=state)

    stream = micro_batches(newest, f"{DDL}, _change_type string")
    stream.write([(1, "open", "insert")])
    stream.write([(1, "open", "delete"), (1, "closed", "insert")])
    assert [row[1] for row in stream.run()[1] if row[2] == "update_postimage"] == ["closed"]
    stream.write([(2, "open", kind) for kind in kinds])
    with pytest.raises(Exception, match="which change is the last one") as raised:
        stream.run()
    error = unwrap(raised.value)
    assert isinstance(error, DataError) and "sequence_by" in error.advice


def test_a_filter_over_undeclared_changes_is_refused(spark):
    """The newest row of a key may be the one that was left out, whatever orders the changes."""
    changes = spark.createDataFrame(
        [(1, "open", "insert", 1), (1, "closed", "insert", 2)], f"{DDL}, _change_type string, _sequence long"
    )
    opened = changes.where("s = 'open'")
    for function in (latest_per_key, materialize):
        refused(lambda function=function: function(opened, "id", sequence_by="_sequence"), "left out", "from_changes")
    for converted in (to_is_deleted, to_delta_cdf, lambda df: to_upsert_kafka(df, "id", ordered=True)):
        assert converted(changes).columns
        refused(lambda converted=converted: converted(opened), "left out", "from_changes")


def test_columns_that_belong_to_a_change_are_not_of_its_row(spark):
    """The time of a message differs for the old row of an update, so that it is never retracted."""
    values = [json.dumps(event("c", None, OPEN)), json.dumps(event("u", OPEN, CLOSED))]
    rows = [(value, "t", 0, place, place) for place, value in enumerate(values)]
    df = spark.createDataFrame(rows, "value string, topic string, partition int, offset long, at int")
    changes = from_debezium(df, DDL, key="id", keep=["at"], missing_before="error", mode="FAILFAST", history="complete")
    shuffled = changes.repartition(3)
    refused(lambda: materialize(shuffled, "at"), "'at'")
    refused(lambda: materialize(shuffled.drop("_pos"), "s"), "'at'", "drop it")
    assert table(materialize(shuffled.drop("_pos", "at"), "s")) == [(1, "closed")]
    positions = from_changes(spark.createDataFrame(MOVED, POSITIONED), "id", images="full", history="complete")
    refused(lambda: materialize(positions.withColumn("p", F.col("_pos") + 1), "s"), "'p'")


def test_a_key_that_a_stream_looks_up_is_refused(spark):
    """The table may have changed when the row is deleted, and the change then misses its row."""
    forebay.register(spark)
    changes = kafka(spark, {"subscribe": "t"})
    words = key_by(spark.createDataFrame([("open", 1)], "word string, n int"), "word", cdc=True)
    joined = changes.join(words.hint("broadcast"), changes["s"] == words["word"], "left")
    for function in (latest_per_key, choose_strategy):
        refused(lambda function=function: function(joined, ["n"]))
    refused(lambda: choose_strategy(joined, ["id", "n"], sequence_by=["_pos"]), "'n'", "columns of the changelog")


def test_changes_are_no_rows_for_subqueries_lookups_and_set_operators(spark):
    changes = from_changes(spark.createDataFrame(MOVED, POSITIONED), "id", images="full", history="complete")
    changes.createOrReplaceTempView("changes_of_a_subquery")
    rows = spark.readStream.format("rate").load().selectExpr("value AS id")
    for query in (
        spark.sql("SELECT 1 AS id WHERE EXISTS (SELECT 1 FROM changes_of_a_subquery WHERE s = 'open')"),
        rows.join(changes.select("id", "_change_type").withColumnRenamed("id", "other"), F.col("id") == F.col("other")),
    ):
        refused(lambda query=query: latest_per_key(query, "id"))
    plain = spark.createDataFrame([], POSITIONED)
    for query in (changes.intersect(plain), changes.exceptAll(plain), plain.exceptAll(changes)):
        refused(lambda query=query: materialize(query, "id"))


def test_only_signed_sums_of_whole_changes_are_groups(spark):
    changes = from_changes(spark.createDataFrame(MOVED, POSITIONED), "id", images="full", history="complete")
    sign = F.when(F.col("_change_type").isin("insert", "update_postimage"), 1).otherwise(-1)
    assert table(materialize(changes.groupBy("s").agg(F.sum(sign).alias("n")).where("n > 0"), "s")) == [("closed", 1)]
    for column in (F.max(sign), F.sum("id"), F.sum_distinct(sign), F.count("_change_type")):
        refused(lambda column=column: materialize(changes.groupBy("s").agg(column), "s"), "a sum with a sign")
    for groups in (changes.groupBy("s", "_pos"), changes.groupBy("_change_type"), changes.groupBy(F.rand() > 0.5)):
        refused(lambda groups=groups: materialize(groups.agg(F.sum(sign)), groups.agg(F.sum(sign)).columns[0]))


def test_the_place_of_a_change_decides_nothing(spark):
    changes = from_changes(spark.createDataFrame(MOVED, POSITIONED), "id", images="full", history="complete")
    numbers = spark.createDataFrame([(1, "a")], "n long, title string")
    for query in (
        changes.where("_pos = 1"),
        changes.where("_change_type <> 'insert'"),
        changes.join(numbers.hint("broadcast"), F.col("_pos") == F.col("n"), "left"),
        changes.where(F.rand() > 0.5),
        changes.withColumn("e", F.explode(F.sequence(F.lit(1), (F.rand() * 3).cast("int") + 1))),
    ):
        refused(lambda query=query: materialize(query, "s"))


def test_ordered_vouches_for_the_order_alone(spark):
    """`ordered=True` says nothing of a key that several rows of the source share."""
    changes = from_changes(spark.createDataFrame(MOVED, POSITIONED), "id", images="full")
    assert to_upsert_kafka(changes.repartition(3), "id", ordered=True).count() == 3
    refused(lambda: to_upsert_kafka(changes.repartition(3), "s", ordered=True), "several rows")


def test_declarations_of_a_schema_go_with_strip_keys(spark):
    """A schema that is copied to other rows would declare them."""
    changes = from_changes(spark.createDataFrame(MOVED, POSITIONED), "id", images="full", history="complete")
    other = spark.createDataFrame([], strip_keys(changes.schema))
    assert "images" in describe_keys(changes)
    refused(lambda: materialize(other, "id"), "from_changes")


# ---- what takes changes for rows, or leaves some out


def kept_open(batches):
    """A function of a user that filters."""
    for batch in batches:
        yield batch[batch["s"] == "open"]


def test_a_function_over_changes_may_filter_them(spark):
    """The newest change of a row may be the one that the function left out."""
    changes = from_changes(
        spark.createDataFrame([row for row in MOVED if row[2] != "update_preimage"], POSITIONED), "id"
    )
    for query in (
        changes.mapInPandas(kept_open, POSITIONED),
        changes.groupBy("s").applyInPandas(lambda group: group[group["s"] == "open"], POSITIONED),
        changes.mapInPandas(kept_open, POSITIONED).withColumn("n", F.lit(1)).repartition(2),
    ):
        for function in (
            lambda df: materialize(df, "id", sequence_by="_pos"),
            lambda df: latest_per_key(df, "id", sequence_by="_pos"),
            lambda df: latest_per_key(df, "id"),
            lambda df: fold_order(df, ["id"], sequenced=True),
            to_is_deleted,
        ):
            refused(lambda function=function, query=query: function(query), "left out", "from_changes(df")
    declared = from_changes(changes.mapInPandas(lambda batches: batches, POSITIONED), "id")
    assert table(materialize(declared, "id")) == [(1, "closed")]
    rows = spark.createDataFrame([(1, "open", "t/0", 1)], "id long, s string, _split string, _pos long")
    made = rows.mapInPandas(lambda batches: (one.assign(_change_type="insert") for one in batches), POSITIONED)
    assert table(materialize(made, "id", sequence_by="_pos")) == [(1, "open")]  # the function makes the changes


KIND = "_change_type"
SIGN = f"CASE WHEN {KIND} IN ('insert', 'update_postimage') THEN 1 ELSE -1 END"
NO_SIGNS = [
    f"sum(CASE {KIND} WHEN 'insert' THEN 1 WHEN 'delete' THEN -1 ELSE 0 END)",
    f"sum(CASE {KIND} WHEN 'insert' THEN 1 WHEN 'delete' THEN -1 END)",
    f"sum(IF({KIND} = 'insert', 1, -1))",
    f"sum({SIGN}) FILTER (WHERE {KIND} = 'insert')",
    f"sum(({SIGN}) * _pos)",
    f"sum(({SIGN}) * ({SIGN}))",
    f"sum(({SIGN}) + 1)",
    f"sum(IF({KIND} IN ('insert', 'update_postimage'), n, -id))",
    f"sum(IF(n > 0, {SIGN}, 1))",
    f"sum(CAST(({SIGN}) AS int) % 2)",
    f"sum(length({KIND}))",
    f"sum(IF({KIND} LIKE '%insert', 1, -1))",
]
SIGNS = [
    f"sum({SIGN})",
    f"sum(IF(NOT ({KIND} = 'delete' OR 'update_preimage' = {KIND}), 1, -1))",
    f"sum(CASE {KIND} WHEN 'insert' THEN 1 WHEN 'update_postimage' THEN 1 ELSE -1 END) FILTER (WHERE n > 0)",
    f"sum(CASE WHEN n > 0 THEN CAST({SIGN} AS double) ELSE 0 END)",
    "sum(sign)",
]
SUMS = [
    f"sum(({SIGN}) * n)",
    f"sum(IF({KIND} IN ('insert', 'update_postimage'), n, -n))",
    f"sum(IF({KIND} IN ('delete', 'update_preimage'), -1.0, 1.0) * coalesce(n, 0))",
    f"sum(-(CASE WHEN {KIND} IN ('insert', 'update_postimage') THEN n * -2 ELSE 2 * n END)) / 2",
    "sum(sign * n)",
]


def moves(spark):
    """Row 1 moves from level 10 to level 20; row 2 stays at level 10; row 3 was deleted there."""
    rows = [
        (1, 10, 5, "insert"),
        (2, 10, 7, "insert"),
        (3, 10, 9, "insert"),
        (1, 10, 5, "update_preimage"),
        (1, 20, 5, "update_postimage"),
        (3, 10, 9, "delete"),
    ]
    positioned = [(*row, "t/0", place) for place, row in enumerate(rows)]
    df = spark.createDataFrame(positioned, f"id long, level long, n long, {KIND} string, _split string, _pos long")
    return from_changes(df, "id", images="full", history="complete")


@pytest.mark.soak
def test_what_a_change_adds_its_retraction_takes_away(spark):
    """An aggregate that counts inserts and deletes alone misses rows that move from group to group."""
    changes = moves(spark).withColumn("sign", F.expr(SIGN))
    for total in NO_SIGNS:
        refused(lambda total=total: materialize(changes.groupBy("level").agg(F.expr(total)), "level"), "with a sign")
    for expected, totals in (([(10, 1.0), (20, 1.0)], SIGNS), ([(10, 7.0), (20, 5.0)], SUMS)):
        for total in totals:
            sums = changes.groupBy("level").agg(F.expr(f"CAST({total} AS double)").alias("total"))
            assert table(materialize(sums, "level")) == expected, total
    changes.where("id <> 2").createOrReplaceTempView("changes_of_levels")
    groups = spark.sql("SELECT level FROM changes_of_levels GROUP BY level")  # level 10 has no row any more
    refused(lambda: materialize(groups, "level"), "takes changes for rows", SIGN.removeprefix("CASE"))


def test_the_sums_of_the_page_are_right(spark):
    page = (Path(__file__).parents[3] / "docs" / "materialize.md").read_text()
    (snippet,) = re.findall(r"```python\n([^`]*groups = [^`]*)```", page)
    names = {"changes": moves(spark).withColumnRenamed("n", "points")}
    exec(snippet, names)
    assert table(materialize(names["groups"], "level")) == [(10, 1, 7), (20, 1, 5)]


def test_a_target_takes_no_changes_for_rows(spark):
    """`sequence_by` orders the changes that are there; it does not bring back those that are not."""
    undeclared = spark.createDataFrame(MOVED, POSITIONED)
    changes = from_changes(undeclared, "id", images="full", history="complete")
    for query, key in (
        (undeclared.where("s = 'open'"), ["id"]),
        (changes.withColumn("place", F.col("_pos") * 2), ["id", "place"]),
        (changes, ["id", "_pos"]),
        (undeclared.withColumn("r", F.expr("uuid()")), ["r"]),
    ):
        refused(lambda query=query, key=key: fold_order(query, key, sequenced=True))
    renamed = changes.withColumnRenamed("_change_type", "op")
    for query in (renamed, changes.withColumn("dead", F.col("_change_type") == "delete").drop("_change_type")):
        refused(lambda query=query: fold_order(query, ["id"], sequenced=True), "apply_as_deletes", "_change_type")
        assert fold_order(query, ["id"], sequenced=True, flagged=True) is None
    refused(lambda: deduplicate(renamed, "id"), "are changes")
    refused(lambda: deduplicate(changes.drop("_change_type"), "id"), "drops _change_type")
    assert table(deduplicate(spark.createDataFrame([(1, "open")], DDL), "id")) == [(1, "open")]


def test_a_change_without_its_sequence_has_no_place(spark):
    """A delete that has the key alone would be older than its row, and the row would stay."""
    schema = f"{DDL}, at long, _change_type string"
    rows = [(1, "open", 7, "insert"), (1, None, None, "delete")]
    changes = from_changes(spark.createDataFrame(rows, schema), "id")
    for function in (materialize, latest_per_key, normalize):
        with pytest.raises(Exception, match="'at' of sequence_by is NULL for the key") as raised:
            function(changes, "id", sequence_by="at").collect()
        error = unwrap(raised.value)
        assert isinstance(error, DataError) and '{"id":1}' in error.message and "also deletes" in error.advice
