# SPDX-License-Identifier: Apache-2.0
"""Format `forebay_kafka`: reads topics of Apache Kafka, bounded or as a stream, with the options of Spark's source."""

from __future__ import annotations

from forebay.sources.kafka.source import KafkaSource
from forebay.sources.kafka.split import KafkaSplit

__all__ = ["KafkaSource", "KafkaSplit"]
