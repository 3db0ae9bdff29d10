# SPDX-License-Identifier: Apache-2.0
"""The partitioned, resumable, event-timed connector keeps the contract."""

from __future__ import annotations

from order_service import OrderService  # see conftest.py
from rest_orders import Orders  # see conftest.py

from forebay.testkit import SourceContract


class TestOrders(SourceContract):
    def setup_method(self):
        self.orders = self.enter_context(OrderService(regions=[]))

    def source(self):
        return Orders(url=self.orders.url, page_rows=2)

    def add_split(self):
        return self.orders.add_region()

    def write(self, split_id, n):
        return self.orders.add_orders(split_id, n)
