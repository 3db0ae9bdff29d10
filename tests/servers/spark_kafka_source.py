# SPDX-License-Identifier: Apache-2.0
"""The jars of Spark's own Kafka source, which forebay is compared with."""

from __future__ import annotations

from forebay.testkit.kafka_broker import Module, fetched

_SPARK_SOURCE = (
    Module("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0", alone=True),
    # Maven Central does not have the version for Spark 4.2; the one for 4.0 works too.
    Module("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0", alone=True),
    Module("org.apache.kafka", "kafka-clients", "3.9.1", alone=True),
    Module("org.apache.commons", "commons-pool2", "2.12.1", alone=True),
)


def spark_source_jars() -> str:
    """Return the jars of Spark's own Kafka source as a value of `spark.jars`, for Spark 4.2. See `fetched`."""
    return ",".join(str(jar) for jar in sorted(fetched("spark-kafka-4.2.0", _SPARK_SOURCE).iterdir()))
