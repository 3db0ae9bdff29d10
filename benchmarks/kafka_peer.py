# SPDX-License-Identifier: Apache-2.0
"""Spark's own Kafka source: its jars, and a session with both sources."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

import forebay
from forebay.testkit.servers.kafka_jars import cache, java

# The newest ones there are for Spark 4.2: its token provider is not on Maven Central, and that of 4.0 fits.
_JARS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.1"),
    ("org.apache.commons", "commons-pool2", "2.12.1"),
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
        .config("spark.jars", ",".join(map(str, _jars())))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "3g")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    forebay.register(spark)
    return spark


def _jars() -> list[Path]:
    """Return the jars; the first call ever fetches them by the Ivy inside PySpark."""
    home = cache() / "spark-kafka-4.2.0"
    ivy = next(Path(str(pyspark.__file__)).parent.glob("jars/ivy-*.jar"))
    found = []
    for group, name, version in _JARS:
        jar = home / f"{name}-{version}.jar"
        found.append(jar)
        if jar.exists():
            continue
        command = [java(), "-jar", str(ivy), "-cache", str(cache() / "ivy"), "-dependency", group, name, version]
        command += ["-confs", "default", "-notransitive", "-types", "jar", "bundle"]
        command += ["-retrieve", f"{home}/[artifact]-[revision].[ext]"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if not jar.exists():
            raise SystemExit(f"{name} {version} cannot be fetched here: {done.stdout[-500:]}{done.stderr[-500:]}")
    return found
