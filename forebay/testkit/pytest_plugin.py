# SPDX-License-Identifier: Apache-2.0
"""Fixtures for tests of connectors: `kafka_broker`, `fault_proxy` and `spark`.

Load it in the conftest.py at the top of the tests: `pytest_plugins = ["forebay.testkit.pytest_plugin"]`. It has
no entry point for pytest, because every run of pytest would then import forebay.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from forebay.testkit.proxies import Fault, FaultProxy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from forebay.testkit.kafka_broker import KafkaBroker


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[KafkaBroker]:
    """A real Kafka broker for all tests: `kafka_broker.address`, `kafka_broker.create_topic(name)`. Needs Java 17."""
    from forebay.testkit.kafka_broker import KafkaBroker

    with KafkaBroker() as broker:
        yield broker


@pytest.fixture
def fault_proxy() -> Iterator[Callable[..., FaultProxy]]:
    """Starts proxies of HTTP servers: `fault_proxy("http://127.0.0.1:9000", Fault("slow_down", nth=(2,)))`."""
    with ExitStack() as proxies:

        def start(server: str, *faults: Fault, seed: int = 0) -> FaultProxy:
            return proxies.enter_context(FaultProxy(server, *faults, seed=seed))

        yield start


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A Spark session for all tests, with two cores and workers of this Python. A failed task is tried once more."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2,2]").appName("forebay tests")
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
    }
    session = builder.config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
