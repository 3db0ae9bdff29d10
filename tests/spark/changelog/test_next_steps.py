# SPDX-License-Identifier: Apache-2.0
"""The next step that an error of a changelog names: it works when it is followed word for word."""

from __future__ import annotations

import pytest

import forebay
from forebay.changelog import changelog_join, from_changes, from_debezium, materialize, normalize
from forebay.errors import ConfigurationError
from forebay.spark.changelog.strategy import choose_strategy, fold_order

DDL = "id long, s string"
POSITIONED = f"{DDL}, _change_type string, _split string, _pos long"
MOVED = [
    (1, "open", "insert", "t/0", 1),
    (1, "open", "update_preimage", "t/0", 2),
    (1, "closed", "update_postimage", "t/0", 2),
]


def refused(function, *words):
    with pytest.raises(ConfigurationError) as caught:
        function()
    text = f"{caught.value.message} {caught.value.advice}"
    assert all(word in text for word in words), text
    return caught.value


def kafka(spark, topics, **options):
    reader = spark.readStream.format("forebay_kafka").option("kafka.bootstrap.servers", "127.0.0.1:1")
    reader = reader.option("changelogFormat", "debezium-json").option("valueSchema", DDL).option("keySchema", "id long")
    return reader.options(mode="FAILFAST", **topics, **options).load()


@pytest.mark.soak
def test_two_functions_with_one_state_are_refused_by_name(spark, tmp_path):
    forebay.register(spark)
    topics = [kafka(spark, {"subscribe": topic}) for topic in "ab"]
    one, other = (normalize(changes, "id", state_location=str(tmp_path)) for changes in topics)
    renamed = other.withColumnRenamed("s", "t")
    error = refused(lambda: changelog_join(one, renamed, "id", state_location=str(tmp_path)), "/normalize", "name='")
    assert error.option == "name"
    refused(lambda: normalize(one, "id", state_location=str(tmp_path)), "/normalize", "name='")
    twice = changelog_join(one, one.withColumnRenamed("s", "t"), "id", state_location=str(tmp_path))
    assert twice.columns[:3] == ["id", "s", "t"]  # the same function twice has one state


def test_the_next_step_for_changes_without_an_order_names_the_columns_that_are_gone(spark, tmp_path):
    forebay.register(spark)
    changes = kafka(spark, {"subscribe": "t"}, changelogSequence="lsn")
    for dropped, advice in (
        (("_pos", "_sequence"), "keep _split and _pos of the changelog up to here; or keep _sequence and _log"),
        (("_pos", "_log"), "keep _sequence and _log"),
    ):
        shuffled = changes.drop(*dropped).repartition(3)
        error = refused(lambda shuffled=shuffled: materialize(shuffled, "id"), advice, "give sequence_by columns")
        assert "normalize" not in error.advice
    words = spark.createDataFrame([("open", 1)], "s string, n int")
    joined = normalize(changes, "id", state_location=str(tmp_path)).join(words, "s", "left")
    assert choose_strategy(joined, ["id"]).strategy == "sequence"
    for function in (lambda df: materialize(df, "id"), lambda df: fold_order(df, ["id"], sequenced=False)):
        refused(lambda function=function: function(joined.drop("_commit_version")), "keep _commit_version")
    several = kafka(spark, {"subscribe": "a,b"}, changelogSequence="lsn")
    refused(lambda: materialize(several, "id"), "sequence_by='_sequence'")
    raw = from_debezium(spark.readStream.text(str(tmp_path)), DDL, key="id", mode="FAILFAST")
    error = refused(lambda: normalize(raw, "id"), "read the changelog with a sequence")
    assert "normalize" not in error.advice and "_pos" not in error.advice


def test_the_next_step_for_a_target_works(spark):
    forebay.register(spark)
    bare = kafka(spark, {"subscribe": "t"}).select("id", "s", "_change_type")
    error = refused(lambda: fold_order(bare, ["id"], sequenced=False), "keep these columns", "sequence_by")
    assert "materialize" not in error.advice  # it passes these changes on as they are
    changes = from_changes(spark.createDataFrame(MOVED, POSITIONED), "id", images="full", history="complete")
    refused(lambda: fold_order(changes, ["id"], sequenced=False), "materialize(changes, keys) first")
    refused(lambda: fold_order(changes, ["s"], sequenced=False), "apply materialize(changes, keys) first")
    order = fold_order(materialize(changes, "id"), ["id"], sequenced=False)
    assert order is not None and order.columns == ("_commit_version",)
    old = from_changes(changes.where("_change_type <> 'update_preimage'"), "id")
    refused(
        lambda: fold_order(old, ["s"], sequenced=False), "call normalize(changes, ['id'])", "; then apply materialize"
    )
    assert fold_order(materialize(normalize(old, ["id"]), "s"), ["s"], sequenced=False) is not None
