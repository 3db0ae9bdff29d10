# SPDX-License-Identifier: Apache-2.0
"""Topics of change events as changelogs, from a real broker: in this process, and on Spark with a restart."""

from __future__ import annotations

import json
from typing import Any

import pyarrow.parquet as pq
import pytest

import forebay
from forebay.errors import ConfigurationError, DataError
from forebay.sources.kafka import KafkaSource
from forebay.sources.kafka.payloads import CORRUPT

DDL = "id BIGINT, name STRING"
OPTIONS: dict[str, Any] = {"changelog_format": "debezium-json", "value_schema": DDL, "changelog_sequence": "lsn"}


def event(op: str, before: str | None, after: str | None, lsn: int) -> bytes:
    row = {name: None if name is None else {"id": 1, "name": name} for name in (before, after)}
    made = {"before": row[before], "after": row[after], "op": op, "source": {"lsn": lsn, "ts_ms": 1700000000000}}
    return json.dumps(made).encode()


def send(kafka: Any, topic: str, values: list[bytes | None], key: bytes | None = b'{"id":1}') -> None:
    import kafka as client

    with client.KafkaProducer(bootstrap_servers=kafka.address) as producer:
        for value in values:
            producer.send(topic, value, key=key, partition=0).get(30)


def source(kafka: Any, topic: str, **options: Any) -> KafkaSource:
    found = {"subscribe": [topic], "kafka": {"bootstrap.servers": kafka.address}, **OPTIONS, **options}
    return KafkaSource(starting_offsets="earliest", **found)


def unread(**options: Any) -> KafkaSource:
    return KafkaSource(subscribe=["t"], kafka={"bootstrap.servers": "h:1"}, **options)


LIFE = [event("c", None, "a", 5), event("u", "a", "b", 6), b"{torn", event("d", "b", None, 7), None]
CHANGES = [
    (1, "a", "insert", 0, 5),
    (1, "a", "update_preimage", 1, 6),
    (1, "b", "update_postimage", 1, 6),
    (None, None, None, 2, None),
    (1, "b", "delete", 3, 7),
]


def rows(found: KafkaSource, *columns: str) -> list[dict[str, Any]]:
    read = found.with_columns(columns) if columns else found
    listed: list[dict[str, Any]] = forebay.peek(read, 100).table.to_pylist()
    return listed


def test_a_topic_as_a_changelog(kafka: Any) -> None:
    """C17: positions are partition and offset; a malformed event is reported as with decoded values."""
    topic = kafka.topic()
    send(kafka, topic, LIFE)
    found = rows(source(kafka, topic, kafka_columns=["timestamp", "key"]))
    assert [(r["id"], r["name"], r["_change_type"], r["_pos"], r["_sequence"]) for r in found] == CHANGES
    assert {r["_split"] for r in found} == {f"{topic}/0"}
    assert list(found[0]) == [
        *("id", "name", "_change_type", "_split", "_pos", "timestamp", "key"),
        *("_sequence", "_log", "_transaction", "_commit_timestamp", "_corrupt_record"),
    ]
    report = {"key": b'{"id":1}', "value": b"{torn", "topic": topic, "partition": 0, "offset": 2}
    assert {name: found[3]["_corrupt_record"][name] for name in report} == report
    assert rows(source(kafka, topic), "name", "_change_type")[1:3] == [
        {"name": "a", "_change_type": "update_preimage"},
        {"name": "b", "_change_type": "update_postimage"},
    ]
    assert source(kafka, topic).schema().field("_corrupt_record").type == CORRUPT
    assert [r["_pos"] for r in rows(source(kafka, topic, mode="DROPMALFORMED"))] == [0, 1, 1, 3]
    with pytest.raises(DataError) as failed:
        rows(source(kafka, topic, mode="FAILFAST"))
    assert (failed.value.split, failed.value.position) == (f"{topic}/0", "2")


def test_a_record_without_the_key_of_its_row_is_refused_if_the_key_is_declared(kafka: Any) -> None:
    """K5: such records are not partitioned by the key."""
    topic = kafka.topic()
    send(kafka, topic, LIFE[:2])
    keyed = {"key_schema": "id BIGINT"}
    assert len(rows(source(kafka, topic, **keyed))) == 3
    send(kafka, topic, LIFE[:1], key=None)
    for options in (keyed, keyed | {"mode": "DROPMALFORMED"}):
        for columns in ((), ("name",)):
            with pytest.raises(DataError, match="has no message key") as failed:
                rows(source(kafka, topic, **options), *columns)
            assert (failed.value.split, failed.value.position) == (f"{topic}/0", "2")
    assert len(rows(source(kafka, topic))) == 4


def test_the_other_formats(kafka: Any) -> None:
    """C17."""
    topic = kafka.topic()
    send(kafka, topic, [b'{"name":"a"}', None])
    upserts = source(kafka, topic, **upsert())
    assert [(r["id"], r["name"], r["_change_type"]) for r in rows(upserts)] == [
        (1, "a", "update_postimage"),
        (1, None, "delete"),
    ]
    send(kafka, topic, [b'{"type":"insert","data":{"id":2,"name":"x"},"ts":5,"xid":7}'])
    maxwell = source(kafka, topic, changelog_format="maxwell-json", changelog_sequence=None, mode="DROPMALFORMED")
    assert [(r["id"], r["_transaction"]) for r in rows(maxwell)] == [(2, "7")]


def upsert() -> dict[str, Any]:
    return {
        "changelog_format": "upsert-json",
        "changelog_sequence": None,
        "value_schema": "name STRING",
        "key_schema": "id BIGINT",
    }


def test_the_key_is_declared(kafka: Any, spark: Any) -> None:
    """K5, K20: the columns of the message key, which Debezium makes from the primary key, and the sequence."""
    from forebay.keys import keys_of

    topic = kafka.topic()
    options = {
        "kafka.bootstrap.servers": kafka.address,
        "subscribe": topic,
        "valueSchema": DDL,
        "keySchema": "id BIGINT",
    }
    reader = spark.read.format("forebay_kafka").options(**options, changelogFormat="debezium-json")
    key = keys_of(reader.option("changelogSequence", "lsn").load())
    assert (key.partition, key.primary, key.ordering) == (("id",), ("id",), ("_sequence",))
    assert keys_of(reader.option("columns", "name,_change_type").load()).partition == ()


def test_positions_of_rows(kafka: Any) -> None:
    """K2: `_pos` grows within a split, whatever else is read."""
    topic = kafka.topic()
    kafka.send(topic, ["1", "2", "3"])
    plain = KafkaSource(
        subscribe=[topic], starting_offsets="earliest", kafka={"bootstrap.servers": kafka.address}, row_positions=True
    )
    split = f"{topic}/0"
    assert [(r["value"], r["_split"], r["_pos"]) for r in rows(plain)] == [
        (str(number + 1).encode(), split, number) for number in range(3)
    ]
    assert rows(plain, "_pos") == [{"_pos": 0}, {"_pos": 1}, {"_pos": 2}]
    assert unread(row_positions=True, value_format="string").schema().names[-3:] == [
        "_split",
        "_pos",
        "_corrupt_record",
    ]
    assert "_pos" not in unread().schema().names


@pytest.mark.soak
def test_on_spark_in_batch_and_as_a_stream_that_restarts(kafka: Any, spark: Any, tmp_path: Any) -> None:
    """A19, K2: after a restart the changes go on, each once, in the order of positions."""
    topic = kafka.topic()
    options = {
        "kafka.bootstrap.servers": kafka.address,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "changelogFormat": "debezium-json",
        "changelogSequence": "lsn",
        "valueSchema": DDL,
        "kafkaColumns": "partition",
    }
    send(kafka, topic, LIFE)
    chosen = ["id", "name", "_change_type", "_pos", "_sequence"]
    batch = spark.read.format("forebay_kafka").options(**options).load()
    assert [tuple(row) for row in batch.select(chosen).orderBy("_pos").collect()] == CHANGES
    pruned = spark.read.format("forebay_kafka").options(**options, columns="_change_type,partition").load()
    assert pruned.collect() == [(change[2], 0) for change in CHANGES]
    stream = spark.readStream.format("forebay_kafka").options(**options, maxOffsetsPerTrigger=3).load()
    for more in ([], [event("c", None, "z", 9)]):
        send(kafka, topic, more)
        query = (
            stream.select(chosen)
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "check"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        query.awaitTermination()
    written = [row for file in (tmp_path / "out").glob("*.parquet") for row in pq.read_table(file).to_pylist()]
    found = [tuple(row[name] for name in chosen) for row in written]
    assert sorted(found, key=repr) == sorted([*CHANGES, (1, "z", "insert", 5, 9)], key=repr)


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"changelog_format": "debezium-json"}, "valueSchema"),
        (OPTIONS | {"value_format": "json"}, "valueFormat"),
        (OPTIONS | {"key_format": "string"}, "keyFormat"),
        (OPTIONS | {"kafka_columns": ["when"]}, "kafkaColumns"),
        (OPTIONS | {"include_headers": True}, "includeHeaders"),
        (OPTIONS | {"value_schema": "id INTEGERR"}, "valueSchema"),
        (OPTIONS | {"json_options": {"nothing": "1"}}, "json.nothing"),
        (OPTIONS | {"changelog_format": "maxwell-json"}, "changelogSequence"),
        (upsert() | {"key_schema": None}, "keySchema"),
        (upsert() | {"changelog_truncate": "ignore"}, "changelogTruncate"),
        ({"changelog_sequence": "lsn"}, "changelogSequence"),
        ({"changelog_missing_before": "error"}, "changelogMissingBefore"),
        ({"kafka_columns": ["key"]}, "kafkaColumns"),
    ],
)
def test_options_that_do_not_fit_are_named(options: Any, option: str) -> None:
    with pytest.raises(ConfigurationError) as failed:
        unread(**options)
    assert failed.value.option == option
