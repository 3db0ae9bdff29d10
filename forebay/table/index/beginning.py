# SPDX-License-Identifier: Apache-2.0
"""Writes the definition and the first fact of the log, once."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from itertools import count

from forebay.errors import ConfigurationError
from forebay.table.index.definition import ObjectType
from forebay.table.index.log import Entry
from forebay.table.index.pipelines import IndexStore, IndexVersion


def begin(
    index: IndexStore, given: ObjectType, shards: int, key_types: Callable[[], Mapping[str, str]]
) -> tuple[Entry, ObjectType]:
    """Return the head of the log, and the definition of the pipeline that serves; write both if there are none.

    Args:
        index: The store.
        given: The definition, which may lack types of keys.
        shards: The number of shards of a new log.
        key_types: Returns the types of the keys of a new log.

    Raises:
        ConfigurationError: The definition that serves is another one.
    """
    head = index.log.head()
    if head is None:
        definition = given.with_key_types(key_types())
        serving = _pipeline(index, definition)
        head = index.log.begin(Entry(0, "begin", uuid.uuid4().hex, shards, serving))
    stored = index.definition(head.serving)
    if stored is None:
        raise ConfigurationError(f"the definition of the pipeline {head.serving} is missing", option="location")
    if stored.fingerprint() != given.with_key_types(stored.keys).fingerprint():
        raise ConfigurationError(
            f"the definition of {given.name!r} differs from the one that serves below {index.location!r}",
            option="object_type",
            advice="use the definition that serves, or another location for the new one",
        )
    return head, stored


def _pipeline(index: IndexStore, definition: ObjectType) -> str:
    """Return the name of a pipeline with the definition, which is written unless it exists."""
    for number in count(1):
        name = f"{number:06d}"
        first = IndexVersion(name, 0, -1, facts=definition.to_facts())
        if index.put_version(first):
            return name
        # Another process begins too, or one was killed before the log began.
        stored = index.definition(name)
        if stored is not None and stored.fingerprint() == definition.fingerprint():
            return name
    raise AssertionError  # `count` has no end
