# SPDX-License-Identifier: Apache-2.0
"""Explains an object: its row in each datasource, where its properties come from, and the segment that answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import ConfigurationError
from forebay.table.changelog.state.segments import PREFIX, Ints
from forebay.table.changelog.state.typed_values import UNREADABLE
from forebay.table.index.columns import python_value
from forebay.table.index.compaction import opened_copies
from forebay.table.index.definition import ObjectType
from forebay.table.index.edits import EDITS, Edit, EditRules, KeyEdits, shown_time
from forebay.table.index.log import Entry, Run
from forebay.table.index.merge import Merge
from forebay.table.index.object_set import View
from forebay.table.index.opened_segments import OpenedSegment
from forebay.table.index.pipelines import IndexStore, IndexVersion
from forebay.table.index.states import KEY, StateReader
from forebay.table.index.types import parse_type

_DELETED = "deleted at "
_CREATED = "created by a user"


@dataclass(frozen=True)
class Explanation:
    """Why an object is what it is.

    Args:
        key: The key as text.
        shard: The shard of the key.
        version: The version of the index.
        data: The number of the fact of the log that the version follows.
        head: The number of the newest fact of the log.
        rows: The row in each datasource, None if it has none; then keys and columns have the names of the datasource.
        sources: The datasource and the column of each property.
        edits: The folded edits of the key, each as text; empty if nobody edited it.
        pending: The edits of the key that are not folded, each as text. Nodes show them over the index.
        segment: The segment that answers; None: no segment has the key.
        run: The number of the run of the segment, from the oldest one on; 0 without a segment.
        runs: The number of runs.
        found: The object in the index; None: there is none.
        replacement: The replacement that is built, and the object in it, as text; None: none is.
    """

    key: str
    shard: int
    version: int
    data: int
    head: int
    rows: Mapping[str, Mapping[str, Any] | None]
    sources: Mapping[str, tuple[str, str]]
    edits: tuple[str, ...]
    pending: tuple[str, ...]
    segment: str | None
    run: int
    runs: int
    found: Mapping[str, Any] | None
    replacement: str | None = None

    def __str__(self) -> str:
        lines = [f"({self.key}), shard {self.shard}, version {self.version}, fact {self.data} of the log"]
        if self.data < self.head:
            lines[0] += f"; the log is at {self.head}"
        for source, row in self.rows.items():
            lines.append(f"  datasource {source}: {'no row' if row is None else _shown(row)}")
        lines += [f"  edits: {text}" for text in self.edits]
        if self.segment is None:
            lines.append(f"  index: none of {self.runs} runs has the key")
        else:
            what = "deleted" if self.found is None else _shown(self.found)
            lines.append(f"  index: {what}, by {self.segment} (run {self.run} of {self.runs})")
        lines += [f"  pending: {text}" for text in self.pending]
        lines += [] if self.replacement is None else [f"  replacement: {self.replacement}"]
        if self.pending:
            lines.append("  rule: nodes show pending edits over the index")
        if self.edits:
            lines.append(
                "  rule: an edit wins over the row of a datasource; with most_recent, unless the row has a later time"
            )
        if any(text.startswith(_DELETED) for text in self.edits):
            lines.append(
                "  rule: a deletion hides the row of each datasource, and its properties are NULL; with most_recent, "
                "until the row has a later time"
            )
        if any(row is not None for row in self.rows.values()):
            lines.append("  rule: a property comes from the row of its datasource; without a row it is NULL")
            lines += [f"    {name}: {source}.{column}" for name, (source, column) in self.sources.items()]
        elif any(text.endswith(_CREATED) for text in (*self.edits, *self.pending)):
            lines.append("  rule: an object that a user created exists without a row")
        else:
            lines.append("  rule: an object exists while a datasource has a row with its key; none has")
        return "\n".join(lines)


def explain(index: IndexStore, key: object) -> Explanation:
    """Explain the object with a key. It reads all files of the shard of the key.

    Args:
        index: The store.
        key: The value of the key; for several columns a tuple or a mapping.

    Raises:
        ConfigurationError: There is no index yet, or it is no key of the object type.
    """
    head = index.head()
    version = index.serving(head)
    definition = index.definition(version.pipeline)
    view = _view(index, head, version, definition)
    values = definition.codec.values(key)
    shard = definition.codec.hash(values) % head.shards
    segment, columns = view.find(key)
    entry = index.log.get(version.data) or head
    rows = _rows(index, definition, entry, shard, dict(zip(definition.keys, values, strict=True)))
    edits = rows.pop(EDITS, None)
    return Explanation(
        key=definition.codec.shown(values),
        shard=shard,
        version=version.number,
        data=version.data,
        head=head.number,
        rows=rows,
        sources={
            name: (source.name, each.column or name)
            for source in definition.datasources
            for name, each in source.properties.items()
        },
        edits=() if edits is None else tuple(_shown_edits(KeyEdits.of_text(edits["edits"]), EditRules(definition))),
        pending=tuple(_shown_pending(index.edits.after(version.edits), definition.codec.to_json(values))),
        segment=None if segment is None else segment.name,
        run=next((number for number, run in enumerate(version.runs, 1) if segment in run), 0),
        runs=len(version.runs),
        found=columns,
        replacement=_replacement(index, head, key),
    )


def _view(index: IndexStore, head: Entry, version: IndexVersion, definition: ObjectType) -> View:
    runs = tuple(
        tuple(map(OpenedSegment, run, opened_copies(index, run, definition))) for run in reversed(version.runs)
    )
    return View(version, definition, runs, head.shards)


def _replacement(index: IndexStore, head: Entry, key: object) -> str | None:
    """Return as text where the replacement that is built is, and the object in it."""
    if head.building is None:
        return None
    newest = index.newest_version(head.building.pipeline)
    if newest is None or newest.number == 0:
        return f"{head.building.pipeline} has no version yet"
    columns = _view(index, head, newest, ObjectType.from_facts(head.building.definition)).find(key)[1]
    place = f"{newest.pipeline}, at fact {newest.data} of the log, {head.number - newest.data} behind"
    return f"{place}: {'no object' if columns is None else _shown(columns)}"


def _shown_edits(edits: KeyEdits, rules: EditRules) -> Iterator[str]:
    if edits.deleted is not None:
        yield f"{_DELETED}{shown_time(edits.deleted)}"
    if edits.created:
        yield _CREATED
    for name, kind, value, at in edits.values:
        problem = rules.misfit(name, kind, value)
        why = "" if problem is None else f", does not count: {problem}"
        yield f"{_shown({name: _typed(kind, value)})} at {shown_time(at)}{why}"


def _shown_pending(edits: Sequence[Edit], key: tuple[Any, ...]) -> Iterator[str]:
    for edit in edits:
        for change in edit.changes:
            if change.key == key:
                values = {name: _typed(kind, value) for name, (kind, value) in (change.values or {}).items()}
                what = "deleted" if change.values is None else _shown(values)
                created = f", {_CREATED}" if change.creates else ""
                yield f"edit {edit.offset}, of {shown_time(edit.time)}: {what}{created}"


def _typed(kind: str, value: Any) -> Any:  # noqa: ANN401 - JSON, and a value of the type
    """Return the value of an edit as rows have it; as it is stored if it does not have the type."""
    with suppress(*UNREADABLE, ConfigurationError):
        return parse_type(kind).of_json(value)
    return value


def _rows(
    index: IndexStore, definition: ObjectType, entry: Entry, shard: int, values: Mapping[str, Any]
) -> dict[str, Mapping[str, Any] | None]:
    reader = StateReader(index.store)
    kinds = definition.columns
    key_values = {f"{KEY}{name}": kinds[name].decode(value) for name, value in values.items()}
    rows: dict[str, Mapping[str, Any] | None] = {source.name: None for source in definition.datasources}
    runs = [run for name in (*rows, EDITS) if name in entry.states for run in entry.states[name].shards[shard]]
    for name, batch in Merge(definition, entry, reader).rows_of(_hashes(reader, runs, key_values), shard).items():
        of_key = batch.filter(_mask(batch, key_values))
        if of_key.num_rows:
            columns = (each for each in of_key.schema.names if not each.startswith(PREFIX))
            rows[name] = {each[2:]: python_value(of_key.column(each)[0]) for each in columns}
    return rows


def _hashes(reader: StateReader, runs: Sequence[Run], key_values: Mapping[str, Any]) -> Ints:
    """Return the key hashes of entries with a key: Spark computes these hashes, and nothing else can."""
    hashes = [np.empty(0, np.int64)]
    for info in (each for run in runs for each in run):
        segment = reader.files.open(info)
        hashes.append(segment.hashes[_mask(segment.batch, key_values).to_numpy(zero_copy_only=False)])
    return np.unique(np.concatenate(hashes))


def _mask(batch: pa.RecordBatch, key_values: Mapping[str, Any]) -> pa.Array:
    same = pa.array(np.ones(batch.num_rows, np.bool_))
    for name, value in key_values.items():
        column = batch.column(name)
        same = pc.and_(same, pc.fill_null(pc.equal(column, pa.scalar(value, column.type)), fill_value=False))
    return same


def _shown(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={'NULL' if value is None else repr(value)}" for name, value in row.items())
