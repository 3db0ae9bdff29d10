# SPDX-License-Identifier: Apache-2.0
"""Decoded values in real Spark: the dead-letter example, and restarts with other options."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.errors import ConfigurationError, DataError

sys.path.append(str(Path(__file__).parents[2] / "examples"))

sql = pytest.importorskip("pyspark.sql")


def test_bad_orders_become_dead_letters_and_nothing_comes_twice(spark: Any, kafka: Any, tmp_path: Path) -> None:
    sort_out = import_module("kafka_dead_letter").sort_out
    topic = kafka.topic(2)
    orders = [f'{{"order":{number},"shop":"Oslo","amount":{number}.5}}' for number in range(20)]
    for part, spoiled in ((orders[:10], '{"order": 10, "shop":'), (orders[10:], '{"order":"x","shop":"kept"}')):
        kafka.send(topic, part[:5], 0)
        kafka.send(topic, [spoiled], 0, key=b"k")
        kafka.send(topic, part[5:], 1)
        query = sort_out(spark, kafka.address, topic, str(tmp_path))
        assert query.awaitTermination(500)
        assert query.exception() is None
    found = spark.read.parquet(f"{tmp_path}/orders").select("order", "amount").collect()
    assert sorted((row.order, row.amount) for row in found) == [(number, number + 0.5) for number in range(20)]
    letters = spark.read.parquet(f"{tmp_path}/dead_letters").drop("batch").orderBy("offset").collect()
    assert [tuple(letter) for letter in letters] == [
        (b"k", b'{"order": 10, "shop":', topic, 0, 5, letters[0].reason),
        (b"k", b'{"order":"x","shop":"kept"}', topic, 0, 11, "value: the field order does not fit BIGINT"),
    ]
    assert letters[0].reason.startswith("value: malformed JSON near byte")


def test_a_restart_keeps_the_format_and_may_change_mode_and_schema(spark: Any, kafka: Any, tmp_path: Path) -> None:
    topic = kafka.topic()
    rows: list[Any] = []

    def run(*values: str, **options: str) -> None:
        kafka.send(topic, values)
        reader = spark.readStream.format("forebay_kafka").option("kafka.bootstrap.servers", kafka.address)
        frame = reader.options(subscribe=topic, startingOffsets="earliest", columns="value", **options).load()
        writer = frame.writeStream.foreachBatch(lambda batch, _: rows.extend(batch.collect()))
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        assert query.awaitTermination(500)
        if query.exception() is not None:
            raise query.exception()

    json = {"valueFormat": "json", "mode": "FAILFAST"}
    run('{"a":1}', valueSchema="a INT", **json)
    with pytest.raises(sql.utils.StreamingQueryException) as caught:
        run('{"a":2}', valueFormat="string")
    refused = forebay.unwrap(caught.value)
    assert isinstance(refused, ConfigurationError)
    assert "valueFormat (was json, is now string)" in refused.message
    with pytest.raises(sql.utils.StreamingQueryException) as caught:
        run('{"a":"x","b":3}', valueSchema="a INT", **json)
    bad = forebay.unwrap(caught.value)
    assert isinstance(bad, DataError)
    assert f"topic {topic}, partition 0, offset 2 is corrupt: value: the field a does not fit INT" in bad.message
    # What the error advises; and producers have a new field by now.
    run(valueFormat="json", valueSchema="a INT, b INT", mode="PERMISSIVE")
    assert [tuple(row.value) for row in rows] == [(1,), (2, None), (None, 3)]
