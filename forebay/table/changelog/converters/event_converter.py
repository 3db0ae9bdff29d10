# SPDX-License-Identifier: Apache-2.0
"""Converts change events to rows of a changelog, column by column, and handles malformed events by `mode`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import ConfigurationError, DataError
from forebay.table.changelog.converters.change_events import (
    ChangeEvents,
    EventKind,
    EventReader,
    children,
    place_of,
    refuse_event,
)
from forebay.table.changelog.converters.json_texts import payload_names
from forebay.table.changelog.operators.events import equal_rows
from forebay.table.changelog.shape import (
    CHANGE_TYPE,
    CHANGE_TYPES,
    COMMIT_TIMESTAMP,
    POSITION,
    SPLIT,
    TRANSACTION,
    TYPES,
    RowKind,
)

# -- Finds the two rows of an update in consecutive record batches of a changelog.


_PAIR_WORDS: Final = pa.array(CHANGE_TYPES, pa.string())


@dataclass(frozen=True, slots=True)
class PairedRows:
    """Rows of a changelog, with a mark on the two rows of each update.

    Args:
        batch: The rows.
        kinds: The `RowKind` of each row.
        pairs: Whether a row is one of the two rows of an update: an `update_preimage` directly before the
            `update_postimage` of the same key and position.
    """

    batch: pa.RecordBatch
    kinds: npt.NDArray[np.int8]
    pairs: npt.NDArray[np.bool_]

    def filter(self, kept: npt.NDArray[np.bool_]) -> PairedRows:
        """Return the rows where `kept` is True."""
        return PairedRows(self.batch.filter(pa.array(kept)), self.kinds[kept], self.pairs[kept])

    def columns(self, names: Sequence[str]) -> dict[str, pa.Array]:
        """Return the columns `names`, by name."""
        return {name: self.batch.column(name) for name in names}

    def payload(self) -> dict[str, pa.Array]:
        """Return the payload columns, by name."""
        return self.columns(payload_names(self.batch.schema))

    def commit_micros(self) -> list[Any]:
        """Return `_commit_timestamp` in microseconds since 1970, or None, for each row."""
        return self._optional(COMMIT_TIMESTAMP, pa.int64())

    def transactions(self) -> list[Any]:
        """Return `_transaction`, or None, for each row."""
        return self._optional(TRANSACTION, pa.string())

    def _optional(self, name: str, kind: pa.DataType) -> list[Any]:
        there = name in self.batch.schema.names
        return self.batch.column(name).cast(kind).to_pylist() if there else [None] * self.batch.num_rows


def paired(batches: Iterable[pa.RecordBatch], key: Sequence[str]) -> Iterator[PairedRows]:
    """Yield the rows of consecutive record batches. Both rows of an update are in the same `PairedRows`.

    Args:
        batches: The record batches.
        key: The columns that are equal in both rows of an update; if empty, adjacent rows count as one update.

    Raises:
        DataError: A kind is unknown or NULL.
    """
    held: pa.RecordBatch | None = None
    for incoming in batches:
        batch = incoming if held is None else pa.concat_batches([held, incoming])
        kinds = _kinds(batch)
        held = None
        if batch.num_rows and kinds[-1] == RowKind.UPDATE_BEFORE:
            held, batch, kinds = batch.slice(batch.num_rows - 1), batch.slice(0, batch.num_rows - 1), kinds[:-1]
        if batch.num_rows:
            yield PairedRows(batch, kinds, _pairs(batch, kinds, key))
    if held is not None:
        yield PairedRows(held, _kinds(held), np.zeros(1, np.bool_))


def rows_have(schema: pa.Schema, key: Sequence[str]) -> None:
    """Check that a changelog has `_change_type` and all columns of the key.

    Raises:
        ConfigurationError: A column is missing.
    """
    missing = next((name for name in (*key, CHANGE_TYPE) if name not in schema.names), None)
    if missing is not None:
        raise ConfigurationError(
            f"the changelog has no column {missing!r}",
            option="key",
            advice=f"give a changelog and key columns of it; the columns are {', '.join(schema.names)}",
        )


def _kinds(batch: pa.RecordBatch) -> npt.NDArray[np.int8]:
    words = batch.column(CHANGE_TYPE)
    codes = pc.index_in(words, _PAIR_WORDS)
    if codes.null_count:
        row = codes.is_null().to_pylist().index(True)
        raise refuse_event(
            batch,
            row,
            f"unknown change kind {words[row].as_py()!r}",
            f"a kind is one of {', '.join(CHANGE_TYPES)}; filter out malformed events, whose kind is NULL, first",
        )
    return cast("npt.NDArray[np.int8]", codes.to_numpy().astype(np.int8))


def _pairs(batch: pa.RecordBatch, kinds: npt.NDArray[np.int8], key: Sequence[str]) -> npt.NDArray[np.bool_]:
    second = np.zeros(len(kinds), np.bool_)
    second[1:] = (kinds[:-1] == RowKind.UPDATE_BEFORE) & (kinds[1:] == RowKind.UPDATE_AFTER)
    for name in (*key, SPLIT, POSITION):
        if name in batch.schema.names:
            second[1:] &= _equal_to_next(batch.column(name))
    first = np.append(second[1:], False)
    return first | second


def _equal_to_next(column: pa.Array) -> npt.NDArray[np.bool_]:
    return equal_rows([column.slice(0, len(column) - 1)], [column.slice(1)])


_log = logging.getLogger(__name__)

Mode = Literal["PERMISSIVE", "DROPMALFORMED", "FAILFAST"]

_SHOWN = 100
_NO_KIND: Final = len(CHANGE_TYPES)
"""The index of a malformed event's kind in `_WORDS`, where it is NULL."""

# By `EventKind`: the number of rows, and the kind of the first and of the second row.
_ROWS: Final = np.array([0, 1, 2, 1, 1, 1, 2], np.int8)
_FIRST: Final = np.array(
    [0, RowKind.INSERT, RowKind.UPDATE_BEFORE, RowKind.UPDATE_AFTER, RowKind.DELETE, _NO_KIND, RowKind.DELETE], np.int8
)
_SECOND: Final = np.array([*[RowKind.UPDATE_AFTER] * EventKind.KEY_UPDATE, RowKind.INSERT], np.int8)
_WORDS: Final = pa.array([*CHANGE_TYPES, None], pa.string())


class EventConverter:
    """Converts record batches of change events to record batches of a changelog. Called on one thread.

    The output has the payload, `_change_type`, `_split` and `_pos` if the input has them, the columns that the format
    adds, and in the mode PERMISSIVE the corrupt-record column. In the row of a malformed event, payload and
    `_change_type` are NULL. An update has two rows with the same position: `update_preimage` and `update_postimage`, or
    `delete` and `insert` if it changes the key.

    Args:
        reader: The format.
        events: The schema of the input.
        mode: For a malformed event: `PERMISSIVE` gives a row with the event and the reason in the corrupt-record
            column, `DROPMALFORMED` gives no row, `FAILFAST` raises an error.
        corrupt_column: The name of the corrupt-record column.
        corrupt_fields: The columns of the input that the corrupt-record column has, beside `reason`; None: all.
        kept: Columns of the input to copy into the output.
        columns: The columns of the output, in this order; None: all.
        source: The name of the source, for errors.

    Raises:
        ConfigurationError: Two columns have one name, or a column does not exist.
    """

    def __init__(
        self,
        reader: EventReader,
        events: pa.Schema,
        *,
        mode: Mode,
        corrupt_column: str = "_corrupt_record",
        corrupt_fields: Sequence[str] | None = None,
        kept: Sequence[str] = (),
        columns: Sequence[str] | None = None,
        source: str = "changelog",
    ) -> None:
        self._reader, self._mode, self._source, self._corrupt = reader, mode, source, corrupt_column
        own = [str(name) for name in (SPLIT, POSITION) if name in events.names]
        self._kept = [*own, *(name for name in kept if name not in own)]
        names = events.names if corrupt_fields is None else corrupt_fields
        self._corrupt_type = pa.struct([*(_nullable(events.field(name)) for name in names), _REASON])
        self.schema = self._output(events, columns)
        self._dropped = 0
        self._first_dropped = ""

    def _output(self, events: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
        fields = [_nullable(field) for field in self._reader.payload]
        fields.append(pa.field(CHANGE_TYPE, TYPES[CHANGE_TYPE]))
        fields += [_nullable(events.field(name)) for name in self._kept]
        fields += list(self._reader.added)
        if self._mode == "PERMISSIVE":
            fields.append(pa.field(self._corrupt, self._corrupt_type))
        known: dict[str, pa.Field] = {}
        for field in fields:
            if field.name in known:
                raise ConfigurationError(
                    f"the changelog has two columns with the name {field.name!r}",
                    source=self._source,
                    advice="leave one of them out, or give the corrupt-record column another name",
                )
            known[field.name] = field
        if missing := [name for name in columns or () if name not in known]:
            raise ConfigurationError(
                f"the changelog has no column {missing[0]!r}",
                source=self._source,
                option="columns",
                advice=f"select from {', '.join(known)}",
            )
        return pa.schema([known[name] for name in (known if columns is None else columns)])

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the changes of a record batch of events; a batch without rows if there are none.

        Raises:
            DataError: An event is malformed and the mode is FAILFAST; or an event is not a change of a row.
        """
        events = self._reader.read(batch)
        bad = np.flatnonzero(events.kinds == EventKind.MALFORMED)
        if len(bad) and self._mode == "FAILFAST":
            raise self._refusal(batch, int(bad[0]), events)
        counts = _ROWS[events.kinds]
        if self._mode != "PERMISSIVE":
            counts[bad] = 0
            if len(bad):
                self._count_dropped(batch, bad.tolist(), events)
        rows = np.repeat(np.arange(len(counts)), counts)
        second = np.zeros(len(rows), np.bool_)
        second[1:] = rows[1:] == rows[:-1]
        kinds = np.where(second, _SECOND[events.kinds[rows]], _FIRST[events.kinds[rows]])
        columns = self._payload(events, rows, kinds)
        columns[CHANGE_TYPE] = _WORDS.take(pa.array(kinds))
        taken = pa.array(rows)
        for name in self.schema.names:
            if name in events.columns:
                columns[name] = events.columns[name].take(taken)
            elif name in self._kept:
                columns[name] = batch.column(name).take(taken)
        if self._corrupt in self.schema.names and self._corrupt not in columns:
            columns[self._corrupt] = self._reported(batch, rows, kinds, events)
        arrays = [columns[name] for name in self.schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema) if arrays else batch.select([]).slice(len(rows))

    def _payload(
        self, events: ChangeEvents, rows: np.ndarray[tuple[int], np.dtype[np.int64]], kinds: np.ndarray
    ) -> dict[str, pa.Array]:
        added = np.isin(kinds, (RowKind.INSERT, RowKind.UPDATE_AFTER))
        places = pa.array(np.where(added, rows + len(events.before), rows), mask=kinds == _NO_KIND)
        pairs = zip(self._reader.payload.names, children(events.before), children(events.after), strict=True)
        return {
            name: pa.concat_arrays([before, after]).take(places)
            for name, before, after in pairs
            if name in self.schema.names
        }

    def _reported(self, batch: pa.RecordBatch, rows: np.ndarray, kinds: np.ndarray, events: ChangeEvents) -> pa.Array:
        """Return the corrupt-record column: the event and the reason for malformed events, NULL for others."""
        bad = np.flatnonzero(kinds == _NO_KIND)
        if not len(bad):
            return pa.nulls(len(rows), self._corrupt_type)
        reported = batch.take(pa.array(rows[bad]))
        reasons = pa.array([events.reason(int(row)) for row in rows[bad]], pa.string())
        names = [field.name for field in self._corrupt_type][:-1]
        values = [*(reported.column(name) for name in names), reasons]
        corrupt = pa.StructArray.from_arrays(values, fields=list(self._corrupt_type))
        places = np.full(len(rows), -1)
        places[bad] = np.arange(len(bad))
        return corrupt.take(pa.array(places, mask=places < 0))

    def _count_dropped(self, batch: pa.RecordBatch, bad: list[int], events: ChangeEvents) -> None:
        if not self._dropped:
            self._first_dropped = f"{_shown(batch, bad[0])}: {events.reason(bad[0])}"
        self._dropped += len(bad)

    def _refusal(self, batch: pa.RecordBatch, row: int, events: ChangeEvents) -> DataError:
        value = batch.column("value")[row].as_py() if "value" in batch.schema.names else None
        begins = "" if value is None else f"; the value begins with {value[:_SHOWN]!r}"
        return DataError(
            f"the change event at {_shown(batch, row)} is malformed: {events.reason(row)}{begins}",
            source=self._source,
            **place_of(batch, row),
            option="mode",
            advice=f"give mode=PERMISSIVE to keep such events in the column {self._corrupt}, or mode=DROPMALFORMED to "
            "drop them",
        )

    def close(self) -> None:
        """Log a warning with the number of events that DROPMALFORMED dropped, if any. Called at the end of a task."""
        if self._dropped:
            _log.warning(
                "%s: mode=DROPMALFORMED dropped %d malformed change events in this task; the first one is at %s",
                self._source,
                self._dropped,
                self._first_dropped,
            )


_REASON: Final = pa.field("reason", pa.string())


def _nullable(field: pa.Field) -> pa.Field:
    return pa.field(field.name, field.type)


def _shown(batch: pa.RecordBatch, row: int) -> str:
    return ", ".join(f"{label} {value}" for label, value in place_of(batch, row).items() if value is not None)
