# SPDX-License-Identifier: Apache-2.0
"""Objects as documents of OpenSearch, and requests to OpenSearch that are repeated while it is busy.

| field | holds |
|---|---|
| `object.<name>` | a key or a property; NULL is left out |
| `key` | the encoded key in hexadecimal digits: its order is that of the keys |
| `words` | the folded words of the texts, a value for each property |
| `lowest.<name>` | 1 where a `bigint` is -2^63, which OpenSearch cannot tell from NULL when it sorts |
| `gone` | whether the object is deleted |
| `progress` | in the document `progress` alone: the last fact of the log that all documents contain |

Values compare as in Spark: dates and times are days and microseconds since 1970, decimals their unscaled value, or with
more than 18 digits hexadecimal digits in the order of the numbers; floats are integers in the order of the numbers.
"""

from __future__ import annotations

import hashlib
import json
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar

from forebay.clock import SystemClock
from forebay.errors import ConfigurationError, DataError, ForebayError, RetriableError
from forebay.retry import RetryCount, RetryPolicy
from forebay.table.index.definition import ObjectType
from forebay.table.index.text import UNICODE, folded_words
from forebay.table.index.types import NAN, SMALL_DECIMAL, SparkType

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

T = TypeVar("T")

PROGRESS: Final = "progress"
"""The id of the document that says how far an index is. No key has it: ids of keys are hexadecimal digits."""

ALIVE: Final[Mapping[str, Any]] = {"term": {"gone": False}}
"""The query that finds objects that exist."""

LOWEST: Final = -(1 << 63)
"""The `bigint` that sorts as NULL in OpenSearch."""

_FORMAT: Final = 1
"""The format version of the documents."""

_ID_BYTES: Final = 512
"""The longest id that OpenSearch takes."""

_GREATEST: Final = (1 << 63) - 1
"""What stands for NaN, which is greater than all numbers."""

_BUSY: Final = frozenset({429, 502, 503, 504})
"""Codes of answers after which the same request may succeed."""

_KEEP_ALIVE: Final = "10m"

_WINDOW: Final = 10_000
"""Hits that OpenSearch returns at once."""

_GONE: Final = 404
_NEWER: Final = 409


def field_of(name: str) -> str:
    """Return the field of a key or property. Dots would divide the name, and blanks alone are no name."""
    return "object." + _escaped(name)


def lowest_of(name: str) -> str:
    """Return the field that marks the lowest value of a `bigint`."""
    return "lowest." + _escaped(name)


def converter(kind: SparkType) -> Callable[[Any], Any] | None:
    """Return what makes the values of documents and queries of values as SQLite stores them; None: they are equal."""
    if kind.name in ("float", "double"):
        return _float_rank
    return bytes.hex if kind.name == "binary" or _is_wide(kind) else None


def is_number(kind: SparkType) -> bool:
    """Return whether the values of a type are numbers in documents; else they are texts."""
    return kind.name not in ("string", "binary") and not _is_wide(kind) and not kind.is_nested


def needs_lowest(definition: ObjectType, name: str) -> bool:
    """Return whether a column may be NULL and may also be the lowest `bigint`."""
    return definition.columns[name].name == "bigint" and name not in definition.keys


class Documents:
    """The documents of an object type. It is used for many objects, so it looks at the definition once.

    Args:
        definition: The definition, with the types of the keys.
    """

    def __init__(self, definition: ObjectType) -> None:
        self._definition = definition
        columns = definition.columns
        self._kinds = list(columns.values())
        self._names = [_escaped(name) for name in columns]
        self._converted = [converter(kind) for kind in self._kinds]
        order = list(columns)
        self._texts = [order.index(name) for name in definition.texts]
        self._bigints = [order.index(name) for name in definition.filters if needs_lowest(definition, name)]

    def mapping(self, owner: Mapping[str, object]) -> dict[str, Any]:
        """Return the mapping of an index. Its `_meta` has the owner and the definition."""
        filters = set(self._definition.filters)
        fields: dict[str, Any] = {}
        for name, field, kind in zip(self._definition.columns, self._names, self._kinds, strict=True):
            fields[field] = {"type": "long" if is_number(kind) else "keyword"}
            if name not in filters:
                fields[field] |= {"index": False, "doc_values": False}
        words = {"type": "text", "analyzer": "words", "norms": False}
        properties: dict[str, Any] = {
            "gone": {"type": "boolean"},
            "key": {"type": "keyword"},
            "object": {"properties": fields},
            PROGRESS: {"type": "object", "enabled": False},
            **({"words": words} if self._texts else {}),
            **({"lowest": {"properties": self._lowest_fields()}} if self._bigints else {}),
        }
        meta = {"v": _FORMAT, **owner, "definition": self._definition.to_facts(), "unicode": UNICODE}
        return {"dynamic": "strict", "_meta": {"forebay": meta}, "properties": properties}

    def settings(self) -> dict[str, Any]:
        """Return the settings that an index needs. It is refreshed by its writer alone."""
        tokenizer = {"type": "whitespace", "max_token_length": 1_000_000}  # a longer word is refused, not divided
        return {
            "index.refresh_interval": "-1",
            "index.mapping.total_fields.limit": 1000 + 2 * len(self._names),
            "analysis": {
                "tokenizer": {"words": tokenizer},
                "analyzer": {"words": {"type": "custom", "tokenizer": "words"}},
            },
        }

    def _lowest_fields(self) -> dict[str, Any]:
        return {self._names[place]: {"type": "byte"} for place in self._bigints}

    def alive(self, key: bytes, columns: Sequence[Any]) -> dict[str, Any]:
        """Return the document of an object.

        Args:
            key: The encoded key.
            columns: Keys and properties, as SQLite stores them.
        """
        values = {
            name: value if convert is None else convert(value)
            for name, value, convert in zip(self._names, columns, self._converted, strict=True)
            if value is not None
        }
        document: dict[str, Any] = {"gone": False, "key": key.hex(), "object": values}
        if self._texts:
            document["words"] = [folded_words(columns[place]) for place in self._texts if columns[place] is not None]
        if lowest := {self._names[place]: 1 for place in self._bigints if columns[place] == LOWEST}:
            document["lowest"] = lowest
        return document

    def columns(self, document: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return keys and properties of a document, as SQLite stores them."""
        values = document["object"]
        return tuple(
            _stored(kind, values[name]) if name in values else None
            for name, kind in zip(self._names, self._kinds, strict=True)
        )


def gone_document(key: bytes) -> dict[str, Any]:
    """Return the document of a deleted object. OpenSearch would forget a real delete, and a late write revive it."""
    return {"gone": True, "key": key.hex()}


def id_of(key: bytes) -> str:
    """Return the id of the document of an encoded key. Those of long keys are hashes; the document has the key."""
    text = key.hex()
    return text if len(text) <= _ID_BYTES else "h" + hashlib.sha256(key).hexdigest()


class MissingError(Exception):
    """There is no such index or document in OpenSearch, or a point in time has ended."""


@dataclass(frozen=True)
class Indexed:
    """An index of OpenSearch, and how far it is.

    Args:
        name: Its name.
        meta: What it says of itself: owner and definition.
        data: The number of the last fact of the log that all its documents contain.
        attempt: The attempt that put this fact.
    """

    name: str
    meta: Mapping[str, Any]
    data: int
    attempt: str


class Cluster:
    """A cluster of OpenSearch. For any thread. Requests are repeated while it does not answer or is busy.

    Args:
        hosts: Its URL, or several; or a client of opensearch-py, with what it needs of TLS and passwords.
        policy: How long requests are repeated.

    Raises:
        ConfigurationError: opensearch-py is not installed.
    """

    def __init__(self, hosts: str | Sequence[str] | OpenSearch, policy: RetryPolicy | None = None) -> None:
        try:
            import opensearchpy
        except ModuleNotFoundError as error:
            if error.name != "opensearchpy":
                raise
            raise ConfigurationError(
                "OpenSearch needs opensearch-py, which is not installed", advice='pip install "forebay[opensearch]"'
            ) from error
        self._errors = opensearchpy.exceptions
        self._policy = policy or RetryPolicy()
        if isinstance(hosts, opensearchpy.OpenSearch):
            self.client = hosts
        else:
            some = [hosts] if isinstance(hosts, str) else list(hosts)
            self.client = opensearchpy.OpenSearch(hosts=some, timeout=60, max_retries=0)

    def call(self, request: Callable[[OpenSearch], T]) -> T:
        """Return what a request returns, repeated while the cluster does not answer or is busy.

        Raises:
            RetriableError: It was so for the whole time of the policy.
            ConfigurationError: The cluster refuses the request.
            MissingError: There is no such index, document or point in time.
        """
        attempts = self._attempts()
        while True:
            try:
                return request(self.client)
            except self._errors.NotFoundError as error:
                raise MissingError(str(error)) from error
            except self._errors.TransportError as error:
                failure = self._failure(error)
                if not isinstance(failure, RetriableError):
                    raise failure from error
                self._pause(attempts, failure)

    def indexed(self, alias: str, object_type: str) -> Indexed | None:
        """Return the index behind an alias; None if there is none, or it was not finished.

        Raises:
            ConfigurationError: It was not made for the object type.
        """
        try:
            found = self.call(lambda client: client.indices.get(index=alias))
            facts = {name: each["mappings"].get("_meta", {}).get("forebay", {}) for name, each in found.items()}
            for name, each in facts.items():
                if each.get("object_type") != object_type or each.get("v") != _FORMAT or len(facts) > 1:
                    raise ConfigurationError(
                        f"{name!r} of OpenSearch, which {alias!r} names, was not made for {object_type!r} alone by "
                        "this version of forebay",
                        option="name",
                        advice=f"give another name than {alias!r}, or remove the index if nobody needs it",
                    )
            ((name, meta),) = facts.items()
            progress = self.call(lambda client: client.get(index=name, id=PROGRESS))["_source"][PROGRESS]
        except MissingError:
            return None
        return Indexed(name, meta, progress["data"], progress["attempt"])

    def open_point(self, index: str) -> str:
        """Open a point in time of an index, which lives as long as it is asked at least every 10 minutes."""
        opened = self.call(lambda client: client.create_pit(index=index, params={"keep_alive": _KEEP_ALIVE}))
        return str(opened["pit_id"])

    def close_point(self, point: str) -> None:
        """Close a point in time. One that is not closed ends by itself."""
        with suppress(self._errors.OpenSearchException):
            self.client.delete_pit(body={"pit_id": [point]})

    def search(self, point: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the answer to a search at a point in time.

        Raises:
            MissingError: The point in time has ended.
        """
        whole = {"pit": {"id": point, "keep_alive": _KEEP_ALIVE}, **body}
        answer: Mapping[str, Any] = self.call(
            lambda client: client.search(body=whole, params={"allow_partial_search_results": "false"})
        )
        return answer

    def hits(
        self, point: str, body: Mapping[str, Any], limit: int, after: Sequence[Any] | None = None
    ) -> Iterator[Mapping[str, Any]]:
        """Yield at most `limit` hits of a search at a point in time, after the one with the sort values `after`."""
        while limit > 0:
            size = min(limit, _WINDOW)
            following = {} if after is None else {"search_after": list(after)}
            hits = self.search(point, {**body, "size": size, "track_total_hits": False, **following})["hits"]["hits"]
            yield from hits
            if len(hits) < size:
                return
            after, limit = hits[-1]["sort"], limit - size

    def bulk(self, index: str, documents: Sequence[tuple[str, bytes]], shown: Callable[[int], str]) -> None:
        """Write documents, and check what became of each. Those that are not written for a while are repeated.

        Args:
            index: An alias, so that no index of this name is made if it is gone.
            documents: The id of each document, and its two lines of a bulk request.
            shown: Returns the object with an index as text, for the error.

        Raises:
            DataError: A document is refused.
            RetriableError: The index is gone, or documents were not written for the whole time of the policy.
        """
        attempts, waiting = self._attempts(), list(range(len(documents)))
        while waiting:
            body = b"".join(documents[place][1] for place in waiting)
            answer = self.call(
                lambda client, body=body: client.bulk(body=body, index=index, params={"require_alias": "true"})  # type: ignore[misc] # of the loop
            )
            again, reason = [], ""
            for place, item in zip(waiting, answer["items"], strict=True):
                outcome = item["index"]
                status, cause = outcome["status"], str(outcome.get("error", {}).get("reason", ""))
                if status < 300 or status == _NEWER:  # another follower has written a newer one
                    continue
                if status in _BUSY:
                    again.append(place)
                    reason = cause
                elif status == _GONE:
                    raise RetriableError(f"the index behind {index!r} is gone: {cause}", advice=_AGAIN)
                else:
                    raise DataError(
                        f"OpenSearch refuses {shown(place)}: {cause}",
                        advice="correct the row in its datasource, or leave the property out of the definition",
                    )
            if again:
                self._pause(attempts, RetriableError(f"OpenSearch is busy: {reason}", advice=_AGAIN))
            waiting = again

    def _attempts(self) -> RetryCount:
        return RetryCount(self._policy, SystemClock(), Random())

    def _pause(self, attempts: RetryCount, error: RetriableError) -> None:
        pause = attempts.fail(error)
        if attempts.exhausted:
            raise attempts.last_error(error)
        time.sleep(pause)

    def _failure(self, error: Any) -> ForebayError:  # noqa: ANN401 - of a library that may be missing
        status = error.status_code
        if status in _BUSY or isinstance(error, self._errors.ConnectionError):
            return RetriableError(f"OpenSearch does not answer: {error}", advice=_AGAIN)
        if status in (401, 403):
            return ConfigurationError(
                f"OpenSearch refuses the user: {error}", option="hosts", advice="correct the name and the password"
            )
        return ConfigurationError(f"OpenSearch refuses the request: {error}", option="hosts")


_AGAIN: Final = "call it again; nothing is lost"


def bulk_lines(identity: str, version: int, document: Mapping[str, Any]) -> tuple[str, bytes]:
    """Return the id of a document, and its two lines of a bulk request, which never replaces a newer version."""
    action = f'{{"index":{{"_id":"{identity}","version":{version},"version_type":"external_gte"}}}}\n'
    return identity, f"{action}{json.dumps(document, ensure_ascii=False, separators=(',', ':'))}\n".encode()


def _escaped(name: str) -> str:
    return "".join(f"%{ord(each):02X}" if each in ".%" or each.isspace() else each for each in name)


def _is_wide(kind: SparkType) -> bool:
    return kind.name == "decimal" and kind.precision > SMALL_DECIMAL


def _float_rank(value: Any) -> int:  # noqa: ANN401 - float or NaN as SQLite stores it
    return _GREATEST if value == NAN else _flipped(struct.unpack(">q", struct.pack(">d", value))[0])


def _stored(kind: SparkType, value: Any) -> Any:  # noqa: ANN401 - as SQLite stores it
    if kind.name in ("float", "double"):
        return NAN if value == _GREATEST else struct.unpack(">d", struct.pack(">q", _flipped(value)))[0]
    return bytes.fromhex(value) if kind.name == "binary" or _is_wide(kind) else value


def _flipped(bits: int) -> int:
    """Return the bits of a float as an integer in the order of the numbers, or the other way round."""
    return bits if bits >= 0 else bits ^ _GREATEST
