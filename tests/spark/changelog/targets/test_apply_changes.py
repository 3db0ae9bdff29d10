# SPDX-License-Identifier: Apache-2.0
"""`apply_changes`: whole streams into a target."""

from __future__ import annotations

import shutil

import pytest

from forebay.errors import ConfigurationError, unwrap
from forebay.spark.changelog.converting import from_changes
from forebay.spark.changelog.materialize import materialize
from forebay.spark.changelog.targets.target import apply_changes


@pytest.fixture
def stream(spark, stream_of_files, tmp_path):
    """Files of changes, one in a micro-batch."""
    files = stream_of_files(None)

    class Stream:
        checkpoint = str(tmp_path / "checkpoint")
        state = files.state

        def write(self, *rows):
            files.write(rows)

        def df(self):
            reader = spark.readStream.schema(files.schema).option("maxFilesPerTrigger", 1)
            return reader.parquet(str(tmp_path / "in"))

        def run(self, target, view=lambda df: df, **options):
            query = apply_changes(
                view(self.df()),
                target,
                keys="id",
                checkpoint_location=self.checkpoint,
                trigger={"availableNow": True},
                **options,
            )
            query.awaitTermination()
            return query

    return Stream()


def test_a_materialized_stream_is_applied_over_restarts(stream, table):
    """A2, C4: the naive result is wrong in two of the three orders of the join, which are those of the keys 1, 2, 3."""

    def view(df):
        return materialize(
            df, "id", strategy="retract", state_location=stream.state, on_missing_retraction="hold", shards=2
        )

    add, retract, put = (10, "a1", "insert"), (10, "a1", "update_preimage"), (20, "b1", "update_postimage")
    stream.write((1, *add), (2, *put), (3, *add), (4, 5, "b", "insert"))
    query = stream.run(table.target, view, query_name="orders")
    assert query.name == "orders"
    stream.write((1, *retract), (2, *add), (3, *put), (4, 5, "b", "delete"))
    stream.write((1, *put), (2, *retract), (3, *retract))
    assert stream.run(table.target, view).id == query.id
    assert table.rows("id, level, name") == [(key, 20, "b1") for key in (1, 2, 3)]
    assert table.sql(f"SELECT batch, owner FROM forebay_applied WHERE query = '{query.id}'") == [(2, True)]


@pytest.mark.soak
def test_an_aggregation_replaces_its_rows(stream, table):
    stream.write((1, 1, "a", "insert"), (2, 1, "a", "insert"))
    stream.write((1, 2, "a", "insert"))

    def counts(df):
        return from_changes(df, images="append", history="complete").groupBy("id").count()

    stream.run(table.target, counts, output_mode="update")
    assert table.rows() == [(1, 2), (2, 1)]


@pytest.mark.soak
def test_a_new_checkpoint_is_refused_and_may_adopt(stream, table):
    """§3.2."""
    stream.write((1, 10, "a1", "insert"))
    first = stream.run(table.target, sequence_by="level")
    shutil.rmtree(stream.checkpoint)
    with pytest.raises(Exception, match="was written by the query") as refused:
        stream.run(table.target, sequence_by="level")
    found = unwrap(refused.value)
    assert isinstance(found, ConfigurationError) and str(first.id) in found.message and found.option == "adopt"
    shutil.rmtree(stream.checkpoint)
    stream.run(table.target, sequence_by="level", adopt=True)
    assert table.rows("id") == [(1,)]


def test_wrong_arguments_are_refused_before_the_query_starts(spark, stream, table):
    stream.write((1, 10, "a1", "insert"))
    with pytest.raises(ConfigurationError, match="'nothing' does not exist"):
        apply_changes(stream.df(), table.target, keys="nothing", checkpoint_location=stream.checkpoint)
    with pytest.raises(ConfigurationError, match="takes a streaming DataFrame"):
        apply_changes(spark.range(1), table.target, keys="id", checkpoint_location=stream.checkpoint)
    with pytest.raises(ConfigurationError, match="one micro-batch"):
        table.target.apply(stream.df(), 0, "q", keys="id")
