# SPDX-License-Identifier: Apache-2.0
"""Decoded values beside `from_json` and CAST on Spark's own Kafka source; streams decode as a batch does."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")

TYPES = {
    "whole numbers": (
        "t TINYINT, s SMALLINT, i INT, l BIGINT",
        ['{"t":-128,"s":32767,"i":-2147483648,"l":9223372036854775807}', '{"t":300,"i":2147483648,"l":1.0}', "{}"],
    ),
    "floating": ("f FLOAT, d DOUBLE", ['{"f":0.1,"d":-0.0}', '{"f":"NaN","d":"-Infinity"}', '{"f":1e39,"d":1e-400}']),
    "decimals": (
        "a DECIMAL(10,2), b DECIMAL(38,18)",
        ['{"a":12345678.905,"b":1}', '{"a":"-0.01","b":"0.000000000000000001"}', '{"a":123456789.1,"b":null}'],
    ),
    "times": (
        "a TIMESTAMP, b TIMESTAMP_NTZ, c DATE",
        [
            '{"a":"2024-02-03T04:05:06.123456789+02:00","b":"2024-02-03 04:05:06.5","c":"2024-02-29"}',
            '{"a":"2024-02-03 04:05:06","b":"2024-02-03T04:05","c":"1582-10-10"}',
            '{"a":1700000000,"b":"2024-02-03T04:05:06Z","c":"2024-02-30"}',
        ],
    ),
    "texts": (
        "a STRING, b BINARY, c BOOLEAN",
        ['{"a":"é😀\\\\n\\\\u0041","b":"aGk=","c":true}', '{"a":"","b":"","c":false}', '{"a":null,"b":"?","c":"true"}'],
    ),
    "nested": (
        "a ARRAY<STRUCT<x: INT, y: ARRAY<STRING>>>, m MAP<STRING, DECIMAL(5,2)>, s STRUCT<p: STRUCT<q: DATE>>",
        [
            '{"a":[{"x":1,"y":["u",null]},null,{}],"m":{"k":1.25,"n":null},"s":{"p":{"q":"2024-01-01"}}}',
            '{"a":[],"m":{},"s":{}}',
            '{"a":[{"x":"bad"}],"m":{"k":1234.5},"s":{"p":5}}',
        ],
    ),
}
AROUND = [None, "", "  ", "null", "[]", "5", '{"a":', "{}", " {} behind", '{"unknown":{"x":[1]}}', '{\n"a":null\n}']


def sent(kafka: Any, values: list[Any]) -> str:
    """A topic with these values, over two partitions, bad ones in the middle."""
    import kafka as client

    topic: str = kafka.topic(2)
    with client.KafkaProducer(bootstrap_servers=kafka.address) as producer:
        for number, value in enumerate(values):
            raw = value.encode() if isinstance(value, str) else value
            producer.send(topic, raw, key=b"k", partition=number % 2).get(30)
    return topic


def both(spark: Any, kafka: Any, topic: str, how: str, value: str, tmp_path: Any, **options: str) -> list[list[Any]]:
    """The values of both, Spark's own first, in the order of partition and offset."""
    found = []
    for name, column, given in (("kafka", value, {}), ("forebay_kafka", "value", options)):
        given |= {"kafka.bootstrap.servers": kafka.address, "subscribe": topic, "startingOffsets": "earliest"}
        reader = spark.read if how == "batch" else spark.readStream
        frame = reader.format(name).options(**given).load().selectExpr("partition", "offset", f"{column} AS value")
        if how == "stream":
            table = f"values_of_{name}"
            writer = frame.writeStream.format("memory").queryName(table)
            query = writer.option("checkpointLocation", f"{tmp_path}/{name}").trigger(availableNow=True).start()
            assert query.awaitTermination(500)
            frame = spark.table(table)
        found.append([frame.dtypes, *frame.orderBy("partition", "offset").collect()])
    return found


HOW = pytest.mark.parametrize("how", ["batch", pytest.param("stream", marks=pytest.mark.soak)])


def same_as_a_stream(begin: Any, table: Any, **options: str) -> bool:
    """Whether streams and batches decode the same, below Spark."""
    query = begin(startingOffsets="earliest", maxOffsetsPerTrigger=15, **options)
    query.drain()
    found = [sorted(rows, key=lambda row: (row["partition"], row["offset"])) for rows in (query.rows, table(**options))]
    # As text, because NaN is not equal to itself.
    return len(query.batches) > 0 and str(found[0]) == str(found[1])


@pytest.mark.soak
@HOW
def test_json_values_are_those_of_from_json(
    spark: Any, kafka: Any, tmp_path: Any, how: str, begin: Any, table: Any
) -> None:
    # All types in one schema: each is a struct of its own.
    ddl = ", ".join(f"c{place} STRUCT<{fields}>" for place, (fields, _) in enumerate(TYPES.values()))
    values = [f'{{"c{place}":{text}}}' for place, (_, texts) in enumerate(TYPES.values()) for text in texts]
    values += [f'{{"c0":{text}}}' for text in AROUND if text and text.strip()]
    topic = sent(kafka, [*values[:10], *AROUND, b'{"c0":\xff}', *values[10:]])
    theirs, ours = both(
        spark, kafka, topic, how, f"from_json(CAST(value AS STRING), '{ddl}')", tmp_path,
        valueFormat="json", valueSchema=ddl,
    )  # fmt: skip
    assert [str(row) for row in ours] == [str(row) for row in theirs]
    assert len(ours) == len(values) + len(AROUND) + 2
    assert same_as_a_stream(begin, table, subscribe=topic, valueFormat="json", valueSchema=ddl)


@HOW
def test_texts_are_those_of_a_cast(spark: Any, kafka: Any, tmp_path: Any, how: str, begin: Any, table: Any) -> None:
    values = [
        None,
        b"",
        b"plain",
        "é😀".encode(),
        b"a\x00b",
        b"\xff",
        b"a\xc3(b",
        b"\xed\xa0\x80x",
        b"\xf0\x9f\x98",
        b"\xc0\x80",
    ]
    topic = sent(kafka, values)
    theirs, ours = both(spark, kafka, topic, how, "CAST(value AS STRING)", tmp_path, valueFormat="string")
    assert ours == theirs
    assert len(ours) == len(values) + 1
    assert same_as_a_stream(begin, table, subscribe=topic, valueFormat="string")
