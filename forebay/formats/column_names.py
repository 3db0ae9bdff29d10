# SPDX-License-Identifier: Apache-2.0
"""Names of columns, as Spark compares them: without regard to case, at every depth."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa

from forebay.errors import ConfigurationError


class SameNames(NamedTuple):
    """Two columns of one name, and the column that they are in, if any."""

    first: str
    second: str
    inside: str

    def __str__(self) -> str:
        where = f" in {self.inside!r}" if self.inside else ""
        return f"two columns of one name{where}: {self.first!r} and {self.second!r}"


def folded(name: str, case_sensitive: bool) -> str:
    """A column name as Spark compares it: Java's lower case unless `spark.sql.caseSensitive`."""
    return name if case_sensitive else name.lower()


def same_names(fields: Iterable[pa.Field], case_sensitive: bool, inside: str = "") -> SameNames | None:
    """The first two columns of one name, at any depth; None if there are none."""
    seen: dict[str, str] = {}
    for field in fields:
        name = folded(field.name, case_sensitive)
        if name in seen:
            return SameNames(seen[name], field.name, inside)
        seen[name] = field.name
        found = _same_inside(field.type, case_sensitive, field.name)
        if found is not None:
            return found
    return None


def _same_inside(data_type: pa.DataType, case_sensitive: bool, name: str) -> SameNames | None:
    if isinstance(data_type, pa.StructType):
        return same_names(data_type, case_sensitive, name)
    if isinstance(data_type, pa.MapType):
        key = _same_inside(data_type.key_type, case_sensitive, name)
        return key or _same_inside(data_type.item_type, case_sensitive, name)
    return _same_inside(data_type.value_type, case_sensitive, name) if isinstance(data_type, pa.ListType) else None


def check_names(fields: Iterable[pa.Field], path: str, *, case_sensitive: bool, hint: str = "") -> None:
    """Refuse the columns of files if two have one name, as Spark does.

    Raises:
        ConfigurationError: Two have.
    """
    found = same_names(fields, case_sensitive)
    if found is not None:
        raise ConfigurationError(f"{path} has {found}", advice=f"give a schema without them{hint}")
