# SPDX-License-Identifier: Apache-2.0
"""Stateful functions on real streaming queries."""

from __future__ import annotations

import random
import shutil
from datetime import timedelta

import pytest

from forebay.errors import ConfigurationError, unwrap
from forebay.spark.changelog.converting import from_changes, to_upsert_kafka
from forebay.spark.changelog.materialize import changelog_join, deduplicate, latest_per_key, materialize, normalize
from forebay.spark.keys.found_keys import keys_of
from forebay.spark.keys.set_keys import key_by
from forebay.table.changelog.shape import CHANGE_TYPES


def short(rows):
    kinds = dict(zip(CHANGE_TYPES, ("+I", "-U", "+U", "-D"), strict=True))
    return sorted(f"{kinds[row[-2]]}{row[1]}" for row in rows)


@pytest.mark.soak
def test_the_three_orders_of_the_join_give_flinks_changes(stream_of_files):
    """A2, C4, C8: each order is that of a key, with one change in each micro-batch."""
    cases = [
        (["+I10", "-U10", "+U20"], [["+I10"], ["-D10"], ["+I20"]]),
        (["+U20", "+I10", "-U10"], [["+I20"], ["+U10"], ["+U20"]]),
        (["+I10", "+U20", "-U10"], [["+I10"], ["+U20"], []]),
    ]
    query = stream_of_files(
        lambda df, state: materialize(
            df,
            "id",
            strategy="retract",
            state_location=state,
            on_missing_retraction="hold",
            preimages=False,
            shards=2,
        ),
    )
    words = {"+I": "insert", "-U": "update_preimage", "+U": "update_postimage"}
    names = {"10": "a1", "20": "b1"}
    for changes in zip(*(case for case, _ in cases), strict=True):
        query.write([(key, int(one[2:]), names[one[2:]], words[one[:2]]) for key, one in enumerate(changes)])
    found = [rows for _, rows in sorted(query.run().items())]
    for key, (_, outputs) in enumerate(cases):
        assert [short(row for row in rows if row[0] == key) for rows in found] == outputs


@pytest.mark.soak
def test_a_random_changelog_over_restarts(stream_of_files):
    """P2: arbitrary order, several queries one after the other on one checkpoint."""
    rng, live, changes = random.Random(7), {}, []
    for number in range(150):
        key = rng.randrange(40)
        row = (key, number % 9, f"n{number}")
        if key in live:
            changes.append((*live[key], "update_preimage"))
            changes.append((*row, "update_postimage"))
        else:
            changes.append((*row, "insert"))
        live[key] = row
        if rng.random() < 0.2:
            changes.append((*live.pop(key), "delete"))
    rng.shuffle(changes)
    query = stream_of_files(
        lambda df, state: materialize(df, ["id"], state_location=state, shards=3, strategy="retract")
    )
    view = {}
    while changes:
        for _ in range(3):
            query.write(changes[:40])
            changes = changes[40:]
        for _, rows in sorted(query.run().items()):
            for row in rows:
                if row[-2] in ("delete", "update_preimage"):
                    assert view.pop(row[0]) == row[:3]
                else:
                    view[row[0]] = row[:3]
    assert view == live


@pytest.mark.parametrize("given", [{"strategy": "none"}, {"mode": "none"}, {"mode": "none", "strategy": "none"}])
def test_the_strategy_none_passes_changes_on(spark, given):
    """C9: it is the choice of the caller; without state, also for a stream, and with kinds for plain rows."""
    changes = spark.sql("SELECT 1 AS id, 'delete' AS _change_type")
    assert materialize(changes, "id", **given).collect() == changes.collect()
    plain = materialize(changes.drop("_change_type"), "id", **given).collect()
    assert [tuple(row) for row in plain] == [(1, "insert")]
    assert materialize(spark.readStream.format("rate").load(), "value", **given).isStreaming


def test_the_strategy_none_is_not_forced(spark):
    """C9."""
    with pytest.raises(ConfigurationError, match="mode force and strategy none contradict one another"):
        materialize(spark.range(1), "id", mode="force", strategy="none")


def test_a_state_of_another_query_is_refused(stream_of_files, tmp_path):
    query = stream_of_files(lambda df, state: materialize(df, "id", state_location=state, strategy="retract"))
    query.write([(1, 1, "a", "insert")])
    query.run()
    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(Exception) as raised:  # noqa: PT011 - of Spark
        query.run()
    error = unwrap(raised.value)
    assert isinstance(error, ConfigurationError)
    assert "belongs to the query" in str(error)


@pytest.mark.soak
def test_latest_per_key_ignores_older_changes(micro_batches):
    """K8, F5."""
    query = micro_batches(lambda df, state: latest_per_key(df, "id", sequence_by="level", state_location=state))
    query.write([(1, 5, "new", "insert"), (2, 1, "x", "insert")])
    query.write([(1, 4, "old", "update_postimage"), (2, 3, "x", "delete")])
    query.write([(2, 2, "late", "update_postimage"), (1, 6, "newer", "update_postimage")])
    found = [sorted(row[:4] for row in rows) for _, rows in sorted(query.run().items())]
    assert found == [
        [(1, 5, "new", "insert"), (2, 1, "x", "insert")],
        [(2, 1, "x", "delete")],
        [(1, 5, "new", "update_preimage"), (1, 6, "newer", "update_postimage")],
    ]


@pytest.mark.soak
def test_an_available_now_query_with_a_time_to_live_ends(stream_of_files):
    """A16: no query waits for keys to expire; they do so when their shard next has rows."""
    query = stream_of_files(
        lambda df, state: latest_per_key(
            df, "id", sequence_by="level", state_ttl=timedelta(milliseconds=1), state_location=state, shards=1
        )
    )
    for level in (1, 2):
        query.write([(level, level, "a", "insert")])
    assert [short(rows) for _, rows in sorted(query.run().items())] == [["+I1"], ["+I2", "-D1"]]
    assert query.run() == {}


def test_normalize_completes_an_upsert_changelog(micro_batches):
    """A13, C16."""

    def whole(df, state):
        return normalize(from_changes(df, "id", ordered=True), "id", state_location=state)

    query = micro_batches(whole)
    query.write([(1, 1, "a", "update_postimage")])
    query.write([(1, 1, "b", "update_postimage"), (9, None, None, "delete")])
    query.write([(1, 1, "b", "update_postimage")])
    query.write([(1, None, None, "delete")])
    found = [[row[:4] for row in rows] for _, rows in sorted(query.run().items())]
    assert found == [
        [(1, 1, "a", "insert")],
        [(1, 1, "a", "update_preimage"), (1, 1, "b", "update_postimage")],
        [],
        [(1, 1, "b", "delete")],
    ]


def test_deduplicate_keeps_the_first_row(micro_batches):
    query = micro_batches(lambda df, state: deduplicate(df, "id", sequence_by="level", state_location=state))
    query.write([(1, 2, "b", "insert"), (1, 1, "a", "insert")])
    query.write([(1, 0, "late", "insert"), (2, 0, "c", "insert")])
    found = [sorted(rows) for _, rows in sorted(query.run().items())]
    assert found == [[(1, 1, "a")], [(2, 0, "c")]]


@pytest.mark.soak
def test_the_result_is_keyed_by_the_new_key_alone(spark):
    """K16, K19: rows keep no key of their source; the result is in order within its key."""
    df = key_by(
        spark.createDataFrame([(1, 1, "a", "insert")], "id long, level int, name string, _change_type string"),
        "level",
    )
    for result in (
        materialize(df, "id", strategy="retract"),
        latest_per_key(df, "id", sequence_by="level"),
        deduplicate(df, "id"),
    ):
        assert keys_of(result).primary == ("id",)
    assert materialize(materialize(df, "id", strategy="retract"), "id").collect() == [(1, 1, "a", "insert", 0)]


def test_names_with_dots_and_backticks(spark):
    """PySpark's `mapInArrow` takes them for syntax."""
    schema = "`k.id` long, `a``.b` string, _change_type string"
    updated = [(1, "x", "insert"), (1, "x", "update_preimage"), (1, "y", "update_postimage")]
    df = materialize(spark.createDataFrame(updated, schema), "k.id", strategy="retract")
    assert df.collect() == [(1, "y", "insert", 0)]
    changes = spark.createDataFrame([(1, "x", "insert")], schema)
    whole = from_changes(changes, images="full", history="complete")
    names = changelog_join(whole, whole.withColumnRenamed("a`.b", "c.d"), "k.id").columns
    assert names == ["k.id", "a`.b", "c.d", "_change_type", "_commit_version"]
    assert to_upsert_kafka(changes, "k.id", ordered=True).collect() == [('{"k.id":1}', '{"k.id":1,"a`.b":"x"}')]


@pytest.mark.soak
def test_a_view_materializes_by_another_key_whatever_order_its_input_has(micro_batches):
    """The old owner of a name leaves it in a later micro-batch than the new one takes it."""

    def by_name(df, state):
        rows = materialize(df, "id", strategy="retract", state_location=state, name="rows")
        return materialize(rows, "name", state_location=state, name="names")

    query = micro_batches(by_name)
    query.write([(1, 0, "a", "insert"), (2, 0, "b", "insert")])
    query.write([(2, 0, "b", "update_preimage"), (2, 0, "a", "update_postimage")])
    query.write([(1, 0, "a", "delete")])
    found = query.run()
    assert (2, 0, "a", "update_postimage", 1) in found[1]
    assert found[2] == []
