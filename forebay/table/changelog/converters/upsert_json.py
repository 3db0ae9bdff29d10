# SPDX-License-Identifier: Apache-2.0
"""Reads and writes rows of Flink's upsert-kafka: key and value as JSON; a NULL value deletes the key (C17)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.formats.json.options import JsonOptions
from forebay.table.changelog.converters.change_events import ChangeEvents, EventKind, valid
from forebay.table.changelog.converters.debezium import cause
from forebay.table.changelog.converters.event_converter import paired, rows_have
from forebay.table.changelog.converters.json_texts import TextReader, json_texts, key_rows, wanted_fields
from forebay.table.changelog.shape import RowKind


class UpsertJsonReader:
    """Reads `value` as the row and `key` as its key. A value is an `update_postimage`; a NULL value a `delete`.

    Key columns always come from the key, so the value may leave them out. A delete has the key's columns only.

    Args:
        payload: The columns of a row; those of the key may be left out.
        key: The columns of the key.
        options: How to read JSON.
        columns: The columns of a row to read; None: all.
    """

    def __init__(
        self, payload: pa.Schema, key: pa.Schema, options: JsonOptions, columns: Sequence[str] | None = None
    ) -> None:
        self.added = pa.schema([])
        every = [*(field for field in key if field.name not in payload.names), *payload]
        self.payload = wanted_fields(every, columns)
        self._keys = TextReader(key, options)
        fields = [field for field in self.payload if field.name not in key.names]
        self._values = TextReader(pa.schema(fields), options) if fields else None

    def read(self, batch: pa.RecordBatch) -> ChangeEvents:
        """Read the events of a record batch; see `EventReader`."""
        if "key" not in batch.schema.names:
            raise ConfigurationError(
                "the format upsert-json needs the column `key`", advice="select the message key as `key`"
            )
        keys = self._keys.read(batch.column("key"))
        deleted = ~valid(batch.column("value"))
        before = key_rows(keys, self.payload)
        lost, columns, values = ~valid(before), keys.fields, None
        if self._values is not None:
            values = self._values.read(batch.column("value"))
            lost |= values.bad & ~deleted
            columns = {**values.fields, **keys.fields}
        after = pa.StructArray.from_arrays([columns[name] for name in self.payload.names], fields=list(self.payload))
        kinds = np.where(deleted, EventKind.DELETE, EventKind.UPSERT).astype(np.int8)
        kinds[lost] = EventKind.MALFORMED

        def reason(row: int) -> str:
            if keys.bad[row]:
                return f"key: {keys.reason(row)}"
            if values is not None and values.bad[row]:
                return f"value: {values.reason(row)}{cause(batch.column('value')[row].as_py(), {'': after}, row)}"
            return "key: it is NULL, or has none of the key columns"

        return ChangeEvents(kinds, before, after, {}, reason)


class UpsertJsonWriter:
    """Writes rows with the columns `key` and `value`, for a Kafka sink; see `UpsertJsonReader`.

    An `update_preimage` directly before its `update_postimage` is left out; an `update_preimage` alone deletes its key.

    Args:
        rows: The schema of the changelog.
        key: The columns of the key, in this order.
    """

    def __init__(self, rows: pa.Schema, key: Sequence[str]) -> None:
        self._key = list(key)
        rows_have(rows, self._key)
        self.schema = pa.schema([pa.field("key", pa.string()), pa.field("value", pa.string())])

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of consecutive record batches.

        Raises:
            DataError: A kind is unknown.
        """
        for batch in paired(batches, self._key):
            rows = batch.filter(~((batch.kinds == RowKind.UPDATE_BEFORE) & batch.pairs))
            keys = json_texts(rows.columns(self._key))
            values = json_texts(rows.payload(), ~np.isin(rows.kinds, (RowKind.DELETE, RowKind.UPDATE_BEFORE)))
            yield pa.RecordBatch.from_arrays([keys, values], schema=self.schema)
