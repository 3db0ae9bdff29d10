# SPDX-License-Identifier: Apache-2.0
"""The same rows as Spark's own Kafka source, value for value; where its jars can be had for this Spark."""

from __future__ import annotations

import datetime as dt
from functools import reduce
from typing import Any

import pytest

pytest.importorskip("pyspark")

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
Row = tuple[Any, ...]


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
# These are read as streams in the soak run alone.
MORE: list[Case] = [
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
    ("zstd", {"startingOffsets": '{"T":{"0":3,"1":16,"2":1,"3":24}}'}),
    ("transactions", {"kafka.isolation.level": "read_committed", "minPartitions": "6"}),
]
ALL = [*CASES, *MORE]
# What these options do is part of other cases.
FEWER_OPTIONS: list[Case] = [
    (kind, {}) for kind in ("plain", "gzip", "snappy", "lz4", "zstd", "appended", "transactions", "skewed")
]


def streamed(cases: list[Case]) -> list[Case]:
    """Leave out those with ends, which streams of Spark's source do not have."""
    return [case for case in cases if not any(name.startswith("ending") for name in case[1])]


def given(topics: dict[str, str], case: Case) -> dict[str, str]:
    """Return the options of a case."""
    kind, options = case
    topic = topics[kind]
    options = {
        name: text.replace('"T"', f'"{topic}"').replace("T", topic, text == "T") for name, text in options.items()
    }
    return options if options.keys() & {"assign", "subscribePattern"} else {**options, "subscribe": topic}


def names(value: Any) -> str:
    """Name a case in the id of a test."""
    return value if isinstance(value, str) else f"{value[0]}-{','.join(value[1])}"


@pytest.fixture(scope="module")
def theirs(spark, kafka, topics, need_spark_s_own) -> list[list[Row]]:
    """What Spark's own source reads in each case: all in one job."""
    frames = []
    for number, case in enumerate(ALL):
        reader = spark.read.format("kafka").option("kafka.bootstrap.servers", kafka.address)
        headers = "headers" if "includeHeaders" in case[1] else "NULL AS headers"
        columns = "topic", "partition", "offset", "key", "value", "unix_micros(timestamp)", "timestampType", headers
        frames.append(reader.options(**given(topics, case)).load().selectExpr(f"{number} AS number", *columns))
    found: list[list[Row]] = [[] for _ in ALL]
    for number, *row, headers in reduce(lambda one, other: one.unionAll(other), frames).collect():
        found[number].append((*row, headers and [(one.key, one.value) for one in headers]))
    return [sorted(rows, key=lambda row: row[:3]) for rows in found]


@pytest.mark.parametrize(
    ("case", "how"), [*((case, "batch") for case in ALL), *((case, "stream") for case in streamed(CASES))], ids=names
)
def test_the_same_rows_as_spark_s_own_source(theirs, topics, begin, table, case, how):
    """Ours are read below Spark: the two sources on Spark are compared by the tests after this one."""
    options = given(topics, case)
    if how == "stream":
        query = begin(**{"startingOffsets": "earliest", **options})
        query.drain()
        rows = query.rows
    else:
        rows = table(**options)
    ours = [
        (
            *(row[name] for name in ("topic", "partition", "offset", "key", "value")),
            (row["timestamp"] - EPOCH) // dt.timedelta(microseconds=1),
            row["timestampType"],
            row.get("headers") and [(one["key"], one["value"]) for one in row["headers"]],
        )
        for row in rows
    ]
    assert sorted(ours, key=lambda row: row[:3]) == theirs[ALL.index(case)]
    assert ours or "startingTimestamp" in options


@pytest.mark.soak
@pytest.mark.parametrize("how", ["batch", "stream"])
def test_the_same_rows_and_types_on_spark(check, topics, how):
    assert check(given(topics, CASES[0]), how)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("case", "how"),
    [
        *((case, "batch") for case in [*ALL, *FEWER_OPTIONS]),
        *((case, "stream") for case in streamed([*ALL, *FEWER_OPTIONS])),
    ],
    ids=names,
)
def test_the_same_rows_in_each_case_on_spark(check, topics, case, how):
    assert check(given(topics, case), how) or "startingTimestamp" in case[1]
