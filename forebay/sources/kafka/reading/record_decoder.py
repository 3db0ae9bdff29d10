# SPDX-License-Identifier: Apache-2.0
"""Converts fetched records to the columns of the read: with decoded keys and values, or as changes of rows."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from forebay.errors import DataError
from forebay.formats.json.cells import CellReader, Cells, spread
from forebay.formats.records.encodings import utf8_problem, with_valid_utf8
from forebay.sources.kafka.options.kafka_options import KafkaOptions
from forebay.sources.kafka.options.payloads import CORRUPT, Payloads
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


# -- Decodes keys and values of fetched records by columns, and handles corrupt records by `mode`.


_log = logging.getLogger(__name__)

_SHOWN = 100


class PayloadDecoder:
    """Decodes the raw keys and values of record batches to the columns of a schema. Called on one thread."""

    def __init__(self, payloads: Payloads, schema: pa.Schema, source: str) -> None:
        self._payloads = payloads
        self._schema = schema
        self._source = source
        self._readers: dict[str, CellReader | None] = {}
        for name in payloads.decoded(schema.names):
            kind = payloads.types[name]
            fields = list(kind) if isinstance(kind, pa.StructType) else None
            self._readers[name] = None if fields is None else CellReader(pa.schema(fields), payloads.options)
        self._dropped = 0
        self._first_dropped = ""

    def decode(self, batch: pa.RecordBatch, partition: TopicPartition) -> pa.RecordBatch | None:
        """Decode the keys and values of a record batch; return None if all its records are dropped.

        Raises:
            DataError: A record is corrupt and the mode is FAILFAST. The error names topic, partition, offset and
                reason.
        """
        columns = {name: batch.column(name) for name in batch.schema.names}
        found = {name: self._decoded(name, columns[name]) for name in self._readers}
        bad = sorted({row for one in found.values() for row in one.bad})
        mode = self._payloads.options.mode
        if bad and mode == "FAILFAST":
            raise self._refusal(batch, bad[0], found, partition)
        columns |= {name: one.values for name, one in found.items()}
        if self._payloads.corrupt_column in self._schema.names:
            reported = bad if mode == "PERMISSIVE" else []
            columns[self._payloads.corrupt_column] = self._corrupt(batch, reported, found, partition)
        made = pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)
        if not bad or mode == "PERMISSIVE":
            return made
        if not self._dropped:
            self._first_dropped = f"{_location(batch, bad[0], partition)}: {self._reason(batch, bad[0], found)}"
        self._dropped += len(bad)
        kept = np.ones(batch.num_rows, np.bool_)
        kept[bad] = False
        return made.filter(pa.array(kept)) if len(bad) < batch.num_rows else None

    def close(self) -> None:
        """Log a warning with the number of records dropped by `mode`, if there are any."""
        if self._dropped:
            _log.warning(
                "%s: mode=DROPMALFORMED dropped %d corrupt records of a task; the first one: %s",
                self._source,
                self._dropped,
                self._first_dropped,
            )

    def _decoded(self, name: str, raw: pa.Array) -> Cells:
        reader = self._readers[name]
        return _strings(raw) if reader is None else reader.read(raw)

    def _reason(self, batch: pa.RecordBatch, row: int, found: Mapping[str, Cells]) -> str:
        reasons = []
        for name, one in found.items():
            at = bisect_left(one.bad, row)
            if at < len(one.bad) and one.bad[at] == row:
                reader, text = self._readers[name], batch.column(name)[row].as_py()
                reasons.append(f"{name}: {utf8_problem(text) if reader is None else reader.reason(text)}")
        return "; ".join(reasons)

    def _corrupt(
        self, batch: pa.RecordBatch, bad: list[int], found: Mapping[str, Cells], partition: TopicPartition
    ) -> pa.Array:
        """Return the corrupt-record column: the raw record and the reason for corrupt records, null for the others."""
        if not bad:
            return pa.nulls(batch.num_rows, CORRUPT)
        rows = batch.take(pa.array(bad))
        corrupt = pa.StructArray.from_arrays(
            [
                rows.column("key"),
                rows.column("value"),
                pa.array([partition.topic] * len(bad), pa.string()),
                pa.array([partition.partition] * len(bad), pa.int32()),
                rows.column("offset"),
                pa.array([self._reason(batch, row, found) for row in bad], pa.string()),
            ],
            fields=list(CORRUPT),
        )
        rows_of = np.full(batch.num_rows, -1)
        rows_of[bad] = np.arange(len(bad))
        return spread(corrupt, rows_of)

    def _refusal(
        self, batch: pa.RecordBatch, row: int, found: Mapping[str, Cells], partition: TopicPartition
    ) -> DataError:
        texts = {name: batch.column(name)[row].as_py() for name, one in found.items() if row in one.bad}
        shown = "; ".join(f"the {name} begins with {text[:_SHOWN]!r}" for name, text in texts.items())
        return DataError(
            f"the record at {_location(batch, row, partition)} is corrupt: {self._reason(batch, row, found)}; {shown}",
            source=self._source,
            split=partition.split_id,
            position=batch.column("offset")[row].as_py(),
            option="mode",
            advice="correct the schema in the options; or set mode=PERMISSIVE to keep such records in the column "
            f"{self._payloads.corrupt_column}, or mode=DROPMALFORMED to drop them",
        )


def _strings(raw: pa.Array) -> Cells:
    """Convert binary values to strings. Invalid UTF-8 becomes U+FFFD, as in Spark's CAST, and counts as corrupt."""
    try:
        return Cells(raw.cast(pa.string()), [])
    except pa.ArrowInvalid:
        values, bad = with_valid_utf8(raw)
        return Cells(values.cast(pa.string()), bad)


def _location(batch: pa.RecordBatch, row: int, partition: TopicPartition) -> str:
    return f"topic {partition.topic}, partition {partition.partition}, offset {batch.column('offset')[row].as_py()}"
