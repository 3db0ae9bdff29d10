# SPDX-License-Identifier: Apache-2.0
"""A Spark session whose JVM is in the time zone of the module, because ORC's reader for Java takes it from there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _set_jvm_zone(session: SparkSession, zone: str) -> None:
    time_zone: Any = session._jvm.java.util.TimeZone  # type: ignore[union-attr]  # there is a JVM
    time_zone.setDefault(time_zone.getTimeZone(zone))


@pytest.fixture(scope="module")
def spark_in_zone(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    jvm: Any = spark._jvm
    before = jvm.java.util.TimeZone.getDefault().getID()
    _set_jvm_zone(spark, request.module.ZONE)
    yield spark
    _set_jvm_zone(spark, before)
