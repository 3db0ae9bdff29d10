# SPDX-License-Identifier: Apache-2.0
"""The pipeline of the README, Kafka to PostgreSQL, with what real topics have: the right table, or a refusal."""

from __future__ import annotations

import json
from typing import Any

import kafka as client
import psycopg
import pytest
from postgres_server import postgres_server

from forebay.changelog import PostgresTarget, apply_changes, materialize, normalize
from forebay.errors import ConfigurationError

ROW = "id long, s string"
A, B = {"id": 1, "s": "open"}, {"id": 1, "s": "closed"}
OTHER = {"id": 2, "s": "open"}


@pytest.fixture(scope="module")
def dsn():
    with postgres_server() as found:
        yield found


def event(op, before, after):
    row = after or before
    return row["id"], {"op": op, "before": before, "after": after, "source": {"ts_ms": 1}}


class Pipeline:
    """A topic, and the table of its changes."""

    def __init__(self, spark: Any, kafka: Any, dsn: str, place: Any, **config: str) -> None:
        self.spark, self.kafka, self.dsn, self.place = spark, kafka, dsn, place
        self.topic = kafka.topic(2, **config)
        self.table = self.topic.replace("-", "_").replace(".", "_")

    def send(self, *events):
        with client.KafkaProducer(bootstrap_servers=self.kafka.address) as producer:
            for key, value in events:
                text = None if value is None else json.dumps(value).encode()
                producer.send(self.topic, key=json.dumps({"id": key}).encode(), value=text).get(30)

    def changes(self, topics=None, **options):
        given = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 3, "mode": "FAILFAST", **options}
        reader = self.spark.readStream.format("forebay_kafka").option("kafka.bootstrap.servers", self.kafka.address)
        reader = reader.option("subscribe", topics or self.topic).option("changelogFormat", "debezium-json")
        return reader.options(valueSchema=ROW, keySchema="id long", **given).load()

    def run(self, view=lambda df, state: df, **options):
        """Apply what is there, and return the table."""
        state = {"state_location": str(self.place / "state")}
        rows = materialize(view(self.changes(**options), state), key="id", **state)
        target, checks = PostgresTarget(self.dsn, self.table), str(self.place / "checks")
        apply_changes(
            rows, target, keys="id", checkpoint_location=checks, trigger={"availableNow": True}
        ).awaitTermination()
        with psycopg.connect(self.dsn) as connection:
            return sorted(connection.execute(f'SELECT id, s FROM "{self.table}"').fetchall())


@pytest.fixture
def pipeline(spark, kafka, dsn, tmp_path):
    return lambda **config: Pipeline(spark, kafka, dsn, tmp_path, **config)


def test_two_topics_are_refused(pipeline):
    """A row that moves from one shard to the other would be deleted after it was inserted."""
    shards = pipeline()
    both = shards.changes(f"{shards.topic},{shards.kafka.topic()}")
    with pytest.raises(ConfigurationError, match="nothing proves which change of") as caught:
        materialize(both, key="id", state_location=str(shards.place))
    assert "sequence_by" in str(caught.value.advice)


@pytest.mark.soak
def test_changes_that_a_connector_sends_again_and_a_key_alone_for_a_deleted_row(pipeline):
    """Delivered at least once, with the default replica identity, also after a shuffle."""
    history = [
        event("c", None, A),
        event("c", None, OTHER),
        event("u", None, B),
        event("d", {"id": 2, "s": None}, None),
    ]
    shop = pipeline()
    shop.send(*history, *history[1:])
    assert shop.run() == [(1, "closed")]
    shop.send(event("u", None, A), event("u", None, A))
    assert shop.run() == [(1, "open")]


@pytest.mark.soak
def test_after_a_shuffle_positions_order_the_changes(pipeline):
    shop = pipeline()
    shop.send(event("c", None, A), event("u", None, B), event("c", None, OTHER), event("d", {"id": 2, "s": None}, None))
    assert shop.run(lambda df, _: df.repartition(3)) == [(1, "closed")]
    shop.send(event("u", None, A))
    assert shop.run(lambda df, _: df.repartition(3)) == [(1, "open")]


@pytest.mark.soak
def test_a_filter_needs_old_rows(pipeline):
    shop = pipeline()
    shop.send(event("c", None, A), event("c", None, OTHER))
    with pytest.raises(ConfigurationError, match="ceases to meet the condition"):
        shop.run(lambda df, _: df.where("s = 'open'"))

    def open_ones(df, state):
        return normalize(df, "id", **state).where("s = 'open'")

    assert shop.run(open_ones) == [(1, "open"), (2, "open")]
    shop.send(event("u", None, B))
    assert shop.run(open_ones) == [(2, "open")]


@pytest.mark.soak
def test_whole_old_rows_need_no_state_for_a_filter(pipeline):
    shop = pipeline()
    shop.send(event("c", None, A), event("c", None, OTHER), event("u", A, B))
    options = {"changelogMissingBefore": "error"}
    assert shop.run(lambda df, _: df.where("s = 'open'"), **options) == [(2, "open")]
    shop.send(event("d", OTHER, None))
    assert shop.run(lambda df, _: df.where("s = 'open'"), **options) == []


@pytest.mark.soak
def test_a_topic_that_is_compacted(pipeline):
    """Only the last change of a key is left; a value that returns is no retraction of itself."""
    policy = {"cleanup_policy": "compact", "segment_ms": "100", "min_cleanable_dirty_ratio": "0.01"}
    shop = pipeline(**policy, max_compaction_lag_ms="100")
    for _ in range(5):
        shop.send(event("u", A, B), event("u", B, A))
    assert shop.run(lambda df, _: df.repartition(3)) == [(1, "open")]


@pytest.mark.soak
def test_a_stream_that_begins_at_the_latest_change(pipeline):
    shop = pipeline()
    shop.send(event("c", None, A))
    latest = {"startingOffsets": "latest", "changelogMissingBefore": "error"}
    with pytest.raises(ConfigurationError, match="history is unknown"):
        materialize(shop.changes(**latest).repartition(3).drop("_pos"), key="id", state_location="x")
    shop.run(**latest)
    shop.send(event("u", A, B), event("u", B, A))
    assert shop.run(**latest) == [(1, "open")]
