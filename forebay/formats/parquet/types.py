# SPDX-License-Identifier: Apache-2.0
"""Spark's types in Arrow's words, read from the JSON form of a schema that Spark leaves in Parquet footers."""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa

_SIMPLE = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")
_TEXT = re.compile(r"(string collate|char\(|varchar\()")
_DAY_TIME = re.compile(r"interval (day|hour|minute|second)( to (hour|minute|second))?")


class NoArrowForm(Exception):
    """A type of Spark's that has no Arrow form; the text of the exception is its name."""


def arrow_schema_of_spark_json(text: str) -> pa.Schema | None:
    """The Arrow form of a schema that Spark wrote as JSON; None if the text is not one.

    All columns are nullable: Spark's file readers make them so.

    Raises:
        NoArrowForm: A column has such a type.
    """
    try:
        found = _type(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return pa.schema(list(found)) if pa.types.is_struct(found) else None


def _type(spark: Any) -> pa.DataType:  # noqa: ANN401 - a part of a JSON document
    if isinstance(spark, str):
        return _simple(spark)
    match spark["type"]:
        case "struct":
            return pa.struct([pa.field(field["name"], _type(field["type"])) for field in spark["fields"]])
        case "array":
            return pa.list_(pa.field("element", _type(spark["elementType"])))
        case "map":
            return pa.map_(_type(spark["keyType"]), _type(spark["valueType"]))
        case "udt":
            return _type(spark["sqlType"])
    raise ValueError(spark["type"])


def _simple(name: str) -> pa.DataType:
    if name in _SIMPLE:
        return _SIMPLE[name]
    if match := _DECIMAL.fullmatch(name):
        return pa.decimal128(int(match[1]), int(match[2]))
    if _TEXT.match(name):
        return pa.string()
    if _DAY_TIME.fullmatch(name):
        return pa.duration("us")
    raise NoArrowForm(name)
