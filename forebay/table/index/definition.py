# SPDX-License-Identifier: Apache-2.0
"""The definition of an object type: its key, its properties, and the datasources that they come from."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal, Self

from forebay.errors import ConfigurationError
from forebay.table.changelog.state.facts import fact_bytes
from forebay.table.changelog.state.typed_values import is_text
from forebay.table.index.keys import KeyCodec
from forebay.table.index.types import SparkType, parse_type

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_\-]{0,99}")
"""Names of object types and datasources are directories of the store."""

_KEY_TYPES: Final = frozenset(
    {"bigint", "string", "boolean", "binary", "date", "timestamp", "timestamp_ntz", "decimal"}
)
_TIMES: Final = frozenset({"timestamp", "timestamp_ntz"})

COLUMNS: Final = 1_998
"""Keys, properties and times of rows that an object may have. SQLite takes 2,000 columns."""

KEY_SCALE: Final = 6
"""Maximum scale of a decimal key: Spark writes the text of such a number without an exponent, and nodes rely on it."""


@dataclass(frozen=True)
class Property:
    """A property of an object type.

    Args:
        type: The type, as Spark writes it: `string`, `decimal(12,2)`, `array<string>` ….
        column: The column of the datasource; None: the column with the name of the property.
        filter: Whether `where` and `order_by` may use the property. It gets an index.
        text: Whether `search` finds words of the property. Only for strings.
        renamed_from: The name that the property had in earlier definitions, or several: edits of it count for this one.
    """

    type: str
    column: str | None = None
    filter: bool = False
    text: bool = False
    renamed_from: str | Sequence[str] | None = None

    @property
    def earlier_names(self) -> tuple[str, ...]:
        """The names that the property had."""
        names = self.renamed_from or ()
        return tuple(names) if isinstance(names, Sequence) and not isinstance(names, str) else (names,)

    @property
    def kind(self) -> SparkType:
        """The parsed type."""
        return parse_type(self.type)


@dataclass(frozen=True)
class Datasource:
    """A datasource of an object type. It has one row for each object.

    Args:
        name: The name, of letters, digits, `_` and `-`.
        properties: The properties that come from it, by name.
        key: The column for each key of the object type; keys that are not named have a column of the same name.
        deleted: A boolean column: true if the row counts as deleted. None: the flag in the key metadata of a
            DataFrame (`forebay.keys`), if there is one.
        conflict: What wins if a user has edited a property of the row: `user_edits`, or the `most_recent` of both.
        timestamp: The column with the time of the row, for `most_recent`: a timestamp. One without a time zone is UTC.
        keep: More columns to keep, for properties that a later definition will have.
    """

    name: str
    properties: Mapping[str, Property] = field(default_factory=dict)
    key: Mapping[str, str] = field(default_factory=dict)
    deleted: str | None = None
    conflict: Literal["user_edits", "most_recent"] = "user_edits"
    timestamp: str | None = None
    keep: Sequence[str] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the state of the datasource keeps beside its key, sorted."""
        names = {each.column or name for name, each in self.properties.items()}
        return tuple(sorted(names | {*self.keep} | ({self.timestamp} if self.timestamp else set())))


@dataclass(frozen=True)
class ObjectType:
    """An object type: what its objects are made of.

    Args:
        name: The name, of letters, digits, `_` and `-`.
        key: The name of the key or the names of several, or a mapping of names to types as Spark writes them. A type
            that is not given is that of the first datasource that is committed; integers become `bigint`.
        datasources: The datasources. An object exists while one of them has a row with its key.

    Raises:
        ConfigurationError: A property comes from two datasources or is a key, or a name or type cannot be used.
    """

    name: str
    key: str | Sequence[str] | Mapping[str, str]
    datasources: Sequence[Datasource]

    def __post_init__(self) -> None:
        key = self.key
        if not isinstance(key, Mapping):
            names = key if isinstance(key, Sequence) and not isinstance(key, str) else [key]
            _check_texts("key", *names)
            key = dict.fromkeys(names, "")
        object.__setattr__(self, "key", {name: kind or "" for name, kind in key.items()})
        sources = self.datasources
        if not isinstance(sources, Sequence) or not all(isinstance(each, Datasource) for each in sources):
            raise ConfigurationError(
                f"the datasources of {self.name!r} are {type(sources).__name__}, and no list of Datasource",
                option="datasources",
                advice='give a list: datasources=[Datasource("orders", properties={"status": Property("string")})]',
            )
        object.__setattr__(self, "datasources", tuple(sources))
        _check(self)
        object.__setattr__(self, "key", {name: kind and parse_type(kind).text for name, kind in self.keys.items()})

    @property
    def keys(self) -> Mapping[str, str]:
        """The type of each key, in order; empty text if it is not known yet."""
        assert isinstance(self.key, Mapping)  # noqa: S101 - of `__post_init__`
        return self.key

    @cached_property
    def properties(self) -> Mapping[str, Property]:
        """All properties, in the order of the datasources."""
        return {name: each for source in self.datasources for name, each in source.properties.items()}

    @cached_property
    def codec(self) -> KeyCodec:
        """Encodes keys. The types of all keys are known."""
        return KeyCodec({name: parse_type(kind) for name, kind in self.keys.items()})

    @cached_property
    def columns(self) -> Mapping[str, SparkType]:
        """Keys and properties with their types, in the order of an index row. The types of all keys are known."""
        return {**self.codec.columns, **{name: each.kind for name, each in self.properties.items()}}

    @property
    def stamps(self) -> tuple[str, ...]:
        """The datasources with the rule `most_recent`. An index row ends with the times of their rows."""
        return tuple(source.name for source in self.datasources if source.timestamp is not None)

    @property
    def filters(self) -> tuple[str, ...]:
        """The columns with an index: all keys, and the properties with `filter`."""
        return (*self.keys, *(name for name, each in self.properties.items() if each.filter))

    @property
    def texts(self) -> tuple[str, ...]:
        """The properties with `text`."""
        return tuple(name for name, each in self.properties.items() if each.text)

    def datasource(self, name: str) -> Datasource:
        """Return a datasource by name.

        Raises:
            ConfigurationError: There is none with this name.
        """
        for each in self.datasources:
            if each.name == name:
                return each
        raise ConfigurationError(
            f"the object type {self.name!r} has no datasource {name!r}",
            option="datasource",
            advice=f"give one of {', '.join(each.name for each in self.datasources)}",
        )

    def feeds(self, name: str) -> bool:
        """Return whether there is a datasource with a name."""
        return any(each.name == name for each in self.datasources)

    def with_key_types(self, types: Mapping[str, str]) -> Self:
        """Return the definition with these types for keys that had none."""
        return replace(self, key={name: kind or types.get(name, "") for name, kind in self.keys.items()})

    def fingerprint(self) -> str:
        """Return a digest of the definition, with the types of the keys."""
        return hashlib.sha256(fact_bytes(self.to_facts())).hexdigest()[:16]

    def to_facts(self) -> dict[str, Any]:
        """Return the definition as JSON values."""
        sources = [
            {
                "name": source.name,
                "key": dict(source.key),
                "deleted": source.deleted,
                "conflict": source.conflict,
                "timestamp": source.timestamp,
                "keep": sorted(source.keep),
                "properties": [
                    [name, each.kind.text, each.column or name, each.filter, each.text, list(each.earlier_names)]
                    for name, each in source.properties.items()
                ],
            }
            for source in self.datasources
        ]
        return {"name": self.name, "key": [[name, kind] for name, kind in self.keys.items()], "datasources": sources}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Self:
        """Return the definition of JSON values."""
        sources = [
            Datasource(
                source["name"],
                {
                    name: Property(kind, None if column == name else column, bool(indexed), bool(text), renamed)
                    for name, kind, column, indexed, text, renamed in source["properties"]
                },
                source["key"],
                source["deleted"],
                source["conflict"],
                source["timestamp"],
                source["keep"],
            )
            for source in facts["datasources"]
        ]
        return cls(facts["name"], dict(facts["key"]), sources)


def check_key_type(name: str, kind: SparkType) -> None:
    """Check that values of a type can be a key.

    Raises:
        ConfigurationError: They cannot.
    """
    if kind.name not in _KEY_TYPES or (kind.name == "decimal" and kind.scale > KEY_SCALE):
        raise ConfigurationError(
            f"the key {name!r} cannot have the type {kind.text}",
            option="key",
            advice="use bigint for integers, string, boolean, binary, date, timestamp, timestamp_ntz, or decimal with "
            f"at most {KEY_SCALE} places; cast the column to string for anything else",
        )


def _check(object_type: ObjectType) -> None:
    check_name(object_type.name, "object type")
    if not object_type.keys or not object_type.datasources:
        raise ConfigurationError(
            f"the object type {object_type.name!r} has no {'datasource' if object_type.keys else 'key'}",
            option="datasources" if object_type.keys else "key",
            advice="give at least one: "
            + ('datasources=[Datasource("orders", …)]' if object_type.keys else 'key={"order_id": "bigint"}'),
        )
    _check_keys(object_type)
    for source in object_type.datasources:
        check_name(source.name, "datasource")
    owners: dict[str, str] = {}
    for source in object_type.datasources:
        _check_mappings(source)
        if [each.name.lower() for each in object_type.datasources].count(source.name.lower()) > 1:
            raise ConfigurationError(
                f"two datasources have the name {source.name!r}",
                option="datasources",
                advice="give each a name of its own; upper and lower case are the same",
            )
        for name, each in source.properties.items():
            _check_property(name, each)
            if name.lower() in (key.lower() for key in object_type.keys):
                raise ConfigurationError(
                    f"{name!r} is a key of {object_type.name!r}, and a property of the datasource {source.name!r}",
                    option="properties",
                    advice="leave the property out; every datasource has the key",
                )
            if name.lower() in owners:
                raise ConfigurationError(
                    f"the property {name!r} comes from the datasources {owners[name.lower()]!r} and {source.name!r}",
                    option="properties",
                    advice="give a property one datasource; two columns are two properties, with names of "
                    "their own; upper and lower case are the same",
                )
            owners[name.lower()] = source.name
        _check_source(object_type, source)
    _check_earlier_names(object_type)
    if (count := len(object_type.keys) + len(object_type.properties) + len(object_type.stamps)) > COLUMNS:
        raise ConfigurationError(
            f"the object type {object_type.name!r} has {count:,} keys, properties and times",
            option="properties",
            advice=f"give at most {COLUMNS:,}; a struct holds many values in one property",
        )


def _check_keys(object_type: ObjectType) -> None:
    _check_texts("key", *object_type.keys, *filter(None, object_type.keys.values()))
    if len({name.lower() for name in object_type.keys}) < len(object_type.keys):
        raise ConfigurationError(
            f"two keys of {object_type.name!r} have one name: {', '.join(object_type.keys)}",
            option="key",
            advice="give each a name of its own; upper and lower case are the same",
        )
    for name, kind in object_type.keys.items():
        if kind:
            check_key_type(name, parse_type(kind, f" of the key {name!r}"))


def _check_earlier_names(object_type: ObjectType) -> None:
    known = dict.fromkeys(object_type.properties, "")
    for name, each in object_type.properties.items():
        for earlier in each.earlier_names:
            if known.setdefault(earlier, name) != name:
                raise ConfigurationError(
                    f"the property {name!r} was {earlier!r}, and so is or was another one: edits of {earlier!r} count "
                    "for one",
                    option="renamed_from",
                    advice="name each earlier name once, and give a new property a name that none had",
                )


def _check_mappings(source: Datasource) -> None:
    if not isinstance(source.key, Mapping):
        raise ConfigurationError(
            f"the key of the datasource {source.name!r} is {source.key!r}, and no mapping",
            option="key",
            advice="give the column for each key of the object type: key={'order_id': 'order_no'}",
        )
    properties = source.properties
    if not isinstance(properties, Mapping) or not all(isinstance(each, Property) for each in properties.values()):
        raise ConfigurationError(
            f"the properties of the datasource {source.name!r} are no mapping of names to Property",
            option="properties",
            advice='give properties={"status": Property("string")}',
        )
    if isinstance(source.keep, str) or not isinstance(source.keep, Sequence):
        raise ConfigurationError(
            f"the datasource {source.name!r} is to keep {source.keep!r:.200}",
            option="keep",
            advice="give a list of columns, as keep=['customer']",
        )
    _check_texts("keep", *source.keep)
    _check_texts("key", *source.key.values())
    _check_texts("deleted", *([] if source.deleted is None else [source.deleted]))
    _check_texts("timestamp", *([] if source.timestamp is None else [source.timestamp]))
    for name, each in properties.items():
        _check_texts("properties", name, each.column or name, *each.earlier_names)
        _check_texts("type", each.type)


def _check_source(object_type: ObjectType, source: Datasource) -> None:
    if unknown := sorted(set(source.key) - set(object_type.keys)):
        raise ConfigurationError(
            f"the datasource {source.name!r} maps {unknown[0]!r}, which is no key of {object_type.name!r}",
            option="key",
            advice=f"write the name of the key first: {{{next(iter(object_type.keys))!r}: 'column'}}",
        )
    if source.conflict not in ("user_edits", "most_recent"):
        raise ConfigurationError(
            f"unknown conflict rule {source.conflict!r} of the datasource {source.name!r}",
            option="conflict",
            advice="give 'user_edits' or 'most_recent'",
        )
    if (source.conflict == "most_recent") != (source.timestamp is not None):
        raise ConfigurationError(
            f"the datasource {source.name!r} needs both conflict='most_recent' and timestamp, or neither",
            option="timestamp",
            advice="name the column with the time of a row, or leave out both",
        )
    if len({name.lower() for name in source.columns}) < len(source.columns):
        raise ConfigurationError(
            f"columns of the datasource {source.name!r} have one name: {', '.join(source.columns)}",
            option="properties",
            advice="write a column in one way; upper and lower case are the same",
        )
    for name, each in source.properties.items():
        if (each.column or name) == source.timestamp and each.kind.name not in _TIMES:
            raise ConfigurationError(
                f"the timestamp {name!r} of the datasource {source.name!r} is {each.kind.text}",
                option="timestamp",
                advice="give a timestamp; a date does not say which of two changes of a day came later",
            )


def _check_property(name: str, declared: Property) -> None:
    kind = parse_type(declared.type, f" of the property {name!r}")
    for option, value in (("text", declared.text), ("filter", declared.filter)):
        if not isinstance(value, bool):
            raise refused(option, value, "give True or False", what=f"{option} of the property {name!r}")
    if declared.text and kind.name != "string":
        raise ConfigurationError(
            f"the property {name!r} is {kind.text}, and search finds words of strings alone",
            option="text",
            advice="leave out text=True, or add a property with the text",
        )
    if declared.filter and kind.is_nested:
        raise ConfigurationError(
            f"the property {name!r} is {kind.text}, which has no order to filter by",
            option="filter",
            advice="leave out filter=True, or add a property for the part to filter by",
        )


def _check_texts(option: str, *texts: object) -> None:
    """Check what names keys, properties, columns and types."""
    for each in texts:
        if not is_text(each) or "\x00" in each:
            raise ConfigurationError(f"{each!r:.200} cannot be used for {option}", option=option, advice="give a text")


def is_name(name: object) -> bool:
    """Return whether an object type or a datasource can have a name: it is part of names of files."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def check_name(name: object, what: str) -> None:
    """Check the name of an object type or of a datasource.

    Raises:
        ConfigurationError: It cannot be used.
    """
    if not is_name(name):
        raise ConfigurationError(
            f"the name {name!r:.200} of the {what} cannot be used",
            option="name",
            advice="use letters, digits, _ and -; the first is a letter or a digit",
        )


def refused(option: str, value: object, advice: str, *, what: str | None = None) -> ConfigurationError:
    """Return the error for an argument that cannot be used; `what` names it, if `option` does not."""
    return ConfigurationError(f"{what or option} is {value!r:.100}", option=option, advice=advice)
