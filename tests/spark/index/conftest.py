# SPDX-License-Identifier: Apache-2.0
"""An object type of two datasources, its funnel and nodes."""

from __future__ import annotations

import itertools

import pytest

from forebay.index import Datasource, Funnel, ObjectType, Property, SearchNode

ORDER = ObjectType(
    "Order",
    key="order_id",
    datasources=[
        Datasource(
            "orders",
            deleted="is_deleted",
            properties={
                "status": Property("string", filter=True),
                "total": Property("decimal(12,2)", filter=True),
                "note": Property("string", text=True),
            },
        ),
        Datasource(
            "shipments",
            key={"order_id": "order_no"},
            properties={"city": Property("string", column="ship_city", filter=True)},
        ),
    ],
)
ORDERS = "order_id int, status string, total decimal(12,2), note string, is_deleted boolean"
SHIPMENTS = "order_no long, ship_city string"


@pytest.fixture
def location(tmp_path):
    return str(tmp_path / "objects")


@pytest.fixture
def funnel(location):
    """A funnel with two shards; the driver does the work."""
    return Funnel(location, ORDER, shards=2)


@pytest.fixture
def node_of(tmp_path):
    """Make nodes, each with a cache of its own."""
    numbers, nodes = itertools.count(), []

    def make(location, name="Order", **options):
        nodes.append(SearchNode(location, name, cache=tmp_path / f"node{next(numbers)}", **options))
        return nodes[-1]

    yield make
    for node in nodes:
        node.close()
