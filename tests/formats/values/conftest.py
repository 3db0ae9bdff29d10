# SPDX-License-Identifier: Apache-2.0
"""A Spark session to compare casts with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.timeType.enabled": "true",
}


@pytest.fixture
def spark() -> Iterator[SparkSession]:
    """A session in which a cast that fails gives null; its settings are put back."""
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master("local[2,2]").config("spark.ui.enabled", "false").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    before = {name: session.conf.get(name) for name in _SETTINGS}
    for name, value in _SETTINGS.items():
        session.conf.set(name, value)
    yield session
    for name, old in before.items():
        session.conf.set(name, old or "")
