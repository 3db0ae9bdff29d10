# SPDX-License-Identifier: Apache-2.0
"""The Kafka source: the factory of its enumerator and its split readers."""

from __future__ import annotations

import importlib.util
from typing import ClassVar, Self

from forebay.errors import ConfigurationError
from forebay.framework.discovery import DiscoveryEnumerator
from forebay.framework.enumerator import SplitEnumeratorContext
from forebay.framework.reader import SourceReaderContext
from forebay.framework.split import Split
from forebay.framework.split_reader import SplitReader
from forebay.options import class_options
from forebay.sources.kafka.options.kafka_options import KafkaOptions
from forebay.sources.kafka.split import KafkaSplit

_DECODING = (
    "value_format",
    "key_format",
    "value_schema",
    "key_schema",
    "mode",
    "column_name_of_corrupt_record",
    "json_options",
)


class KafkaSource(KafkaOptions):
    """Reads topics of Apache Kafka with the columns and options of Spark's own source, and more options.

    Set exactly one of `subscribe`, `subscribe_pattern` and `assign`. By default a batch reads from the earliest to the
    latest offsets, and a stream starts at the latest.
    """

    name: ClassVar[str] = "forebay_kafka"
    split_class: ClassVar[type[Split]] = KafkaSplit

    @property
    def bounded(self) -> bool:
        """False: the end of a partition moves as records arrive."""
        return False

    @property
    def event_time(self) -> str | None:
        """The column `timestamp`, if it is selected."""
        return "timestamp" if self._columns is None or "timestamp" in self._columns else None

    def create_enumerator(self, context: SplitEnumeratorContext) -> DiscoveryEnumerator:
        """Make the enumerator of partitions.

        Raises:
            ConfigurationError: kafka-python is not installed, or the options do not fit the host.
        """
        _check_installed()
        from forebay.sources.kafka.planning.enumerator import KafkaEnumerator

        return KafkaEnumerator(self, context.clock, streaming=context.streaming)

    def create_split_reader(self, context: SourceReaderContext) -> SplitReader:
        """Make the reader, which leases a consumer.

        Raises:
            ConfigurationError: kafka-python is not installed.
        """
        _check_installed()
        from forebay.sources.kafka.reading.split_reader import KafkaSplitReader

        columns, payloads = self.schema(), self.payloads()
        if not payloads.decoded(columns.names):
            return KafkaSplitReader(self, context)
        from forebay.sources.kafka.reading.payload_reader import PayloadDecoder, PayloadSplitReader

        raw = KafkaSplitReader(self._raw(payloads.raw_columns(columns.names)), context)
        return PayloadSplitReader(raw, PayloadDecoder(payloads, columns, self.name), self.name)

    def _raw(self, columns: tuple[str, ...]) -> Self:
        """Return this source with raw keys and values."""
        raw = self.with_columns(columns)
        for spec in class_options(type(self)):
            if spec.python_name in _DECODING:
                object.__setattr__(raw, spec.python_name, spec.fresh_default())
        return raw


def _check_installed() -> None:
    for name in ("kafka", "numpy", "cramjam", "crc32c", "zstandard"):
        if importlib.util.find_spec(name) is None:
            raise ConfigurationError(
                f"forebay_kafka needs the package {name!r}, which this process cannot import",
                source=KafkaSource.name,
                advice='pip install "forebay[kafka]" on the driver and on every worker',
            )
