# SPDX-License-Identifier: Apache-2.0
"""Spark's own Kafka source: its jars, and a session with both sources."""

from __future__ import annotations

from collections.abc import Sequence

import pyspark
from pyspark.sql import SparkSession
from spark_kafka_source import spark_source_jars

import forebay


def both(cores: str = "*", settings: Sequence[str] = ()) -> SparkSession:
    """Return a session that reads with `kafka` and with `forebay_kafka`.

    Args:
        cores: How many.
        settings: More settings of Spark, `name=value`.
    """
    if not pyspark.__version__.startswith("4.2."):
        raise SystemExit(f"Spark's own Kafka source is to be had for Spark 4.2, and this is {pyspark.__version__}")
    builder = SparkSession.builder
    for setting in settings:
        builder = builder.config(*setting.split("=", 1))
    spark = (
        builder.master(f"local[{cores}]")
        .config("spark.jars", spark_source_jars())
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "3g")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    forebay.register(spark)
    return spark
