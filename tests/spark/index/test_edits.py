# SPDX-License-Identifier: Apache-2.0
"""Edits by users beside DataFrames: Spark hashes their keys as those of rows."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from forebay.errors import ConfigurationError
from forebay.index import Datasource, Funnel, ObjectType, Property

KINDS = {
    "k1": ("bigint", [-5, 2**63 - 1]),
    "k2": ("string", ["", "ключ-🗝"]),
    "k3": ("boolean", [True, False]),
    "k4": ("binary", [b"", b"\x00\xff"]),
    "k5": ("date", [datetime(1, 1, 1).date(), datetime(2026, 1, 1).date()]),
    "k6": ("timestamp", [datetime(1960, 1, 1, 0, 0, 1, tzinfo=UTC), datetime(2026, 7, 1, 12, tzinfo=UTC)]),
    "k7": ("timestamp_ntz", [datetime(1960, 1, 1), datetime(2026, 7, 1)]),
    "k8": ("decimal(20,3)", [Decimal("-1.500"), Decimal("12345678901234567.000")]),
}


def test_edits_meet_the_rows_of_keys_of_every_type(spark, location, node_of):
    thing = ObjectType("Thing", list(KINDS), [Datasource("a", {"v": Property("int", filter=True)}), Datasource("b")])
    funnel = Funnel(location, thing, shards=2)
    keys = list(zip(*(values for _, values in KINDS.values()), strict=True))
    schema = ", ".join([*(f"{name} {kind}" for name, (kind, _) in KINDS.items()), "v int"])
    funnel.commit("a", spark.createDataFrame([(*key, 1) for key in keys], schema), kind="snapshot")
    node = node_of(location, "Thing")
    node.edit_many([(key, {"v": place}) for place, key in enumerate(keys, 5)])
    assert funnel.flush_due() is None
    batch = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(batch, "0")
    try:
        with pytest.raises(ConfigurationError, match=f"while {batch} is 0"):
            funnel.flush(spark)
    finally:
        spark.conf.unset(batch)
    done = funnel.flush(spark)
    assert (done.applied, done.transaction, done.counts["inserted"]) == (True, "1-1", 2)
    assert funnel.flush(spark).applied is False
    node.refresh()
    assert [node.get(key)["v"] for key in keys] == [5, 6]
    assert (node.count(), node.where("v >= 5").count(), node.view().overlay.edits) == (2, 2, ())
    assert funnel.verify(node).is_equal
    text = str(funnel.why(keys[0]))
    assert "edits: v=5 at" in text and "datasource a: " in text


@pytest.mark.soak
def test_tasks_of_spark_merge_edits(spark, funnel, location, node_of):
    funnel = Funnel(location, funnel.object_type, shards=2, small=0)
    schema = "order_id int, status string, total decimal(12,2), note string, is_deleted boolean"
    rows = spark.createDataFrame([(number, "open", None, "late", False) for number in range(8)], schema)
    funnel.commit("orders", rows, kind="snapshot")
    node = node_of(location)
    node.edit_many([(1, {"status": "x"}), (2, None), (50, {"city": "Oslo"})])
    funnel.flush()
    funnel.commit("orders", spark.createDataFrame([(2, "new", None, "", False)], schema), kind="update")
    for full in (False, True):
        version = funnel.follow(full=full)
        node.refresh()
        assert (node.get(1)["status"], node.get(2), node.get(50)["city"]) == ("x", None, "Oslo")
        assert (node.count(), version.count) == (8, 8) and funnel.verify(node).is_equal


@pytest.mark.parametrize("kind", ["date", "bigint", "string"])
def test_the_timestamp_of_most_recent_is_a_timestamp(spark, location, kind):
    thing = ObjectType("Thing", "id", [Datasource("a", {"v": Property("int")}, conflict="most_recent", timestamp="at")])
    rows = spark.createDataFrame([], f"id int, v int, at {kind}")
    with pytest.raises(ConfigurationError, match=f"the timestamp 'at' of the datasource 'a' is {kind}"):
        Funnel(location, thing).commit("a", rows, kind="snapshot")


@pytest.mark.soak
def test_the_time_of_a_row_decides_with_and_without_a_time_zone(spark, location, node_of):
    for kind in ("timestamp", "timestamp_ntz"):
        source = Datasource("a", {"v": Property("int")}, conflict="most_recent", timestamp="at")
        funnel = Funnel(location, ObjectType(f"Thing-{kind}", "id", [source]), shards=1)
        rows = [(1, 1, "2001-01-01 00:00:00"), (2, 2, "9000-01-01 00:00:00"), (3, 3, None)]
        frame = spark.createDataFrame(rows, "id int, v int, at string")
        funnel.commit("a", frame.selectExpr("id", "v", f"CAST(at AS {kind}) AS at"), kind="snapshot")
        node = node_of(location, f"Thing-{kind}")
        node.edit_many([(key, {"v": 0}) for key in (1, 2, 3)])
        assert [node.get(key)["v"] for key in (1, 2, 3)] == [0, 2, 0]
        funnel.flush(spark)
        node.refresh()
        assert [node.get(key)["v"] for key in (1, 2, 3)] == [0, 2, 0] and funnel.verify(node).is_equal
