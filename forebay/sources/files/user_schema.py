# SPDX-License-Identifier: Apache-2.0
"""What a schema that a user gives for files must be, whatever is in the files."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.formats.column_names import same_names
from forebay.sources.files.columns import METADATA, is_metadata_type, metadata_type
from forebay.sources.files.scan import FileScan


def check_schema(source: FileScan, schema: pa.Schema) -> None:
    """Refuse a schema with two columns of one name, with VARIANT, or with another `_metadata` than Spark's.

    Raises:
        ConfigurationError: Naming the column.
    """
    _check_metadata(source, schema)
    variant = _variant_in(schema)
    if variant is not None:
        raise ConfigurationError(
            f"the column {variant!r} is VARIANT, which files cannot be read as",
            source=source.name,
            option="schema",
            advice="leave it out, or read it as STRING and convert it with parse_json in the query",
        )
    same = same_names(schema, case_sensitive=False)
    if same is not None and getattr(getattr(source.format(), "options", None), "case_sensitive", False):
        same = same_names(schema, case_sensitive=True)
    if same is not None:
        raise ConfigurationError(
            f"the schema has {same}",
            source=source.name,
            option="schema",
            advice="rename one, or leave it out; in Parquet files caseSensitive=true tells names in other case apart",
        )


def _check_metadata(source: FileScan, schema: pa.Schema) -> None:
    for field in schema:
        if field.name == METADATA and not is_metadata_type(field.type, source.format_name()):
            raise ConfigurationError(
                f"the column {METADATA} is {field.type}, not {metadata_type(source.format_name())} or a part of it",
                source=source.name,
                option="schema",
                advice="leave it out of the schema and set includeMetadata=true",
            )


def _variant_in(fields: Iterable[pa.Field]) -> str | None:
    """The path of the first column of Spark's type VARIANT: a struct in Arrow, one field of which Spark marks."""
    for field in fields:
        inside = [field.type.field(number) for number in range(field.type.num_fields)]
        if any((part.metadata or {}).get(b"variant") == b"true" for part in inside):
            return field.name
        found = _variant_in(inside)
        if found is not None:
            return f"{field.name}.{found}"
    return None
