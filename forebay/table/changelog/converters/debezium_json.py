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
    refuse_event,
    valid,
)
from forebay.table.changelog.converters.json_texts import TextReader, Texts, key_rows
from forebay.table.changelog.converters.json_writer import dump, json_objects, json_texts
from forebay.table.changelog.converters.positions import SEQUENCE_TYPES, Sequence, binlog_sequence, timestamps
from forebay.table.changelog.converters.update_pairs import paired, rows_have
from forebay.table.changelog.row_kind import RowKind
from forebay.table.changelog.shape import COMMIT_TIMESTAMP, SEQUENCE, TRANSACTION

_OPS: Final = pa.array(["c", "r", "u", "d", "t"], pa.string())
_TRUNCATE: Final = 4
_KINDS: Final = np.array(
    [EventKind.INSERT, EventKind.INSERT, EventKind.UPDATE, EventKind.DELETE, EventKind.SKIP, EventKind.MALFORMED],
    np.int8,
)
_UNAVAILABLE: Final = "__debezium_unavailable_value"
"""What Debezium writes for a large value of PostgreSQL that an update did not change (TOAST)."""
_SEQUENCE_FIELDS: Final[dict[str | None, dict[str, pa.DataType]]] = {
    None: {},
    "lsn": {"lsn": pa.int64()},
    "binlog": {"file": pa.string(), "pos": pa.int64(), "row": pa.int64()},
}


class DebeziumJsonReader:
    """Reads envelopes with `before`, `after`, `source`, `op` and `transaction`.

    A tombstone (a NULL value) gives no change, because the delete event comes before it. A changed primary key arrives
    as two events: a delete and an insert. PostgreSQL leaves out large values that did not change; they are taken from
    `before`, and without `before` the event is malformed.

    Args:
        payload: The columns of a row.
        options: How to read JSON.
        key: The columns of the message key. A delete without `before` takes its key from there.
        sequence: The log position for `_sequence`; None: there is no such column. `source.ts_ms` is never used for it,
            because clocks of databases go back.
        missing_before: For an update without `before`: `postimage` gives only the `update_postimage`, `error` fails.
        truncate: For a truncate event: `error` fails, `ignore` skips it.
    """

    def __init__(
        self,
        payload: pa.Schema,
        options: JsonOptions,
        *,
        key: pa.Schema | None = None,
        sequence: Sequence | None = None,
        missing_before: Literal["postimage", "error"] = "postimage",
        truncate: Literal["error", "ignore"] = "error",
    ) -> None:
        self.payload, self.added = payload, added_columns(SEQUENCE_TYPES[sequence])
        self._sequence, self._missing_before, self._truncate = sequence, missing_before, truncate
        row = pa.struct(list(payload))
        source = pa.struct({**_SEQUENCE_FIELDS[sequence], "ts_ms": pa.int64()}.items())
        envelope = {"before": row, "after": row, "source": source, "op": pa.string()}
        envelope["transaction"] = pa.struct([pa.field("id", pa.string())])
        self._events = TextReader(pa.schema(list(envelope.items())), options, "op")
        self._keys = None if key is None else TextReader(key, options)

    def read(self, batch: pa.RecordBatch) -> ChangeEvents:
        """Read the events of a record batch; see `EventReader`."""
        texts = batch.column("value")
        found = self._events.read(texts)
        before, after, op = (found.fields[name] for name in ("before", "after", "op"))
        after, unavailable = _filled(before, after, self.payload)
        codes = pc.index_in(op, _OPS).fill_null(len(_OPS)).to_numpy(zero_copy_only=False)
        self._check(batch, found, codes)
        kinds = _KINDS[codes]
        before = self._with_keys(batch, kinds, before)
        has_before, has_after = valid(before), valid(after)
        kinds[(kinds == EventKind.UPDATE) & ~has_before] = EventKind.UPSERT
        if self._missing_before == "error":
            self._refuse_upserts(batch, kinds, found)
        deletes, skipped = kinds == EventKind.DELETE, kinds == EventKind.SKIP
        lost = found.bad | unavailable | np.where(deletes, ~has_before, ~has_after & ~skipped)
        columns = self._columns(found)
        if self._sequence is not None:
            lost |= ~valid(columns[SEQUENCE]) & ~skipped
        kinds[lost] = EventKind.MALFORMED
        kinds[~valid(texts)] = EventKind.SKIP

        def reason(row: int) -> str:
            return self._reason(found, has_before, unavailable, row)

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

    def _with_keys(self, batch: pa.RecordBatch, kinds: npt.NDArray[np.int8], before: pa.Array) -> pa.Array:
        """Return `before`, filled with the columns of the message key for deletes that have no `before`."""
        if self._keys is None or "key" not in batch.schema.names:
            return before
        rows = np.flatnonzero((kinds == EventKind.DELETE) & ~valid(before))
        if not len(rows):
            return before
        keys = self._keys.read(batch.column("key").take(pa.array(rows)))
        return _replaced(before, rows, key_rows(keys, self.payload))

    def _refuse_upserts(self, batch: pa.RecordBatch, kinds: npt.NDArray[np.int8], found: Texts) -> None:
        rows = np.flatnonzero((kinds == EventKind.UPSERT) & ~found.bad)
        if len(rows):
            raise refuse_event(
                batch,
                int(rows[0]),
                "a Debezium update event has no field `before`",
                "set the replica identity of the table to FULL, or accept updates without the old row with "
                "missing_before=postimage (Kafka: changelogMissingBefore)",
                "missing_before",
            )

    def _columns(self, found: Texts) -> dict[str, pa.Array]:
        *log, ts_ms = children(found.fields["source"])
        columns = {
            TRANSACTION: children(found.fields["transaction"])[0],
            COMMIT_TIMESTAMP: timestamps(ts_ms, 1000),
        }
        if self._sequence is not None:
            columns[SEQUENCE] = log[0] if self._sequence == "lsn" else binlog_sequence(*log)
        return columns

    def _reason(
        self, found: Texts, has_before: npt.NDArray[np.bool_], unavailable: npt.NDArray[np.bool_], row: int
    ) -> str:
        if found.bad[row]:
            return f"value: {found.reason(row)}"
        if unavailable[row]:
            return f"value: a field of after is {_UNAVAILABLE}, and before does not have the value of this field"
        op = found.fields["op"][row].as_py()
        if op is None:
            return "value: it has no field op"
        if op == "d" and not has_before[row]:
            return "value: a delete has no field before, and the message key has no columns"
        if op != "d" and not found.fields["after"][row].is_valid:
            return f"value: an event with op {op} has no field after"
        wanted = " and ".join(f"source.{name}" for name in _SEQUENCE_FIELDS[self._sequence] if name != "row")
        return f"value: it has no {wanted}, which _sequence comes from"


def _filled(before: pa.Array, after: pa.Array, rows: pa.Schema) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """Return `after` with placeholders replaced by values of `before`, and a mask of the rows without such a value."""
    columns, lost = children(after), np.zeros(len(after), np.bool_)
    changed = False
    for place, (old, new) in enumerate(zip(children(before), columns, strict=True)):
        if not pa.types.is_string(new.type):
            continue
        gone = pc.equal(new, _UNAVAILABLE).fill_null(False)
        if not pc.any(gone).as_py():
            continue
        changed = True
        there = valid(before) & np.array(pc.not_equal(old, _UNAVAILABLE).fill_null(True), np.bool_)
        lost |= np.array(gone, np.bool_) & ~there
        columns[place] = pc.if_else(gone, old, new)
    if not changed:
        return after, lost
    return pa.StructArray.from_arrays(columns, fields=list(rows), mask=after.is_null()), lost


def _replaced(values: pa.Array, rows: npt.NDArray[np.int64], by: pa.Array) -> pa.Array:
    places = np.arange(len(values))
    places[rows] = len(values) + np.arange(len(rows))
    return pa.concat_arrays([values, by]).take(pa.array(places))


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
