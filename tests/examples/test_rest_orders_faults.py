# SPDX-License-Identifier: Apache-2.0
"""The REST connector of the guide survives answers that are cut, in the planner and in tasks."""

from __future__ import annotations

import pytest
from order_service import OrderService  # see conftest.py
from rest_orders import Orders  # see conftest.py

import forebay
from forebay.framework.tasks.assign_tasks import plan_bounded
from forebay.framework.tasks.read_task import ReadTask, run_task
from forebay.testkit import Fault, FaultProxy


@pytest.mark.parametrize("kind", ["truncate", "cut_after_head", "reset_in_body", "slow_down"])
@pytest.mark.parametrize("path", ["*/orders*", "*/regions*", "*/newest*"])
def test_an_answer_that_is_cut_costs_one_more_request(kind, path):
    """As in Spark's planner and tasks: there is no second reader that could hide an error."""
    options = forebay.HostOptions(retry_first_pause="1ms")
    with OrderService(orders=600) as service, FaultProxy(service.url) as proxy:
        source = Orders(url=proxy.url, page_rows=50)
        read = [run_task(ReadTask(source, task, options)) for task in plan_bounded(source, options)]
        expected = sorted(row["id"] for task in read for part in task for row in part.batch.to_pylist())
        fewest = len(proxy.requests)
        proxy.forget()
        proxy.inject(Fault(kind, path=path, nth=(1,)))
        read = [run_task(ReadTask(source, task, options)) for task in plan_bounded(source, options)]
        assert sorted(row["id"] for task in read for part in task for row in part.batch.to_pylist()) == expected
        assert len(expected) == 600
        failed = sum(request.fault is not None for request in proxy.requests)
        assert failed == 1
        # A failed call of latest() asks again for the ends of all three regions.
        assert len(proxy.requests) <= fewest + (3 if path == "*/newest*" else 1)
