# SPDX-License-Identifier: Apache-2.0
"""Queries of a node: filters, text, order and pages over the segments of one version."""

from __future__ import annotations

import heapq
import sys
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any, Final, NoReturn, Protocol, Self, TypeAlias

from forebay.errors import ConfigurationError, RetriableError
from forebay.formats.values.dates import Zone
from forebay.table.changelog.state.typed_values import UNREADABLE
from forebay.table.index.conditions import (
    Bound,
    Columns,
    Condition,
    all_of,
    equality,
    indexed_type,
    parsed_condition,
    sql_condition,
)
from forebay.table.index.definition import ObjectType, refused
from forebay.table.index.edits import PENDING, Change, Edit, EditRules, KeyEdits, edited_values, key_of, now
from forebay.table.index.opened_segments import COPY_AGAIN, Newer, OpenedSegment
from forebay.table.index.pipelines import IndexVersion
from forebay.table.index.segments import IndexSegment, Row, memory_segment
from forebay.table.index.text import Phrase, match_expression, search_phrases
from forebay.table.index.types import SparkType

LIMIT: Final = 100
"""Rows of a page, if `limit` is not called."""

_RankedRow: TypeAlias = tuple[tuple[Any, ...], tuple[Any, ...], Sequence[Any]]


@dataclass(frozen=True)
class Version:
    """The version of an answer.

    Args:
        pipeline: The pipeline that served.
        number: The version of its index.
        data: The number of the last fact of the log that the index contains.
        offset: The offset of the last edit of a user that the answer contains.
    """

    pipeline: str
    number: int
    data: int
    offset: int = 0


@dataclass(frozen=True)
class Page:
    """Rows of an answer, and the version that they are of.

    Args:
        version: The version.
        rows: The objects: keys and properties by name.
    """

    version: Version
    rows: tuple[Mapping[str, Any], ...]
    _next: Callable[[], Page] | None = None

    @property
    def has_next(self) -> bool:
        """Whether there may be more rows."""
        return self._next is not None

    def next_page(self) -> Page:
        """Return the next rows, of the same version; an empty page after the last one."""
        return Page(self.version, ()) if self._next is None else self._next()


@dataclass(frozen=True)
class EditedKey:
    """A key with pending edits.

    Args:
        values: The key, as SQLite stores it.
        row: The object in the index, as SQLite stores it; None: there is none.
        folded: The folded edits of a key without an object; none of another key.
        edits: The pending edits.
    """

    values: tuple[Any, ...]
    row: tuple[Any, ...] | None
    folded: KeyEdits
    edits: KeyEdits = field(default_factory=KeyEdits)

    def object(self, rules: EditRules) -> tuple[Any, ...] | None:
        """Return the object after the pending edits; None: there is none."""
        return rules.apply(self.values, self.row, self.edits.after(self.folded))


@dataclass(frozen=True)
class Overlay:
    """The pending edits that a node has seen. They are its newest segment, in memory.

    Args:
        edits: The edits, by ascending offsets.
        keys: Their keys.
        run: The segment with the objects of these keys after the edits.
        added: How many more objects there are than in the index.
    """

    edits: tuple[Edit, ...] = ()
    keys: Mapping[bytes, EditedKey] = field(default_factory=dict)
    run: tuple[OpenedSegment, ...] = ()
    added: int = 0


@dataclass(frozen=True)
class View:
    """A version as a node reads it. It stays readable while a query or a page refers to it.

    Args:
        version: The version.
        definition: The definition of its pipeline.
        runs: The segments of its runs, newest first.
        shards: The number of shards, by which keys are divided.
        overlay: The edits that are pending in this version.
    """

    version: IndexVersion
    definition: ObjectType
    runs: tuple[tuple[OpenedSegment, ...], ...]
    shards: int
    overlay: Overlay = field(default_factory=Overlay)

    @property
    def offset(self) -> int:
        """The offset of the last edit that answers contain."""
        return self.overlay.edits[-1].offset if self.overlay.edits else self.version.edits

    def with_edits(self, edits: Sequence[Edit]) -> View:
        """Return the view with the edits that follow."""
        if not edits:
            return self
        codec, rules = self.definition.codec, EditRules(self.definition)
        keys = dict(self.overlay.keys)
        for edit in edits:
            for change in edit.changes:
                values = key_of(change, edit, self.definition)
                encoded = codec.encode(values)
                each = keys.get(encoded) or self._edited_key(values, encoded)
                keys[encoded] = replace(each, edits=rules.then(each.edits, change, edit.time)[0])
        rows: list[Row] = []
        try:
            for encoded, each in keys.items():
                made = each.object(rules)
                rows.append((encoded, (*each.values, None) if made is None else made, made is not None))
            opened = OpenedSegment(*memory_segment(self.definition, rows))
        except UNREADABLE as error:  # of a value of a copy that has another type
            raise self._unreadable(error) from error
        opened.note_keys()
        added = opened.segment.rows - sum(each.row is not None for each in keys.values())
        return replace(self, overlay=Overlay((*self.overlay.edits, *edits), keys, (opened,), added))

    def _edited_key(self, values: tuple[Any, ...], encoded: bytes) -> EditedKey:
        key_hash = self.definition.codec.hash(values)
        for opened in (each for run in self.runs for each in run):
            if opened.segment.may_hold(key_hash, self.shards) and (row := opened.find(encoded)) is not None:
                return EditedKey(values, row[2:] or None, KeyEdits() if row else opened.edits_of(encoded))
        return EditedKey(values, None, KeyEdits())

    def new_edit(self, edits: Iterable[tuple[object, Mapping[str, object] | None]], last: int) -> Edit:
        """Return the edit that follows; see `SearchNode.edit_many`.

        Args:
            edits: Keys with the properties to change; None deletes the object.
            last: The time of the last edit that was folded, in microseconds since 1970.
        """
        codec, rules = self.definition.codec, EditRules(self.definition)
        at = max([now(), last + 1, *(edit.time + 1 for edit in self.overlay.edits[-1:])])
        changes = []
        keys: dict[bytes, EditedKey] = {}
        for key, properties in edits:
            values = codec.values(key)
            encoded = codec.encode(values)
            each = keys.get(encoded) or self.overlay.keys.get(encoded) or self._edited_key(values, encoded)
            try:
                exists = each.object(rules) is not None
            except UNREADABLE as error:
                raise self._unreadable(error) from error
            if properties is None and not exists:
                raise ConfigurationError(
                    f"{self.definition.name!r} has no object ({codec.shown(values)}) to delete",
                    option="key",
                    advice="check the key; refresh the node if the object is new",
                )
            made = None if properties is None else edited_values(self.definition, properties)
            changes.append(Change(codec.to_json(values), made, made is not None and not exists))
            keys[encoded] = replace(each, edits=rules.then(each.edits, changes[-1], at)[0])
        if not 0 < len(changes) <= PENDING:
            raise ConfigurationError(
                f"the edit has {len(changes):,} changes", option="edits", advice=f"give 1 to {PENDING:,} at once"
            )
        pipeline, data = self.version.pipeline, self.version.data
        return Edit(self.offset + 1, uuid.uuid4().hex, at, pipeline, data, tuple(changes))

    @cached_property
    def parts(self) -> tuple[tuple[OpenedSegment, Newer], ...]:
        """Each segment, newest first, with the runs that overrule it; pending edits are the first one."""
        newer, parts = Newer(), []
        for run in (self.overlay.run, *self.runs) if self.overlay.run else self.runs:
            parts += [(opened, newer) for opened in run]
            newer = Newer(run, newer)
        return tuple(parts)

    @property
    def name(self) -> Version:
        """The version, as answers name it."""
        return Version(self.version.pipeline, self.version.number, self.version.data, self.offset)

    @property
    def is_damaged(self) -> bool:
        """Whether reading a segment has failed."""
        return any(opened.damaged for opened, _ in self.parts)

    def mark_damaged(self) -> None:
        """Let the next refresh check all segments, since one of them is damaged. Called by `verify` too."""
        for opened, _ in self.parts:
            opened.damaged = True

    def column(self, name: str) -> tuple[str, SparkType]:
        """Return the SQL name and the type of a column with an index.

        Raises:
            ConfigurationError: There is no such column, or it has no index.
        """
        where = f"version {self.version.number} of the pipeline {self.version.pipeline}"
        kind = indexed_type(self.definition, name, where)
        return f"o.c{list(self.definition.columns).index(name)}", kind

    def fetch(self, objects: ObjectSet) -> Page:
        """Return the first page of a query over this version."""
        return self._page(_Query(objects, self), None)

    def count_of(self, objects: ObjectSet) -> int:
        """Return the number of objects of a query over this version."""
        query = _Query(objects, self)
        if not query.conditions:
            return self.version.count + self.overlay.added
        return sum(query.counted(*part) for part in self.parts)

    def _page(self, query: _Query, after: tuple[Any, ...] | None) -> Page:
        rows = list(islice(query.rows(after), query.size))
        following = (lambda: self._page(query, rows[-1][1])) if len(rows) == query.size else None
        return Page(self.name, tuple(self.decoded(row) for *_, row in rows), following)

    def find(self, key: object) -> tuple[IndexSegment | None, dict[str, Any] | None]:
        """Return the segment that decides about a key, and the object; None: no segment has it, or it is deleted."""
        codec = self.definition.codec
        values = codec.values(key)
        encoded, key_hash = codec.encode(values), codec.hash(values)
        for opened, _ in self.parts:
            if opened.segment.may_hold(key_hash, self.shards) and (row := opened.find(encoded)) is not None:
                return opened.segment, self.decoded(row[2:]) if row else None
        return None, None

    def decoded(self, row: Sequence[Any]) -> dict[str, Any]:
        """Return the columns of a row as an object."""
        columns = self.definition.columns
        try:
            # The row ends with the times of rows of datasources.
            return {name: kind.decode(value) for (name, kind), value in zip(columns.items(), row, strict=False)}
        except UNREADABLE as error:
            raise self._unreadable(f"{error}: {row!r:.200}") from error

    def _unreadable(self, why: object) -> RetriableError:
        """Return the error for an object that cannot be read, and mark the segments as damaged."""
        self.mark_damaged()
        return RetriableError(
            f"an object of version {self.version.number} of the pipeline {self.version.pipeline} cannot be read: {why}",
            option="cache",
            advice=COPY_AGAIN,
        )


class Answering(Protocol):
    """What answers the queries of an object set: a version of a node, or another database."""

    def fetch(self, objects: ObjectSet) -> Page:
        """Return the first page."""

    def count_of(self, objects: ObjectSet) -> int:
        """Return the number of objects."""


class Queryable(ABC):
    """What is asked for objects: a search node, or OpenSearch. Queries begin with one of these methods."""

    @property
    @abstractmethod
    def objects(self) -> ObjectSet:
        """All objects."""

    @abstractmethod
    def close(self) -> None:
        """Give free what it holds. Queries and pages that have begun go on."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def where(self, condition: str | None = None, /, **equal: object) -> ObjectSet:
        """Return the objects that satisfy conditions; see `ObjectSet.where`."""
        return self.objects.where(condition, **equal)

    def search(self, text: str, *, phrase: bool = False) -> ObjectSet:
        """Return the objects that have all words of a text; see `ObjectSet.search`."""
        return self.objects.search(text, phrase=phrase)

    def order_by(self, *names: str) -> ObjectSet:
        """Return all objects in an order; see `ObjectSet.order_by`."""
        return self.objects.order_by(*names)

    def limit(self, rows: int) -> ObjectSet:
        """Return all objects, with another number of rows of a page; see `ObjectSet.limit`."""
        return self.objects.limit(rows)

    def count(self) -> int:
        """Return the number of all objects."""
        return self.objects.count()


@dataclass(frozen=True)
class Asked:
    """What a query asks.

    Args:
        conditions: The conditions, all of which an object satisfies.
        phrases: The phrases, all of which it has; None: the text of a search has no word, and no object has it.
        order: The columns that order the objects, and whether the order is descending. The key comes after them.
        size: The number of rows of a page.
    """

    conditions: tuple[Bound, ...]
    phrases: tuple[Phrase, ...] | None
    order: tuple[tuple[str, bool], ...]
    size: int


@dataclass(frozen=True)
class ObjectSet:
    """The objects that answer a query. Methods return a new set; `fetch` and `count` ask.

    It is made by `where`, `search` and `order_by` of a `SearchNode` or of `OpenSearchObjects`.
    """

    _current: Callable[[], Answering]
    _zone: Zone
    _filters: tuple[tuple[str | None, Mapping[str, object]], ...] = ()
    _searches: tuple[tuple[str, bool], ...] = ()
    _order: tuple[str, ...] = ()
    _limit: int = LIMIT

    def where(self, condition: str | None = None, /, **equal: object) -> ObjectSet:
        """Return the objects that also satisfy conditions on keys and properties with `filter`.

        Args:
            condition: SQL text: comparisons of a property with a literal, IN, BETWEEN and IS NULL, joined by AND, OR
                and NOT. It has the outcome of Spark's `where`.
            equal: Properties with the value that they have: one of several for a list, NULL for None.
        """
        if condition is not None:
            _check_text(condition, "where", "where(\"status = 'open'\") or where(status='open')")
        return replace(self, _filters=(*self._filters, (condition, equal)))

    def search(self, text: str, *, phrase: bool = False) -> ObjectSet:
        """Return the objects of which the properties with `text` have all words of a text.

        Args:
            text: Words. No character is syntax. Upper and lower case, and full and half width, are the same.
            phrase: Whether the words must follow one another in one property.
        """
        _check_text(text, "search", "search('late parcel')")
        return replace(self, _searches=(*self._searches, (text, phrase)))

    def order_by(self, *names: str) -> ObjectSet:
        """Return the objects in the order of properties with `filter`, of the key where these are equal.

        Args:
            names: The properties; `-name` is the descending order. NULL comes first, and last in descending order.
        """
        for name in names:
            _check_text(name, "order_by", "order_by('-total', 'status')")
        return replace(self, _order=names)

    def limit(self, rows: int) -> ObjectSet:
        """Return the set with another number of rows of a page."""
        if not isinstance(rows, int) or isinstance(rows, bool) or not 1 <= rows <= sys.maxsize:
            raise refused("limit", rows, "give a whole number, 1 or more")
        return replace(self, _limit=rows)

    def __iter__(self) -> NoReturn:
        raise ConfigurationError(
            "an object set has no rows before it is asked",
            option="where",
            advice="call fetch() and read the rows of its page; next_page() has the following ones",
        )

    def fetch(self) -> Page:
        """Return the first page."""
        return self._current().fetch(self)

    def count(self) -> int:
        """Return the number of objects."""
        return self._current().count_of(self)

    def asked(self, definition: ObjectType, columns: Columns) -> Asked:
        """Return what the query asks of objects with a definition. Called by what answers it.

        Args:
            definition: The definition.
            columns: The columns that conditions and the order may name.

        Raises:
            ConfigurationError: A column cannot be named, a value has not its type, no property has text, or there are
                too many conditions or words.
        """
        conditions: list[Bound] = []
        for text, equal in self._filters:
            if text is not None:
                conditions.append(parsed_condition(text, columns, self._zone))
            conditions += [equality(name, value, columns) for name, value in equal.items()]
        if self._searches and not definition.texts:
            raise ConfigurationError(
                f"{definition.name!r} has no property with text", option="search", advice="define one with text=True"
            )
        phrases = search_phrases(self._searches)
        order = tuple((name.removeprefix("-"), name.startswith("-")) for name in self._order)
        for name, _ in order:
            try:
                columns.column(name)
            except ConfigurationError as error:
                error.option, error.advice = "order_by", f"{error.advice}; with a - before it in descending order"
                raise
        return Asked(all_of(conditions), phrases, order, self._limit)


def _check_text(text: object, option: str, example: str) -> None:
    if not isinstance(text, str):
        raise ConfigurationError(f"{text!r:.200} is no text", option=option, advice=f"write {example}")


class _Query:
    """An object set over one version, as SQL."""

    def __init__(self, objects: ObjectSet, view: View) -> None:
        asked = objects.asked(view.definition, view)
        self._view = view
        self.size = asked.size
        self.conditions = [sql_condition(each, view) for each in asked.conditions]
        if asked.phrases is None:
            self.conditions.append(Condition("0"))
        elif asked.phrases:
            expression = match_expression(asked.phrases)
            self.conditions.append(Condition("o.id IN (SELECT rowid FROM f WHERE f MATCH ?)", (expression,)))
        names = list(view.definition.columns)
        self._order = [*((view.column(name)[0], descending) for name, descending in asked.order), ("o.k", False)]
        self._places = [*(_FIRST + names.index(name) for name, _ in asked.order), _KEY]

    def counted(self, opened: OpenedSegment, newer: Newer) -> int:
        """Return the number of rows of a segment that no newer one overrules."""
        where, parameters = self._where(None)
        if not newer.run:
            with opened.reading() as connection:
                return int(connection.execute(f"SELECT count(*) FROM o{where}", parameters).fetchone()[0])
        count = 0
        for rows in opened.scan(f"SELECT o.k FROM o{where}", parameters):
            with opened.errors():
                count += len(rows) - len(newer.overruled(key for (key,) in rows))
        return count

    def rows(self, after: tuple[Any, ...] | None) -> Iterator[_RankedRow]:
        """Yield rows in their order, each with its rank and its place: the values that order it, and its key."""
        return heapq.merge(*(self._of_segment(*part, after) for part in self._view.parts), key=lambda each: each[0])

    def _of_segment(self, opened: OpenedSegment, newer: Newer, after: tuple[Any, ...] | None) -> Iterator[_RankedRow]:
        ordered = ", ".join(f"{sql} DESC" if descending else sql for sql, descending in self._order)
        last = None if after is None else self._rank(after)
        size = self.size
        while size == self.size:  # else there are no more
            where, parameters = self._where(after)
            statement = f"SELECT o.* FROM o{where} ORDER BY {ordered} LIMIT ?"
            rows = [row for some in opened.scan(statement, (*parameters, self.size)) for row in some]
            with opened.errors():
                gone = newer.overruled([row[_KEY] for row in rows])  # a key that is no bytes fails here
            size = len(rows)
            for row in rows:
                after = tuple(row[place] for place in self._places)
                rank = self._rank(after)
                if last is not None and not last < rank:  # pages would go round in circles
                    raise opened.failure(ValueError("its rows are not in order"))
                last = rank
                if row[_KEY] not in gone:
                    yield rank, after, row[_FIRST:]

    def _where(self, after: tuple[Any, ...] | None) -> tuple[str, tuple[Any, ...]]:
        parts = list(self.conditions)
        if after is not None:
            parts.append(self._following(after))
        sql = " AND ".join(f"({part.sql})" for part in parts)
        return (f" WHERE {sql}" if parts else ""), tuple(value for part in parts for value in part.parameters)

    def _following(self, after: tuple[Any, ...]) -> Condition:
        """Return the condition that a row comes after a place."""
        alternatives, parameters = [], []
        equal: list[str] = []
        prefix: list[Any] = []
        for (sql, descending), value in zip(self._order, after, strict=True):
            later = f"{sql} {'<' if descending else '>'} ?"
            if descending:
                later = f"({later} OR {sql} IS NULL)"
            if value is None:
                later = "0" if descending else f"{sql} IS NOT NULL"
            alternatives.append(" AND ".join([*equal, later]))
            parameters += [*prefix, *([] if value is None else [value])]
            equal.append(f"{sql} IS ?")
            prefix.append(value)
        return Condition(" OR ".join(f"({each})" for each in alternatives), tuple(parameters))

    def _rank(self, place: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a place as a value that compares as SQLite orders places: NULL, numbers, texts, bytes."""
        # Python orders texts by code points, as SQLite orders UTF-8.
        ranks = [(_RANKS[type(value)], value) for value in place]
        return tuple(
            _Reversed(rank) if descending else rank for rank, (_, descending) in zip(ranks, self._order, strict=True)
        )


_KEY, _FIRST = 1, 2
"""The place of the key, and that of the first column of an object, in a row of a segment."""

_RANKS: Final = {type(None): 0, int: 1, float: 1, str: 2, bytes: 3}
"""The order of the types that SQLite gives."""


@dataclass(frozen=True)
class _Reversed:
    """A value that compares the other way round."""

    value: Any

    def __lt__(self, other: _Reversed) -> bool:
        return bool(other.value < self.value)
