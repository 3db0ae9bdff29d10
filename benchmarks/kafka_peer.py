# SPDX-License-Identifier: Apache-2.0
"""Spark's own Kafka source: its jars, and a session with both sources."""

from __future__ import annotations

import pyspark
from pyspark.sql import SparkSession

import forebay
from forebay.testkit.servers.kafka_jars import Module, fetched

# The newest ones there are for Spark 4.2: its token provider is not on Maven Central, and that of 4.0 fits.
_MODULES = (
    Module("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0", alone=True),
    Module("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0", alone=True),
    Module("org.apache.kafka", "kafka-clients", "3.9.1", alone=True),
    Module("org.apache.commons", "commons-pool2", "2.12.1", alone=True),
)


def both(cores: str = "*") -> SparkSession:
    """Return a session that reads with `kafka` and with `forebay_kafka`.

    Args:
        cores: How many.
    """
    if not pyspark.__version__.startswith("4.2."):
        raise SystemExit(f"Spark's own Kafka source is to be had for Spark 4.2, and this is {pyspark.__version__}")
    spark = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.jars", ",".join(map(str, fetched("spark-kafka-4.2.0", _MODULES).iterdir())))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "3g")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    forebay.register(spark)
    return spark
