# SPDX-License-Identifier: Apache-2.0
"""Computes the common schema of a hybrid's legs (its sources), to which each leg can be cast without loss."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.framework.arrow.casting import is_safe_cast

_MISSING = "-"


def common_schema(
    schemas: Sequence[pa.Schema], legs: Sequence[str], columns: Sequence[str] | None, *, source: str
) -> pa.Schema:
    """Return the schema to which every leg (source) of a hybrid can be cast without loss.

    The type of a column is one of its types in the legs: the widest one to which all the others can be cast. A column
    is nullable if it is nullable in any leg.

    Args:
        schemas: The schema of each leg.
        legs: The format name of each leg, for the error.
        columns: The names of the columns to read, in order; None = the columns of the last leg, and all legs must have
            the same columns.
        source: The format name of the hybrid, for the error.

    Raises:
        ConfigurationError: A column is missing in a leg, occurs twice, or has no common type. The error shows a table
            of these columns.
    """
    names = list(schemas[-1].names if columns is None else columns)
    if columns is None:
        names += [name for schema in schemas for name in schema.names if name not in names]
    fields = [_common_field(name, schemas) for name in dict.fromkeys(names)]
    if wrong := [name for name, found in zip(dict.fromkeys(names), fields, strict=True) if found is None]:
        rows = [("column", *legs), *((name, *(_type_of(name, schema) for schema in schemas)) for name in wrong)]
        raise ConfigurationError(
            "these columns are missing in a source of the hybrid, or have no common type:\n" + _table(rows),
            source=source,
            advice="select only common columns, by HybridSource(…, columns=[…]) or the option commonColumns; or give "
            "the sources the same column names and types",
        )
    return pa.schema([found for found in fields if found is not None])


def _common_field(name: str, schemas: Sequence[pa.Schema]) -> pa.Field | None:
    if any(schema.names.count(name) != 1 for schema in schemas):
        return None
    fields = [schema.field(name) for schema in schemas]
    common = [want for want in reversed(fields) if all(is_safe_cast(have.type, want.type) for have in fields)]
    if not common:
        return None
    return max(common, key=lambda field: _width(field.type)).with_nullable(any(have.nullable for have in fields))


def _width(kind: pa.DataType) -> int:
    try:
        return kind.bit_width
    except ValueError:  # a type of variable width
        return 0


def _type_of(name: str, schema: pa.Schema) -> str:
    count = schema.names.count(name)
    return _MISSING if count == 0 else str(schema.field(name).type) if count == 1 else f"{count} columns"


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
