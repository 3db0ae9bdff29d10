# SPDX-License-Identifier: Apache-2.0
"""The same rows as Spark's own Kafka source, value for value; where its jars can be had for this Spark."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")


@pytest.fixture(scope="module")
def topics(kafka) -> dict[str, str]:
    """Topics of all kinds."""
    import kafka as client

    found = {kind: kafka.topic(4, **config) for kind, config in (("plain", {}), ("appended", {}))}
    found["appended"] = kafka.topic(2, message_timestamp_type="LogAppendTime")
    found["transactions"] = kafka.topic(2)
    found["skewed"] = kafka.topic(5)
    for partition in range(4):
        kafka.send(
            found["plain"], range(partition * 7), partition, key=b"k%d" % partition, timestamp_ms=5000 + partition
        )
    kafka.send(found["plain"], ["no key"], 0, timestamp_ms=9000)
    with client.KafkaProducer(bootstrap_servers=kafka.address) as producer:
        producer.send(found["plain"], None, key=b"tombstone", partition=1, timestamp_ms=9001).get(30)
        producer.send(found["plain"], b"", key=b"", partition=1, headers=[("a", b"1"), ("a", b"2"), ("", b"")]).get(30)
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        found[codec] = kafka.topic(4, compression_type=codec)  # the broker compresses
        for partition in range(4):
            kafka.send(found[codec], [f"{codec} {number}" * 5 for number in range(25)], partition)
    kafka.send(found["appended"], range(20), 1)
    kafka.send(found["skewed"], range(500), 2)
    kafka.send(found["skewed"], range(3), 4)
    with client.KafkaProducer(bootstrap_servers=kafka.address, transactional_id=found["transactions"]) as producer:
        producer.init_transactions()
        for number in range(6):
            producer.begin_transaction()
            for partition in range(2):
                producer.send(found["transactions"], b"t%d" % number, partition=partition).get(30)
            (producer.abort_transaction if number % 3 == 1 else producer.commit_transaction)()
    return found


Case = tuple[str, dict[str, str]]

CASES: list[Case] = [
    ("plain", {"includeHeaders": "true"}),
    ("plain", {"startingOffsets": '{"T":{"0":-2,"1":3,"2":5,"3":21}}'}),
    ("transactions", {"kafka.isolation.level": "read_committed"}),
    ("skewed", {"minPartitions": "10", "maxRecordsPerPartition": "90"}),
]
# Each stream takes seconds: these are read as streams in the soak run alone.
MORE: list[Case] = [
    ("plain", {}),
    ("plain", {"startingTimestamp": "5002", "startingOffsetsByTimestampStrategy": "latest"}),
    ("plain", {"minPartitions": "9"}),
    ("plain", {"subscribePattern": "T"}),
    ("lz4", {"minPartitions": "7"}),
    ("appended", {"includeHeaders": "true"}),
    ("plain", {"endingOffsets": '{"T":{"0":1,"1":3,"2":-1,"3":0}}'}),
    ("plain", {"startingTimestamp": "5000", "endingTimestamp": "5003"}),
    ("plain", {"endingTimestamp": "9000", "endingOffsets": '{"T":{"0":0,"1":0,"2":0,"3":0}}'}),
    ("plain", {"startingOffsetsByTimestamp": '{"T":{"0":0,"1":5001,"2":5002,"3":5003}}'}),
    ("plain", {"maxRecordsPerPartition": "3"}),
    ("plain", {"assign": '{"T":[1,3]}'}),
    ("plain", {"kafka.max.partition.fetch.bytes": "100", "kafka.fetch.max.bytes": "300"}),
    ("gzip", {}),
    ("snappy", {}),
    ("lz4", {}),
    ("zstd", {}),
    ("zstd", {"startingOffsets": '{"T":{"0":3,"1":16,"2":1,"3":24}}'}),
    ("appended", {}),
    ("transactions", {}),
    ("transactions", {"kafka.isolation.level": "read_committed", "minPartitions": "6"}),
    ("skewed", {}),
]
STREAMS = [
    *((*case, "stream") for case in CASES),
    *(
        pytest.param(*case, "stream", marks=pytest.mark.soak)
        for case in MORE
        if not any(name.startswith("ending") for name in case[1])  # Spark's source has no ends in streams
    ),
]


@pytest.mark.parametrize(
    ("kind", "options", "how"),
    [*((*case, "batch") for case in [*CASES, *MORE]), *STREAMS],
    ids=lambda value: value if isinstance(value, str) else ",".join(value),
)
def test_the_same_rows_as_spark_s_own_source(check, topics, kind, options, how):
    topic = topics[kind]
    options = {
        name: text.replace('"T"', f'"{topic}"').replace("T", topic, text == "T") for name, text in options.items()
    }
    if not options.keys() & {"assign", "subscribePattern"}:
        options["subscribe"] = topic
    assert check(options, how) or "startingTimestamp" in options
