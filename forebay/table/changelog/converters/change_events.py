# SPDX-License-Identifier: Apache-2.0
"""The interface between formats and `EventConverter`: what each event of a record batch says."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Literal, Protocol, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import ConfigurationError, DataError
from forebay.table.changelog.operators.events import equal_rows
from forebay.table.changelog.shape import COMMIT_TIMESTAMP, LOG, POSITION, SEQUENCE, SPLIT, TRANSACTION, TYPES

# -- Makes the columns `_sequence` and `_commit_timestamp` from the log positions and times that databases give.


SequenceSource = Literal["lsn", "binlog"]
"""The log position to use: PostgreSQL's log sequence number, or MySQL's binlog file, offset and row."""

SEQUENCE_TYPES: Final[dict[str | None, pa.DataType | None]] = {None: None, "lsn": pa.int64(), "binlog": pa.string()}

_FILE: Final = re.compile(r"(.*?)\.?([0-9]*)")
_FILE_DIGITS: Final = 10
_DIGITS: Final = 20
_MAX_MICROS: Final = (1 << 63) - 1


def binlog_sequence(file: pa.Array, offset: pa.Array, row: pa.Array) -> pa.Array:
    """Return binlog positions as texts that sort in the order of the log; NULL without file or offset.

    Args:
        file: Names such as `mysql-bin.000003`. The number may grow beyond its digits, so it is padded.
        offset: Offsets in the file.
        row: The numbers of the rows of one event; NULL counts as 0.
    """
    names = file.dictionary_encode()
    padded = pa.array([_padded_file(name) for name in names.dictionary.to_pylist()], pa.string())
    parts = [padded.take(names.indices), _padded(offset, _DIGITS), _padded(row.fill_null(0), _FILE_DIGITS)]
    return cast("pa.Array", pc.call_function("binary_join_element_wise", [*parts, pa.scalar(":", pa.string())]))


def binlog_texts(positions: pa.Array, row: pa.Array) -> pa.Array:
    """Return `binlog_sequence` of Maxwell's positions, such as `master.000006:800911`."""
    texts = [(text or "").rpartition(":") for text in positions.to_pylist()]
    offsets = [int(offset) if name and offset.isdecimal() else None for name, _, offset in texts]
    files = pa.array([name or None for name, _, _ in texts], pa.string())
    return binlog_sequence(files, pa.array(offsets, pa.int64()), row)


def log_names(*parts: pa.Array) -> pa.Array:
    """Return the column `_log`: the parts as texts, joined by a slash. A part that is NULL counts as empty."""
    texts = [part.cast(pa.string()).fill_null("") for part in parts]
    return cast("pa.Array", pc.call_function("binary_join_element_wise", [*texts, pa.scalar("/", pa.string())]))


def timestamps(numbers: pa.Array, micros_each: int) -> pa.Array:
    """Return numbers since 1970 as the column `_commit_timestamp`; NULL for a time that no timestamp can hold.

    Args:
        numbers: The times since 1970, in some unit.
        micros_each: The unit, in microseconds.
    """
    most = _MAX_MICROS // micros_each
    fits = pc.and_(pc.less_equal(numbers, most), pc.greater_equal(numbers, -most))
    return pc.multiply(pc.if_else(fits, numbers, None), micros_each).cast(TYPES[COMMIT_TIMESTAMP])


def _padded_file(name: str) -> str:
    base, number = cast("re.Match[str]", _FILE.fullmatch(name)).groups() if "\n" not in name else (name, "")
    return f"{base}.{number.zfill(_FILE_DIGITS)}"


def _padded(numbers: pa.Array, digits: int) -> pa.Array:
    return pc.utf8_lpad(numbers.cast(pa.string()), digits, "0")


class EventKind(IntEnum):
    """The kind of an event. `SKIP` gives no change, and `UPSERT` is an update without the old row.

    `KEY_UPDATE` is an update that changes the key: it gives a delete of the old row, and an insert of the new one.
    """

    SKIP = 0
    INSERT = 1
    UPDATE = 2
    UPSERT = 3
    DELETE = 4
    MALFORMED = 5
    KEY_UPDATE = 6


@dataclass(frozen=True, slots=True)
class ChangeEvents:
    """The events of a record batch, one for each row of the batch.

    Args:
        kinds: The `EventKind` of each event.
        before: The rows before the changes, as structs; only those of updates and deletes are used.
        after: The rows after the changes, as structs; only those of inserts, updates and upserts are used.
        columns: The other columns of the changelog that the format fills, such as `_sequence`.
        reason: Takes the row number of a malformed event in the batch, and returns why the event is malformed.
    """

    kinds: npt.NDArray[np.int8]
    before: pa.Array
    after: pa.Array
    columns: Mapping[str, pa.Array] = field(default_factory=dict)
    reason: Callable[[int], str] = str


class EventReader(Protocol):
    """Reads change events of one format."""

    @property
    def payload(self) -> pa.Schema:
        """The payload: the columns of a row of the table."""
        ...

    @property
    def added(self) -> pa.Schema:
        """The columns that the format adds to payload and kind, such as `_sequence`."""
        ...

    def read(self, batch: pa.RecordBatch) -> ChangeEvents:
        """Read the events of a record batch with the columns `key` and `value`.

        Raises:
            DataError: An event is well-formed, but is not a change of a row.
        """
        ...


def children(structs: pa.Array) -> list[pa.Array]:
    """Return the fields of a struct column as columns, with NULL in the rows whose struct is NULL."""
    return cast("pa.StructArray", structs).flatten()


def columns_of(structs: pa.Array, names: Sequence[str]) -> list[pa.Array]:
    """Return the fields `names` of a struct column as columns, with NULL in the rows whose struct is NULL."""
    fields = cast("pa.StructType", structs.type)
    columns = dict(zip([field.name for field in fields], children(structs), strict=True))
    return [columns[name] for name in names]


def valid(column: pa.Array) -> npt.NDArray[np.bool_]:
    """Return for each value whether it is not NULL, as a new, writable array."""
    return np.array(column.is_valid(), np.bool_)


def added_columns(sequence: pa.DataType | None) -> pa.Schema:
    """Return the columns that a format adds. `sequence` is the type of `_sequence`; None: without it and `_log`."""
    types = {} if sequence is None else {SEQUENCE: sequence, LOG: TYPES[LOG]}
    types |= {name: TYPES[name] for name in (TRANSACTION, COMMIT_TIMESTAMP)}
    return pa.schema(list(types.items()))


def mark_key_updates(kinds: npt.NDArray[np.int8], key: Sequence[str], before: pa.Array, after: pa.Array) -> None:
    """Set the kind `KEY_UPDATE` for updates whose old and new row differ in a column of `key`, which may be empty."""
    rows = np.flatnonzero(kinds == EventKind.UPDATE)
    if key and len(rows):
        old, new = (columns_of(structs.take(pa.array(rows)), key) for structs in (before, after))
        kinds[rows[~equal_rows(old, new)]] = EventKind.KEY_UPDATE


def place_of(batch: pa.RecordBatch, row: int) -> dict[str, str | None]:
    """Return the labels `split` and `position` of an error about one row."""
    names = batch.schema.names
    if SPLIT in names and POSITION in names:
        split, position = batch.column(SPLIT)[row].as_py(), batch.column(POSITION)[row].as_py()
    elif {"topic", "partition", "offset"} <= set(names):
        topic, partition, position = (batch.column(name)[row].as_py() for name in ("topic", "partition", "offset"))
        split = f"{topic}/{partition}"
    else:
        split, position = None, f"row {row} of a record batch"
    return {"split": split, "position": str(position)}


def refuse_event(batch: pa.RecordBatch, row: int, message: str, advice: str, option: str | None = None) -> DataError:
    """Return the error for an event that every `mode` refuses, because the target would be wrong without it."""
    where = place_of(batch, row)
    shown = " ".join(f"{label} {value}" for label, value in where.items() if value is not None)
    return DataError(f"{message}, at {shown}", **where, option=option, advice=advice)


def check_payload(payload: pa.Schema, option: str) -> None:
    """Check that no payload field has the name of one of the changelog's own columns, such as `_change_type`.

    Raises:
        ConfigurationError: A field has such a name.
    """
    taken = next((name for name in payload.names if name in {*TYPES, SEQUENCE}), None)
    if taken is not None:
        raise ConfigurationError(
            f"the field {taken!r} of {option} has the name of a column that the changelog adds",
            option=option,
            advice="rename the field at the producer, or leave it out of the schema",
        )
