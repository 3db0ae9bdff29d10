# SPDX-License-Identifier: Apache-2.0
"""Compares column names as Spark does."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from forebay.errors import ConfigurationError


def folded(name: str, case_sensitive: bool) -> str:
    """Return a column name for comparison: in lower case unless `spark.sql.caseSensitive` is set."""
    return name if case_sensitive else name.lower()


def ambiguous(column: str, found: Iterable[str], path: str) -> ConfigurationError:
    """Return the error for a column of the schema that matches several columns of a file."""
    return ConfigurationError(
        f"the column {column!r} of the schema matches several columns of {path}: " + ", ".join(map(repr, found)),
        advice="if these differ in case only, set caseSensitive=true; otherwise remove the column from the schema",
    )


def same_names(fields: Iterable[pa.Field], case_sensitive: bool, inside: str = "") -> str | None:
    """Return a text that names the first two columns with the same name, at any depth; None if all names differ.

    `inside` is the path of the struct that contains the fields; empty for the columns of a table.
    """
    names: dict[str, str] = {}
    for field in fields:
        name = folded(field.name, case_sensitive)
        if name in names:
            where = f" in {inside!r}" if inside else ""
            return f"two columns have the same name{where}: {names[name]!r} and {field.name!r}"
        names[name] = field.name
        found = _same_inside(field.type, case_sensitive, field.name)
        if found is not None:
            return found
    return None


def _same_inside(data_type: pa.DataType, case_sensitive: bool, name: str) -> str | None:
    if isinstance(data_type, pa.StructType):
        return same_names(data_type, case_sensitive, name)
    if isinstance(data_type, pa.MapType):
        key = _same_inside(data_type.key_type, case_sensitive, name)
        return key or _same_inside(data_type.item_type, case_sensitive, name)
    return _same_inside(data_type.value_type, case_sensitive, name) if isinstance(data_type, pa.ListType) else None


def check_names(fields: Iterable[pa.Field], path: str, *, case_sensitive: bool, hint: str = "") -> None:
    """Raise a ConfigurationError if two columns of a file have the same name, as Spark does.

    `hint` is added to the advice of the error.
    """
    found = same_names(fields, case_sensitive)
    if found is not None:
        raise ConfigurationError(f"in {path}, {found}", advice=f"give a schema without these columns{hint}")
