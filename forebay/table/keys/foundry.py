# SPDX-License-Identifier: Apache-2.0
"""Converts keys to and from the schema JSON of Foundry (K21–K23)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from forebay.errors import ConfigurationError
from forebay.table.keys.field_metadata import PARTITIONING
from forebay.table.keys.key_spec import KeySpec

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
