# SPDX-License-Identifier: Apache-2.0
"""Edits by users: their log `edits/<offset>.json`, how those of a key add up, and how they change an object.

Whether an edit or the row of a datasource wins is decided here alone: by merges, and by nodes, which have no pyarrow.
"""

from __future__ import annotations

import json
import math
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import groupby, takewhile
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from forebay.errors import ConfigurationError, RetriableError
from forebay.state.state_store import StateStore
from forebay.table.changelog.state.facts import FORMAT, fact_bytes
from forebay.table.changelog.state.typed_values import UNREADABLE, Whole
from forebay.table.index.facts import LATEST, Microseconds, numbers_of, readable_as, stored_bytes, stored_object
from forebay.table.index.log import Entry, Log
from forebay.table.index.types import INTEGERS, SparkType, parse_type

if TYPE_CHECKING:
    from forebay.table.index.definition import ObjectType

EDITS: Final = "_edits"
"""The name of the state of folded edits beside those of datasources. No datasource can have it."""

PENDING: Final = 1_000
"""Pending changes from which a flush is due; and the most changes of one edit."""

OLDEST: Final = 6 * 3600
"""Seconds from which a pending edit is so old that a flush is due."""


_REQUESTS: Final = 32
"""Edits that are read at once."""


@dataclass(frozen=True)
class Change:
    """A change of one object.

    Args:
        key: The columns of the key, as JSON.
        values: The edited properties, each with its type and its value as JSON; None: the object is deleted.
        creates: Whether there was no such object, so that it exists even if no datasource ever has it.
    """

    key: tuple[Any, ...]
    values: Mapping[str, tuple[str, Any]] | None
    creates: bool = False


@dataclass(frozen=True)
class Edit:
    """A fact of the log of edits: changes that were made at once.

    Args:
        offset: Its place in the log, from 1 on.
        id: A random id of the edit.
        time: When it was made, in microseconds since 1970; after the edits with lower offsets.
        definition: The pipeline whose definition it was made for.
        data: The number of the fact of the log that the editor saw.
        changes: The changes.
    """

    offset: Whole
    id: str
    time: Microseconds
    definition: str
    data: Whole
    changes: tuple[Change, ...]

    def to_bytes(self) -> bytes:
        """Return the edit as JSON."""
        return fact_bytes({"v": FORMAT, **asdict(self)})

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> Self:
        """Parse an edit.

        Raises:
            FatalError: It is damaged, or another version of forebay wrote it.
        """
        return stored_object(cls, data, name, number="offset")


class EditLog:
    """The log of the edits of an object type. For any thread.

    Args:
        store: The store.
        directory: The directory of the object type, ending in a slash.
    """

    def __init__(self, store: StateStore, directory: str) -> None:
        self._store = store
        self._prefix = f"{directory}edits/"

    def name(self, offset: int) -> str:
        """Return the name of a fact."""
        return f"{self._prefix}{offset:012d}.json"

    def offsets(self) -> list[int]:
        """Return the offsets of the facts that there are, sorted."""
        return numbers_of(self._store.names(self._prefix), self._prefix)

    def after(self, offset: int) -> list[Edit]:
        """Return the edits after an offset, up to the first one that is not there."""
        edits: list[Edit] = []
        width = 1  # mostly there is nothing new, and a new node reads hundreds
        with ThreadPoolExecutor(_REQUESTS) as pool:
            while True:
                first = offset + 1 + len(edits)
                following = pool.map(self._get, range(first, first + width)) if width > 1 else [self._get(first)]
                some = list(takewhile(lambda edit: edit is not None, following))
                edits += [edit for edit in some if edit is not None]
                if len(some) < width:
                    return edits
                width = min(2 * width, _REQUESTS)

    def _get(self, offset: int) -> Edit | None:
        name = self.name(offset)
        data = self._store.get(name)
        return None if data is None else Edit.from_bytes(data, name)

    def holds(self, edit: Edit) -> bool:
        """Return whether an edit is there, and not another one with its offset."""
        stored = self._get(edit.offset)
        return stored is not None and stored.id == edit.id

    def _stored(self, edit: Edit) -> Edit | None:
        """Put an edit; return the one that has its offset. None: it was folded and collected meanwhile."""
        name = self.name(edit.offset)
        if self._store.put_if_absent(name, stored_bytes(edit, name)):
            return edit
        return self._get(edit.offset)  # it may be this one: the answer to a request that succeeded may be lost

    def put(self, edit: Edit, log: Log, head: Entry) -> bool:
        """Put an edit; return whether it counts now. Else another edit has its offset, or it was collected before.

        Args:
            edit: The edit.
            log: The log, which says up to which offset edits were folded.
            head: A fact of the log that the caller knows.

        Raises:
            RetriableError: The log is gone, or nothing says any more whether the edit counts; it may be stored.
        """
        stored = self._stored(edit)
        if stored is not None and stored.id != edit.id:
            return False
        entry = log.head(head)
        if entry is not None and entry.edits.offset < edit.offset and not self.holds(edit):
            entry = log.head(entry)
            if entry is not None and entry.edits.offset < edit.offset:  # else it was folded and collected meanwhile
                entry = None
        if entry is None or entry.log != head.log:
            raise RetriableError(
                f"the location went away while the edit {edit.offset} was put; it may be stored",
                option="location",
                advice="look whether the location is mounted, refresh, and look at the object before you edit it again",
            )
        if entry.edits.offset < edit.offset:
            return True
        # An edit with this offset was folded. Either it was this one; or the name was free because the one that had it
        # was collected, while this process was paused: then no flush reads it.
        folding = _folding(log, entry, edit.offset)
        if folding is not None and edit.id in folding.edits.ids:
            return True
        if stored is not None:
            self._store.delete([self.name(edit.offset)])
        if folding is None:
            raise RetriableError(
                f"the edit {edit.offset} took so long that nothing says any more whether it was applied",
                option="location",
                advice="refresh, look at the object, and edit it again if it is not as it should be",
            )
        return False


def _folding(log: Log, head: Entry, offset: int) -> Entry | None:
    """Return the fact that folded the edit with an offset; None if it was collected."""
    entry = head
    while entry.edits.offset - len(entry.edits.ids) >= offset:
        before = log.get(entry.number - 1)
        # Beyond the oldest fact a writer that paused for long may have put one again.
        if before is None or not offset <= before.edits.offset <= entry.edits.offset:
            return None
        entry = before
    return entry


def key_of(change: Change, edit: Edit, definition: ObjectType) -> tuple[Any, ...]:
    """Return the key of a change of an edit, as SQLite stores it.

    Raises:
        FatalError: It is no key of the object type.
    """
    with readable_as(f"{definition.name}/edits/{edit.offset:012d}.json"):
        return definition.codec.of_json(change.key)


def now() -> int:
    """Return the time of an edit that is made now, in microseconds since 1970.

    Raises:
        ConfigurationError: The clock is so wrong that no later edit could follow.
    """
    at = time.time_ns() // 1000
    if at > LATEST:
        raise ConfigurationError(
            f"the clock of this computer is {at:,} microseconds after 1970, which no edit can be",
            option="edits",
            advice="correct the clock, and edit again: nothing was written",
        )
    return at


def shown_time(microseconds: int) -> str:
    """Return a time as people write it."""
    return datetime.fromtimestamp(microseconds / 1e6, UTC).isoformat(timespec="seconds")


def due(pending: Sequence[Edit], at: int | None = None) -> str | None:
    """Return why pending edits should be flushed now; None if they need not be.

    Args:
        pending: The edits.
        at: The time, in microseconds since 1970; None: now.
    """
    count = sum(len(edit.changes) for edit in pending)
    if count >= PENDING:
        return f"{count:,} changes are pending"
    if pending and (now() if at is None else at) - pending[0].time >= OLDEST * 1_000_000:
        return f"the oldest pending edit is of {shown_time(pending[0].time)}"
    return None


class EditedValue(NamedTuple):
    """A value that a user gave a property.

    Args:
        name: The name that the property had then.
        kind: Its type then.
        value: The value as JSON.
        at: The time of the edit, in microseconds since 1970.
    """

    name: str
    kind: str
    value: Any
    at: int


@dataclass(frozen=True)
class KeyEdits:
    """The edits of a key, added up.

    Args:
        deleted: When the object was deleted last; None: never.
        created: Whether the object exists without a row of a datasource.
        values: The edited values since then, in their order. The last one that fits the definition counts; later ones
            are kept, as they may fit a later definition.
    """

    deleted: int | None = None
    created: bool = False
    values: tuple[EditedValue, ...] = ()

    def after(self, earlier: KeyEdits) -> KeyEdits:
        """Return earlier edits with these after them."""
        if self.deleted is not None:
            return self
        return KeyEdits(earlier.deleted, earlier.created or self.created, earlier.values + self.values)

    def to_text(self) -> str:
        """Return the edits as JSON, as the state and the index keep them."""
        return json.dumps([self.deleted, self.created, self.values])

    @classmethod
    def of_text(cls, text: str) -> Self:
        """Return the edits of `to_text`."""
        deleted, created, values = json.loads(text)
        return cls(deleted, created, tuple(EditedValue(*each) for each in values))


class EditRules:
    """How edits change the objects of a definition.

    An edit wins over the row of its datasource for ever. If the rule of the datasource is `most_recent`, it wins unless
    the row has a later time. A deletion is an edit of the rows of all datasources.

    Args:
        definition: The definition, with the types of the keys.
    """

    def __init__(self, definition: ObjectType) -> None:
        columns = list(definition.columns)
        self._size = len(columns) + len(definition.stamps)
        self._sources: list[tuple[list[int], int | None]] = []
        self._properties: dict[str, tuple[int, SparkType, int | None]] = {}
        for source in definition.datasources:
            stamp = len(columns) + definition.stamps.index(source.name) if source.name in definition.stamps else None
            self._sources.append(([columns.index(name) for name in source.properties], stamp))
            for name, each in source.properties.items():
                self._properties[name] = columns.index(name), each.kind, stamp
        self.taken_by = {name: name for name in self._properties}
        """The property for which edits of a name count."""
        for name, each in definition.properties.items():
            for earlier in each.earlier_names:
                self.taken_by.setdefault(earlier, name)
                self._properties.setdefault(earlier, self._properties[name])

    def apply(self, key: Sequence[Any], row: Sequence[Any] | None, edits: KeyEdits) -> tuple[Any, ...] | None:
        """Return an object after edits; None if there is none.

        Args:
            key: The key, as SQLite stores it.
            row: The object before: keys, properties, and the times of the rows of `most_recent` datasources, as SQLite
                stores them. None: there is none.
            edits: The edits.
        """
        columns = [*key, *[None] * (self._size - len(key))] if row is None else list(row)
        exists = row is not None
        if edits.deleted is not None:
            exists = False
            for places, stamp in self._sources:
                if self._is_later(columns, stamp, edits.deleted):
                    exists = True
                else:
                    for place in (*places, *([] if stamp is None else [stamp])):
                        columns[place] = None
        if not exists and not edits.created:
            return None
        for name, kind, value, at in self._in_order(edits.values):
            if name in self._properties:
                place, target, stamp = self._properties[name]
                if not self._is_later(columns, stamp, at):
                    with suppress(*_MISFIT):  # of an older definition
                        columns[place] = target.encode(_migrated(kind, value, target))
        return tuple(columns)

    def then(self, edits: KeyEdits, change: Change, at: int) -> tuple[KeyEdits, list[str]]:
        """Return edits with a later change, and as text its values that do not count in this definition.

        Such a value leaves those before as they are. It is kept: it may count in a later definition.
        """
        if change.values is None:
            return KeyEdits(deleted=at), []
        misfits = {
            name: problem for name, each in change.values.items() if (problem := self.misfit(name, *each)) is not None
        }
        before = (each for each in edits.values if each.name not in change.values or each.name in misfits)
        values = (EditedValue(name, kind, value, at) for name, (kind, value) in change.values.items())
        made = KeyEdits(edits.deleted, edits.created or change.creates, (*before, *values))
        return made, list(misfits.values())

    def misfit(self, name: str, kind: str, value: Any) -> str | None:  # noqa: ANN401 - JSON
        """Return as text why an edited value does not count in this definition; None if it does."""
        if name not in self._properties:
            shown = "NULL" if value is None else f"the {kind} {value!r:.200}"
            return f"{name}: there is no such property for {shown}"
        target = self._properties[name][1]
        try:
            target.encode(_migrated(kind, value, target))
        except _MISFIT:
            return f"{name}: the {kind} {value!r:.200} cannot be {target.text}"
        return None

    def _in_order(self, values: Iterable[EditedValue]) -> Iterator[EditedValue]:
        """Yield values; of those of one edit for one property, that with the name of now last, so that it counts."""
        for _, of_edit in groupby(values, key=lambda each: each.at):
            yield from sorted(of_edit, key=lambda each: self.taken_by.get(each.name) == each.name)

    @staticmethod
    def _is_later(columns: Sequence[Any], stamp: int | None, at: int) -> bool:
        """Return whether a row of a datasource is later than an edit. NULL is the oldest time."""
        return stamp is not None and columns[stamp] is not None and columns[stamp] > at


_MISFIT: Final = (*UNREADABLE, ConfigurationError)
"""What `_migrated` raises for a value that cannot have the type."""


def _migrated(kind: str, value: Any, target: SparkType) -> Any:  # noqa: ANN401 - JSON, and a value of the type
    """Return the value of an edit with the type that the property has now; an error if no value is equal to it."""
    before = parse_type(kind)
    typed = before.of_json(value)
    before.encode(typed)  # an error for a number that the type does not have, which may have a billion digits
    if typed is None or before.text == target.text:
        return typed
    if target.name == "string":
        match typed:
            case bool():
                return str(typed).lower()
            case Decimal():
                return format(typed, "f")
            case int() | date() if not isinstance(typed, datetime):
                return str(typed)
        raise TypeError
    if before.name == "string":
        if target.name == "binary":
            raise ValueError
        typed = target.parse(typed)
    elif isinstance(typed, Decimal) and target.name in INTEGERS and typed == typed.to_integral_value():
        typed = int(typed)
    made = canonical_value(target, typed)
    if isinstance(typed, int | float) and made != typed and not math.isnan(typed):
        raise ValueError
    return made


def canonical_value(kind: SparkType, value: Any) -> Any:  # noqa: ANN401 - of a user, and a value of the type
    """Return a value that a user gives as the value of a type that is equal to it.

    Raises:
        TypeError: The value does not have the type.
        ValueError: It has, but no value of the type is equal to it.
        ArithmeticError: The same, for a number that is too large.
    """
    if value is None:
        return None
    match kind.name:
        case "array" if isinstance(value, list | tuple):
            return [canonical_value(kind.fields[0][1], each) for each in value]
        case "map" if isinstance(value, Mapping) and None not in value:
            (_, of_key), (_, of_value) = kind.fields
            pairs = ((canonical_value(of_key, key), canonical_value(of_value, each)) for key, each in value.items())
            return dict(sorted(pairs, key=lambda pair: pair[0]))
        case "struct" if isinstance(value, Mapping) and value.keys() == dict(kind.fields).keys():
            return {name: canonical_value(inner, value[name]) for name, inner in kind.fields}
        case "float" if not isinstance(value, bool):
            return struct.unpack("<f", struct.pack("<f", kind.decode(kind.encode(value))))[0]
    if kind.is_nested:
        raise TypeError
    return kind.decode(kind.encode(value))


def edited_values(definition: ObjectType, values: Mapping[str, object]) -> dict[str, tuple[str, Any]]:
    """Return the properties that a user gives as a change has them.

    Raises:
        ConfigurationError: There is no such property, or a value does not have its type.
    """
    if not values:
        raise ConfigurationError("the edit names no property", option="properties", advice="give one, as status='open'")
    encoded = {}
    for name, value in sorted(values.items(), key=lambda item: str(item[0])):  # as the log has them
        if name not in definition.properties:
            what = "is the key" if name in definition.keys else "is no property"
            raise ConfigurationError(
                f"{name!r:.200} {what} of {definition.name!r}",
                option="properties",
                advice=f"edit one of {', '.join(definition.properties)}",
            )
        kind = definition.properties[name].kind
        try:
            encoded[name] = kind.text, kind.to_json(canonical_value(kind, value))
        except (TypeError, ValueError, ArithmeticError):
            raise ConfigurationError(
                f"the property {name!r} of type {kind.text} cannot be {value!r:.200}",
                option="properties",
                advice=f"give a value of the type {kind.text}{kind.hint}",
            ) from None
    return encoded
