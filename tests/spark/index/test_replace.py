# SPDX-License-Identifier: Apache-2.0
"""Another definition behind DataFrames and streams that go on."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from forebay.changelog import apply_changes
from forebay.errors import ConfigurationError
from forebay.index import Datasource, Funnel, Property

ORDERS = "order_id int, status string, total decimal(12,2), note string, is_deleted boolean"
WIDE = f"{ORDERS}, customer string"
ROWS = [(number, "open", Decimal(number), "late", False) for number in range(6)]


def with_orders(funnel, **properties):
    """The definition of the funnel, with more or other properties of orders."""
    orders, shipments = funnel.object_type.datasources
    return replace(
        funnel.object_type, datasources=[replace(orders, properties={**orders.properties, **properties}), shipments]
    )


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
    with pytest.raises(ConfigurationError, match="'customer'"):
        funnel.commit("orders", spark.createDataFrame(ROWS, ORDERS), kind="update")
    funnel.commit("orders", wide.where("order_id = 2").drop("total").selectExpr("*", "null as total"), kind="delete")
    assert new.status().pipelines[0].version.count == 5


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


def ticks():
    """The CPU time of the Python workers of this session, in ticks: by main threads, and by threads that go last."""
    main = last = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if b"pyspark.daemon" in (process / "cmdline").read_bytes() and os.getpid() in ancestors(process.name):
                for thread in (process / "task").iterdir():
                    user, system, *_, niceness = stat(thread)[11:17]
                    is_main = thread.name == process.name
                    main += is_main and int(user) + int(system)
                    last += not is_main and int(niceness) >= 10 and int(user) + int(system)
    return main, last


def stat(process):
    """What the kernel says of a process or thread, after its name."""
    return (process / "stat").read_text().rpartition(")")[2].split()


def ancestors(pid):
    while int(pid) > 1:
        pid = stat(Path("/proc") / str(pid))[1]
        yield int(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no priorities of threads")
def test_what_is_built_behind_lets_the_index_that_serves_go_first(spark, funnel, location):
    rows = spark.range(50_000).selectExpr(
        "int(id) order_id", "'open' status", "id total", "'late' note", "false is_deleted"
    )
    funnel = Funnel(location, funnel.object_type, shards=2, small=0)
    before = ticks()
    funnel.commit("orders", rows, kind="snapshot")
    built = ticks()
    assert built[0] > before[0] and built[1] == before[1]
    new = Funnel(location, with_orders(funnel, note=Property("string", filter=True)), small=0)
    assert new.replace(spark).serves
    replaced = ticks()
    assert replaced[1] - built[1] > 2 * (replaced[0] - built[0]), "and the main threads, which stay, do no more"
