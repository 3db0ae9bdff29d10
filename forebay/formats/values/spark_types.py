# SPDX-License-Identifier: Apache-2.0
"""Finds Spark's types by the names that Spark writes into files, and merges the schemas of files."""

from __future__ import annotations

import re

import pyarrow as pa

from forebay.errors import DataError
from forebay.formats.values.column_names import folded
from forebay.formats.values.ddl import TYPES

_DAY_TIME = re.compile(r"interval (day|hour|minute|second)( to (hour|minute|second))?")


class NoArrowForm(Exception):
    """Raised if Arrow lacks a type of Spark. The text of the exception is Spark's name of the type."""


def named_type(name: str) -> pa.DataType:
    """Return the type of a name that Spark wrote into a file; raise NoArrowForm if Arrow has no such type."""
    if name in TYPES:
        return TYPES[name]
    if name == "void":
        return pa.null()
    if name.startswith(("string collate", "char(", "varchar(")):
        return pa.string()
    if _DAY_TIME.fullmatch(name):
        return pa.duration("us")
    raise NoArrowForm(name)


def merged(left: pa.Schema, right: pa.Schema, path: str, case_sensitive: bool) -> pa.Schema:
    """Merge the fields of two schemas by name, as Spark does with `mergeSchema`.

    Raises:
        DataError: A field has different types, other than decimals of the same scale.
    """
    return pa.schema(_merged_fields(list(left), list(right), path, case_sensitive))


def _merged_fields(left: list[pa.Field], right: list[pa.Field], path: str, case_sensitive: bool) -> list[pa.Field]:
    by_name = {folded(field.name, case_sensitive): field for field in right}
    fields = []
    for field in left:
        other = by_name.pop(folded(field.name, case_sensitive), None)
        if other is None:
            fields.append(field)
        else:
            fields.append(field.with_type(_merged_type(field.type, other.type, path, field.name, case_sensitive)))
    return fields + list(by_name.values())


def _merged_type(left: pa.DataType, right: pa.DataType, path: str, name: str, case_sensitive: bool) -> pa.DataType:
    if isinstance(left, pa.StructType) and isinstance(right, pa.StructType):
        return pa.struct(_merged_fields(list(left), list(right), path, case_sensitive))
    if isinstance(left, pa.ListType) and isinstance(right, pa.ListType):
        inside = _merged_type(left.value_type, right.value_type, path, name, case_sensitive)
        return pa.list_(pa.field("element", inside))
    if isinstance(left, pa.MapType) and isinstance(right, pa.MapType):
        key = _merged_type(left.key_type, right.key_type, path, name, case_sensitive)
        return pa.map_(key, _merged_type(left.item_type, right.item_type, path, name, case_sensitive))
    if isinstance(left, pa.Decimal128Type) and isinstance(right, pa.Decimal128Type) and left.scale == right.scale:
        return left if left.precision >= right.precision else right
    if left == right:
        return left
    raise DataError(
        f"column {name!r} is {right} in {path} but {left} in files before it: these types cannot be merged",
        advice="give a schema, or exclude one kind of files with pathGlobFilter",
    )
