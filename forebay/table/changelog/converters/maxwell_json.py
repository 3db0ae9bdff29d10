# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the JSON events of Maxwell's daemon, which reads MySQL's binlog (C17)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Columns
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from forebay.formats.json.options import JsonOptions
from forebay.table.changelog.converters.change_events import (
    SEQUENCE_TYPES,
    ChangeEvents,
    EventKind,
    added_columns,
    binlog_texts,
    children,
    mark_key_updates,
    refuse_event,
    timestamps,
    valid,
)
from forebay.table.changelog.converters.debezium import cause
from forebay.table.changelog.converters.event_converter import paired, rows_have
from forebay.table.changelog.converters.json_texts import TextReader, Texts, dump, json_objects
from forebay.table.changelog.shape import COMMIT_TIMESTAMP, LOG, SEQUENCE, TRANSACTION, RowKind

_TYPES: Final = pa.array(
    ["insert", "bootstrap-insert", "update", "delete", "bootstrap-start", "bootstrap-complete"], pa.string()
)
_BOOTSTRAP: Final = 1
"""The index of the type of a bootstrap's rows, which have no server id."""
_KINDS: Final = np.array(
    [
        EventKind.INSERT,
        EventKind.INSERT,
        EventKind.UPDATE,
        EventKind.DELETE,
        EventKind.SKIP,
        EventKind.SKIP,
        EventKind.MALFORMED,
    ],
    np.int8,
)
_POSTIMAGE: Final = "with missing_before=postimage (Kafka: changelogMissingBefore) and complete them with normalize"
_OLD_NULL: Final = r'(?s)"old".*null|\\u'
"""Matches every text whose `old` may have a null in it."""


class MaxwellJsonReader:
    """Reads events with `type`, `data`, `old`, `ts` and `xid`.

    `old` has only the old values of changed columns; the other columns of the old row are in `data`. An update that
    changes the key gives a delete and an insert. The events for the start and the end of a bootstrap give no change.

    Args:
        payload: The columns of a row.
        options: How to read JSON.
        key: The columns of the primary key, if it is known.
        sequence: `binlog` for `_sequence` from `position`, which Maxwell writes with `output_binlog_position`, and for
            `_log` from `server_id`, which it writes with `output_server_id`.
        missing_before: `postimage` accepts updates without `old`, and rows without some columns; `error` fails.
    """

    def __init__(
        self,
        payload: pa.Schema,
        options: JsonOptions,
        *,
        key: Columns[str] = (),
        sequence: Literal["binlog"] | None = None,
        missing_before: Literal["postimage", "error"] = "postimage",
    ) -> None:
        self.payload, self.added = payload, added_columns(SEQUENCE_TYPES[sequence])
        self._key, self._sequence, self._missing_before = list(key), sequence, missing_before
        row = pa.struct(list(payload))
        fields = {"type": pa.string(), "data": row, "old": row, "ts": pa.int64(), "xid": pa.int64()}
        if sequence is not None:
            fields |= {"position": pa.string(), "xoffset": pa.int64(), "server_id": pa.int64()}
        self._events = TextReader(pa.schema(list(fields.items())), options, "type")
        names = {"type": pa.string(), **dict.fromkeys(("data", "old"), pa.map_(pa.string(), pa.string()))}
        self._names = TextReader(pa.schema(list(names.items())), options, "type")

    def read(self, batch: pa.RecordBatch) -> ChangeEvents:
        """Read the events of a record batch; see `EventReader`."""
        texts = batch.column("value").cast(pa.binary())
        parsed = self._events.read(texts)
        data, old, form = (parsed.fields[name] for name in ("data", "old", "type"))
        codes = pc.index_in(form, _TYPES).fill_null(len(_TYPES)).to_numpy(zero_copy_only=False)
        unknown = np.flatnonzero((codes == len(_TYPES)) & valid(form) & ~parsed.bad)
        if len(unknown):
            raise refuse_event(
                batch,
                int(unknown[0]),
                f"unknown type {form[int(unknown[0])].as_py()!r} in an event of Maxwell",
                "filter out such events first, such as changes of table definitions; known are "
                f"{', '.join(_TYPES.to_pylist())}",
            )
        kinds = _KINDS[codes]
        columns = self._columns(parsed)
        lost = ~valid(data)
        if self._sequence is not None:
            named = valid(parsed.fields["server_id"]) | (codes == _BOOTSTRAP)
            lost |= ~valid(columns[SEQUENCE]) | ~named
        kinds[parsed.bad | (lost & (kinds != EventKind.SKIP))] = EventKind.MALFORMED
        kinds[~valid(texts)] = EventKind.SKIP
        kinds[(kinds == EventKind.UPDATE) & ~valid(old)] = EventKind.UPSERT
        if self._missing_before == "error":
            self._refuse_parts(batch, texts, kinds, data)
        before = self._before(texts, data, old, kinds == EventKind.UPDATE)
        mark_key_updates(kinds, self._key, before, data)

        def reason(row: int) -> str:
            return _reason(parsed, row) + (cause(texts[row].as_py(), {"data": data}, row) if parsed.bad[row] else "")

        return ChangeEvents(kinds, before, data, columns, reason)

    def _refuse_parts(
        self, batch: pa.RecordBatch, texts: pa.Array, kinds: npt.NDArray[np.int8], data: pa.Array
    ) -> None:
        """Raise an error for updates without `old`, and for events whose `data` lacks a column."""
        without = np.flatnonzero(kinds == EventKind.UPSERT)
        if len(without):
            raise refuse_event(
                batch,
                int(without[0]),
                "an update event of Maxwell has no field `old`",
                f"accept updates without the old row {_POSTIMAGE}",
                "missing_before",
            )
        null = np.zeros(len(kinds), np.bool_)
        for column in children(data):
            null |= ~valid(column)
        rows = np.flatnonzero(null & ~np.isin(kinds, (EventKind.SKIP, EventKind.MALFORMED)))
        for row, names in self._names_in(texts, rows, "data"):
            absent = next((name for name in self.payload.names if name not in names), None)
            if absent is not None:
                raise refuse_event(
                    batch,
                    row,
                    f"`data` of an event of Maxwell lacks the column {absent!r}, as with output_nulls=false",
                    "set output_nulls=true in Maxwell, or leave the column out of the schema, or accept such rows "
                    f"{_POSTIMAGE}",
                    "missing_before",
                )

    def _names_in(self, texts: pa.Array, rows: npt.NDArray[np.int64], field: str) -> list[tuple[int, set[str]]]:
        """Return for each of the events `rows` the names in its field `data` or `old`."""
        named = self._names.read(texts.take(pa.array(rows))).fields[field].to_pylist()
        return [(row, {name for name, _ in pairs or ()}) for row, pairs in zip(rows.tolist(), named, strict=True)]

    def _before(self, texts: pa.Array, data: pa.Array, old: pa.Array, updates: npt.NDArray[np.bool_]) -> pa.Array:
        """Return the old rows: for updates, `data` with the values of `old`; for deletes, `data`."""
        candidates = np.flatnonzero(
            updates & pc.match_substring_regex(texts, _OLD_NULL).fill_null(False).to_numpy(zero_copy_only=False)
        )
        nulls = self._names_in(texts, candidates, "old")
        columns = []
        for name, new, earlier in zip(self.payload.names, children(data), children(old), strict=True):
            changed = valid(earlier)
            changed[[row for row, names in nulls if name in names]] = True
            columns.append(pc.if_else(pa.array(changed & updates), earlier, new))
        return pa.StructArray.from_arrays(columns, fields=list(self.payload))

    def _columns(self, parsed: Texts) -> dict[str, pa.Array]:
        seconds = parsed.fields["ts"]
        columns = {
            TRANSACTION: parsed.fields["xid"].cast(pa.string()),
            COMMIT_TIMESTAMP: timestamps(seconds, 1_000_000),
        }
        if self._sequence is not None:
            columns[SEQUENCE] = binlog_texts(parsed.fields["position"], parsed.fields["xoffset"])
            columns[LOG] = parsed.fields["server_id"].cast(pa.string())
        return columns


def _reason(parsed: Texts, row: int) -> str:
    if parsed.bad[row]:
        return f"value: {parsed.reason(row)}"
    form = parsed.fields["type"][row].as_py()
    if form is None:
        return "value: it has no field type"
    if not parsed.fields["data"][row].is_valid:
        return f"value: an event with type {form} has no field data"
    if parsed.fields["server_id"][row].is_valid or form == "bootstrap-insert":
        return "value: it has no position such as master.000006:800911, which _sequence comes from"
    return "value: it has no server_id, which _log comes from; set output_server_id=true in Maxwell"


_WRITTEN: Final = {RowKind.INSERT: "insert", RowKind.UPDATE_AFTER: "update"}


class MaxwellJsonWriter:
    """Writes events of Maxwell's daemon as the column `value`.

    Two adjacent rows of an update become one event. An `update_preimage` alone becomes a delete, an `update_postimage`
    alone an update without `old`.

    Args:
        rows: The schema of the changelog.
        key: The columns that are equal in both rows of an update; if empty, adjacent rows count as one update.
        database: The name of the database in the events.
        table: The name of the table in the events.
    """

    def __init__(self, rows: pa.Schema, key: Columns[str] = (), *, database: str = "", table: str = "") -> None:
        self._key, self._head = list(key), {"database": database, "table": table}
        self.schema = pa.schema([pa.field("value", pa.string())])
        rows_have(rows, self._key)

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the events of consecutive record batches.

        Raises:
            DataError: A kind is unknown.
        """
        for rows in paired(batches, self._key):
            payload = json_objects(rows.payload())
            micros, transactions = rows.commit_micros(), rows.transactions()
            texts = []
            for row, (kind, in_pair) in enumerate(zip(rows.kinds.tolist(), rows.pairs.tolist(), strict=True)):
                if kind == RowKind.UPDATE_BEFORE and in_pair:
                    continue
                event: dict[str, Any] = {**self._head, "type": _WRITTEN.get(RowKind(kind), "delete")}
                event["ts"] = None if micros[row] is None else micros[row] // 1_000_000
                event["xid"] = int(xid) if (xid := transactions[row] or "").isdecimal() else None
                event["data"] = payload[row]
                if kind == RowKind.UPDATE_AFTER and in_pair:
                    old = payload[row - 1]
                    event["old"] = {name: old[name] for name, new in payload[row].items() if _differ(old[name], new)}
                texts.append(dump(event))
            yield pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], schema=self.schema)


def _differ(one: object, other: object) -> bool:
    """Return whether two values of a column differ in JSON, where -0.0 is not 0.0."""
    return one != other or (isinstance(one, (float, dict, list)) and repr(one) != repr(other))
