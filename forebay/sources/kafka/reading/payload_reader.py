# SPDX-License-Identifier: Apache-2.0
"""Decodes keys and values of fetched records, column by column, and does with bad ones what `mode` says."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from forebay.errors import DataError
from forebay.formats.encodings import utf8_problem, with_valid_utf8
from forebay.formats.json.cells import CellReader, Cells, spread
from forebay.framework.split import Split
from forebay.framework.split_reader import Fetched, SplitReader
from forebay.sources.kafka.reading.payloads import CORRUPT, Payloads
from forebay.sources.kafka.split import TopicPartition

_log = logging.getLogger(__name__)

_SHOWN = 100


class PayloadDecoder:
    """Turns record batches with raw keys and values into those of a schema. For one thread.

    Args:
        payloads: How keys and values are decoded.
        schema: The wanted columns, from `Payloads.schema`.
        source: The format name, for errors.
    """

    def __init__(self, payloads: Payloads, schema: pa.Schema, source: str) -> None:
        self._payloads = payloads
        self._schema = schema
        self._source = source
        self._readers: dict[str, CellReader | None] = {}
        for name in payloads.judged(schema.names):
            kind = payloads.types[name]
            fields = list(kind) if isinstance(kind, pa.StructType) else None
            self._readers[name] = None if fields is None else CellReader(pa.schema(fields), payloads.options)
        self.dropped = 0
        """How many records were left out so far."""
        self.first_dropped = ""
        """Where the first of them stands, and why it was left out."""

    def decode(self, batch: pa.RecordBatch, place: TopicPartition) -> pa.RecordBatch | None:
        """Return the decoded records; None if all are left out.

        Raises:
            DataError: A record is bad and the mode is FAILFAST; it names topic, partition, offset and reason.
        """
        columns = {name: batch.column(name) for name in batch.schema.names}
        found = {name: self._decoded(name, columns[name]) for name in self._readers}
        bad = sorted({row for one in found.values() for row in one.bad})
        mode = self._payloads.options.mode
        if bad and mode == "FAILFAST":
            raise self._refusal(batch, bad[0], found, place)
        columns |= {name: one.values for name, one in found.items()}
        if self._payloads.corrupt in self._schema.names:
            told = bad if mode == "PERMISSIVE" else []
            columns[self._payloads.corrupt] = self._corrupt(batch, told, found, place)
        made = pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)
        if not bad or mode == "PERMISSIVE":
            return made
        if not self.dropped:
            self.first_dropped = f"{_spot(batch, bad[0], place)}: {self._reason(batch, bad[0], found)}"
        self.dropped += len(bad)
        kept = np.ones(batch.num_rows, np.bool_)
        kept[bad] = False
        return made.filter(pa.array(kept)) if len(bad) < batch.num_rows else None

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
        self, batch: pa.RecordBatch, bad: list[int], found: Mapping[str, Cells], place: TopicPartition
    ) -> pa.Array:
        """Return the column for bad records: null for the good ones."""
        if not bad:
            return pa.nulls(batch.num_rows, CORRUPT)
        rows = batch.take(pa.array(bad))
        told = pa.StructArray.from_arrays(
            [
                rows.column("key"),
                rows.column("value"),
                pa.array([place.topic] * len(bad), pa.string()),
                pa.array([place.partition] * len(bad), pa.int32()),
                rows.column("offset"),
                pa.array([self._reason(batch, row, found) for row in bad], pa.string()),
            ],
            fields=list(CORRUPT),
        )
        places = np.full(batch.num_rows, -1)
        places[bad] = np.arange(len(bad))
        return spread(told, places)

    def _refusal(self, batch: pa.RecordBatch, row: int, found: Mapping[str, Cells], place: TopicPartition) -> DataError:
        texts = {name: batch.column(name)[row].as_py() for name, one in found.items() if row in one.bad}
        shown = "; ".join(f"the {name} begins with {text[:_SHOWN]!r}" for name, text in texts.items())
        return DataError(
            f"the record at {_spot(batch, row, place)} is bad: {self._reason(batch, row, found)}; {shown}",
            source=self._source,
            split=place.split_id,
            position=batch.column("offset")[row].as_py(),
            option="mode",
            advice=f"mode=PERMISSIVE keeps such records and tells them in the column {self._payloads.corrupt}, "
            "mode=DROPMALFORMED leaves them out",
        )


class PayloadSplitReader(SplitReader):
    """Reads records with another split reader, and decodes them.

    Args:
        reader: Gives record batches with raw keys and values.
        decoder: Decodes them.
        source: The format name, for the log.
    """

    def __init__(self, reader: SplitReader, decoder: PayloadDecoder, source: str) -> None:
        self._reader = reader
        self._decoder = decoder
        self._source = source
        self._failed: DataError | None = None

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Take more ranges."""
        self._reader.add_splits(splits)

    def fetch(self) -> Sequence[Fetched]:
        """Return what there is, decoded; a record that is left out moves the position all the same.

        Raises:
            DataError: A record is bad and the mode is FAILFAST; what was fetched before it is returned first.
            ForebayError: What the other reader raises.
        """
        if self._failed is not None:
            raise self._failed
        done: list[Fetched] = []
        for one in self._reader.fetch():
            try:
                batch = None if one.batch is None else self._decoder.decode(one.batch, TopicPartition.of(one.split_id))
            except DataError as error:
                if not done:
                    raise
                self._failed = error
                break
            done.append(replace(one, batch=batch))
        return done

    def wake_up(self) -> None:
        """End a wait. Called from any thread."""
        self._reader.wake_up()

    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> bool:
        """Pause some ranges and go on with others."""
        return self._reader.pause_or_resume_splits(pause, resume)

    def close(self) -> None:
        """Close the other reader, and say in the log what was left out."""
        if self._decoder.dropped:
            _log.warning(
                "%s: mode=DROPMALFORMED left out %d bad records of a task; the first one: %s",
                self._source,
                self._decoder.dropped,
                self._decoder.first_dropped,
            )
        self._reader.close()


def _strings(raw: pa.Array) -> Cells:
    """Return texts, with U+FFFD for what is no UTF-8, as Spark shows what it cast."""
    try:
        return Cells(raw.cast(pa.string()), [])
    except pa.ArrowInvalid:
        values, bad = with_valid_utf8(raw)
        return Cells(values.cast(pa.string()), bad)


def _spot(batch: pa.RecordBatch, row: int, place: TopicPartition) -> str:
    return f"topic {place.topic}, partition {place.partition}, offset {batch.column('offset')[row].as_py()}"
