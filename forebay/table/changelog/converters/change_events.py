# SPDX-License-Identifier: Apache-2.0
"""The interface between formats and `EventConverter`: what each event of a record batch says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.errors import ConfigurationError, DataError
from forebay.table.changelog.operators.equality import equal_rows
from forebay.table.changelog.shape import COMMIT_TIMESTAMP, LOG, POSITION, SEQUENCE, SPLIT, TRANSACTION, TYPES


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
