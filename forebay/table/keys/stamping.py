# SPDX-License-Identifier: Apache-2.0
"""How a source declares the key of its rows: in the metadata of its Arrow schema, which every host carries on."""

from __future__ import annotations

import json
from typing import Any, Final

import pyarrow as pa

from forebay.table.keys.field_metadata import FIELD_KEY, PARTITIONING, declaration_id, key_metadata
from forebay.table.keys.key_spec import KeySpec

_NAMES: Final = (FIELD_KEY.encode(), PARTITIONING.encode())


def stamp(schema: pa.Schema, key: KeySpec, *, ordered: bool = True, transactional: bool = False) -> pa.Schema:
    """Return the schema with the key in the metadata of its fields; an earlier key is replaced.

    A source calls it in `schema()`.

    Args:
        schema: The schema of the source.
        key: The key. One without columns removes the key.
        ordered: Whether the source promises that rows with equal partition key keep their order: all of them are in
            one split, as in Kafka the records with one message key.
        transactional: Whether all changes of a transaction are always in one micro-batch.

    Raises:
        ConfigurationError: The schema has no such column.
    """
    key.check(schema.names)
    declaration = declaration_id(key, [(field.name, str(field.type)) for field in schema])
    added = key_metadata(key, declaration, ordered=ordered, transactional=transactional)
    fields = []
    for field in schema:
        kept = {name: value for name, value in (field.metadata or {}).items() if name not in _NAMES}
        entries = {name.encode(): json.dumps(value).encode() for name, value in added.get(field.name, {}).items()}
        fields.append(field.with_metadata(kept | entries) if kept or entries else field.remove_metadata())
    return pa.schema(fields, metadata=schema.metadata)


def stamped(field: pa.Field) -> dict[str, Any]:
    """Return what `stamp` wrote to a field, as metadata of a column. Called by hosts."""
    metadata = field.metadata or {}
    return {name.decode(): json.loads(metadata[name]) for name in _NAMES if name in metadata}
