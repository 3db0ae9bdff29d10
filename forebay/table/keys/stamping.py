# SPDX-License-Identifier: Apache-2.0
"""Declares the key of a source's rows in the metadata of its Arrow schema, which every host passes on."""

from __future__ import annotations

import json
from typing import Any, Final

import pyarrow as pa

from forebay.table.keys.field_metadata import FIELD_KEY, PARTITIONING, declaration_id, key_metadata
from forebay.table.keys.key_spec import KeySpec

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
    for field in schema:
        kept = {name: value for name, value in (field.metadata or {}).items() if name not in _NAMES}
        entries = {name.encode(): json.dumps(value).encode() for name, value in added.get(field.name, {}).items()}
        fields.append(field.with_metadata(kept | entries) if kept or entries else field.remove_metadata())
    return pa.schema(fields, metadata=schema.metadata)


def stamped(field: pa.Field) -> dict[str, Any]:
    """Return the entries that forebay stamped on a field, as metadata of a column. Called by hosts."""
    metadata = field.metadata or {}
    ours = (name for name in metadata if name.startswith(_PREFIX) or name in _NAMES)
    return {name.decode(): json.loads(metadata[name]) for name in ours}
