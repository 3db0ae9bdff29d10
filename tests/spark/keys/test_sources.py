# SPDX-License-Identifier: Apache-2.0
"""Keys that sources stamp: from the Arrow schema of a connector to the DataFrame, in batch and in streams."""

from __future__ import annotations

import pytest

from forebay.keys import KeySpec, guarantee, key_by, keys_of

KEY = KeySpec(("id",), ("id",), "gone")


def drained(stream, checkpoint, *, mode="append", keep=None):
    writer = stream.writeStream.option("checkpointLocation", str(checkpoint)).outputMode(mode)
    query = writer.foreachBatch(keep or (lambda batch, number: batch.collect())).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()


def test_a_stamped_key_arrives_in_batch_and_in_streams(students):
    """§3.2: sources stamp keys; the rows are those of the source."""
    assert keys_of(students()) == keys_of(students(stream=True)) == KEY
    assert students().schema["id"].metadata["includeInPartitioning"] is True
    assert students().schema["level"].metadata == {}
    assert [row.level for row in students().orderBy("level").collect()] == [0, 10, 20, 30, 40, 50]


def test_two_reads_stamp_alike(students):
    """§2.2: one schema for planner, tasks and restarts; a union of two reads has one key."""
    assert students().schema == students().schema
    assert keys_of(students().union(students())) == KEY


def test_a_selected_column_keeps_its_part_of_the_key(session):
    """K12: the option `columns` drops columns as select does."""
    assert keys_of(session.read.format("students").option("columns", "id,name").load()) == KeySpec(("id",))
    assert keys_of(session.read.format("students").option("columns", "name").load()) == KeySpec()


def test_a_schema_of_the_user_has_the_keys_of_the_user(session, students):
    """§2.2: Spark takes `.schema(…)` as it is, with its metadata."""
    plain = session.read.format("students").schema(students().schema.simpleString()[7:-1].replace(":", " ")).load()
    assert keys_of(plain) == KeySpec()
    assert keys_of(session.read.format("students").schema(students().schema).load()) == KEY
    assert plain.count() == 6


def test_each_micro_batch_has_the_key(students, tmp_path):
    """§2.2: foreachBatch."""
    seen = []
    drained(students(stream=True), tmp_path, keep=lambda batch, number: seen.append((keys_of(batch), batch.count())))
    assert seen == [(KEY, 6)]


@pytest.mark.soak
def test_a_stream_written_as_parquet_keeps_the_key(session, students, tmp_path):
    """§2.2: and its readers do not take it for an order: files have none (K27)."""
    path = str(tmp_path / "out")
    query = (
        students(stream=True)
        .writeStream.option("checkpointLocation", str(tmp_path / "check"))
        .trigger(availableNow=True)
        .start(path)
    )
    assert query.awaitTermination(120)
    assert keys_of(session.read.parquet(path)) == KEY
    assert guarantee(session.read.parquet(path)).weakest == "the plan behind LogicalRelation is not known"


@pytest.mark.parametrize("keyed_by", [pytest.param("source", marks=pytest.mark.soak), "key_by"])
def test_a_stream_with_state_continues_after_its_keys_changed(students, tmp_path, keyed_by):
    """K6: metadata are no part of what a checkpoint compares."""
    counts = {}

    def keep(batch, number):
        counts.update({row.id: row["count"] for row in batch.collect()})

    def run(stream):
        keyed = stream if keyed_by == "source" else key_by(stream, "id", cdc=number > 0)
        drained(keyed.groupBy("id").count(), tmp_path, mode="update", keep=keep)

    for number in (0, 1):
        run(students(stream=True, transactional=number > 0))
    assert counts == {0: 2, 1: 2, 2: 2}


def test_positions_give_back_the_order_that_a_shuffle_loses(students):
    """K2, K25: within a key, the rows come as they were written."""
    shuffled = students(positions=True).repartition(4, "level")
    found = [(row.id, row.level) for row in shuffled.orderBy("_split", "_pos").collect()]
    assert found == [(row.id, row.level) for row in students().collect()]
