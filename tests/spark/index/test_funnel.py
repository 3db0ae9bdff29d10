# SPDX-License-Identifier: Apache-2.0
"""Transactions of DataFrames, and answers of a node about them, on real Spark."""

from __future__ import annotations

from decimal import Decimal

import pytest

from forebay.index import Funnel

ORDERS = "order_id int, status string, total decimal(12,2), note string, is_deleted boolean"
SHIPMENTS = "order_no long, ship_city string"


@pytest.mark.parametrize("small", [50_000, 0], ids=["driver", "tasks"])
def test_two_datasources_one_log_one_node_three_queries(spark, funnel, location, node_of, small):
    funnel = Funnel(location, funnel.object_type, shards=2, small=small)
    note = "東京都の配送が遅延しています"
    orders = [
        (7, "open", Decimal("10.50"), note, None),
        (8, "closed", Decimal(3), "late", False),
    ]
    first = funnel.commit("orders", spark.createDataFrame(orders, ORDERS), kind="snapshot", transaction="mon")
    shipments = spark.createDataFrame([(7, "Oslo"), (9, "Bergen")], SHIPMENTS)
    second = funnel.commit("shipments", shipments, kind="snapshot", transaction="mon")
    assert (first.number, second.number) == (1, 2)

    node = node_of(location)
    assert node.get(7) == {
        "order_id": 7,
        "status": "open",
        "total": Decimal("10.50"),
        "note": note,
        "city": "Oslo",
    }
    assert [row["order_id"] for row in node.where(status="open").fetch().rows] == [7]
    assert [row["order_id"] for row in node.search("配送 遅延").fetch().rows] == [7]
    assert [row["order_id"] for row in node.order_by("-total").fetch().rows] == [7, 8, 9]
    assert node.get(9) == {"order_id": 9, "status": None, "total": None, "note": None, "city": "Bergen"}
    assert node.version.data == 2

    changes = spark.createDataFrame([(8, "closed", Decimal(3), "late", True), (10, "open", None, None, False)], ORDERS)
    funnel.commit("orders", changes, kind="update")
    assert node.count() == 3
    node.refresh()
    assert (node.get(8), node.count(), node.where("total > 10 AND city IN ('Oslo')").count()) == (None, 3, 1)
