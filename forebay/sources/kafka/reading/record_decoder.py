# SPDX-License-Identifier: Apache-2.0
"""Turns fetched records into the columns of the read: as they are, decoded, or as changes."""

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
    """Converts the fetched records of a read. Called on one thread.

    Args:
        raw: The columns to fetch.
    """

    def __init__(self, raw: pa.Schema) -> None:
        self.raw = raw

    @abstractmethod
    def decode(self, batch: pa.RecordBatch, split_id: str) -> pa.RecordBatch | None:
        """Return the rows of fetched records; None if there are none.

        Raises:
            DataError: A record is corrupt and the mode is FAILFAST, or is no change of a row.
        """

    @abstractmethod
    def close(self) -> None:
        """Log how many records were dropped."""


class _Payloads(RecordDecoder):
    """Decodes keys and values, and adds the positions of rows."""

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
    """Return the decoder for the selected columns of a source; None if they are read as they are."""
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
