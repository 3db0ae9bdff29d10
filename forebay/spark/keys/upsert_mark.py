# SPDX-License-Identifier: Apache-2.0
"""Stores the upsert key that `with_upsert_key` asserts in the metadata of its columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from forebay.table.keys.field_metadata import Metadata

FIELD_UPSERT_KEY: Final = "forebay.upsert_key"


def upsert_marks(columns: Sequence[str], mark: str) -> dict[str, dict[str, Any]]:
    """Return the metadata entries of an asserted upsert key, by column name. `mark` is the id of the assertion."""
    entry = {"v": 1, "set": mark, "columns": list(columns)}
    return {name: {FIELD_UPSERT_KEY: {**entry, "name": name}} for name in columns}


def marked_keys(fields: Iterable[tuple[Any, Metadata]]) -> dict[str, frozenset[Any]]:
    """Return the asserted upsert keys whose columns all exist, by mark. `fields` are pairs of column and metadata."""
    return {mark: frozenset(columns.values()) for mark, columns in asserted_keys(fields).items()}


def asserted_keys(fields: Iterable[tuple[Any, Metadata]]) -> dict[str, dict[str, Any]]:
    """Return the columns of asserted upsert keys by their names in the assertion; see `marked_keys`."""
    found: dict[str, dict[str, Any]] = {}
    whole: dict[str, Mapping[str, Any]] = {}
    for column, metadata in fields:
        entry = metadata.get(FIELD_UPSERT_KEY)
        if entry is not None:
            whole[entry["set"]] = entry
            found.setdefault(entry["set"], {}).setdefault(entry["name"], column)
    return {
        mark: {name: columns[name] for name in whole[mark]["columns"]}
        for mark, columns in found.items()
        if columns.keys() == set(whole[mark]["columns"])
    }
