# SPDX-License-Identifier: Apache-2.0
"""What a definition needs against the one that serves: nothing, a replacement, or what only a person can do."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from forebay.table.changelog.state.shard import key_ranges
from forebay.table.index.definition import Datasource, ObjectType, Property
from forebay.table.index.edits import EDITS, EditRules, KeyEdits, key_of
from forebay.table.index.follower import Follower, FullRule
from forebay.table.index.log import Entry, StoppedError
from forebay.table.index.merge import EDITS_COLUMN
from forebay.table.index.pipelines import IndexStore
from forebay.table.index.states import KEY, VALUE, StateReader, entry_fields, payload_of, schema_of


@dataclass(frozen=True)
class Plan:
    """What a definition needs.

    Args:
        kind: `INCREMENTAL` or `FULL`: the definition serves, and the next step merges changes, or builds everything.
            `REPLACEMENT`: `Funnel.replace` builds another index behind the one that serves. `REFUSED`: the stored
            objects cannot have this definition.
        reasons: Why, each for itself; if it is refused, with what to do.
        waits: What is to be committed before a replacement can serve.
    """

    kind: Literal["INCREMENTAL", "FULL", "REPLACEMENT", "REFUSED"]
    reasons: tuple[str, ...]
    waits: tuple[str, ...] = ()

    def __str__(self) -> str:
        waits = (f"before it can serve: {each}" for each in self.waits)
        return "\n  ".join([f"{self.kind}", *self.reasons, *waits])


def make_plan(index: IndexStore, definition: ObjectType, rule: FullRule, drop_edits: Collection[str] = ()) -> Plan:
    """Return what a definition needs; see `Funnel.plan`."""
    head = index.log.head()
    if head is None:
        return Plan("FULL", ("nothing was committed yet: the first transaction builds everything",))
    stored = index.definition(head.serving)
    new = definition.with_key_types(stored.keys)
    if list(new.keys) != list(stored.keys):  # perhaps without types
        return Plan("REFUSED", tuple(_refused(stored, new)))
    if new.fingerprint() == stored.fingerprint():
        try:
            reason = Follower(index, head.serving, rule).reason()
        except StoppedError:
            if index.head().serving == head.serving:
                raise
            return make_plan(index, definition, rule, drop_edits)
        return Plan("INCREMENTAL", ("the definition serves",)) if reason is None else Plan("FULL", (reason,))
    if refused := (*_refused(stored, new), *refused_edits(index, head, stored, new, drop_edits)):
        return Plan("REFUSED", refused)
    reasons = tuple(_changes(stored, new)) or ("properties, datasources or keys are in another order",)
    return Plan("REPLACEMENT", reasons, tuple(waits_for(head, stored, new)))


def _refused(stored: ObjectType, new: ObjectType) -> Iterator[str]:
    key, new_key = (", ".join(f"{name} {kind}".rstrip() for name, kind in each.keys.items()) for each in (stored, new))
    if key != new_key:
        yield (
            f"the key is ({key}), and would be ({new_key}): that is a new object type; give it a name of its own, and "
            "commit its datasources"
        )
        return
    for source in new.datasources:
        if not stored.feeds(source.name):
            continue
        columns = {each.lower(): each for each in stored.datasource(source.name).columns}
        for column in source.columns:
            if (before := columns.get(column.lower(), column)) != column:
                yield (
                    f"the datasource {source.name!r} has the column {before!r}, and would have {column!r}; upper and "
                    f"lower case are the same, so write {before!r}, as in Property(column={before!r})"
                )
        if not same_rows(stored, source):
            yield (
                f"the datasource {source.name!r} would find keys or deleted rows by other columns than its rows: "
                "give it a new name, under which it is committed again; the old one serves until then"
            )


def same_rows(definition: ObjectType, source: Datasource) -> bool:
    """Return whether the stored rows of a datasource have the keys and deletions that it would store."""
    known = definition.datasource(source.name)
    columns = [[each.key.get(name, name) for name in definition.keys] for each in (known, source)]
    return columns[0] == columns[1] and known.deleted == source.deleted


def refused_edits(
    index: IndexStore, head: Entry, stored: ObjectType, new: ObjectType, drop_edits: Collection[str]
) -> Iterator[str]:
    """Yield why a definition loses edits of users, with what to do; not of the properties in `drop_edits`."""
    yield from _moved_edits(index, head, stored, new)
    for name, lost in lost_edits(index, head, stored, new, pending=True).items():
        if name in drop_edits:
            continue
        many = f"{len(lost):,} edited values of {name!r} would not count any more, the first one ({lost[0]})"
        accepted = f"pass drop_edits=[{name!r}] (on the command line --drop-edits {shlex.quote(name)})"
        if name in new.properties or any(name in each.earlier_names for each in new.properties.values()):
            yield f"{many}: give the property a type that has these values, or {accepted}"
        else:
            yield (
                f"{many}: name the property that takes them with Property(renamed_from={name!r}), which may be a list; "
                f"or {accepted}"
            )


def _moved_edits(index: IndexStore, head: Entry, stored: ObjectType, new: ObjectType) -> Iterator[str]:
    """Yield why edits of one property would count for another one, which has a name that the first one had."""
    before, after = EditRules(stored).taken_by, EditRules(new).taken_by
    moved = {
        name
        for name, taker in after.items()
        if (was := before.get(name, taker)) != taker and was not in new.properties[taker].earlier_names
    }
    edited = {each.name for _, edits in _folded(index, head, stored) for each in edits.values} if moved else set()
    edited |= {
        name
        for edit in (index.edits.after(head.edits.offset) if moved else ())
        for change in edit.changes
        for name in change.values or ()
    }
    for name in sorted(moved & edited):
        was, taker = before[name], after[name]
        kept = f"keep Property(renamed_from={name!r}) of {was!r}, and " if was in new.properties else ""
        earlier = was if name in (was, taker) else [was, name]
        yield (
            f"edits of {was!r} that were made as {name!r} would count for {taker!r}: {kept}give {taker!r} a name that "
            f"no property had; or, if it is {was!r} under another name, write Property(renamed_from={earlier!r})"
        )


def lost_edits(
    index: IndexStore, head: Entry, stored: ObjectType, new: ObjectType, *, pending: bool
) -> dict[str, list[str]]:
    """Return the values of edits that count in one definition and not in another one, as texts, by the edited name.

    Args:
        index: The store.
        head: The fact of the log with the folded edits.
        stored: The definition in which they count.
        new: The other one.
        pending: Whether to look at pending edits too.
    """
    rules, after, codec = EditRules(stored), EditRules(new), stored.codec
    lost: dict[str, list[str]] = {}

    def note(key: Sequence[Any], name: str, kind: str, value: object) -> None:
        if (problem := after.misfit(name, kind, value)) is not None:
            lost.setdefault(name, []).append(f"({codec.shown(key)}), {problem}")

    for key, edits in _folded(index, head, stored):
        fitting = {each.name: each for each in edits.values if rules.misfit(each.name, each.kind, each.value) is None}
        for each in fitting.values():
            note(codec.values(key), each.name, each.kind, each.value)
    for edit in index.edits.after(head.edits.offset) if pending else ():
        for change in edit.changes:
            for name, (kind, value) in (change.values or {}).items():
                if rules.misfit(name, kind, value) is None:
                    note(key_of(change, edit, stored), name, kind, value)
    return lost


def _folded(index: IndexStore, head: Entry, definition: ObjectType) -> Iterator[tuple[dict[str, object], KeyEdits]]:
    state = head.states.get(EDITS)
    if state is None:
        return
    reader, schema = StateReader(index.store), entry_fields(payload_of(schema_of(state.schema)), None)
    for runs in state.shards:
        for low, high in key_ranges(reader.parts(runs)):
            for row in reader.live_between(runs, low, high, schema).to_pylist():
                yield {name: row[f"{KEY}{name}"] for name in definition.keys}, KeyEdits.of_text(row[EDITS_COLUMN])


def _property_changes(stored: ObjectType, new: ObjectType) -> Iterator[str]:
    renamed = {
        earlier: name
        for name, each in new.properties.items()
        for earlier in each.earlier_names
        if name not in stored.properties and earlier in stored.properties and earlier not in new.properties
    }
    sources = [{name: each.name for each in of.datasources for name in each.properties} for of in (stored, new)]
    for earlier, name in renamed.items():
        difference = _difference((earlier, stored.properties[earlier]), (name, new.properties[name]), "earlier name")
        also = f"; it has another {difference}" if difference else ""
        yield f"the property {name!r} was {earlier!r}, and takes its edits{also}"
    for name in dict.fromkeys([*stored.properties, *new.properties]):
        before, after = stored.properties.get(name), new.properties.get(name)
        if name in (*renamed, *renamed.values()):
            continue
        if before is None or after is None:
            yield f"the property {name!r} is {'new' if before is None else 'gone'}"
        elif difference := _difference((name, before), (name, after)):
            yield f"the property {name!r} has another {difference}"
        elif sources[0][name] != sources[1][name]:
            yield f"the property {name!r} comes from another datasource"


def _changes(stored: ObjectType, new: ObjectType) -> Iterator[str]:
    yield from _property_changes(stored, new)
    for name in dict.fromkeys(each.name for each in (*stored.datasources, *new.datasources)):
        if not (stored.feeds(name) and new.feeds(name)):
            yield f"the datasource {name!r} is {'gone' if stored.feeds(name) else 'new'}"
            continue
        stored_source, new_source = stored.datasource(name), new.datasource(name)
        if (stored_source.conflict, stored_source.timestamp) != (new_source.conflict, new_source.timestamp):
            yield f"the datasource {name!r} has another rule for edits"
        if sorted(stored_source.keep) != sorted(new_source.keep):
            yield f"the datasource {name!r} keeps other columns"


def _difference(before: tuple[str, Property], after: tuple[str, Property], but: str = "") -> str:
    """Return as text what two properties, each with its name, have that differs."""
    names = ("type", "column", "filter", "text", "earlier name")
    old, new = (
        (each.kind.text, each.column or name, each.filter, each.text, each.earlier_names)
        for name, each in (before, after)
    )
    return " and ".join(
        what for what, left, right in zip(names, old, new, strict=True) if left != right and what != but
    )


def waits_for(head: Entry, stored: ObjectType, new: ObjectType) -> Iterator[str]:
    """Yield what is to be committed before a definition can serve: its columns have to be in the stored rows.

    Args:
        head: The newest fact of the log.
        stored: The definition that serves.
        new: The definition that is to serve.
    """
    built = None if head.building is None else ObjectType.from_facts(head.building.definition)
    for source in new.datasources:
        state = head.states.get(source.name)
        of_built = built is not None and built.feeds(source.name) and same_rows(built, source)
        if state is None or not (stored.feeds(source.name) or of_built):
            if not stored.feeds(source.name):
                yield f"commit the datasource {source.name!r}, which is new"
            continue
        schema = schema_of(state.schema)
        if missing := [each for each in source.columns if f"{VALUE}{each}" not in schema.names]:
            yield (
                f"commit a snapshot of the datasource {source.name!r} with the columns {', '.join(missing)}; or give "
                "it a new name, and feed it from its beginning"
            )
        elif source.timestamp and not pa.types.is_timestamp(schema.field(f"{VALUE}{source.timestamp}").type):
            yield f"commit a snapshot of the datasource {source.name!r} whose {source.timestamp!r} is a timestamp"
