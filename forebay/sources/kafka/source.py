# SPDX-License-Identifier: Apache-2.0
"""The Kafka source: the factory of its enumerator and its split readers."""

from __future__ import annotations

import importlib.util
from typing import ClassVar

from forebay.errors import ConfigurationError
from forebay.framework.discovery import DiscoveryEnumerator
from forebay.framework.enumerator import SplitEnumeratorContext
from forebay.framework.reader import SourceReaderContext
from forebay.framework.split import Split
from forebay.framework.split_reader import SplitReader
from forebay.sources.kafka.options import KafkaOptions
from forebay.sources.kafka.split import KafkaSplit


class KafkaSource(KafkaOptions):
    """Reads topics of Apache Kafka with the columns and options of Spark's own source, and more options.

    Set exactly one of `subscribe`, `subscribe_pattern` and `assign`. By default a batch reads from the earliest to the
    latest offsets, and a stream starts at the latest offsets; after the history of a hybrid, at the earliest ones.
    """

    name: ClassVar[str] = "forebay_kafka"
    split_class: ClassVar[type[Split]] = KafkaSplit

    @property
    def bounded(self) -> bool:
        """False: the end of a partition moves as records arrive."""
        return False

    @property
    def event_time(self) -> str | None:
        """The name of the event time column: `timestamp` if this column is read, else None."""
        if self.changelog_format is not None and "timestamp" not in self.kafka_columns:
            return None
        return "timestamp" if self._columns is None or "timestamp" in self._columns else None

    def create_enumerator(self, context: SplitEnumeratorContext) -> DiscoveryEnumerator:
        """Create the enumerator, which discovers the partitions.

        Raises:
            ConfigurationError: kafka-python is not installed, or the options do not fit the host.
        """
        _check_installed()
        from forebay.sources.kafka.enumerator import KafkaEnumerator

        return KafkaEnumerator(
            self, context.clock, streaming=context.streaming, follows_history=context.follows_history
        )

    def create_split_reader(self, context: SourceReaderContext) -> SplitReader:
        """Create the split reader, which leases a consumer of kafka-python.

        Raises:
            ConfigurationError: kafka-python is not installed.
        """
        _check_installed()
        from forebay.sources.kafka.split_reader import KafkaSplitReader

        return KafkaSplitReader(self, context)


def _check_installed() -> None:
    for name in ("kafka", "numpy", "cramjam", "crc32c", "zstandard"):
        if importlib.util.find_spec(name) is None:
            raise ConfigurationError(
                f"forebay_kafka needs the package {name!r}, which this process cannot import",
                source=KafkaSource.name,
                advice='run pip install "forebay[kafka]" on the driver and on every worker',
            )
