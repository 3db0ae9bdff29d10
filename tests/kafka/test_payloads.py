# SPDX-License-Identifier: Apache-2.0
"""Decoded keys and values from a real broker, in this process: types, tombstones and corrupt records."""

from __future__ import annotations

import datetime as dt
import logging
import pickle
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay.errors import ConfigurationError, DataError
from forebay.sources.kafka import KafkaSource
from forebay.sources.kafka.payloads import CORRUPT
from forebay.sources.kafka.split import KafkaSplit, TopicPartition
from forebay.sources.kafka.split_reader import KafkaSplitReader, PayloadDecoder

DDL = "id BIGINT, price DECIMAL(8,2), at TIMESTAMP, tags ARRAY<STRING>, by STRUCT<who: STRING>"
VALUES: list[bytes | None] = [
    b'{"id":1,"price":"1.50","at":"2024-02-03T04:05:06Z","tags":["a",null],"by":{"who":"me"}}',
    None,
    b'{"id":"x","by":{"who":"kept"}}',
    b'{"id":2}',
    b"{torn",
    b"",
    b'{\n "id": 3\n}',
    b'{"id":4,"by":{"who":"\xff"}}',
]
JSON: dict[str, Any] = {"value_format": "json", "value_schema": DDL}


@pytest.fixture(scope="module")
def topic(kafka: Any) -> str:
    return filled(kafka)


def filled(kafka: Any) -> str:
    """Make a topic of one partition with the values above, each with a key."""
    import kafka as client

    name: str = kafka.topic()
    with client.KafkaProducer(bootstrap_servers=kafka.address) as producer:
        for number, value in enumerate(VALUES):
            producer.send(name, value, key=b'{"k":%d}' % number, partition=0).get(30)
    return name


def source(kafka: Any, topic: str, **options: Any) -> KafkaSource:
    return KafkaSource(
        subscribe=[topic], starting_offsets="earliest", kafka={"bootstrap.servers": kafka.address}, **options
    )


def unread(**options: Any) -> KafkaSource:
    """A source that no broker is asked for."""
    return KafkaSource(subscribe=["t"], kafka={"bootstrap.servers": "h:1"}, **options)


def rows(found: KafkaSource, *columns: str) -> list[dict[str, Any]]:
    read = found.with_columns(columns) if columns else found
    listed: list[dict[str, Any]] = forebay.peek(read, 100).table.to_pylist()
    return listed


def empty(**fields: Any) -> dict[str, Any]:
    return dict.fromkeys(("id", "price", "at", "tags", "by")) | fields


def test_values_become_structs_and_corrupt_ones_are_reported(kafka: Any, topic: str) -> None:
    found = rows(source(kafka, topic, **JSON))
    assert list(found[0]) == [
        *("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "_corrupt_record")
    ]
    first = {"id": 1, "price": Decimal("1.50"), "tags": ["a", None], "by": {"who": "me"}}
    assert [one["value"] for one in found] == [
        first | {"at": dt.datetime(2024, 2, 3, 4, 5, 6, tzinfo=dt.UTC)},
        None,  # a tombstone
        empty(by={"who": "kept"}),
        empty(id=2),
        empty(),
        None,  # nothing in it, which is no error
        empty(id=3),
        empty(id=4, by={"who": "\ufffd"}),
    ]
    corrupt = [one["_corrupt_record"] for one in found]
    assert [row for row, one in enumerate(corrupt) if one is not None] == [2, 4, 7]
    assert corrupt[2] == {
        "key": b'{"k":2}',
        "value": VALUES[2],
        "topic": topic,
        "partition": 0,
        "offset": 2,
        "reason": "value: the field id does not fit BIGINT",
    }
    assert corrupt[4]["reason"].startswith("value: malformed JSON near byte 0")
    assert (corrupt[7]["value"], corrupt[7]["reason"]) == (VALUES[7], "value: byte 21 is not UTF-8")


def test_keys_too_with_a_column_of_another_name(kafka: Any, topic: str) -> None:
    options = {"key_format": "json", "key_schema": "k TINYINT", "column_name_of_corrupt_record": "bad"}
    found = rows(source(kafka, topic, **JSON, **options), "key", "bad", "offset")
    assert [one["key"] for one in found] == [{"k": number} for number in range(len(VALUES))]
    # With the column for bad records all of a record is judged, also the value that nobody wants.
    assert [one["offset"] for one in found if one["bad"]] == [2, 4, 7]
    assert found[2]["bad"]["value"] == VALUES[2]
    worse = {"key_format": "json", "key_schema": "k STRUCT<>", "value_format": "string"}
    reasons = [one["_corrupt_record"]["reason"] for one in rows(source(kafka, topic, **worse), "_corrupt_record")]
    assert reasons[6] == "key: the field k does not fit STRUCT<>"
    assert reasons[7] == "key: the field k does not fit STRUCT<>; value: byte 21 is not UTF-8"


def test_unselected_columns_are_not_checked(kafka: Any, topic: str) -> None:
    strict = source(kafka, topic, **JSON, mode="FAILFAST")
    assert len(rows(strict, "offset", "key")) == len(VALUES)


def test_texts(kafka: Any, topic: str) -> None:
    found = rows(source(kafka, topic, key_format="string", value_format="string"), "key", "value", "_corrupt_record")
    assert found[0]["key"] == '{"k":0}'
    expected = [None if value is None else value.decode("utf-8", "replace") for value in VALUES]
    assert [one["value"] for one in found] == expected
    assert [row for row, one in enumerate(found) if one["_corrupt_record"]] == [7]


def test_bad_records_are_left_out_and_the_position_moves_on(kafka: Any, caplog: pytest.LogCaptureFixture) -> None:
    topic = filled(kafka)
    read = source(kafka, topic, **JSON, mode="DROPMALFORMED").with_columns(("value", "offset"))
    with caplog.at_level(logging.WARNING), forebay.run(read) as run:
        assert next(run).column("offset").to_pylist() == [0, 1, 3, 5, 6]
        kafka.send(topic, ['{"id":9}'])
        assert next(run).column("offset").to_pylist() == [8]
        # Those that were left out are behind, too.
        assert run.delivered == (f"{topic}/0", 9)
    assert (
        f"dropped 3 corrupt records of a task; the first one: topic {topic}, partition 0, offset 2: value:"
        in caplog.text
    )


def test_nothing_is_left_of_a_batch(kafka: Any) -> None:
    name = kafka.topic()
    kafka.send(name, ["{", "["])
    read = source(kafka, name, **JSON, mode="DROPMALFORMED")
    assert rows(read) == []
    assert rows(source(kafka, name, **JSON), "offset") == [{"offset": 0}, {"offset": 1}]


def test_failing_fast_names_the_place_the_reason_and_the_next_step(kafka: Any, topic: str) -> None:
    with pytest.raises(DataError) as caught:
        rows(source(kafka, topic, **JSON, mode="FAILFAST", key_format="string"))
    error = caught.value
    assert f"topic {topic}, partition 0, offset 2 is corrupt: value: the field id does not fit BIGINT" in error.message
    assert """the value begins with b'{"id":"x","by""" in error.message
    assert (error.source, error.split, error.position, error.option) == ("forebay_kafka", f"{topic}/0", "2", "mode")
    assert "mode=PERMISSIVE" in str(error.advice)


def test_records_before_a_corrupt_record_of_another_partition_are_returned_first() -> None:
    class Fetcher:
        by_topic_id = True

        def lease(self, key: Any, make: Any) -> Any:
            return self

        def clear(self) -> None: ...

        def assign(self, *args: Any, **more: Any) -> None: ...

        def fetch(self, timeout: float) -> list[forebay.Fetched]:
            batches = [(b"{}", 5), (b"{", 7)]
            return [
                forebay.Fetched(f"t/{number}", pa.record_batch({"value": [value], "offset": [at]}), at + 1)
                for number, (value, at) in enumerate(batches)
            ]

    read = unread(**JSON, mode="FAILFAST").with_columns(("offset", "value"))
    reader = KafkaSplitReader(read, Fetcher())  # type: ignore[arg-type]
    reader.add_splits([KafkaSplit(id=f"t/{number}", position=0, end=9) for number in (0, 1)])
    assert [one.split_id for one in reader.fetch()] == ["t/0"]
    with pytest.raises(DataError, match="topic t, partition 1, offset 7"):
        reader.fetch()


def test_options_of_json_and_the_time_zone(kafka: Any) -> None:
    name = kafka.topic()
    kafka.send(name, ['{"at":"03.02.2024 04:05"} // so', '{"at":"2024"}'])
    given = {
        "json_options": {"timestampFormat": "dd.MM.yyyy HH:mm", "allowcomments": "true"},
        "time_zone": "Asia/Tokyo",
    }
    found = rows(source(kafka, name, value_format="json", value_schema="at TIMESTAMP", **given), "value")
    tokyo = dt.timezone(dt.timedelta(hours=9))
    assert found == [{"value": {"at": dt.datetime(2024, 2, 3, 4, 5, tzinfo=tokyo)}}, {"value": {"at": None}}]


def test_the_schema_is_known_without_a_broker_and_travels() -> None:
    arrow = pa.schema([pa.field("id", pa.int64()), pa.field("tags", pa.list_(pa.string()))])
    made = KafkaSource(
        subscribe=["t"],
        kafka={"bootstrap.servers": "h:1"},
        value_format="json",
        value_schema=arrow,
        key_format="string",
    )
    assert made.value_schema == "STRUCT<id: BIGINT, tags: ARRAY<STRING>>"
    for one in (made, pickle.loads(pickle.dumps(made))):
        schema = one.schema()
        assert (schema.field("key").type, schema.field("_corrupt_record").type) == (pa.string(), CORRUPT)
        assert schema.field("value").type == pa.struct(list(arrow))
    # Whatever the mode is: a restart that changes it does not change the columns.
    strict = unread(value_format="string", mode="FAILFAST")
    assert "_corrupt_record" in strict.schema().names


@pytest.mark.parametrize(
    ("options", "option", "says"),
    [
        ({"value_format": "json"}, "valueSchema", "needs a schema"),
        ({"key_format": "json"}, "keySchema", "needs a schema"),
        ({"value_schema": "a INT"}, "valueSchema", "valueFormat is bytes"),
        ({"value_format": "string", "value_schema": "a INT"}, "valueSchema", "valueFormat is string"),
        ({"value_format": "avro"}, "value_format", "json"),
        ({"value_format": "json", "value_schema": "a FOO"}, "valueSchema", "'foo' is not known"),
        ({"value_format": "json", "value_schema": "a MAP<INT,INT>"}, "valueSchema", "the JSON format does not support"),
        ({"value_format": "json", "value_schema": "_corrupt_record INT"}, "valueSchema", "must be a string"),
        ({"mode": "FAILFAST"}, "mode", "neither is decoded"),
        ({"mode": "LOUD", **JSON}, "mode", "LOUD"),
        ({"column_name_of_corrupt_record": "x"}, "columnNameOfCorruptRecord", "neither is decoded"),
        ({"column_name_of_corrupt_record": "offset", **JSON}, "columnNameOfCorruptRecord", "already has a column"),
        ({"value_format": "string", "json_options": {"allowComments": "true"}}, "json.allowComments", "neither"),
        ({**JSON, "json_options": {"multiLine": "true"}}, "json.multiLine", "multiLine"),
        ({**JSON, "json_options": {"timestampFormat": "bb"}}, "json.timestampFormat", "bb"),
        ({**JSON, "time_zone": "Mars"}, "timeZone", "Mars"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(options: dict[str, Any], option: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        unread(**options)
    assert (caught.value.option, says in str(caught.value)) == (option, True), str(caught.value)


def test_a_zone_that_is_not_known_here_is_no_hindrance_where_no_times_are_read() -> None:
    assert unread(time_zone="Mars").schema().field("value").type == pa.binary()


def test_an_unknown_column_is_refused() -> None:
    read = unread(**JSON)
    with pytest.raises(ConfigurationError, match="the Kafka source has no column 'valeu'"):
        read.with_columns(("valeu",)).schema()


def test_a_slice_of_fetched_records_is_decoded_like_the_whole() -> None:
    payloads = unread(value_format="json", value_schema="id INT").payloads()
    schema = payloads.schema(["_corrupt_record", "value", "partition"], include_headers=False)
    assert payloads.raw_columns(schema.names) == ("key", "value", "partition", "offset")
    values = [b'{"id":1}', b"{", None, b'{"id":2}', b"[]"]
    keys = pa.nulls(5, pa.binary())
    whole = pa.record_batch(
        {"key": keys, "value": values, "partition": pa.array([3] * 5, pa.int32()), "offset": [5, 6, 7, 8, 9]}
    )
    found = PayloadDecoder(payloads, schema, "s").decode(whole.slice(1, 4), TopicPartition("t", 3))
    assert found is not None
    assert found.schema == schema
    found.validate(full=True)
    assert [one and one["offset"] for one in found.column("_corrupt_record").to_pylist()] == [6, None, None, 9]
    assert found.column("value").to_pylist() == [{"id": None}, None, {"id": 2}, {"id": None}]
