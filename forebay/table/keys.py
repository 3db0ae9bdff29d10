# SPDX-License-Identifier: Apache-2.0
"""Streaming keys without Spark: which columns order and identify rows, and how transformations change a key."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import sha256
from typing import Any, Final, Literal, Self, TypeAlias

import pyarrow as pa

from forebay.errors import ConfigurationError

# -- A streaming key: which columns keep order, and which identify a record (K1, K5).


@dataclass(frozen=True)
class KeySpec:
    """The key of a stream or table.

    Args:
        partition: Rows that are equal in these columns keep their order. They are not deduplicated (K1).
        primary: The latest row for each value of these columns is the current one; None: there is no primary key (K5).
        deleted: A boolean column: true if the record is deleted (K7).
        ordering: Columns whose largest value marks the latest row of a batch DataFrame; ignored by streams (K20).

    Raises:
        ConfigurationError: A column is named twice, or `deleted` or `ordering` is given without a primary key.
    """

    partition: tuple[str, ...] = ()
    primary: tuple[str, ...] | None = None
    deleted: str | None = None
    ordering: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "partition", tuple(self.partition))
        object.__setattr__(self, "primary", tuple(self.primary) if self.primary else None)
        object.__setattr__(self, "ordering", tuple(self.ordering))
        if self.primary is None and (self.deleted is not None or self.ordering):
            raise ConfigurationError(
                "a deletion flag or ordering columns need a primary key",
                option="ordering" if self.deleted is None else "deleted",
                advice="set a primary key with key_by(…, cdc=True), or leave out deleted and ordering",
            )
        flag = () if self.deleted is None else (self.deleted,)
        for names in (self.partition, (*(self.primary or ()), *flag, *self.ordering), (*self.partition, *flag)):
            twice = [name for name, count in Counter(names).items() if count > 1]
            if twice:
                raise ConfigurationError(
                    f"the key names the column {twice[0]!r} twice", option="columns", advice="name each column once"
                )

    @classmethod
    def keyed_by(
        cls, columns: Sequence[str], *, cdc: bool = False, deleted: str | None = None, ordering: Sequence[str] = ()
    ) -> Self:
        """Return the key that `key_by` sets: with `cdc`, partition key and primary key are the same columns (K19).

        Raises:
            ConfigurationError: There is no column, or `deleted` or `ordering` is given without `cdc` (K18).
        """
        if not columns:
            raise ConfigurationError(
                "a key needs a column", option="columns", advice="name the key columns; to remove a key, use strip_keys"
            )
        return cls(tuple(columns), tuple(columns) if cdc else None, deleted, tuple(ordering))

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that the key names, each once: partition, primary, deletion flag and ordering columns."""
        flag = () if self.deleted is None else (self.deleted,)
        return tuple(dict.fromkeys((*self.partition, *(self.primary or ()), *flag, *self.ordering)))

    @property
    def primary_is_partition(self) -> bool:
        """Whether the primary key has the same columns as the partition key; True without a primary key (K9)."""
        return self.primary is None or set(self.primary) == set(self.partition)

    def check(self, columns: Sequence[str]) -> None:
        """Check that each column of the key exists exactly once in `columns`.

        Raises:
            ConfigurationError: A column does not exist, or exists twice.
        """
        for name in self.columns:
            count = columns.count(name)
            if count != 1:
                raise ConfigurationError(
                    f"there is no column {name!r} for the key" if count == 0 else f"the column {name!r} exists twice",
                    option="columns",
                    advice=f"the columns are: {', '.join(columns)}" if count == 0 else "rename one of them",
                )


# -- The effect of transformations on a key (K11–K17): pure functions from key to key, for every host.
#
# A user-defined function over whole rows always loses the key (K16), so there is no function for it.


JoinType = Literal["inner", "cross", "left", "right", "full", "semi", "anti"]


def after_rename(key: KeySpec, names: Mapping[str, str]) -> KeySpec:
    """Return the key after a rename of columns. `names` is {old name: new name} (K11)."""

    def renamed(columns: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names.get(name, name) for name in columns)

    return KeySpec(
        renamed(key.partition),
        None if key.primary is None else renamed(key.primary),
        None if key.deleted is None else names.get(key.deleted, key.deleted),
        renamed(key.ordering),
    )


def after_loss(key: KeySpec, lost: Collection[str], *, lenient: bool = False) -> KeySpec:
    """Return the key after columns are dropped or overwritten (K12, K13, K14).

    A partition key keeps its other columns. A primary key that loses a column is lost: the rest would merge records
    that are distinct. If the deletion flag is lost, the primary key is lost too: deleted records would come back. If
    one ordering column is lost, all are.

    Args:
        key: The key before.
        lost: The columns that are dropped or overwritten.
        lenient: Keep the rest of a primary key that loses a column, as Foundry does.
    """
    partition = tuple(name for name in key.partition if name not in lost)
    left = tuple(name for name in key.primary or () if name not in lost)
    deleted = None if key.deleted in lost else key.deleted
    if not lenient and (left != (key.primary or ()) or deleted != key.deleted):
        left = ()
    if not left:
        return KeySpec(partition)
    ordering = () if any(name in lost for name in key.ordering) else key.ordering
    return KeySpec(partition, left, deleted, ordering)


def after_stateful(key: KeySpec) -> KeySpec:
    """Return the key after an operator with state, such as an aggregate: the primary key is lost (K17)."""
    return KeySpec(key.partition)


def after_union(left: KeySpec, right: KeySpec) -> KeySpec:
    """Return the key after a union, an intersection or a difference: the key of both sides if equal, otherwise none."""
    return left if left == right else KeySpec()


def after_join(left: KeySpec, right: KeySpec, how: JoinType) -> KeySpec:
    """Return the key after a join: that of the right side for `right`, none for `full`, else that of the left side."""
    if how == "full":
        return KeySpec()
    return right if how == "right" else left


# -- Stores the key in the metadata of its columns, because engines have no place for the key of a whole schema.
#
# The metadata of each key column hold the whole declared key, the declared name of the column, and the id of the
# declaration. So later code finds lost columns, and distinguishes the keys of two joined tables. Spark carries the
# metadata with the column.


FIELD_KEY: Final = "forebay.key"
"""The name of the metadata entry."""
PARTITIONING: Final = "includeInPartitioning"
"""The name of a second entry, for programs that know Foundry's schemas (K21)."""

_VERSION: Final = 1

Metadata: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Declaration:
    """A key as a source or `key_by` declared it, and the columns that still carry it.

    Args:
        id: The id of the declaration.
        key: The key, with the column names at its declaration.
        ordered: Whether the source promises the order of rows within the partition key.
        transactional: Whether the source never spreads a transaction over several micro-batches.
        columns: Declared name of a key column → names of the present columns that carry it.
    """

    id: str
    key: KeySpec
    ordered: bool
    transactional: bool
    columns: Mapping[str, Sequence[str]]

    @property
    def lost(self) -> tuple[str, ...]:
        """The declared names of the key columns that no column carries any more."""
        return tuple(name for name in self.key.columns if name not in self.columns)

    def present(self, *, lenient: bool = False) -> KeySpec:
        """Return the key with the present names of its columns, without lost columns (K11–K14).

        Args:
            lenient: Keep a primary key that lost columns, and use the first of several copies of a key column.

        Raises:
            ConfigurationError: Several columns are copies of one key column, and none has its declared name.
        """
        names = {}
        for declared, present in self.columns.items():
            if len(present) > 1 and declared not in present and not lenient:
                raise ConfigurationError(
                    f"the columns {' and '.join(map(repr, present))} are copies of the key column {declared!r}",
                    option="columns",
                    advice="call key_by again with the column that is the key",
                )
            names[declared] = declared if declared in present else present[0]
        return after_rename(after_loss(self.key, self.lost, lenient=lenient), names)


def declaration_id(*parts: object) -> str:
    """Return the id of a declaration: eight hexadecimal digits that depend on `parts` alone."""
    return sha256(repr(parts).encode()).hexdigest()[:8]


def key_metadata(
    key: KeySpec, declaration: str, *, ordered: bool = False, transactional: bool = False
) -> dict[str, dict[str, Any]]:
    """Return the metadata entries of a key, by column name. `declaration` is the id of the declaration."""
    whole: dict[str, Any] = {"partition": list(key.partition)}
    if key.primary is not None:
        whole["primary"] = list(key.primary)
    if key.deleted is not None:
        whole["deleted"] = key.deleted
    if key.ordering:
        whole["ordering"] = list(key.ordering)
    metadata = {}
    for name in key.columns:
        entry: dict[str, Any] = {"v": _VERSION, "set": declaration, "name": name, "key": whole}
        if ordered:
            entry["ordered"] = True
        if transactional:
            entry["transactional"] = True
        metadata[name] = {FIELD_KEY: entry} | ({PARTITIONING: True} if name in key.partition else {})
    return metadata


def without_key(metadata: Metadata) -> dict[str, Any]:
    """Return the metadata of a column without the entries of `key_metadata`."""
    return {name: value for name, value in metadata.items() if name not in (FIELD_KEY, PARTITIONING)}


def declarations(fields: Iterable[tuple[str, Metadata]]) -> list[Declaration]:
    """Return the declarations of keys in the metadata of columns, in the order of the columns.

    A declaration that lost all its partition and primary columns is left out: its key is gone (K14).

    Args:
        fields: The columns, as (name, metadata).

    Raises:
        ConfigurationError: Another version of forebay wrote the metadata, or they are damaged.
    """
    entries: dict[str, Any] = {}
    columns: dict[str, dict[str, list[str]]] = {}
    for name, metadata in fields:
        entry = metadata.get(FIELD_KEY)
        if entry is None:
            continue
        try:
            if entry["v"] != _VERSION:
                raise ConfigurationError(
                    f"the key of the column {name!r} has version {entry['v']}; this forebay knows version {_VERSION}",
                    advice="upgrade forebay, or call strip_keys and key_by",
                )
            entries.setdefault(entry["set"], entry)
            columns.setdefault(entry["set"], {}).setdefault(entry["name"], []).append(name)
        except (KeyError, TypeError) as error:
            raise ConfigurationError(
                f"the metadata {FIELD_KEY!r} of the column {name!r} are damaged: {entry!r}",
                advice="call strip_keys and key_by",
            ) from error
    declared = [_declaration(name, entries[name], columns[name]) for name in entries]
    return [
        declaration
        for declaration in declared
        if {*declaration.key.partition, *(declaration.key.primary or ())} & declaration.columns.keys()
    ]


def _declaration(name: str, entry: Metadata, columns: Mapping[str, Sequence[str]]) -> Declaration:
    whole = entry["key"]
    key = KeySpec(
        tuple(whole["partition"]), whole.get("primary"), whole.get("deleted"), tuple(whole.get("ordering", ()))
    )
    return Declaration(name, key, bool(entry.get("ordered")), bool(entry.get("transactional")), columns)


# -- Converts keys to and from the schema JSON of Foundry (K21–K23).


_MISSPELT: Final = "includeInParitioning"


def primary_key_json(key: KeySpec) -> dict[str, Any] | None:
    """Return the value of `primaryKey`; None if there is no primary key (K22).

    Raises:
        ConfigurationError: The key has ordering columns, for which the JSON has no place.
    """
    if key.primary is None:
        return None
    if key.ordering:
        raise ConfigurationError(
            f"the schema JSON has no place for ordering columns: {', '.join(key.ordering)}",
            option="ordering",
            advice="before to_foundry_schema, declare the key again by key_by(…, cdc=True), without ordering",
        )
    duplicate: dict[str, Any] = {"resolutionStrategy": {"type": "customStrategy", "customStrategy": {}}}
    if key.deleted is not None:
        duplicate["deletionColumn"] = key.deleted
    return {"columns": list(key.primary), "resolution": {"type": "duplicate", "duplicate": duplicate}}


def custom_metadata_json(key: KeySpec, column: str) -> dict[str, Any]:
    """Return the value of `customMetadata` for the field of a column (K21)."""
    return {PARTITIONING: True} if column in key.partition else {}


def key_of_json(schema: Mapping[str, Any]) -> KeySpec:
    """Return the key in a schema JSON.

    The columns of the partition key have the order of the primary key if both keys have the same columns, otherwise the
    order of the fields.

    Raises:
        ConfigurationError: The JSON is not a schema, its key names a column that it does not have, or it misspells
            `includeInPartitioning`.
    """
    try:
        fields = {field["name"]: field.get("customMetadata") or {} for field in schema["fieldSchemaList"]}
        primary = schema.get("primaryKey")
        columns = () if primary is None else tuple(primary["columns"])
        deleted = None if primary is None else _deletion_column(primary["resolution"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"this is not the schema JSON of Foundry: {error!r}",
            option="schema",
            advice="pass the whole JSON of the tab Details > Schema, with fieldSchemaList and primaryKey",
        ) from error
    partition = []
    for name, metadata in fields.items():
        if _MISSPELT in metadata:
            raise ConfigurationError(
                f"the field {name!r} has {_MISSPELT!r}", option="schema", advice=f"write {PARTITIONING!r}"
            )
        if metadata.get(PARTITIONING) is True:
            partition.append(name)
    same = set(partition) == set(columns)
    key = KeySpec(columns if same else tuple(partition), columns, deleted)
    key.check(list(fields))
    return key


def _deletion_column(resolution: Mapping[str, Any]) -> str | None:
    if resolution["type"] != "duplicate":
        raise ConfigurationError(
            f"in the schema JSON, primaryKey.resolution has the unknown type {resolution['type']!r}",
            option="schema",
            advice="use the type 'duplicate', the only one that forebay knows",
        )
    column = resolution["duplicate"].get("deletionColumn")
    return None if column is None else str(column)


# -- Promises about the order of rows (K2, K3, K15, K27).


class OrderScope(IntEnum):
    """The scope within which rows keep their order. A larger value is a stronger promise."""

    NONE = 0
    PER_SPLIT = 1
    PER_KEY = 2


@dataclass(frozen=True)
class Guarantee:
    """A promise about the order of rows.

    Args:
        scope: The scope within which rows keep their order.
        columns: For `PER_KEY`, the key columns by the names that they have at the source (K4, K15).
        weakest: The step of the query that weakens the order most, as text; None: no step does (K27). `==` ignores it.
    """

    scope: OrderScope
    columns: tuple[str, ...] = ()
    weakest: str | None = field(default=None, compare=False)

    @classmethod
    def per_key(cls, *columns: str) -> Self:
        """Return the promise that rows with equal values of these columns keep their order."""
        return cls(OrderScope.PER_KEY, columns)

    def __str__(self) -> str:
        text = self.scope.name + (f"({', '.join(self.columns)})" if self.columns else "")
        return text if self.weakest is None else f"{text}: {self.weakest}"


NONE: Final = Guarantee(OrderScope.NONE)
PER_SPLIT: Final = Guarantee(OrderScope.PER_SPLIT)


# -- Declares the key of a source's rows in the metadata of its Arrow schema, which every host passes on.


_NAMES: Final = (FIELD_KEY.encode(), PARTITIONING.encode())
_PREFIX: Final = b"forebay."
"""What the names of all entries begin with that forebay stamps, except `PARTITIONING`."""


def stamp(schema: pa.Schema, key: KeySpec, *, ordered: bool = True, transactional: bool = False) -> pa.Schema:
    """Return the schema with the key in the metadata of its fields; an earlier key is replaced.

    A source calls this function in `schema()`.

    Args:
        schema: The schema of the source.
        key: The key; `KeySpec()` removes the key of the schema.
        ordered: Whether the source promises that rows with an equal partition key keep their order, because all of them
            are in one split, as Kafka's records with one message key are.
        transactional: Whether all changes of a transaction are always in one micro-batch.

    Raises:
        ConfigurationError: The schema does not have a column of the key.
    """
    key.check(schema.names)
    declaration = declaration_id(key, [(field.name, str(field.type)) for field in schema])
    added = key_metadata(key, declaration, ordered=ordered, transactional=transactional)
    fields = []
    for column in schema:
        others = {name: value for name, value in (column.metadata or {}).items() if name not in _NAMES}
        entries = {name.encode(): json.dumps(value).encode() for name, value in added.get(column.name, {}).items()}
        fields.append(column.with_metadata(others | entries) if others or entries else column.remove_metadata())
    return pa.schema(fields, metadata=schema.metadata)


def stamped(field: pa.Field) -> dict[str, Any]:
    """Return the entries that forebay stamped on a field, as metadata of a column. Called by hosts."""
    metadata = field.metadata or {}
    ours = (name for name in metadata if name.startswith(_PREFIX) or name in _NAMES)
    return {name.decode(): json.loads(metadata[name]) for name in ours}
