# SPDX-License-Identifier: Apache-2.0
"""A Spark session with spark-avro."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forebay.testkit.kafka_broker import Module, fetched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def avro(spark: SparkSession) -> SparkSession:
    """Return the session with spark-avro. That of Spark 4.2 is not on Maven Central."""
    jar = fetched("spark-avro-4.1.1", [Module("org.apache.spark", "spark-avro_2.13", "4.1.1", alone=True)])
    spark.sql(f"ADD JAR '{next(jar.iterdir())}'")
    return spark
