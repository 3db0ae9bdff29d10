# SPDX-License-Identifier: Apache-2.0
"""State of operators in plans where Spark would run other tasks than one for each shard, and in repeated work."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from pyspark import TaskContext

from forebay.errors import ConfigurationError, FatalError, ForebayError, unwrap
from forebay.spark.changelog import stateful
from forebay.spark.changelog.materialize import latest_per_key, materialize

SCHEMA = "id long, level int, name string, _change_type string"
SHARDS = 2


class Query:
    """A query of a directory of JSON files, one in a micro-batch."""

    def __init__(self, spark, place):
        self.spark, self.place, self.state = spark, place, str(place / "state")
        self.conf = {}

    def put(self, name, *rows, directory="in"):
        """Rows are (id, level); they are inserted."""
        (self.place / directory).mkdir(exist_ok=True)
        lines = [{"id": key, "level": level, "name": "", "_change_type": "insert"} for key, level in rows]
        path = self.place / directory / name
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        os.utime(path, (int(name), int(name)))

    def read(self, directory="in"):
        (self.place / directory).mkdir(exist_ok=True)
        stream = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        return stream.json(str(self.place / directory))

    def materialized(self, directory="in", **options):
        defaults = {"strategy": "retract", "state_location": self.state, "shards": SHARDS, "preimages": False}
        return materialize(self.read(directory), "id", **defaults | options)

    def run(self, df, sink):
        """Return what the sink returns for each micro-batch."""
        found = {}
        stream = df.writeStream.foreachBatch(lambda batch, number: found.__setitem__(number, sink(batch, number)))
        stream = stream.option("checkpointLocation", str(self.place / "checkpoint")).trigger(availableNow=True)
        for key, value in self.conf.items():
            self.spark.conf.set(key, value)
        try:
            stream.start().awaitTermination()
        finally:
            for key in self.conf:
                self.spark.conf.unset(key)
        return found

    def manifests(self, name="materialize"):
        return [len(list((Path(self.state) / name / f"{shard:05}").glob("v*.json"))) for shard in range(SHARDS)]


@pytest.fixture
def query(spark, tmp_path):
    return Query(spark, tmp_path)


ROWS = [(key, 1) for key in range(20)]


@pytest.mark.soak
def test_a_sink_that_reads_with_fewer_tasks_or_some_rows_or_nothing_runs_every_shard(query):
    """An adaptive plan runs all stages but the last one before it calls the function of foreachBatch."""
    sinks = [
        lambda df: len(df.take(1)),
        lambda df: df.coalesce(1).count(),
        lambda _: None,
        lambda df: len(df.take(30)),
        lambda df: len(df.collect()),
    ]
    query.put("1", *ROWS)
    query.put("2", (1, 5), (7, 5))
    query.put("3", (2, 6), (8, 6))
    query.put("4", (1, 7), (7, 7), (8, 7))
    query.put("5", *((key, 8) for key, _ in ROWS))
    found = query.run(query.materialized(), lambda df, number: sinks[number](df))
    assert found == {0: 1, 1: 2, 2: None, 3: 3, 4: 20}
    assert query.manifests() == [5, 5]


@pytest.mark.soak
def test_operators_of_two_sources_keep_their_shards_when_one_has_no_rows(query):
    """Spark plans a source without new rows away; a union numbers the tasks of its inputs one after the other."""

    def union():
        names = {"in": "a", "in2": "b"}
        one, other = (query.materialized(directory, name=name) for directory, name in names.items())
        return one.union(other)

    def kinds(df, _):
        return sorted((row.id, row._change_type) for row in df.collect())

    query.put("1", (1, 1), (2, 1))
    assert query.run(union(), kinds) == {0: [(1, "insert"), (2, "insert")]}
    query.put("1", (1, 1), (3, 1), directory="in2")
    assert query.run(union(), kinds) == {1: [(1, "insert"), (3, "insert")]}
    query.put("2", (1, 2), directory="in")
    query.put("2", (3, 2), directory="in2")
    assert query.run(union(), kinds) == {2: [(1, "update_postimage"), (3, "update_postimage")]}
    assert query.manifests("a") == query.manifests("b") == [3, 3]


def test_a_micro_batch_that_nobody_reads_is_noticed_by_the_next_one(query):
    """Without an adaptive plan its events would be missing in the state."""
    query.conf = {"spark.sql.adaptive.enabled": False}
    for name in "123":
        query.put(name, (int(name), 1))
    with pytest.raises(Exception, match="has no state of micro-batch 1") as raised:
        query.run(query.materialized(), lambda df, number: number == 1 or df.count())
    assert isinstance(unwrap(raised.value), FatalError)
    assert "read each micro-batch" in str(raised.value)


def test_a_task_that_fails_after_it_wrote_its_manifest_gives_the_same_rows_again(query, monkeypatch):
    made = stateful._Task

    def failing(*arguments):
        task = made(*arguments)

        def run(batches):
            rows = list(task(batches))
            context = TaskContext.get()
            if context is not None and context.partitionId() == context.attemptNumber() == 0:
                raise OSError("the task fails after it wrote its state")
            yield from rows

        return run

    monkeypatch.setattr(stateful, "_Task", failing)
    query.put("1", *ROWS)
    query.put("2", (1, 5), (30, 1))

    def rows(df, _):
        return sorted((row.id, row.level, row._change_type) for row in df.collect())

    found = query.run(query.materialized(), rows)
    assert found == {
        0: [(key, 1, "insert") for key, _ in ROWS],
        1: [(1, 5, "update_postimage"), (30, 1, "insert")],
    }
    assert query.manifests() == [2, 2]


def test_two_actions_in_a_micro_batch_give_the_same_rows_and_write_once(query):
    query.put("1", *ROWS)
    query.put("2", (1, 5), (30, 1))

    def twice(df, _):
        one, other = (sorted(map(tuple, df.collect())) for _ in range(2))
        files = sorted(Path(query.state).rglob("*.*"))
        assert one == other == sorted(map(tuple, df.collect()))
        assert sorted(Path(query.state).rglob("*.*")) == files
        return len(one)

    assert query.run(query.materialized(), twice) == {0: 20, 1: 2}


def test_a_micro_batch_whose_commit_the_checkpoint_lost_is_repeated_with_the_same_rows(query, tmp_path):
    def rows(df, _):
        return sorted(map(tuple, df.collect()))

    query.put("1", *ROWS)
    query.put("2", (1, 5), (30, 1))
    first = query.run(query.materialized(), rows)
    before = sorted(Path(query.state).rglob("*.*"))
    for path in (tmp_path / "checkpoint" / "commits").glob("*1*"):
        path.unlink()
    assert query.run(query.materialized(), rows) == {1: first[1]}
    assert sorted(Path(query.state).rglob("*.*")) == before
    query.put("3", (1, 6))
    assert query.run(query.materialized(), rows)[2] == [(1, 6, "", "update_postimage", 2)]


def test_a_state_location_that_was_lost_is_refused(micro_batches):
    query = micro_batches(lambda df, state: materialize(df, "id", strategy="retract", state_location=state))
    query.write([(1, 1, "", "insert")])
    query.run()
    shutil.rmtree(query.state)
    query.write([(1, 2, "", "insert")])
    with pytest.raises(ConfigurationError, match="there is no state below"):
        query.run()


def test_two_functions_of_one_name_are_refused_before_the_query_starts(query):
    query.put("1", *ROWS)
    one, other = query.materialized(), query.materialized("in2")
    with pytest.raises(Exception, match=r"The metric name is not unique: \S*/state/materialize"):
        query.run(one.union(other), lambda df, _: df.count())


def latest(by):
    return lambda df, state: latest_per_key(df, "id", sequence_by=by, state_location=state, shards=SHARDS)


def test_a_state_of_another_order_is_refused(micro_batches):
    """Its entries would be compared with others."""
    query = micro_batches(latest("level"))
    query.write([(1, 1, "", "insert")])
    query.run()
    query.transform = latest("id")
    query.write([(1, 1, "", "insert")])
    with pytest.raises(ConfigurationError, match=r"is that of latest_per_key in the order of level"):
        query.run()


def test_a_replay_with_other_rows_of_the_same_keys_is_refused(micro_batches):
    """The state would have other rows than the target."""
    query = micro_batches(latest("level"))
    query.write([(1, 1, "", "insert")])
    query.run()
    query.written, query.done = [], 0
    query.write([(1, 2, "", "insert")])
    with pytest.raises(ForebayError, match="has other events than when its state was written"):
        query.run()


@pytest.mark.soak
def test_the_state_keeps_as_many_versions_as_the_checkpoint(query):
    query.spark.conf.set("spark.sql.streaming.minBatchesToRetain", 2)
    try:
        df = query.materialized()
    finally:
        query.spark.conf.unset("spark.sql.streaming.minBatchesToRetain")
    for name in "1234":
        query.put(name, (int(name), 1))
    query.run(df, lambda batch, _: batch.count())
    assert query.manifests() == [3, 3]


def test_columns_that_cannot_be_compared_are_kept_where_nothing_compares_them(spark):
    df = spark.createDataFrame([(1, 1, {"a": 1}), (1, 2, {"a": 2})], "id int, seq int, tags map<string, int>")
    for latest in (materialize(df, "id", sequence_by="seq"), latest_per_key(df, "id", sequence_by="seq")):
        assert [row.tags for row in latest.collect()] == [{"a": 2}]
