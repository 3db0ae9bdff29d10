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


CASES: list[tuple[str, dict[str, str]]] = [
    ("plain", {}),
    ("plain", {"includeHeaders": "true"}),
    ("plain", {"startingOffsets": '{"T":{"0":-2,"1":3,"2":5,"3":21}}'}),
    ("plain", {"endingOffsets": '{"T":{"0":1,"1":3,"2":-1,"3":0}}'}),
    ("plain", {"startingTimestamp": "5002", "startingOffsetsByTimestampStrategy": "latest"}),
    ("plain", {"startingTimestamp": "5000", "endingTimestamp": "5003"}),
    ("plain", {"endingTimestamp": "9000", "endingOffsets": '{"T":{"0":0,"1":0,"2":0,"3":0}}'}),
    ("plain", {"startingOffsetsByTimestamp": '{"T":{"0":0,"1":5001,"2":5002,"3":5003}}'}),
    ("plain", {"minPartitions": "9"}),
    ("plain", {"maxRecordsPerPartition": "3"}),
    ("plain", {"assign": '{"T":[1,3]}'}),
    ("plain", {"subscribePattern": "T"}),
    ("plain", {"kafka.max.partition.fetch.bytes": "100", "kafka.fetch.max.bytes": "300"}),
    ("gzip", {}),
    ("snappy", {}),
    ("lz4", {}),
    ("zstd", {}),
    ("lz4", {"minPartitions": "7"}),
    ("zstd", {"startingOffsets": '{"T":{"0":3,"1":16,"2":1,"3":24}}'}),
    ("appended", {}),
    ("appended", {"includeHeaders": "true"}),
    ("transactions", {}),
    ("transactions", {"kafka.isolation.level": "read_committed"}),
    ("transactions", {"kafka.isolation.level": "read_committed", "minPartitions": "6"}),
    ("skewed", {}),
    ("skewed", {"minPartitions": "10", "maxRecordsPerPartition": "90"}),
]


# Each stream takes seconds; in streams, the codecs and the other limits are left to the soak run.
IN_STREAMS = (0, 1, 2, 4, 8, 11, 17, 20, 22, 25)
STREAMS = [
    pytest.param(*case, "stream", marks=() if number in IN_STREAMS else pytest.mark.soak)
    for number, case in enumerate(CASES)
    if not any(name.startswith("ending") for name in case[1])  # Spark's source has no ends in streams
]


@pytest.mark.parametrize(
    ("kind", "options", "how"),
    [*((*case, "batch") for case in CASES), *STREAMS],
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
