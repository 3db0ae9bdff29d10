# SPDX-License-Identifier: Apache-2.0
"""Asks OpenSearch as a search node is asked: the same calls, the same answers."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from forebay.errors import ConfigurationError, DataError, RetriableError
from forebay.formats.values.dates import session_zone
from forebay.retry import RetryPolicy
from forebay.table.index.conditions import Bound, Comparison, Joined, Missing, Negated, OneOf, indexed_type
from forebay.table.index.definition import ObjectType, check_name
from forebay.table.index.object_set import Asked, ObjectSet, Page, Queryable, Version
from forebay.table.index.opensearch_cluster import Cluster, Indexed, MissingError, checked_name
from forebay.table.index.opensearch_documents import (
    ALIVE,
    FORMAT,
    UNREADABLE,
    Documents,
    converter,
    field_of,
    id_of,
    lowest_of,
    needs_lowest,
)
from forebay.table.index.text import Phrase
from forebay.table.index.types import SparkType

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

T = TypeVar("T")
Query = Mapping[str, Any]

_NOTHING: Final[Query] = {"match_none": {}}
_RANGES: Final = {"<": "lt", "<=": "lte", ">": "gt", ">=": "gte"}
_OPPOSITES: Final = {">": "<=", ">=": "<"}
_SHORT: Final = 200
"""Characters of a text up to which OpenSearch takes it as lower bound: it refuses ranges above one of 1,000 bytes."""

_ALL_WORDS: Final = (1 << 31) - 1
"""Words that the beginning of a word may stand for. By default OpenSearch takes 50, and leaves out the others."""


class OpenSearchObjects(Queryable):
    """Answers queries about the objects of a type from OpenSearch, where an `OpenSearchIndex` keeps them.

    It is asked as a `SearchNode` is, and answers the same. Each answer is of a point in time, which `refresh` moves,
    and has the number of the last fact of the log that it contains for sure. The location of the funnel is not needed.
    For any thread.

    Args:
        hosts: The URL of OpenSearch, or several; or a client of opensearch-py, with what it needs of TLS and passwords.
        object_type: The name of the object type.
        name: The alias under which the objects are found; None: the name of the object type in lower case.
        time_zone: The time zone of timestamps without one in conditions of `where`.
        retry: How long requests are repeated while OpenSearch is busy or does not answer.

    Raises:
        ConfigurationError: There is no such index, `hosts` or `name` cannot be used, or opensearch-py is not installed.
        RetriableError: OpenSearch does not answer.
    """

    def __init__(
        self,
        hosts: str | Sequence[str] | OpenSearch,
        object_type: str,
        *,
        name: str | None = None,
        time_zone: str = "UTC",
        retry: RetryPolicy | None = None,
    ) -> None:
        check_name(object_type, "object type")
        self._cluster = Cluster(hosts, retry)
        self._owner = {"v": FORMAT, "object_type": object_type}
        self._alias = checked_name(object_type.lower() if name is None else name)
        self._zone = session_zone(time_zone)
        self._refreshing = threading.Lock()
        self._view: _View | None = None
        self._closed = False
        self.refresh()

    @property
    def version(self) -> Version:
        """The version that answers."""
        return self._current().version

    @property
    def objects(self) -> ObjectSet:
        """All objects."""
        return ObjectSet(self._current, self._zone)

    def refresh(self) -> Version:
        """Let the next answers contain all that can be found now; return their version. It never goes back.

        Raises:
            ConfigurationError: There is no such index.
            RetriableError: OpenSearch does not answer, or its index is older than what was answered before.
        """
        return self._moved(None).version

    def get(self, key: object) -> Mapping[str, Any] | None:
        """Return the object with a key; None if there is none.

        Args:
            key: The value of the key; for several columns a tuple, or a mapping.
        """
        return self._current().get(key)

    def close(self) -> None:
        """End the point in time, unless pages refer to it."""
        self._closed, self._view = True, None

    def _current(self) -> _View:
        view = self._view
        if view is None:
            raise ConfigurationError(f"the objects of {self._alias!r} are closed", advice="make new ones")
        return view

    def _moved(self, ended: _View | None) -> _View:
        """Return what answers from now on, which is not the view that has ended."""
        with self._refreshing:
            if self._closed:
                return self._current()
            view = self._view
            built = self._cluster.indexed(self._alias, self._owner)
            if built is None:
                raise ConfigurationError(
                    f"OpenSearch has no index {self._alias!r} of {self._owner['object_type']!r}",
                    option="name",
                    advice="build it: call OpenSearchIndex.catch_up, or run `forebay index opensearch`",
                )
            if view is not None and view is not ended and (built == view.indexed or built.data < view.indexed.data):
                return view
            if view is not None and built.data < view.indexed.data:
                raise RetriableError(
                    f"the index {built.name!r} of OpenSearch is at fact {built.data} of the log, and answers before "
                    f"were at {view.indexed.data}",
                    advice="bring it up to date with OpenSearchIndex.catch_up, and ask again",
                )
            try:
                self._view = _View(self._cluster, built, self._moved)
            except MissingError as error:
                raise RetriableError(f"the index {built.name!r} was just removed", advice="ask again") from error
            return self._view


class _View:
    """An index at a point in time, which ends when nothing refers to it any longer."""

    def __init__(self, cluster: Cluster, built: Indexed, moved: Callable[[_View], _View]) -> None:
        self.indexed = built
        self.version = Version(built.pipeline, built.data, built.data, built.edits)
        self._definition = built.definition
        self._documents = Documents(self._definition)
        self._moved = moved
        self._cluster = cluster
        self._point = cluster.open_point(built.name)
        weakref.finalize(self, cluster.close_point, self._point).atexit = False

    def fetch(self, objects: ObjectSet) -> Page:
        """Return the first page of a query."""
        return self._asked(lambda view: view._page(view._bound(objects), None))  # noqa: SLF001 - of this class

    def count_of(self, objects: ObjectSet) -> int:
        """Return the number of objects of a query."""
        return self._asked(lambda view: view._count(objects))  # noqa: SLF001 - of this class

    def get(self, key: object) -> Mapping[str, Any] | None:
        """Return the object with a key."""
        return self._asked(lambda view: view._get(key))  # noqa: SLF001 - of this class

    def _asked(self, ask: Callable[[_View], T]) -> T:
        try:
            return ask(self)
        except MissingError:  # after a long time without a question, a restart of OpenSearch, or a full build
            return ask(self._moved(self))

    def column(self, name: str) -> tuple[str, SparkType]:
        """Return the field and the type of a column with an index."""
        return field_of(name), indexed_type(self._definition, name, f"the index {self.indexed.name} of OpenSearch")

    def _get(self, key: object) -> Mapping[str, Any] | None:
        codec = self._definition.codec
        encoded = codec.encode(codec.values(key))
        query = {"bool": {"filter": [ALIVE, {"ids": {"values": [id_of(encoded)]}}, {"term": {"key": encoded.hex()}}]}}
        return next(map(self._decoded, self._cluster.hits(self._point, {"query": query}, 1)), None)

    def _count(self, objects: ObjectSet) -> int:
        query = self._query(self._bound(objects))
        return 0 if query is None else self._cluster.count(self._point, query)

    def _page(self, request: Asked, after: Sequence[Any] | None) -> Page:
        sort: list[Query] = []
        for name, descending in request.order:
            order = {"order": "desc", "missing": "_last"} if descending else {"order": "asc", "missing": "_first"}
            marks = [lowest_of(name)] if needs_lowest(self._definition, name) else []
            sort += [{field: order} for field in (field_of(name), *marks)]
        query = self._query(request)
        body = {"query": query, "sort": [*sort, {"key": "asc"}], "_source": ["object"]}
        hits = [] if query is None else list(self._cluster.hits(self._point, body, request.size, after))
        following = (lambda: self._following(request, hits[-1]["sort"])) if len(hits) == request.size else None
        return Page(self.version, tuple(map(self._decoded, hits)), following)

    def _following(self, request: Asked, after: Sequence[Any]) -> Page:
        try:
            return self._page(request, after)
        except MissingError as error:
            raise RetriableError(
                f"the point in time of this page has ended: {error.message}",
                advice="ask again, from the first page on",
            ) from error

    def _bound(self, objects: ObjectSet) -> Asked:
        return objects.asked(self._definition, self)

    def _query(self, request: Asked) -> Query | None:
        """Return a query as OpenSearch takes it; None if nothing answers it."""
        if request.phrases is None:
            return None
        conditions = [query_of(each, self._definition) for each in request.conditions]
        return {"bool": {"filter": [ALIVE, *conditions, *map(_phrase_query, request.phrases)]}}

    def _decoded(self, hit: Mapping[str, Any]) -> Mapping[str, Any]:
        columns = self._definition.columns
        try:
            stored = self._documents.columns(hit["_source"])
            return {name: kind.decode(value) for (name, kind), value in zip(columns.items(), stored, strict=True)}
        except UNREADABLE as error:
            raise DataError(
                f"the document {hit['_id']!r:.200} of {self.indexed.name!r} holds no {self._definition.name}: someone "
                "else has written it",
                advice="build the index again: call OpenSearchIndex.catch_up(full=True), or run "
                "`forebay index opensearch … --full`",
            ) from error


def query_of(bound: Bound, definition: ObjectType, *, outcome: bool = True) -> Query:
    """Return the query that finds the objects for which a condition has an outcome; NULL is neither."""
    match bound:
        case Negated(inner):
            return query_of(inner, definition, outcome=not outcome)
        case Joined(operator, parts):
            # NOT (a OR b) is NOT a AND NOT b
            if (operator == "AND") == outcome:
                return {"bool": {"filter": [query_of(each, definition, outcome=outcome) for each in parts]}}
            return {"bool": {"should": [query_of(each, definition, outcome=outcome) for each in parts]}}
        case Missing(column):
            exists = {"exists": {"field": field_of(column)}}
            return {"bool": {"must_not": [exists]}} if outcome else exists
    field, kind = field_of(bound.column), definition.columns[bound.column]
    query = _values_query(field, kind, bound.values) if isinstance(bound, OneOf) else _comparison(field, kind, bound)
    return query if outcome else {"bool": {"filter": [{"exists": {"field": field}}], "must_not": [query]}}


def _values_query(field: str, kind: SparkType, values: Sequence[Any]) -> Query:
    convert = converter(kind)
    possible = [value if convert is None else convert(value) for value in values if not _is_bound(kind, value)]
    return {"terms": {field: possible}} if possible else _NOTHING


def _comparison(field: str, kind: SparkType, bound: Comparison) -> Query:
    operator, value = bound.operator, bound.value
    if operator == "=":
        return _values_query(field, kind, [value])
    if _is_bound(kind, value):
        return {"exists": {"field": field}} if ("<" in operator) == (value > 0) else _NOTHING
    convert = converter(kind)
    stored = value if convert is None else convert(value)
    if operator in _OPPOSITES and isinstance(stored, str) and len(stored) > _SHORT:
        below = {"range": {field: {_RANGES[_OPPOSITES[operator]]: stored}}}
        return {"bool": {"filter": [{"exists": {"field": field}}], "must_not": [below]}}
    return {"range": {field: {_RANGES[operator]: stored}}}


def _is_bound(kind: SparkType, value: Any) -> bool:  # noqa: ANN401 - see `Comparison`
    """Return whether a value is equal to none of an exact type: greater or less than all, or of another type."""
    return kind.name not in ("float", "double", "string") and isinstance(value, float | str)


def _phrase_query(phrase: Phrase) -> Query:
    words = " ".join(phrase.words)
    if phrase.prefix:
        return {"match_phrase_prefix": {"words": {"query": words, "max_expansions": _ALL_WORDS}}}
    return {"match_phrase": {"words": words}}
