# SPDX-License-Identifier: Apache-2.0
"""Streams of changes into a datasource."""

from __future__ import annotations

import shutil

import pytest
from pyspark.sql import Row

from forebay.changelog import apply_changes, current_view, from_changes
from forebay.errors import ConfigurationError, FatalError, unwrap
from forebay.index import Datasource, Funnel, ObjectType, Property

SCHEMA = "id long, name string, _change_type string, _sequence long, _log string"
OBJECT = ObjectType("Thing", {"id": "bigint"}, [Datasource("things", {"name": Property("string", filter=True)})])


@pytest.fixture
def stream(spark, tmp_path):
    """Files of changes, one in a micro-batch, into the datasource `things`."""

    class Stream:
        funnel = Funnel(str(tmp_path / "objects"), OBJECT, shards=2)
        files = 0

        def write(self, *rows, log="db"):
            frame = spark.createDataFrame([(*row, log) for row in rows], SCHEMA)
            frame.coalesce(1).write.parquet(str(tmp_path / "in" / f"{self.files:03d}"))
            self.files += 1

        def frame(self, reader):
            return reader.schema(SCHEMA).option("recursiveFileLookup", "true").parquet(str(tmp_path / "in"))

        def run(self, checkpoint="checkpoint", **options):
            changes = from_changes(
                self.frame(spark.readStream.option("maxFilesPerTrigger", 1)), images="full", history="complete"
            )
            query = apply_changes(
                changes,
                self.funnel.target("things"),
                keys="id",
                checkpoint_location=str(tmp_path / checkpoint),
                trigger={"availableNow": True},
                **options,
            )
            query.awaitTermination()
            return query

        def view(self):
            view = current_view(from_changes(self.frame(spark.read), images="full", history="complete"), "id")
            return sorted((row["id"], row["name"]) for row in view.collect())

    return Stream()


def test_a_stream_is_applied_exactly_once_and_late_changes_change_nothing(stream, node_of):
    stream.write((1, "a", "insert", 1), (2, "b", "insert", 2), (3, "c", "insert", 3))
    query = stream.run()
    stream.write((1, "a", "update_preimage", 5), (1, "z", "update_postimage", 5), (2, "b", "delete", 6))
    stream.write((3, "late", "update_postimage", 2), (2, "late", "update_postimage", 4))
    assert stream.run().id == query.id
    node = node_of(stream.funnel.index.location, "Thing")
    found = [(row["id"], row["name"]) for row in node.objects.fetch().rows]
    assert found == [(1, "z"), (3, "c")] == stream.view()
    assert stream.funnel.status().datasources[0].owner == query.id
    assert stream.funnel.verify(node).is_equal
    head = stream.funnel.index.log.head()
    assert head.counts["late"] == 2


@pytest.mark.soak
def test_another_checkpoint_is_refused_and_may_adopt(stream, spark):
    stream.write((1, "a", "insert", 1))
    first = stream.run()
    with pytest.raises(Exception, match="adopt=True") as caught:
        stream.run("other")
    assert isinstance(unwrap(caught.value), ConfigurationError)
    with pytest.raises(ConfigurationError, match=rf"fed by the streaming query {first.id}, not by Funnel.commit"):
        stream.funnel.commit("things", spark.createDataFrame([Row(id=1, name="x")]), kind="update")
    stream.run("other", adopt=True)
    assert stream.funnel.index.log.head().counts["late"] == 1


@pytest.mark.parametrize("is_new", [False, True], ids=["same", "new"])
def test_nothing_is_begun_where_a_location_is_gone(stream, spark, tmp_path, is_new):
    stream.write((1, "a", "insert", 1))
    stream.run()
    shutil.rmtree(tmp_path / "objects")
    stream.write((2, "b", "insert", 2))
    if is_new:
        stream.funnel = Funnel(str(tmp_path / "objects"), OBJECT)
    else:
        with pytest.raises(FatalError, match="not the one that this Funnel knows; nothing was committed"):
            stream.funnel.commit("things", spark.createDataFrame([Row(id=1, name="x")]), kind="update")
    with pytest.raises(Exception, match="mounted"):
        stream.run()
    assert [path for path in tmp_path.rglob("objects/**/*") if path.is_file()] == []


def test_keys_that_are_not_those_of_the_datasource_are_refused(stream, spark):
    stream.write((1, "a", "insert", 1))
    changes = stream.frame(spark.read)
    with pytest.raises(ConfigurationError, match=r"give keys=\['id'\]"):
        stream.funnel.target("things").apply(changes, 0, "q", keys="name")
