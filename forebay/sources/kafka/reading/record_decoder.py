# SPDX-License-Identifier: Apache-2.0
"""Converts fetched records to the columns of the read: with decoded keys and values, or as changes of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import pyarrow as pa

from forebay.sources.kafka.options.kafka_options import KafkaOptions
from forebay.sources.kafka.reading.payload_decoder import PayloadDecoder
from forebay.sources.kafka.records.decoding import record_schema
from forebay.sources.kafka.split import TopicPartition
from forebay.table.changelog.shape import POSITION, SPLIT

if TYPE_CHECKING:
    from forebay.sources.kafka.options.changelogs import Changelog


class RecordDecoder(ABC):
    """Converts fetched records to the rows of a read. Called on one thread.

    Args:
        raw: The schema of the columns to fetch.
    """

    def __init__(self, raw: pa.Schema) -> None:
        self.raw = raw

    @abstractmethod
    def decode(self, batch: pa.RecordBatch, split_id: str) -> pa.RecordBatch | None:
        """Return the rows for fetched records; None if there are none.

        Raises:
            DataError: A record is corrupt and the mode is FAILFAST, or a record is not a valid change of a row.
        """

    @abstractmethod
    def close(self) -> None:
        """Log a warning with the number of records dropped by `mode`, if there are any."""


class _Payloads(RecordDecoder):
    """Decodes keys and values, and adds the columns of the option `rowPositions`."""

    def __init__(self, source: KafkaOptions, schema: pa.Schema) -> None:
        payloads = source.payloads()
        super().__init__(record_schema(payloads.raw_columns(schema.names)))
        self._decoder = PayloadDecoder(payloads, schema, source.name)

    def decode(self, batch: pa.RecordBatch, split_id: str) -> pa.RecordBatch | None:
        return self._decoder.decode(_positioned(batch, split_id), TopicPartition.of(split_id))

    def close(self) -> None:
        self._decoder.close()


class _Changes(RecordDecoder):
    """Converts change events to the rows of a changelog."""

    def __init__(self, changelog: Changelog, schema: pa.Schema, source: str) -> None:
        super().__init__(record_schema(changelog.raw_columns(schema.names)))
        self._converter = changelog.converter(schema.names, source)

    def decode(self, batch: pa.RecordBatch, split_id: str) -> pa.RecordBatch | None:
        found = self._converter.convert(_positioned(batch, split_id))
        return found if found.num_rows else None

    def close(self) -> None:
        self._converter.close()


def record_decoder(source: KafkaOptions) -> RecordDecoder | None:
    """Return the decoder for the selected columns of a source; None if fetched records need no conversion."""
    schema = source.schema()
    changelog = source.changelog()
    if changelog is not None:
        return _Changes(changelog, schema, source.name)
    if source.payloads().decoded(schema.names) or {SPLIT, POSITION} & set(schema.names):
        return _Payloads(source, schema)
    return None


def _positioned(batch: pa.RecordBatch, split_id: str) -> pa.RecordBatch:
    splits = pa.repeat(split_id, batch.num_rows)
    return batch.append_column(SPLIT, splits).append_column(POSITION, batch.column("offset"))
