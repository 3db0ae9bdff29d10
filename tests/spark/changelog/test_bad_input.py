# SPDX-License-Identifier: Apache-2.0
"""Bad input of functions that keep state: a stated behaviour, or an error that names key, position and next step."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
from pyspark.sql import functions as F  # noqa: N812 - as users write it

from forebay.errors import ConfigurationError, DataError, unwrap
from forebay.spark.changelog.columns import hash_of
from forebay.spark.changelog.materialize import deduplicate, latest_per_key, materialize

CHANGES = "id long, v string, _change_type string"
POSITIONS = f"{CHANGES}, _split string, _pos long"


def retracted(df, state=None, **options):
    options = {"preimages": False} | options
    return materialize(df, "id", strategy="retract", state_location=state, shards=2, **options)


def raised(run):
    """The typed error of a query."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of Spark
        run()
    return unwrap(caught.value)


def rows(df):
    return sorted(tuple(row)[:-1] for row in df.collect())


def test_an_unknown_change_kind_is_told_with_key_and_position(spark):
    """C2: by an error of a task of Spark; the tasks of the other errors run in this process."""
    df = spark.createDataFrame([(1, "a", "insert", "p0", 6), (2, "b", "upsert", "p0", 7)], POSITIONS)
    error = raised(lambda: retracted(df).collect())
    assert isinstance(error, DataError)
    assert "unknown change kind 'upsert' of the key (id=2)" in str(error)
    assert error.position == "p0 7" and "convert other words" in error.advice


def test_a_change_without_a_kind_is_told_with_its_key(spark, tasks_here):
    """C2."""
    error = raised(lambda: retracted(spark.createDataFrame([(3, "a", None)], CHANGES)).collect())
    assert isinstance(error, DataError) and "None of the key (id=3)" in str(error)


def test_a_null_in_the_key_is_told_with_column_and_position(spark, tasks_here):
    """K5."""
    df = spark.createDataFrame([(1, "a", "insert", "p0", 6), (None, "b", "insert", "p0", 7)], POSITIONS)
    error = raised(lambda: retracted(df).collect())
    assert isinstance(error, DataError) and "the key column 'id' is NULL" in str(error)
    assert error.position == "p0 7" and 'null_keys="allow"' in error.advice
    assert rows(retracted(df.drop("_split", "_pos"), null_keys="allow").where("id IS NULL")) == [(None, "b", "insert")]


@pytest.mark.soak
def test_an_update_without_its_before_image_adds_a_row(micro_batches):
    """C8: an unknown key gets a row, and a known one has two live rows until the old one is retracted."""
    query = micro_batches(lambda df, state: retracted(df, state, preimages=True), CHANGES)
    query.write([(1, "a", "update_postimage")])
    query.write([(1, "b", "update_postimage")])
    query.write([(1, "b", "delete")])
    assert [[row[:3] for row in found] for _, found in sorted(query.run().items())] == [
        [(1, "a", "insert")],
        [(1, "a", "update_preimage"), (1, "b", "update_postimage")],
        [(1, "b", "update_preimage"), (1, "a", "update_postimage")],
    ]


@pytest.mark.soak(but=["hold"])
@pytest.mark.parametrize("how", ["warn", "hold", "error"])
def test_a_delete_of_an_unknown_key_is_held_or_refused(micro_batches, how):
    """C8: the row that comes later is cancelled, so nothing appears that should not be there."""
    query = micro_batches(lambda df, state: retracted(df, state, on_missing_retraction=how), CHANGES)
    query.write([(7, "a", "delete"), (8, "a", "insert")])
    if how == "error":
        error = raised(query.run)
        assert isinstance(error, DataError) and "(id=7)" in str(error) and "no row to retract" in str(error)
        assert 'on_missing_retraction="hold"' in error.advice
        return
    query.write([(7, "a", "insert"), (7, "b", "insert")])
    assert [[row[:3] for row in found] for _, found in sorted(query.run().items())] == [
        [(8, "a", "insert")],
        [(7, "b", "insert")],
    ]


def test_a_before_image_that_differs_is_an_unmatched_retraction(micro_batches):
    query = micro_batches(lambda df, state: retracted(df, state, on_missing_retraction="error"), CHANGES)
    query.write([(1, "a", "insert")])
    query.write([(1, "A", "update_preimage"), (1, "b", "update_postimage")])
    error = raised(query.run)
    assert isinstance(
        error, DataError
    ) and "1 retractions have no row to retract; the first one is of the key (id=1)" in (str(error))


def test_duplicate_events_are_counted(micro_batches):
    """C8: a row that was added twice is there until it is deleted twice."""
    query = micro_batches(retracted, CHANGES)
    query.write([(1, "a", "insert"), (1, "a", "insert")])
    query.write([(1, "a", "delete")])
    query.write([(1, "a", "delete")])
    found = [[row[:3] for row in found] for _, found in sorted(query.run().items())]
    assert found == [[(1, "a", "insert")], [], [(1, "a", "delete")]]


@pytest.mark.soak(but=["error"])
@pytest.mark.parametrize(("how", "kept"), [("deduplicate", "b"), ("nothing", "a"), ("error", None)])
def test_two_live_rows_of_a_key(micro_batches, how, kept):
    """C10."""
    query = micro_batches(lambda df, state: retracted(df, state, on_conflict=how), CHANGES)
    query.write([(1, "a", "insert"), (2, "x", "insert")])
    query.write([(1, "b", "insert")])
    if kept is None:
        error = raised(query.run)
        assert isinstance(error, DataError) and "(id=1) with 2 rows" in str(error)
        assert 'on_conflict="deduplicate"' in error.advice
        return
    table = {}
    for _, found in sorted(query.run().items()):
        table |= {row[0]: row[1] for row in found}
    assert table == {1: kept, 2: "x"}


@pytest.mark.parametrize(
    ("schema", "row", "text"),
    [
        ("id string, v string, _change_type string", ("1", "b", "insert"), "by id bigint, not of"),
        ("id long, v int, _change_type string", (1, 5, "insert"), "'v' has the type string in the state, and is of"),
        (
            "id long, w string, _change_type string",
            (1, "b", "insert"),
            "'v' has the type string in the state, and is mis",
        ),
    ],
)
def test_a_type_that_changes_between_two_runs_is_refused_by_name(micro_batches, schema, row, text):
    query = micro_batches(retracted, CHANGES)
    query.write([(1, "a", "insert"), (2, "b", "insert"), (3, "a", "insert")])
    query.run()
    query.schema = schema
    query.write([row])
    error = raised(query.run)
    assert isinstance(error, ConfigurationError) and text in str(error), error
    assert "new state location" in error.advice


@pytest.mark.soak
def test_a_new_column_is_null_in_stored_rows_and_their_retractions_match(stream_of_files):
    query = stream_of_files(lambda df, state: retracted(df, state, on_missing_retraction="error"), CHANGES)
    query.write([(1, "a", "insert"), (2, "b", "insert")])
    query.run()
    query.schema = "id long, v string, w int, _change_type string"
    query.write([(1, "a", None, "update_preimage"), (1, "a", 5, "update_postimage")])
    query.write([(2, "b", None, "delete"), (1, "a", 5, "delete")])
    found = [sorted(row[:4] for row in found) for _, found in sorted(query.run().items())]
    assert found == [[(1, "a", 5, "update_postimage")], [(1, "a", 5, "delete"), (2, "b", None, "delete")]]


def test_a_time_to_live_cannot_be_added_later(micro_batches):
    query = micro_batches(retracted, CHANGES)
    query.write([(1, "a", "insert")])
    query.run()
    query.transform = lambda df, state: retracted(df, state, state_ttl="1 day")
    query.write([(1, "b", "insert")])
    error = raised(query.run)
    assert isinstance(error, ConfigurationError) and error.option == "state_ttl"


def test_an_event_time_that_is_null_is_told_with_its_key(micro_batches):
    """C11: it would count as 1970, and the row would expire at once."""
    schema = "id long, v string, at timestamp, _change_type string"
    options = {"state_ttl": "1 day", "event_time": "at"}
    query = micro_batches(lambda df, state: retracted(df, state, **options), schema)
    query.write([(1, "a", datetime(2024, 1, 1, tzinfo=UTC), "insert"), (2, "b", None, "insert")])
    error = raised(query.run)
    assert isinstance(error, DataError) and "the event time 'at' is NULL for the key {\"id\":2}" in str(error)
    query.transform = lambda df, state: retracted(df, state, state_ttl="1 day", event_time="missing")
    error = raised(query.run)
    assert isinstance(error, ConfigurationError) and error.option == "event_time"


@pytest.mark.soak
def test_payloads_of_5_mb(stream_of_files):
    query = stream_of_files(
        lambda df, state: retracted(df.selectExpr("id", "repeat(v, 5242880) AS v", "_change_type"), state), CHANGES
    )
    query.write([(number, "xyz"[number % 3], "insert") for number in range(4)])
    query.write([(0, "y", "insert")])
    sizes = {number: sorted((row[0], row[1][0], len(row[1])) for row in found) for number, found in query.run().items()}
    assert sizes[0] == [(number, "xyz"[number % 3], 5 << 20) for number in range(4)]
    assert sizes[1] == [(0, "y", 5 << 20)]


def one_key(query, events, record_property):
    """Add `events` rows of one key, then retract all but the last one."""
    query.write([(number, "", "insert") for number in range(events)])
    query.write([(number, "", "delete") for number in range(events - 1)])
    begun = time.perf_counter()
    found = query.run()
    record_property("report", f"{events:,} rows of one key added and retracted: {time.perf_counter() - begun:.1f} s")
    (first,) = found[0]
    assert first[2] == "insert"
    # Spark may read a file in parts, so the last change may be that of any row.
    final = [row for _, rows in sorted(found.items()) for row in rows][-1]
    assert final[1] == str(events - 1)


def of_one_key(df, state):
    return retracted(df.selectExpr("0L AS id", "CAST(id AS string) AS v", "_change_type"), state)


@pytest.mark.soak
def test_20_000_events_of_one_key_in_a_micro_batch(micro_batches, record_property):
    one_key(micro_batches(of_one_key, CHANGES), 20_000, record_property)


@pytest.mark.soak
def test_1_000_000_events_of_one_key_in_a_micro_batch(stream_of_files, record_property):
    one_key(stream_of_files(of_one_key, CHANGES), 1_000_000, record_property)


@pytest.mark.soak
def test_all_keys_in_one_shard(micro_batches, spark):
    chosen = spark.range(2000).where(F.pmod(hash_of(["id"]), F.lit(4)) == 1).limit(300)
    keys = [row.id for row in chosen.collect()]
    query = micro_batches(
        lambda df, state: materialize(df, "id", strategy="retract", state_location=state, shards=4), CHANGES
    )
    query.write([(key, "a", "insert") for key in keys])
    query.write([(key, "a", "delete") for key in keys[:200]])
    found = query.run()
    assert sorted(row[0] for row in found[0]) == sorted(keys)
    assert sorted(row[0] for row in found[1] if row[2] == "delete") == sorted(keys[:200])


@pytest.mark.parametrize("name", ["__forebay_kh", "__forebay_o0", "__Forebay_n"])
def test_reserved_column_names_are_refused(spark, name):
    df = spark.createDataFrame([(1, "a", "insert")], f"id long, {name} string, _change_type string")
    for function in (retracted, lambda df: latest_per_key(df, "id", sequence_by="id")):
        with pytest.raises(ConfigurationError, match=f"the column '{name}' has a reserved name") as caught:
            function(df)
        assert caught.value.advice == "rename the column first"


def test_map_columns_are_refused_where_rows_are_compared(spark):
    df = spark.createDataFrame([(1, {"a": 1}, "insert")], "id long, m map<string, int>, _change_type string")
    with pytest.raises(ConfigurationError, match="the column 'm' has a map, which cannot be compared") as caught:
        retracted(df)
    assert "map_entries" in caught.value.advice
    with pytest.raises(ConfigurationError, match="the column 'm' has a map"):
        materialize(df, "m", strategy="retract")


@pytest.mark.parametrize("function", [retracted, latest_per_key, deduplicate])
def test_a_stream_without_a_state_location_is_refused(spark, function):
    df = spark.readStream.format("rate").load().selectExpr("value AS id", "'' AS v")
    with pytest.raises(ConfigurationError, match="needs a place for it") as caught:
        function(df) if function is retracted else function(df, "id")
    assert caught.value.option == "state_location" and "all machines share" in caught.value.advice


@pytest.mark.soak
def test_two_functions_with_names_of_their_own_share_a_location(micro_batches):
    def both(df, state):
        one = retracted(df.where("id < 10"), state, name="one")
        return one.union(retracted(df.where("id >= 10"), state, name="two"))

    query = micro_batches(both, CHANGES)
    query.write([(1, "a", "insert"), (11, "a", "insert")])
    query.write([(1, "a", "delete")])
    found = query.run()
    assert sorted(row[:3] for row in found[0]) == [(1, "a", "insert"), (11, "a", "insert")]
    assert [row[:3] for row in found[1]] == [(1, "a", "delete")]
