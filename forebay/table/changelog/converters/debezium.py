# SPDX-License-Identifier: Apache-2.0
"""Debezium's change events as JSON, with or without the schema of Kafka Connect (C17)."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import md5
from typing import Any, Final, Literal, cast
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from forebay.formats.json.options import JsonOptions
from forebay.table.changelog.converters.change_events import (
    SEQUENCE_TYPES,
    ChangeEvents,
    EventKind,
    SequenceSource,
    added_columns,
    binlog_sequence,
    children,
    columns_of,
    log_names,
    mark_key_updates,
    refuse_event,
    timestamps,
    valid,
)
from forebay.table.changelog.converters.event_converter import paired, rows_have
from forebay.table.changelog.converters.json_texts import TextReader, Texts, dump, json_objects, json_texts, key_rows
from forebay.table.changelog.operators.events import equal_rows
from forebay.table.changelog.shape import COMMIT_TIMESTAMP, LOG, SEQUENCE, TRANSACTION, RowKind

# -- Finds values of change events that are not the values of their columns, such as Debezium's placeholders (TOAST).


PLACEHOLDER: Final = "__debezium_unavailable_value"
"""What Debezium writes for a large value of PostgreSQL that an update did not change (TOAST)."""

_RAW: Final = PLACEHOLDER.encode()
_UUID: Final = str(UUID(bytes=md5(_RAW, usedforsecurity=False).digest(), version=3))
"""What Java's `UUID.nameUUIDFromBytes` makes of the placeholder: the element of a `uuid[]`."""
_POINTS: Final = [
    bytes.fromhex("0101000020E6100000000000FC83D797C1000000FC83D797C1"),
    bytes.fromhex("0101000020E61000000C21E7FDFF7F66401842CEFBFF7F5640"),
]
"""The placeholders of PostGIS: the field `wkb` of a geometry and of a geography."""
_BYTES: Final = [_RAW, *_POINTS]
_WORDS: Final = [PLACEHOLDER, _UUID, *(form for raw in _BYTES for form in (b64encode(raw).decode(), raw.hex()))]
_JSON: Final = [
    json.dumps(value, separators=(",", ":"))
    for value in (
        {PLACEHOLDER: PLACEHOLDER},
        list(_RAW),
        *([word] for word in _WORDS),
        *({"wkb": b64encode(raw).decode(), "srid": 4326} for raw in _POINTS),
    )
]
_TEXTS: Final = [*_WORDS, *_JSON]
"""Every form of the placeholder in a column of texts: as a text, as Base64 or hexadecimal bytes, as JSON."""
_TEXT: Final = "|".join(
    r"\s*".join(map(re.escape, re.findall(r'"[^"]*"|[0-9]+|[^"0-9]', text) if text in _JSON else [text]))
    for text in _TEXTS
)
"""Matches these forms. A column of texts has JSON as the producer wrote it, with its spaces."""
_BYTE_SET: Final = pa.array(_BYTES, pa.binary())

_DECIMAL: Final = b"org.apache.kafka.connect.data.Decimal"
_BASE64: Final = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
PRECISE: Final = "decimal.handling.mode=precise writes the bytes of a decimal in Base64; set it to string"

Mask = npt.NDArray[np.bool_]


def placeholders(column: pa.Array) -> Mask:
    """Return for each value of a column whether it is Debezium's placeholder, or has it in it."""
    kind = column.type
    mask = np.zeros(len(column), np.bool_)
    if pa.types.is_string(kind):
        return np.array(pc.match_substring_regex(column, f"^(?:{_TEXT})$").fill_null(False), np.bool_)
    if pa.types.is_binary(kind):
        return np.array(pc.is_in(column, _BYTE_SET), np.bool_)
    if isinstance(kind, pa.StructType):
        for inner in children(column):
            mask |= placeholders(inner)
    elif isinstance(kind, pa.MapType):
        pairs = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        return placeholders(column.cast(pa.list_(pairs)))
    elif isinstance(kind, pa.ListType):
        inside = placeholders(cast("pa.ListArray", column).flatten())
        mask[pc.list_parent_indices(column).to_numpy(zero_copy_only=False)[inside]] = True
        numbers = pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_string
        if any(test(kind.value_type) for test in numbers):
            # An array of numbers has the bytes of the placeholder.
            lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
            for row in np.flatnonzero(lengths == len(_RAW)).tolist():
                mask[row] |= _is_raw(column[row].as_py())
    return mask


def _is_raw(values: list[Any]) -> bool:
    try:
        return list(map(float, values)) == list(_RAW)
    except (TypeError, ValueError):
        return False


def filled(before: pa.Array, after: pa.Array, rows: pa.Schema) -> tuple[pa.Array, dict[str, Mask]]:
    """Replace the placeholders in `after` by the values of `before`.

    A value that is too large to be sent is not NULL, so a NULL in `before` means that `before` does not have it.

    Returns:
        The new rows, and for each column with placeholders whether a row lacks the value, in `after` or in `before`.
    """
    columns, lost = children(after), {}
    own = np.arange(len(after))
    for place, (old, new) in enumerate(zip(children(before), columns, strict=True)):
        gone, unknown = placeholders(new), placeholders(old)
        if gone.any() or unknown.any():
            lost[rows.names[place]] = unknown | (gone & ~valid(old))
            columns[place] = pa.concat_arrays([new, old]).take(pa.array(np.where(gone, own + len(after), own)))
    if lost:
        after = pa.StructArray.from_arrays(columns, fields=list(rows), mask=after.is_null())
    return after, lost


def precise_decimals(texts: pa.Array, names: Sequence[str]) -> dict[str, Mask]:
    """Return for each of the columns `names` the events whose schema of Kafka Connect says that it is a `Decimal`."""
    masks = {name: np.zeros(len(texts), np.bool_) for name in names}
    if not names:
        return masks
    known: dict[bytes, set[str]] = {}
    for row in pc.indices_nonzero(pc.match_substring(texts, _DECIMAL.decode()).fill_null(False)).to_pylist():
        text: bytes = texts[row].as_py()
        head = text.partition(b'"payload":')[0]
        head = head if _DECIMAL in head else text
        if head not in known:
            known[head] = _decimal_columns(text)
        for name in known[head] & masks.keys():
            masks[name][row] = True
    return masks


def _decimal_columns(text: bytes) -> set[str]:
    try:
        parts = [part for part in json.loads(text)["schema"]["fields"] if part["field"] in ("before", "after")]
        fields = [field for part in parts for field in part["fields"]]
        return {field["field"] for field in fields if field.get("name") == _DECIMAL.decode()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return set()  # not the schema of an envelope


def cause(text: bytes, rows: Mapping[str, pa.Array], row: int) -> str:
    """Return the likely cause why an event does not fit the schema, as the end of a reason; empty if it is unknown.

    Args:
        text: The event.
        rows: The fields of the event that hold rows of the table, as they were read; "" is the event itself.
        row: The number of the event.
    """
    try:
        event = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    event = event.get("payload", event) if isinstance(event, dict) else None
    for part, structs in rows.items():
        values = event.get(part) if part and isinstance(event, dict) else event
        if part and isinstance(values, str):
            return f"; {part} is a text, as Debezium writes documents of MongoDB, which are not supported"
        if part and isinstance(values, list):
            return f"; {part} is an array, as Canal writes it, whose format is not supported"
        if isinstance(values, dict):
            for field, column in zip(cast("pa.StructType", structs.type), children(structs), strict=True):
                if pa.types.is_nested(field.type) or not column[row].is_valid:
                    value = values.get(field.name)
                    if reason := _cause(value, field.type):
                        return f"; {part}{'.' if part else ''}{field.name} {reason}"
    return ""


def _cause(value: Any, kind: pa.DataType) -> str:  # noqa: ANN401 - any value of JSON
    whole = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    if whole in _TEXTS:
        return f"is the placeholder {PLACEHOLDER} (TOAST) in a form that is no {kind}"
    for leaf, leaf_type in _leaves(value, kind):
        if pa.types.is_temporal(leaf_type) and isinstance(leaf, (int, float)):
            return (
                "is a number, whose unit the event does not say: declare it BIGINT and convert it in the query, or let "
                "the producer write texts (Debezium: time.precision.mode=isostring, or a converter)"
            )
        if pa.types.is_decimal(leaf_type) and isinstance(leaf, str) and leaf and _BASE64.fullmatch(leaf):
            return f"may be Base64: {PRECISE}"
    return ""


def _leaves(value: Any, kind: pa.DataType) -> Iterator[tuple[Any, pa.DataType]]:  # noqa: ANN401 - any value of JSON
    if isinstance(kind, pa.StructType) and isinstance(value, dict):
        for field in kind:
            yield from _leaves(value.get(field.name), field.type)
    elif isinstance(kind, pa.MapType) and isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item, kind.item_type)
    elif isinstance(kind, pa.ListType) and isinstance(value, list):
        for item in value:
            yield from _leaves(item, kind.value_type)
    else:
        yield value, kind


# -- Debezium's change events as JSON, with or without the schema of Kafka Connect (C17).


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
        key: Sequence[str] = (),
        message_key: pa.Schema | None = None,
        sequence: SequenceSource | None = None,
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
        parsed = self._events.read(texts)
        before, after, op = (parsed.fields[name] for name in ("before", "after", "op"))
        codes = pc.index_in(op, _OPS).fill_null(len(_OPS)).to_numpy(zero_copy_only=False)
        self._check(batch, parsed, codes)
        kinds = _KINDS[codes]
        kinds[parsed.bad] = EventKind.MALFORMED
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
        columns = self._columns(parsed)
        lost = np.where(kinds == EventKind.DELETE, ~valid(before), ~valid(after))
        if self._sequence is not None:
            lost |= ~valid(columns[SEQUENCE])
        for problem in problems.values():
            lost |= problem
        kinds[lost & (kinds != EventKind.SKIP)] = EventKind.MALFORMED

        def reason(row: int) -> str:
            if parsed.bad[row]:
                rows = {name: parsed.fields[name] for name in ("before", "after")}
                return f"value: {parsed.reason(row)}{cause(texts[row].as_py(), rows, row)}"
            return next((text for text, mask in problems.items() if mask[row]), None) or self._reason(
                parsed, before, row
            )

        return ChangeEvents(kinds, before, after, columns, reason)

    def _check(self, batch: pa.RecordBatch, parsed: Texts, codes: npt.NDArray[np.int32]) -> None:
        op = parsed.fields["op"]
        unknown = np.flatnonzero((codes == len(_OPS)) & valid(op) & ~parsed.bad)
        if len(unknown):
            raise refuse_event(
                batch,
                int(unknown[0]),
                f"unknown op {op[int(unknown[0])].as_py()!r} in a Debezium event",
                "filter out such events first, such as logical decoding messages (op m); known are c, r, u, d and t",
            )
        truncates = np.flatnonzero((codes == _TRUNCATE) & ~parsed.bad)
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
        pairs = zip(columns_of(before, self._key), columns_of(after, self._key), strict=True)
        rows = [pc.if_else(pa.array(deletes), old, new) for old, new in pairs]
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

    def _columns(self, parsed: Texts) -> dict[str, pa.Array]:
        names = [*_LOG_FIELDS[self._sequence], "ts_ms"]
        source = dict(zip(names, children(parsed.fields["source"]), strict=True))
        columns = {
            TRANSACTION: children(parsed.fields["transaction"])[0],
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

    def _reason(self, parsed: Texts, before: pa.Array, row: int) -> str:
        op = parsed.fields["op"][row].as_py()
        if op is None:
            return "value: it has no field op"
        if op == "d" and not before[row].is_valid:
            return "value: a delete has no field before, and the message key has no columns"
        if op != "d" and not parsed.fields["after"][row].is_valid:
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

    def __init__(self, rows: pa.Schema, key: Sequence[str] = (), *, tombstones: bool = False) -> None:
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
            columns = [pa.array([pair[place] for pair in made], pa.string()) for place in (0, 1)]
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)
