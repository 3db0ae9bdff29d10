# SPDX-License-Identifier: Apache-2.0
"""Decoded values: the dead-letter example on real Spark, and restarts with other options."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from forebay.errors import ConfigurationError, DataError

sys.path.append(str(Path(__file__).parents[2] / "examples"))

pytest.importorskip("pyspark.sql")


NAMES = ("key", "value", "topic", "partition", "offset", "reason")


def rows_of(directory: Path) -> list[dict[str, Any]]:
    """What Spark wrote."""
    return [row for file in directory.glob("*/*.parquet") for row in pq.read_table(file).to_pylist()]


@pytest.mark.soak
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
    found = rows_of(tmp_path / "orders")
    assert sorted((row["order"], row["amount"]) for row in found) == [(number, number + 0.5) for number in range(20)]
    letters = sorted(rows_of(tmp_path / "dead_letters"), key=lambda letter: letter["offset"])
    assert [tuple(letter[name] for name in NAMES) for letter in letters] == [
        (b"k", b'{"order": 10, "shop":', topic, 0, 5, letters[0]["reason"]),
        (b"k", b'{"order":"x","shop":"kept"}', topic, 0, 11, "value: the field order does not fit BIGINT"),
    ]
    assert letters[0]["reason"].startswith("value: malformed JSON near byte")


def test_a_restart_keeps_the_format_and_may_change_mode_and_schema(kafka: Any, begin: Any) -> None:
    topic = kafka.topic()
    kafka.send(topic, ['{"a":1}'])
    options = {"subscribe": topic, "startingOffsets": "earliest", "columns": "value"}
    query = begin(**options, valueFormat="json", mode="FAILFAST", valueSchema="a INT")
    query.drain()
    kafka.send(topic, ['{"a":2}'])
    query.restart(valueFormat="string", valueSchema=None, mode=None)
    with pytest.raises(ConfigurationError) as refused:
        query.drain()
    assert "valueFormat (was json, is now string)" in refused.value.message
    kafka.send(topic, ['{"a":"x","b":3}'])
    query.restart(valueFormat="json", mode="FAILFAST", valueSchema="a INT")
    with pytest.raises(DataError) as bad:
        query.drain()
    assert f"topic {topic}, partition 0, offset 2 is corrupt: value: the field a does not fit INT" in bad.value.message
    # What the error advises; and producers have a new field by now.
    query.restart(mode="PERMISSIVE", valueSchema="a INT, b INT")
    query.drain()
    assert [row["value"] for row in query.rows] == [{"a": 1}, {"a": 2, "b": None}, {"a": None, "b": 3}]
