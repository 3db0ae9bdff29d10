# SPDX-License-Identifier: Apache-2.0
"""Stores the key in the metadata of its columns, because engines have no place for the key of a whole schema.

The metadata of each key column hold the whole declared key, the declared name of the column, and the id of the
declaration. So later code finds lost columns, and distinguishes the keys of two joined tables. Spark carries the
metadata with the column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, TypeAlias

from forebay.errors import ConfigurationError
from forebay.table.keys.key_spec import KeySpec
from forebay.table.keys.propagation import after_loss, after_rename

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
    found = {}
    for name in key.columns:
        entry: dict[str, Any] = {"v": _VERSION, "set": declaration, "name": name, "key": whole}
        if ordered:
            entry["ordered"] = True
        if transactional:
            entry["transactional"] = True
        found[name] = {FIELD_KEY: entry} | ({PARTITIONING: True} if name in key.partition else {})
    return found


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
    found = [_declaration(name, entries[name], columns[name]) for name in entries]
    return [one for one in found if {*one.key.partition, *(one.key.primary or ())} & one.columns.keys()]


def _declaration(name: str, entry: Metadata, columns: Mapping[str, Sequence[str]]) -> Declaration:
    whole = entry["key"]
    key = KeySpec(
        tuple(whole["partition"]), whole.get("primary"), whole.get("deleted"), tuple(whole.get("ordering", ()))
    )
    return Declaration(name, key, bool(entry.get("ordered")), bool(entry.get("transactional")), columns)
