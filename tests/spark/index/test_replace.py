# SPDX-License-Identifier: Apache-2.0
"""Another definition behind DataFrames and streams that go on."""

from __future__ import annotations

import errno
import os
import sys
import threading
from dataclasses import replace
from decimal import Decimal

import pytest
from pyspark.sql import functions as F  # noqa: N812 - Spark's own abbreviation

from forebay.changelog import apply_changes
from forebay.errors import ConfigurationError, DataError
from forebay.index import Datasource, Funnel, Property
from forebay.spark.index import launchers
from forebay.table.index import follower
from forebay.table.index.follower import BuildTask, build_shard

ORDERS = "order_id int, status string, total decimal(12,2), note string, is_deleted boolean"
WIDE = f"{ORDERS}, customer string"
ROWS = [(number, "open", Decimal(number), "late", False) for number in range(6)]


def with_orders(funnel, **properties):
    """The definition of the funnel, with more or other properties of orders."""
    orders, shipments = funnel.object_type.datasources
    return replace(
        funnel.object_type, datasources=[replace(orders, properties={**orders.properties, **properties}), shipments]
    )


@pytest.mark.soak("tasks")
@pytest.mark.parametrize("small", [50_000, 0], ids=["driver", "tasks"])
def test_a_new_column_comes_by_a_snapshot_that_feeds_both(spark, funnel, location, node_of, small):
    funnel.commit("orders", spark.createDataFrame(ROWS, ORDERS), kind="snapshot")
    node = node_of(location)
    new = Funnel(location, with_orders(funnel, customer=Property("string", filter=True)), small=small)
    assert new.plan().kind == "REPLACEMENT"
    waits = new.replace(spark).waits
    assert len(waits) == 1 and "a snapshot of the datasource 'orders' with the columns customer" in waits[0]
    with pytest.raises(ConfigurationError, match="the column 'note' of the datasource 'orders' does not exist"):
        wide = spark.createDataFrame([(*row, "Ada") for row in ROWS], WIDE)
        new.commit("orders", wide.drop("note"), kind="snapshot")
    # The state keeps the column from a snapshot on: before, an update with it does not bring it, and feeds the others.
    assert new.commit("orders", wide.where("order_id = 5"), kind="update").counts["updated"] == 0
    assert new.replace(spark).waits == waits
    assert new.commit("orders", wide, kind="snapshot").counts["updated"] == 6
    funnel.commit("orders", wide.where("order_id = 1").selectExpr("*", "1 AS more"), kind="update")
    done = new.replace(spark)
    assert done.serves and done.version is not None and done.version.count == 6
    node.refresh()
    assert node.where(customer="Ada").count() == 6 and new.verify(node).is_equal
    with pytest.raises(
        ConfigurationError, match="'customer' .* does not exist; another definition than that of this F"
    ):
        funnel.commit("orders", spark.createDataFrame(ROWS, ORDERS), kind="update")
    funnel.commit("orders", wide.where("order_id = 2").drop("total").selectExpr("*", "null as total"), kind="delete")
    assert new.status().pipelines[0].version.count == 5


def test_rows_of_the_new_definition_fit_the_one_that_serves_too(spark, funnel, location):
    """Else they would hold up all commits of it until the swap."""
    orders, shipments = funnel.object_type.datasources
    timed = replace(orders, conflict="most_recent", timestamp="at")
    live = Funnel(location, replace(funnel.object_type, datasources=[timed, shipments]), shards=2)
    frame = spark.createDataFrame(ROWS, ORDERS).selectExpr("*", "TIMESTAMP '2024-01-01 00:00:00' AS at")
    live.commit("orders", frame, kind="snapshot")
    new = Funnel(location, with_orders(funnel, total=Property("decimal(20,2)", filter=True)))
    assert not new.replace(spark, swap=False).serves
    wider = frame.withColumn("total", F.lit(Decimal("12345678901.00")).cast("decimal(20,2)"))
    with pytest.raises(DataError, match=r"the column 'total' .* cannot be decimal\(12,2\).*nothing was committed"):
        new.commit("orders", wider.limit(1), kind="snapshot")
    with pytest.raises(
        ConfigurationError, match="the timestamp 'at' .* is bigint; another[\\s\\S]*with Property\\(column"
    ):
        new.commit("orders", frame.withColumn("at", F.lit(4_000_000_000)), kind="snapshot")
    shipped = spark.createDataFrame([(1, "Oslo")], "order_no long, ship_city string")
    assert new.commit("shipments", shipped, kind="append").applied
    assert new.replace(spark).serves
    assert new.commit("orders", wider.drop("at").limit(1), kind="snapshot").applied


@pytest.mark.soak
def test_a_stream_goes_on_before_and_after_the_swap(spark, funnel, location, node_of, tmp_path):
    schema = "order_no long, ship_city string"
    source, checks = str(tmp_path / "in"), str(tmp_path / "checks")

    def feed(target, *rows):
        spark.createDataFrame(list(rows), schema).write.mode("append").parquet(source)
        stream = spark.readStream.schema(schema).parquet(source)
        query = apply_changes(stream, target.target("shipments"), keys="order_no", checkpoint_location=checks)
        query.processAllAvailable()
        query.stop()

    feed(funnel, (1, "Oslo"))
    new = Funnel(location, with_orders(funnel, note=Property("string", filter=True)))
    new.replace(spark, swap=False)
    feed(funnel, (2, "Rome"))
    feed(new, (3, "Nice"))
    assert new.replace(spark).serves
    feed(funnel, (4, "Bonn"))
    feed(new, (5, "Lyon"))
    node = node_of(location)
    assert {row["order_id"]: row["city"] for row in node.objects.fetch().rows} == {
        1: "Oslo",
        2: "Rome",
        3: "Nice",
        4: "Bonn",
        5: "Lyon",
    }
    assert new.verify(node).is_equal


def test_a_refused_definition_says_what_to_do(spark, funnel, location):
    funnel.commit("orders", spark.createDataFrame(ROWS, ORDERS), kind="snapshot")
    other = replace(funnel.object_type, datasources=[Datasource("orders", key={"order_id": "id"})])
    with pytest.raises(ConfigurationError, match="give it a new name, under which it is committed again"):
        Funnel(location, other).replace(spark)
    assert funnel.replace(spark).pipeline == "000001"  # nothing to replace


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no priorities of threads")
@pytest.mark.parametrize("refused", [False, True], ids=["allowed", "refused"])
def test_a_task_of_low_priority_leaves_its_worker_as_it_was(monkeypatch, refused):
    def niceness(task=None):
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def refuse(*_):
        raise OSError(errno.ENOSYS, "not implemented")

    usual, task = niceness(), BuildTask(None, None, "r000001", 1, 0, None)
    with monkeypatch.context() as patches:
        patches.setattr(launchers, "build_shard", niceness)
        if refused:
            patches.setattr(os, "setpriority", refuse)
        launchers._low_priority_thread.cache_clear()
        results = [launchers._build(replace(task, low_priority=low), iter(())) for low in (False, True, True, False)]
    launchers._low_priority_thread().shutdown()
    launchers._low_priority_thread.cache_clear()
    low = usual if refused else max(10, usual)
    assert results == [usual, low, low, usual] and niceness() == usual


@pytest.mark.soak
def test_whole_builds_that_do_not_serve_yet_have_a_low_priority(spark, funnel, location, monkeypatch):
    built = []

    def noting(task):
        built.append((task.pipeline, task.low_priority))
        return build_shard(task)

    monkeypatch.setattr(follower, "build_shard", noting)
    monkeypatch.setattr(launchers, "launch_builds", lambda spark: lambda tasks: [noting(task) for task in tasks])
    monkeypatch.setattr("forebay.spark.index.funnel.launch_builds", launchers.launch_builds)
    funnel = Funnel(location, funnel.object_type, shards=2, small=0)
    funnel.commit("orders", spark.createDataFrame(ROWS, ORDERS), kind="snapshot")
    new = Funnel(location, with_orders(funnel, note=Property("string", filter=True)), small=0)
    assert not new.replace(spark, swap=False).serves
    funnel.commit("orders", spark.createDataFrame(ROWS[:1], ORDERS), kind="delete")
    replaced = new.replace(spark)
    assert replaced.serves
    serving = [low for pipeline, low in built if pipeline != replaced.pipeline]
    behind = [low for pipeline, low in built if pipeline == replaced.pipeline]
    assert serving and not any(serving)
    assert behind == [True, True, False, False], "what it lacks then, it takes quickly"


def test_a_transaction_that_comes_again_after_a_replacement_is_known(spark, funnel, location):
    rows = spark.createDataFrame(ROWS, ORDERS)
    funnel.commit("orders", rows, kind="update", transaction="t")
    funnel.target("shipments").apply(spark.sql("SELECT 1L order_no, 'Oslo' ship_city"), 0, "q", keys="order_no")
    orders, shipments = funnel.object_type.datasources
    fewer = {name: each for name, each in orders.properties.items() if name != "note"}
    kept = replace(shipments, keep=["ship_zip"])
    new = Funnel(location, replace(funnel.object_type, datasources=[replace(orders, properties=fewer), kept]), small=0)
    assert new.replace(spark).waits  # for a snapshot of the shipments
    for by in (funnel, new):
        again = spark.sql("SELECT 1L order_no, 'Oslo' ship_city, '0150' ship_zip")
        assert not by.target("shipments").apply(again, 0, "q", keys="order_no")
        assert not by.commit("orders", rows, kind="update", transaction="t").applied
        for other, kind in ((rows.where("order_id > 0"), "update"), (rows, "snapshot"), (rows, "delete")):
            with pytest.raises(ConfigurationError, match="was committed with other rows, or as another kind"):
                by.commit("orders", other, kind=kind, transaction="t")
