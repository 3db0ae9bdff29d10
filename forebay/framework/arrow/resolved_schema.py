# SPDX-License-Identifier: Apache-2.0
"""A source whose schema was asked for once: it travels with the source, so that nobody has to look outside again."""

from __future__ import annotations

import copy
from typing import Protocol, TypeVar

import pyarrow as pa

from forebay.framework.source import Source

S = TypeVar("S", bound=Source)

_ATTRIBUTE = "_settled_schema"  # no annotation, so no option; pickled with the rest


def resolve_schema(source: S, schema: pa.Schema) -> S:
    """Return the source with the schema it has given. Called by hosts once per read, before anything else is asked."""
    own = source.with_schema(schema)
    if own is not None:
        return own
    settled = copy.copy(source)
    object.__setattr__(settled, _ATTRIBUTE, schema)
    return settled


class HasSchema(Protocol):
    """Anything with a schema."""

    def schema(self) -> pa.Schema: ...  # noqa: D102 - see Source


def resolved_schema(source: HasSchema) -> pa.Schema:
    """Return the settled schema, or ask the source. Called on fetcher threads."""
    schema = vars(source).get(_ATTRIBUTE)
    return schema if isinstance(schema, pa.Schema) else source.schema()
