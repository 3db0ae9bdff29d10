# SPDX-License-Identifier: Apache-2.0
"""Objects as documents of OpenSearch: their fields, their mapping, and values that compare as in Spark.

| field | holds |
|---|---|
| `object.<name>` | a key or a property; NULL is left out |
| `key` | the encoded key in hexadecimal digits: its order is that of the keys |
| `words` | the folded words of the texts, a value for each property |
| `lowest.<name>` | 1 where a `bigint` is -2^63, which OpenSearch cannot tell from NULL when it sorts |
| `gone` | whether the object is deleted |
| `progress` | in the document `progress` alone: the last fact of the log that all documents contain |

Dates and times are days and microseconds since 1970, decimals their unscaled value, or with
more than 18 digits hexadecimal digits in the order of the numbers; floats are integers in the order of the numbers.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from forebay.table.changelog.state.typed_values import UNREADABLE as UNREADABLE_FACTS
from forebay.table.index.definition import ObjectType
from forebay.table.index.text import UNICODE, folded_words
from forebay.table.index.types import NAN, SMALL_DECIMAL, SparkType

PROGRESS: Final = "progress"
"""The id of the document that says how far an index is. No key has it: their ids begin with other letters."""

ALIVE: Final[Mapping[str, Any]] = {"term": {"gone": False}}
"""The query that finds objects that exist."""

LOWEST: Final = -(1 << 63)
"""The `bigint` that sorts as NULL in OpenSearch."""

FORMAT: Final = 1
"""The format version of the documents."""

_ID_BYTES: Final = 512
"""The longest id that OpenSearch takes."""

_GREATEST: Final = (1 << 63) - 1
"""What stands for NaN, which is greater than all numbers."""


UNREADABLE: Final = (*UNREADABLE_FACTS, struct.error)
"""Errors for a document or an answer that someone else has written."""


def field_of(name: str) -> str:
    """Return the field of a key or property. Dots would divide the name, `*` find others; blanks alone are no name."""
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
        lowest = {self._names[place]: {"type": "byte"} for place in self._bigints}
        properties: dict[str, Any] = {
            "gone": {"type": "boolean"},
            "key": {"type": "keyword"},
            "object": {"properties": fields},
            PROGRESS: {"type": "object", "enabled": False},
            **({"words": words} if self._texts else {}),
            **({"lowest": {"properties": lowest}} if lowest else {}),
        }
        meta = {**owner, "definition": self._definition.to_facts(), "unicode": UNICODE}
        # Said here, because a template of the cluster may say something else.
        fixed = {"dynamic": "strict", "_source": {"enabled": True}, "_routing": {"required": False}}
        return {**fixed, "_meta": {"forebay": meta}, "properties": properties}

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
    text = "k" + key.hex()
    return text if len(text) <= _ID_BYTES else "h" + hashlib.sha256(key).hexdigest()


def bulk_lines(identity: str, version: int, document: Mapping[str, Any]) -> bytes:
    """Return the two lines of a document in a bulk request, which never replaces a newer version."""
    action = f'{{"index":{{"_id":"{identity}","version":{version},"version_type":"external_gte"}}}}\n'
    return f"{action}{json.dumps(document, ensure_ascii=False, separators=(',', ':'))}\n".encode()


def _escaped(name: str) -> str:
    return "".join(f"%{ord(each):02X}" if each in ".%*" or each.isspace() else each for each in name)


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
