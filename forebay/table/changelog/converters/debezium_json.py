# SPDX-License-Identifier: Apache-2.0
"""Debezium's change events as JSON, with or without the schema of Kafka Connect (C17)."""

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
    ChangeEvents,
    EventKind,
    added_columns,
    children,
    columns_of,
    mark_key_updates,
    refuse_event,
    valid,
)
from forebay.table.changelog.converters.debezium_values import PLACEHOLDER, PRECISE, cause, filled, precise_decimals
from forebay.table.changelog.converters.json_texts import TextReader, Texts, key_rows
from forebay.table.changelog.converters.json_writer import dump, json_objects, json_texts
from forebay.table.changelog.converters.positions import (
    SEQUENCE_TYPES,
    Sequence,
    binlog_sequence,
    log_names,
    timestamps,
)
from forebay.table.changelog.converters.update_pairs import paired, rows_have
from forebay.table.changelog.operators.equality import equal_rows
from forebay.table.changelog.row_kind import RowKind
from forebay.table.changelog.shape import COMMIT_TIMESTAMP, LOG, SEQUENCE, TRANSACTION

_OPS: Final = pa.array(["c", "r", "u", "d", "t"], pa.string())
_TRUNCATE: Final = 4
_KINDS: Final = np.array(
    [EventKind.INSERT, EventKind.INSERT, EventKind.UPDATE, EventKind.DELETE, EventKind.SKIP, EventKind.MALFORMED],
    np.int8,
)
_LOG_FIELDS: Final[dict[str | None, dict[str, pa.DataType]]] = {
    None: {},
    "lsn": {"lsn": pa.int64(), "name": pa.string()},
    "binlog": {
        "file": pa.string(),
        "pos": pa.int64(),
        "row": pa.int64(),
        "name": pa.string(),
        "server_id": pa.int64(),
    },
}
"""The fields of `source` for `_sequence` and `_log`."""
_SEQUENCE_FIELDS: Final = {"lsn": "source.lsn", "binlog": "source.file and source.pos"}
_WHOLE_ROWS: Final = (
    "set the replica identity of the table to FULL, or accept such events with missing_before=postimage (Kafka: "
    "changelogMissingBefore) and complete them with normalize"
)


class DebeziumJsonReader:
    """Reads envelopes with `before`, `after`, `source`, `op` and `transaction`.

    A tombstone (a NULL value) gives no change, because the delete event comes before it. A changed primary key arrives
    as two events, a delete and an insert; an update that changes the key gives the same two rows. PostgreSQL leaves out
    large values that did not change; they are taken from `before`, and without it the event is malformed.

    Args:
        payload: The columns of a row.
        options: How to read JSON.
        key: The columns of the primary key, if it is known.
        message_key: The columns of the message key. A delete without `before` takes its key from there. A message key
            that is not the key of the row is an error: the topic is not partitioned by the key.
        sequence: The log position for `_sequence`; None: there is no such column. `source.ts_ms` is never used for it,
            because clocks of databases go back.
        missing_before: `postimage` accepts updates and deletes without the old row; `error` fails, also for a delete
            whose `before` has only the key.
        truncate: For a truncate event: `error` fails, `ignore` skips it.
    """

    def __init__(
        self,
        payload: pa.Schema,
        options: JsonOptions,
        *,
        key: Columns[str] = (),
        message_key: pa.Schema | None = None,
        sequence: Sequence | None = None,
        missing_before: Literal["postimage", "error"] = "postimage",
        truncate: Literal["error", "ignore"] = "error",
    ) -> None:
        self.payload, self.added = payload, added_columns(SEQUENCE_TYPES[sequence])
        self._sequence, self._missing_before, self._truncate = sequence, missing_before, truncate
        self._key = list(key if message_key is None else message_key.names)
        row = pa.struct(list(payload))
        source = pa.struct({**_LOG_FIELDS[sequence], "ts_ms": pa.int64()}.items())
        envelope = {"before": row, "after": row, "source": source, "op": pa.string()}
        envelope["transaction"] = pa.struct([pa.field("id", pa.string())])
        self._events = TextReader(pa.schema(list(envelope.items())), options, "op")
        self._message_keys = None if message_key is None else TextReader(message_key, options)
        self._decimals = [field.name for field in payload if pa.types.is_decimal(field.type)]

    def read(self, batch: pa.RecordBatch) -> ChangeEvents:
        """Read the events of a record batch; see `EventReader`."""
        texts = batch.column("value").cast(pa.binary())
        found = self._events.read(texts)
        before, after, op = (found.fields[name] for name in ("before", "after", "op"))
        codes = pc.index_in(op, _OPS).fill_null(len(_OPS)).to_numpy(zero_copy_only=False)
        self._check(batch, found, codes)
        kinds = _KINDS[codes]
        kinds[found.bad] = EventKind.MALFORMED
        kinds[~valid(texts)] = EventKind.SKIP
        after, unavailable = filled(before, after, self.payload)
        before = self._with_key(before)
        kinds[(kinds == EventKind.UPDATE) & ~valid(after)] = EventKind.MALFORMED
        kinds[(kinds == EventKind.UPDATE) & ~valid(before)] = EventKind.UPSERT
        mark_key_updates(kinds, self._key, before, after)
        if self._missing_before == "error":
            self._refuse_parts(batch, kinds, before)
        before = self._check_message_keys(batch, kinds, before, after)
        problems = {
            f"value: {name} is {PLACEHOLDER} (TOAST), and before does not have its value; set the replica identity of "
            "the table to FULL": lost
            for name, lost in unavailable.items()
        }
        for name, precise in precise_decimals(texts, self._decimals).items():
            old, new = (columns_of(structs, [name])[0] for structs in (before, after))
            problems[f"value: {name} is bytes: {PRECISE}"] = precise & (valid(old) | valid(new))
        columns = self._columns(found)
        lost = np.where(kinds == EventKind.DELETE, ~valid(before), ~valid(after))
        if self._sequence is not None:
            lost |= ~valid(columns[SEQUENCE])
        for problem in problems.values():
            lost |= problem
        kinds[lost & (kinds != EventKind.SKIP)] = EventKind.MALFORMED

        def reason(row: int) -> str:
            if found.bad[row]:
                rows = {name: found.fields[name] for name in ("before", "after")}
                return f"value: {found.reason(row)}{cause(texts[row].as_py(), rows, row)}"
            return next((text for text, mask in problems.items() if mask[row]), None) or self._reason(
                found, before, row
            )

        return ChangeEvents(kinds, before, after, columns, reason)

    def _check(self, batch: pa.RecordBatch, found: Texts, codes: npt.NDArray[np.int32]) -> None:
        op = found.fields["op"]
        unknown = np.flatnonzero((codes == len(_OPS)) & valid(op) & ~found.bad)
        if len(unknown):
            raise refuse_event(
                batch,
                int(unknown[0]),
                f"unknown op {op[int(unknown[0])].as_py()!r} in a Debezium event",
                "filter out such events first, such as logical decoding messages (op m); known are c, r, u, d and t",
            )
        truncates = np.flatnonzero((codes == _TRUNCATE) & ~found.bad)
        if len(truncates) and self._truncate == "error":
            raise refuse_event(
                batch,
                int(truncates[0]),
                "a Debezium event says that the table was truncated (op t), which is no change of a row",
                "empty the target and continue after this event; or skip such events with truncate=ignore (Kafka: "
                "changelogTruncate=ignore)",
                "truncate",
            )

    def _with_key(self, before: pa.Array) -> pa.Array:
        """Return `before` without the rows that have no key: PostgreSQL sends only the columns of another index."""
        there = np.zeros(len(before), np.bool_)
        for column in columns_of(before, self._key):
            there |= valid(column)
        if not self._key or there.sum() == valid(before).sum():
            return before
        return before.take(pa.array(np.arange(len(before)), mask=~there))

    def _refuse_parts(self, batch: pa.RecordBatch, kinds: npt.NDArray[np.int8], before: pa.Array) -> None:
        """Raise an error for updates without the old row, and for deletes without it or with its key alone."""
        deletes = np.isin(kinds, (EventKind.DELETE, EventKind.KEY_UPDATE))
        parts = (kinds == EventKind.UPSERT) | (deletes & ~valid(before))
        others = [name for name in self.payload.names if name not in self._key]
        alone = deletes & bool(others)
        for column in columns_of(before, others):
            alone &= ~valid(column)
        rows = np.flatnonzero(parts | alone)
        if len(rows):
            row = int(rows[0])
            event = "an update" if kinds[row] in (EventKind.UPSERT, EventKind.KEY_UPDATE) else "a delete"
            lack = (
                "has no field `before`" if parts[row] else "has only the key in `before`, as the replica identity says"
            )
            raise refuse_event(batch, row, f"{event} event of Debezium {lack}", _WHOLE_ROWS, "missing_before")

    def _check_message_keys(
        self, batch: pa.RecordBatch, kinds: npt.NDArray[np.int8], before: pa.Array, after: pa.Array
    ) -> pa.Array:
        """Check that the message keys are the keys of the rows.

        A message key that is no JSON object cannot be compared, and is not checked.

        Returns:
            `before`, filled with the columns of the message key for deletes that have no `before`.
        """
        if self._message_keys is None or "key" not in batch.schema.names:
            return before
        texts = batch.column("key")
        keys = self._message_keys.read(texts)
        changes = ~np.isin(kinds, (EventKind.SKIP, EventKind.MALFORMED))
        deletes = kinds == EventKind.DELETE
        row_there = np.where(deletes, valid(before), valid(after))
        both = zip(columns_of(before, self._key), columns_of(after, self._key), strict=True)
        rows = [pc.if_else(pa.array(deletes), old, new) for old, new in both]
        same = equal_rows(rows, [keys.fields[name] for name in self._key])
        absent = changes & ~valid(texts)
        other = (row_there & ~keys.bad & ~same) | (kinds == EventKind.KEY_UPDATE)
        wrong = np.flatnonzero(changes & (absent | other))
        if len(wrong):
            row = int(wrong[0])
            lack = (
                "has no message key"
                if absent[row]
                else f"has another message key than {', '.join(self._key)} of its row, or changes the key"
            )
            raise refuse_event(
                batch,
                row,
                f"a Debezium event {lack}, so the changes of a key may be in several partitions, without an order",
                "give the table a primary key, or set message.key.columns of the connector to the columns of the key; "
                "or leave the key out of the reader (Kafka: keySchema; DataFrames: drop the column `key`)",
                "key",
            )
        empty = np.flatnonzero(deletes & ~valid(before))
        if not len(empty):
            return before
        places = np.arange(len(kinds))
        places[empty] += len(kinds)
        return pa.concat_arrays([before, key_rows(keys, self.payload)]).take(pa.array(places))

    def _columns(self, found: Texts) -> dict[str, pa.Array]:
        names = [*_LOG_FIELDS[self._sequence], "ts_ms"]
        source = dict(zip(names, children(found.fields["source"]), strict=True))
        columns = {
            TRANSACTION: children(found.fields["transaction"])[0],
            COMMIT_TIMESTAMP: timestamps(source["ts_ms"], 1000),
        }
        if self._sequence == "lsn":
            columns |= {SEQUENCE: source["lsn"], LOG: log_names(source["name"])}
        elif self._sequence == "binlog":
            columns[SEQUENCE] = binlog_sequence(source["file"], source["pos"], source["row"])
            # The rows of a snapshot have the server id 0, and a position that is comparable with later ones.
            snapshot = pc.equal(source["server_id"], 0).fill_null(False)
            columns[LOG] = pc.if_else(snapshot, None, log_names(source["name"], source["server_id"]))
        return columns

    def _reason(self, found: Texts, before: pa.Array, row: int) -> str:
        op = found.fields["op"][row].as_py()
        if op is None:
            return "value: it has no field op"
        if op == "d" and not before[row].is_valid:
            return "value: a delete has no field before, and the message key has no columns"
        if op != "d" and not found.fields["after"][row].is_valid:
            return f"value: an event with op {op} has no field after"
        return f"value: it has no {_SEQUENCE_FIELDS[self._sequence or 'lsn']}, which _sequence comes from"


class DebeziumJsonWriter:
    """Writes envelopes as columns `key` (NULL without key columns) and `value`, without the schema of Kafka Connect.

    Two adjacent rows of an update become one event. An `update_preimage` alone becomes a delete, an `update_postimage`
    alone an update without `before`. `source` has only `ts_ms`, and no log position, because the rows may come from any
    source.

    Args:
        rows: The schema of the changelog.
        key: The columns of the message key; they are equal in both rows of an update.
        tombstones: Whether a NULL value follows each delete, for compacted topics.
    """

    def __init__(self, rows: pa.Schema, key: Columns[str] = (), *, tombstones: bool = False) -> None:
        self._key, self._tombstones = list(key), tombstones
        self.schema = pa.schema([pa.field("key", pa.string()), pa.field("value", pa.string())])
        rows_have(rows, self._key)

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the events of consecutive record batches.

        Raises:
            DataError: A kind is unknown.
        """
        for rows in paired(batches, self._key):
            keys = json_texts(rows.columns(self._key)).to_pylist() if self._key else [None] * len(rows.kinds)
            payload = json_objects(rows.payload())
            micros, transactions = rows.commit_micros(), rows.transactions()
            made: list[tuple[str | None, str | None]] = []
            for row, (kind, in_pair) in enumerate(zip(rows.kinds.tolist(), rows.pairs.tolist(), strict=True)):
                if kind == RowKind.UPDATE_BEFORE and in_pair:
                    continue
                deleted = kind in (RowKind.DELETE, RowKind.UPDATE_BEFORE)
                before = payload[row] if deleted else payload[row - 1] if in_pair else None
                event: dict[str, Any] = {"before": before, "after": None if deleted else payload[row]}
                event["source"] = {"ts_ms": None if micros[row] is None else micros[row] // 1000}
                event["op"] = "d" if deleted else "c" if kind == RowKind.INSERT else "u"
                event["transaction"] = None if transactions[row] is None else {"id": transactions[row]}
                made.append((keys[row], dump(event)))
                if deleted and self._tombstones:
                    made.append((keys[row], None))
            columns = [pa.array([one[place] for one in made], pa.string()) for place in (0, 1)]
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)
