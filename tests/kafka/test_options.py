# SPDX-License-Identifier: Apache-2.0
"""The options of `forebay_kafka`: Spark's names, meaning, precedence and errors. No broker is needed."""

from __future__ import annotations

import pickle

import pytest
from kafka.cluster import collect_hosts

from forebay.errors import ConfigurationError
from forebay.sources.kafka import KafkaSource
from forebay.sources.kafka.bounds import BoundKind
from forebay.sources.kafka.client.client_options import translate
from forebay.sources.kafka.split import TopicPartition

BROKER = {"kafka.bootstrap.servers": "localhost:9092"}


def source(**options: str) -> KafkaSource:
    given = {"kafka.bootstrap.servers": "h:9092", "subscribe": "t"}
    given |= {name.replace("__", "."): value for name, value in options.items()}
    return KafkaSource.from_options({name: value for name, value in given.items() if value is not None})


def refusal(**options: str) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        source(**options)
    return caught.value


@pytest.mark.parametrize(
    ("options", "option", "says"),
    [
        ({"subscribe": None}, "subscribe", "One of the following options must be specified"),
        ({"assign": '{"t":[0]}'}, "subscribe", "Only one of the following options can be specified"),
        ({"subscribePattern": ".*"}, "subscribe", "Only one of the following options can be specified"),
        ({"subscribe": None, "subscribePattern": " "}, "subscribePattern", "empty"),
        ({"subscribe": None, "subscribePattern": "("}, "subscribePattern", "cannot be used"),
        ({"subscribe": None, "assign": "{}"}, "assign", "no partition"),
        ({"subscribe": None, "assign": "t"}, "assign", "not valid JSON"),
        ({"subscribe": None, "assign": '{"t":0}'}, "assign", "not a list"),
        ({"subscribe": None, "assign": '{"t":["0"]}'}, "assign", "not a list"),
        ({"subscribe": None, "assign": '{"t":[-1]}'}, "assign", "not a list"),
        ({"kafka__bootstrap__servers": None}, "kafka.bootstrap.servers", "not set"),
        ({"startingOffsets": "first"}, "startingOffsets", "not valid JSON of partitions, nor earliest or latest"),
        ({"startingOffsets": '{"t":1}'}, "startingOffsets", "not an object of partitions"),
        ({"startingOffsets": '{"t":{"a":1}}'}, "startingOffsets", "has"),
        ({"startingOffsets": '{"t":{"0":"1"}}'}, "startingOffsets", "has"),
        ({"startingOffsets": '{"t":{"0":-3}}'}, "startingOffsets", "-3"),
        ({"endingOffsets": f'{{"t":{{"0":{1 << 63}}}}}'}, "endingOffsets", f"invalid offset {1 << 63}"),
        ({"startingOffsets": "committed"}, "kafka.group.id", "startingOffsets=committed"),
        ({"commitOffsets": "true"}, "kafka.group.id", "commitOffsets"),
        ({"startingTimestamp": "-1"}, "startingTimestamp", "-1"),
        ({"endingTimestamp": str(1 << 63)}, "endingTimestamp", str(1 << 63)),
        ({"startingTimestamp": "soon"}, "startingTimestamp", "takes"),
        ({"startingOffsetsByTimestamp": '{"t":{"0":-2}}'}, "startingOffsetsByTimestamp", "-2 for t/0"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "startingOffsetsByTimestampStrategy", "error"),
        ({"endingOffsets": "earliest"}, "endingOffsets", "endingOffsets=earliest leaves nothing to read"),
        ({"endingOffsets": '{"t":{"0":-2}}'}, "endingOffsets", "endingOffsets=earliest (-2) leaves nothing to read"),
        ({"endingOffsets": "committed"}, "endingOffsets", "endingOffsets=committed leaves nothing to read"),
        ({"minPartitions": "0"}, "minPartitions", "0"),
        ({"maxRecordsPerPartition": "0"}, "maxRecordsPerPartition", "0"),
        ({"fetchOffset__numRetries": "-1"}, "fetchOffset.numRetries", "-1"),
        ({"failOnDataLos": "true"}, "failOnDataLos", "did you mean 'failOnDataLoss'"),
    ],
)
def test_wrong_options_are_refused_by_name(options, option, says):
    error = refusal(**options)
    assert error.option == option
    assert says in error.message
    assert error.advice


SECRET = "hunter-2"


@pytest.mark.parametrize(
    "servers",
    [
        *(f"h:{SECRET}", f"ok:9092,user:{SECRET}:9092", f"h:9092/{SECRET}", f"{SECRET} x:9092", f"http://[::1{SECRET}"),
        *("json:", "http://", "http://[::1", "[::1]9092", "[x]:9092", ":9092", "h:65536", "h:٣", "h:+1", "h\x00:9092"),
        *("h..b:9092", "fe80::1%eth0"),
    ],
)
def test_an_address_of_a_broker_that_is_none_is_refused_and_not_shown(servers):
    error = refusal(kafka__bootstrap__servers=servers)
    assert error.option == "kafka.bootstrap.servers" and "is no host:port" in error.message
    assert "host1:9092,host2:9092" in error.advice
    assert SECRET not in str(error)


@pytest.mark.parametrize(
    "servers",
    ["h", "h:1, h.:65535", "SSL://my_h-1:9092", "[::1]:9092", "[fe80::1%eth0]:9", "::1", "10.0.0.1:9", "münchen.de:9"],
)
def test_addresses_of_brokers_that_kafka_python_reads_are_taken(servers):
    assert translate({"bootstrap.servers": servers}).servers == [each.strip() for each in servers.split(",")]
    collect_hosts(servers)


def test_no_address_at_all_is_the_same_as_no_option():
    assert "not set" in refusal(kafka__bootstrap__servers=" , ").message


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("auto.offset.reset", "latest", "use startingOffsets"),
        ("enable.auto.commit", "true", "commitOffsets"),
        ("key.deserializer", "x", "binary"),
        ("value.deserializer", "x", "binary"),
        ("interceptor.classes", "x", "Java classes"),
        ("max.poll.records", "10", "maxRowsPerBatch"),
        ("session.timeout.ms", "10", "no consumer group"),
        ("fetch.min.byte", "1", "kafka.fetch.min.bytes"),
        ("fetch.min.bytes", "many", "must be an integer"),
        ("check.crcs", "yes", "must be true or false"),
        ("isolation.level", "committed", "must be one of read_uncommitted, read_committed"),
        ("security.protocol", "TLS", "must be one of PLAINTEXT"),
        ("ssl.truststore.location", "/x", "has no effect"),
        ("sasl.mechanism", "PLAIN", "has no effect"),
        ("ssl.cipher.suites", "x", "OpenSSL"),
    ],
)
def test_client_options_without_a_translation_are_refused_by_name(option, value, says):
    error = refusal(**{f"kafka.{option}": value})
    assert error.option == f"kafka.{option}"
    assert says in str(error)


def test_times_go_before_times_of_partitions_and_those_before_offsets():
    given = {
        "startingTimestamp": "5",
        "startingOffsetsByTimestamp": '{"t":{"0":7}}',
        "startingOffsets": '{"t":{"0":9}}',
        "endingTimestamp": "6",
        "endingOffsetsByTimestamp": '{"t":{"0":8}}',
        "endingOffsets": '{"t":{"0":10}}',
    }
    offset_range = source(**given).offset_range
    assert offset_range.start and offset_range.end and (offset_range.start.time, offset_range.end.time) == (5, 6)
    del given["startingTimestamp"], given["endingTimestamp"]
    offset_range = source(**given).offset_range
    assert offset_range.start and offset_range.start.values == {TopicPartition("t", 0): 7}
    assert offset_range.end and offset_range.end.values == {TopicPartition("t", 0): 8}
    del given["startingOffsetsByTimestamp"], given["endingOffsetsByTimestamp"]
    offset_range = source(**given).offset_range
    assert offset_range.start and offset_range.start.values == {TopicPartition("t", 0): 9}
    assert offset_range.end and offset_range.end.values == {TopicPartition("t", 0): 10}
    assert (offset_range.start.kind, offset_range.start.option) == (BoundKind.OFFSETS, "startingOffsets")


def test_a_batch_cannot_start_at_the_latest_offsets_and_a_stream_can():
    for text in ("latest", '{"t":{"0":-1}}'):
        offset_range = source(startingOffsets=text).offset_range
        offset_range.check(streaming=True)
        with pytest.raises(ConfigurationError, match="can't be latest"):
            offset_range.check(streaming=False)


def test_offsets_name_exactly_the_partitions_that_are_read():
    bound = source(startingOffsets='{"t":{"0":3,"1":-1,"2":-2}}').offset_range.start
    assert bound is not None
    bound.check_names([TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("t", 2)])
    with pytest.raises(ConfigurationError, match="must name every partition, but t/3 is missing"):
        bound.check_names([TopicPartition("t", number) for number in range(4)])
    with pytest.raises(ConfigurationError, match="not read: t/2"):
        bound.check_names([TopicPartition("t", 0), TopicPartition("t", 1)])


def test_names_are_matched_without_case_and_values_keep_theirs():
    found = KafkaSource.from_options(
        {"KAFKA.BOOTSTRAP.SERVERS": "h:1", "SUBSCRIBEPATTERN": "Orders-.*", "STARTINGOFFSETS": "EARLIEST"}
    )
    assert (pattern := found.subscription.pattern) and pattern.fullmatch("Orders-1")
    assert (start := found.offset_range.start) and start.kind is BoundKind.EARLIEST
    assert found.client_options.servers == ["h:1"]


def test_python_takes_dicts_where_spark_takes_json():
    found = KafkaSource(
        assign={"t": [0, 1]}, starting_offsets={"t": {"0": 5, "1": -2}}, kafka={"bootstrap.servers": "h:1"}
    )
    assert found.subscription.partitions == (TopicPartition("t", 0), TopicPartition("t", 1))
    assert (start := found.offset_range.start) and start.values == {
        TopicPartition("t", 0): 5,
        TopicPartition("t", 1): -2,
    }


def test_sparks_times_are_milliseconds():
    found = source(kafkaConsumer__pollTimeoutMs="512", fetchOffset__retryIntervalMs="7")
    assert (found.poll_timeout_ms, found.retry_interval_ms) == (512, 7)


def test_the_client_id_is_the_group_or_the_prefix_and_options_are_translated():
    options = source(groupIdPrefix="p").client_options
    assert options.settings["client_id"] == "p"
    options = source(
        kafka__group__id="g",
        kafka__isolation__level="read_committed",
        kafka__check__crcs="false",
        kafka__client__rack="r1",
        kafka__fetch__max__wait__ms="50",
        kafka__receive__buffer__bytes="-1",
    ).client_options
    assert options.read_committed
    assert options.arguments("consumer") == {
        "bootstrap_servers": ["h:9092"],
        "bootstrap_timeout_ms": 15_000,
        "client_id": "g",
        "client_rack": "r1",
        "check_crcs": False,
        "fetch_max_wait_ms": 50,
        "isolation_level": "read_committed",
        "receive_buffer_bytes": None,
    }
    assert "fetch_max_wait_ms" not in options.arguments("admin")


def test_a_source_travels():
    found = source(startingOffsets="earliest", kafka__client__rack="r")
    assert pickle.loads(pickle.dumps(found)) == found


def test_columns_are_sparks():
    fields = {field.name: str(field.type) for field in source(includeHeaders="true").schema()}
    assert fields == {
        "key": "binary",
        "value": "binary",
        "topic": "string",
        "partition": "int32",
        "offset": "int64",
        "timestamp": "timestamp[us, tz=UTC]",
        "timestampType": "int32",
        "headers": fields["headers"],
    }
    assert source().schema().names == list(fields)[:-1]
    assert source().with_columns(("offset", "key")).schema().names == ["offset", "key"]
    assert source().with_columns(("offset",)).event_time is None
