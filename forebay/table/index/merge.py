# SPDX-License-Identifier: Apache-2.0
"""Merges the rows of all datasources, and folded edits, into objects, by key.

An object exists while a datasource has a row of it, unless a user deleted it; or if a user created it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import DataError, FatalError
from forebay.formats.values.ddl import type_text
from forebay.table.changelog.operators.events import equal_rows, row_keys
from forebay.table.changelog.shape import RowKind
from forebay.table.changelog.state.segments import KEY_HASH, KIND, Ints
from forebay.table.changelog.state.shard import key_ranges
from forebay.table.index.columns import arrow_type, cast_column, shown_row, sqlite_values
from forebay.table.index.definition import Datasource, ObjectType
from forebay.table.index.edits import EDITS, EditRules, KeyEdits
from forebay.table.index.log import Entry
from forebay.table.index.segments import Row
from forebay.table.index.states import KEY, VALUE, StateReader, entry_fields, payload_of, schema_of
from forebay.table.index.types import parse_type

EDITS_COLUMN: Final = f"{VALUE}edits"
"""The column of the state of edits with the edits of a key, as text."""

_STAMP: Final = "\x00"
"""Prefix of columns with the times of rows. No property has such a name."""

_BATCH: Final = 10_000
"""Rows that are converted at once."""


@dataclass(frozen=True)
class Merged:
    """Merged rows of some keys, and the folded edits of these keys, which `RowEncoder.objects` applies.

    Args:
        alive: The rows: keys and properties, with the types of the definition, and times of rows.
        gone: The keys that no datasource has any more.
        existed: Whether each key had a row before the changes, first those of `alive`, then those of `gone`.
        edits: The folded edits of some keys, by the same places.
        hashes: The key hashes of these keys.
    """

    alive: pa.RecordBatch
    gone: pa.RecordBatch
    existed: np.ndarray[Any, Any]
    edits: Mapping[int, KeyEdits] = field(default_factory=dict)
    hashes: Ints = field(default_factory=lambda: np.empty(0, np.int64))


@dataclass(frozen=True)
class ChangedKeys:
    """The keys of a shard that transactions have changed.

    Args:
        batch: Key hash and key columns of each change, oldest first.
        sources: The datasource of each change.
        kinds: The `RowKind` of each change.
    """

    batch: pa.RecordBatch
    sources: tuple[str, ...]
    kinds: Ints

    @property
    def hashes(self) -> Ints:
        """The key hashes, sorted, without duplicates."""
        return np.unique(self.batch.column(KEY_HASH).to_numpy())


class Merge:
    """Merges objects of one object type at one fact of the log. Used by a follower, in the driver or in a task.

    Args:
        definition: The definition, with the types of the keys.
        head: The fact whose states are merged.
        reader: Reads the states.
    """

    def __init__(self, definition: ObjectType, head: Entry, reader: StateReader) -> None:
        self._definition = definition
        self._head = head
        self._reader = reader
        self._keys = {f"{KEY}{name}": parse_type(kind) for name, kind in definition.keys.items()}
        self._key_fields = pa.schema([pa.field(name, arrow_type(kind)) for name, kind in self._keys.items()])
        names = [*(source.name for source in definition.datasources), EDITS]
        self._sources = [name for name in names if name in head.states]

    def changed_keys(self, entries: Sequence[Entry], shard: int) -> ChangedKeys:
        """Return the keys of a shard that the transactions of some facts of the log have changed, oldest first."""
        fields = pa.schema([pa.field(KEY_HASH, pa.int64()), pa.field(KIND, pa.int8()), *self._key_fields])
        pieces, sources = [pa.RecordBatch.from_pylist([], fields)], []
        for entry in entries:
            for info in entry.changes[shard] if entry.changes else ():
                segment = self._reader.files.open(info)
                columns = [segment.column(field) for field in fields]
                piece = pa.RecordBatch.from_arrays(columns, schema=fields)
                pieces.append(piece.filter(pc.greater_equal(piece.column(KIND), 0)))
                sources += [entry.datasource] * pieces[-1].num_rows
        whole = pa.concat_batches(pieces)
        return ChangedKeys(whole, tuple(sources), whole.column(KIND).to_numpy().astype(np.int64))

    def of_changes(self, shard: int, changed: ChangedKeys) -> Merged:
        """Return the objects of changed keys."""
        return self._merged(self.rows_of(changed.hashes, shard), changed)

    def of_keys(self, shard: int, hashes: Ints) -> Merged:
        """Return the objects of keys with these hashes."""
        return self._merged(self.rows_of(hashes, shard), None)

    def of_all(self, shard: int) -> Iterator[Merged]:
        """Yield all objects of a shard, by ranges of key hashes."""
        stored = [run for source in self._sources for run in self._reader.parts(self._runs(source, shard))]
        for low, high in key_ranges(stored):
            live = {
                source: self._reader.live_between(self._runs(source, shard), low, high, self._schema(source))
                for source in self._sources
            }
            yield self._merged(live, None)
            pa.default_memory_pool().release_unused()  # else the pool keeps what the largest ranges took together

    def rows_of(self, hashes: Ints, shard: int) -> Mapping[str, pa.RecordBatch]:
        """Return the rows of keys with these hashes in the state of each datasource, and in that of edits."""
        return {
            source: self._reader.live(self._runs(source, shard), hashes, self._schema(source))
            for source in self._sources
        }

    def _runs(self, source: str, shard: int) -> Sequence[Any]:
        return self._head.states[source].shards[shard]

    def _schema(self, source: str) -> pa.Schema:
        return entry_fields(payload_of(schema_of(self._head.states[source].schema)), None)

    def _merged(self, live: Mapping[str, pa.RecordBatch], changed: ChangedKeys | None) -> Merged:
        members = [*live.values(), *([] if changed is None else [changed.batch])]
        columns = [
            pa.concat_arrays([batch.column(name).cast(field.type) for batch in members])
            if members
            else pa.nulls(0, field.type)
            for name, field in zip(self._keys, self._key_fields, strict=True)
        ]
        hashes = np.concatenate([np.empty(0, np.int64), *(batch.column(KEY_HASH).to_numpy() for batch in members)])
        codes, leaders = _codes(hashes, columns)
        size, start = len(leaders), 0
        places: dict[str, Ints] = {}
        exists = np.zeros(size, np.bool_)
        for name, batch in live.items():
            places[name] = np.full(size, -1)
            places[name][codes[start : start + batch.num_rows]] = np.arange(batch.num_rows)
            if name != EDITS:
                exists |= places[name] >= 0
            start += batch.num_rows
        edits = places.pop(EDITS, np.full(size, -1))
        existed = exists if changed is None else _existed(changed, codes[start:], places, size)
        alive, gone = np.flatnonzero(exists), np.flatnonzero(~exists)
        keys = [column.take(pa.array(leaders[alive])) for column in columns]
        values = self._properties(live, places, alive, keys)
        names = [*self._definition.columns, *(f"{_STAMP}{name}" for name in self._definition.stamps)]
        edited = edits[np.concatenate([alive, gone])]
        at = np.flatnonzero(edited >= 0)
        return Merged(
            pa.RecordBatch.from_arrays([*keys, *values], names=names),
            pa.RecordBatch.from_arrays(
                [column.take(pa.array(leaders[gone])) for column in columns], names=list(self._definition.keys)
            ),
            existed[np.concatenate([alive, gone])],
            dict(zip(at.tolist(), self._edits(live, edited[at]), strict=True)),
            np.unique(live[EDITS].column(KEY_HASH).to_numpy()[edited[at]]) if len(at) else np.empty(0, np.int64),
        )

    @staticmethod
    def _edits(live: Mapping[str, pa.RecordBatch], places: Ints) -> Iterator[KeyEdits]:
        if len(places):
            yield from map(KeyEdits.of_text, live[EDITS].column(EDITS_COLUMN).take(pa.array(places)).to_pylist())

    def _properties(
        self, live: Mapping[str, pa.RecordBatch], places: Mapping[str, Ints], alive: Ints, keys: Sequence[pa.Array]
    ) -> list[pa.Array]:
        """Return the properties, and the times of the rows of datasources with the rule `most_recent`."""

        def taken(source: Datasource, column: str) -> pa.Array:
            batch = live.get(source.name)
            if batch is None or batch.schema.get_field_index(column) < 0:
                return pa.nulls(len(alive))
            at = places[source.name][alive]
            return batch.column(column).take(pa.array(at, pa.int64(), mask=at < 0))

        columns, stamps = [], []
        for source in self._definition.datasources:
            for name, each in source.properties.items():
                column = f"{VALUE}{each.column or name}"
                shown = shown_row(source.name, column, dict(zip(self._definition.keys, keys, strict=True)))
                columns.append(cast_column(taken(source, column), each.kind, shown))
            if source.timestamp is not None:
                stamps.append(_microseconds(taken(source, f"{VALUE}{source.timestamp}"), source))
        return [*columns, *stamps]


def _microseconds(times: pa.Array, source: Datasource) -> pa.Array:
    """Return the times of rows, in microseconds since 1970.

    Raises:
        DataError: They are no times, as of rows that somebody commits whose definition does not name the column.
    """
    if times.null_count == len(times):
        return pa.nulls(len(times), pa.int64())
    if not pa.types.is_timestamp(times.type):
        raise DataError(
            f"the timestamp {source.timestamp!r} of the datasource {source.name!r} is {type_text(times.type)} in its "
            "rows",
            advice="commit a snapshot of the datasource in which it is a timestamp",
        )
    return times.cast(pa.int64())


def _codes(hashes: Ints, columns: Sequence[pa.Array]) -> tuple[Ints, Ints]:
    """Return the code of the key of each member, and the first member of each code."""
    _, first, codes = np.unique(hashes, return_index=True, return_inverse=True)
    codes = codes.astype(np.int64)
    others = np.flatnonzero(first[codes] != np.arange(len(codes)))
    if not len(others):
        return codes, first
    at, leader = pa.array(others), pa.array(first[codes[others]])
    if equal_rows([column.take(at) for column in columns], [column.take(leader) for column in columns]).all():
        return codes, first
    known: dict[Any, int] = {}
    leaders: list[int] = []
    for member, key in enumerate(row_keys(columns)):
        if key not in known:
            known[key] = len(leaders)
            leaders.append(member)
        codes[member] = known[key]
    return codes, np.array(leaders, np.int64)


def _existed(changed: ChangedKeys, codes: Ints, places: Mapping[str, Ints], size: int) -> np.ndarray[Any, Any]:
    """Return for each key whether it existed before the changes.

    A datasource that did not change a key has the same row as before. The first change of another one says whether
    there was a row: only an insert has none before it.
    """
    existed = np.zeros(size, np.bool_)
    for name, at in places.items():
        own = np.flatnonzero(np.array([source == name for source in changed.sources], np.bool_))
        first = np.full(size, -1)
        first[codes[own][::-1]] = changed.kinds[own][::-1]
        existed |= np.where(first < 0, at >= 0, first != RowKind.INSERT)
    return existed


class RowEncoder:
    """Converts merged objects to rows of segments, and checks that their keys belong to the shard.

    Args:
        definition: The definition.
        shards: The number of shards.
    """

    def __init__(self, definition: ObjectType, shards: int) -> None:
        self._kinds = dict(definition.columns) | {f"{_STAMP}{name}": parse_type("bigint") for name in definition.stamps}
        self._rules = EditRules(definition)
        self._width = len(definition.keys)
        self.codec = definition.codec
        self._encode, self._hash = self.codec.encoder(), self.codec.hasher()
        self._shards = shards

    def objects(self, merged: Merged, shard: int) -> Iterator[tuple[list[Row], list[int]]]:
        """Yield, for some keys at once, rows of objects and of deleted keys after edits, and the hashes of the keys."""
        edits = sorted(merged.edits)
        first = 0
        for batch, exist in ((merged.alive, True), (merged.gone, False)):
            for start in range(0, batch.num_rows, _BATCH):
                rows, hashes = self._rows(batch.slice(start, _BATCH), shard, exist=exist)
                for place in edits[bisect_left(edits, first) : bisect_left(edits, first + len(rows))]:
                    rows[place - first] = self._edited(rows[place - first], merged.edits[place])
                yield rows, hashes
                first += len(rows)

    def _edited(self, row: Row, edits: KeyEdits) -> Row:
        key, columns, exists = row
        values = columns[: self._width]
        made = self._rules.apply(values, columns if exists else None, edits)
        if made is None:
            return key, (*values, edits.to_text() if edits.values else None), False
        return key, made, True

    def _rows(self, batch: pa.RecordBatch, shard: int, *, exist: bool) -> tuple[list[Row], list[int]]:
        names = batch.schema.names
        try:
            columns = [sqlite_values(batch.column(name), self._kinds[name]) for name in names]
        except ValueError as error:  # as of Arrow
            raise FatalError(
                f"a row of the states has a value that its type has not: {error}",
                option="location",
                advice="run `forebay index verify`, which names a file that is damaged",
            ) from error
        encode, key_hash, width = self._encode, self._hash, self._width
        rows: list[Row] = []
        hashes: list[int] = []
        for row in zip(*columns, strict=True):
            key = row[:width]
            rows.append((encode(key), row if exist else (*row, None), exist))
            hashes.append(key_hash(key))
        for place, hashed in enumerate(hashes):
            if hashed % self._shards != shard:
                raise FatalError(
                    f"the key ({self.codec.shown(rows[place][1][:width])}) is in shard {shard}, and belongs to shard "
                    f"{hashed % self._shards}: nodes would not find it",
                    advice="report this as a defect, with the type and the value of the key",
                )
        return rows, hashes
