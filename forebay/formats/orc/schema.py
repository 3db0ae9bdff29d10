# SPDX-License-Identifier: Apache-2.0
"""The schema that Spark infers from an ORC file."""

from __future__ import annotations

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.formats.orc.types import TEXTS, Kind, Node
from forebay.formats.values.column_names import check_names
from forebay.formats.values.spark_types import NoArrowForm, named_type

_CATALYST_TYPE = "spark.sql.catalyst.type"
"""The attribute in which Spark records its own type for a column. As in Spark, that type takes precedence."""

TYPES = {
    Kind.BOOLEAN: pa.bool_(),
    Kind.BYTE: pa.int8(),
    Kind.SHORT: pa.int16(),
    Kind.INT: pa.int32(),
    Kind.LONG: pa.int64(),
    Kind.FLOAT: pa.float32(),
    Kind.DOUBLE: pa.float64(),
    Kind.BINARY: pa.binary(),
    Kind.DATE: pa.date32(),
    Kind.TIMESTAMP: pa.timestamp("us", "UTC"),
    Kind.TIMESTAMP_INSTANT: pa.timestamp("us", "UTC"),
    **dict.fromkeys(TEXTS, pa.string()),
}


def inferred_schema(root: Node, path: str, case_sensitive: bool) -> pa.Schema:
    """Return the schema that Spark infers from a file; every column is nullable.

    Raises:
        ConfigurationError: Spark or Arrow lacks the type of a column, or two columns have the same name.
    """
    pairs = zip(root.names, root.children, strict=True)
    schema = pa.schema([pa.field(name, _type(child, name, path)) for name, child in pairs])
    hint = ", or set caseSensitive if the names differ in case only"
    check_names(schema, path, case_sensitive=case_sensitive, hint=hint)
    return schema


def _type(node: Node, column: str, path: str) -> pa.DataType:
    match node.kind:
        case Kind.STRUCT:
            pairs = zip(node.names, node.children, strict=True)
            return pa.struct([pa.field(name, _type(child, f"{column}.{name}", path)) for name, child in pairs])
        case Kind.LIST:
            return pa.list_(pa.field("element", _type(node.children[0], f"{column}.element", path)))
        case Kind.MAP:
            key, value = node.children
            return pa.map_(_type(key, f"{column}.key", path), _type(value, f"{column}.value", path))
        case Kind.UNION:
            raise _refused(str(node), column, path)
        case Kind.DECIMAL:
            return pa.decimal128(node.precision, node.scale)
    written = node.attributes.get(_CATALYST_TYPE)
    try:
        return TYPES[node.kind] if written is None else named_type(written)
    except NoArrowForm as error:
        raise _refused(str(error), column, path) from None


def _refused(found: str, column: str, path: str) -> ConfigurationError:
    return ConfigurationError(
        f"column {column!r} of {path} has the type {found}, which forebay cannot read",
        advice="read the file with a schema that leaves that column out",
    )
