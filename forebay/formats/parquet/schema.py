# SPDX-License-Identifier: Apache-2.0
"""Reads Parquet footers as Spark does: the tree of columns, and the inferred schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.formats.values.columns import check_names
from forebay.formats.values.ddl import NoArrowForm, named_type, type_of_json

if TYPE_CHECKING:
    import pyarrow.parquet as pq

SPARK_SCHEMA_KEY = b"org.apache.spark.sql.parquet.row.metadata"
"""The key of Spark's own schema in a file's metadata. As in Spark, it takes precedence over the Parquet types."""

LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType, pa.ListViewType, pa.LargeListViewType)
"""Arrow's types of lists, in every layout."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One primitive column of a Parquet file, with its physical type and its annotation."""

    path: str
    physical: str
    kind: str
    """The logical type's name in capitals: INT, DECIMAL, TIMESTAMP, DATE, STRING, NONE …"""
    details: Mapping[str, Any]
    index: int
    """The index among the file's leaves."""
    repeated: bool
    """Whether a row may have several values, in a list or a map."""
    lost_values: str = ""
    """Why Arrow returns no values, or fails at them; empty if it returns them."""

    def __str__(self) -> str:
        inside = ", ".join(f"{key}={value}" for key, value in self.details.items() if key != "Type")
        annotation = f" ({self.kind}{': ' if inside else ''}{inside})"
        return self.physical + ("" if self.kind == "NONE" else annotation)

    @property
    def signed_bits(self) -> int:
        """The width of a signed integer column in bits (8 to 64); 0 for any other column."""
        if self.kind == "NONE" and self.physical in ("INT32", "INT64"):
            return 32 if self.physical == "INT32" else 64
        return int(self.details["bitWidth"]) if self.kind == "INT" and self.details["isSigned"] else 0

    @property
    def unsigned_bits(self) -> int:
        """The width of an unsigned integer column in bits (8 to 64); 0 for any other column."""
        return int(self.details["bitWidth"]) if self.kind == "INT" and not self.details["isSigned"] else 0

    @property
    def unit(self) -> str:
        """The unit of a TIME or TIMESTAMP column: `ms`, `us` or `ns`."""
        return {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}[self.details["timeUnit"]]


@dataclass(frozen=True, slots=True)
class Node:
    """A column or nested field: a leaf, or a struct, list or map with children. A map's children are key and value."""

    name: str
    type: pa.DataType
    """The type that Arrow's reader returns."""
    children: tuple[Node, ...] = ()
    leaf: Leaf | None = None

    def leaves(self) -> Iterator[Leaf]:
        """Yield the primitive columns below this column, in file order."""
        if self.leaf is not None:
            yield self.leaf
        for child in self.children:
            yield from child.leaves()


def columns_of(file: pq.ParquetFile) -> tuple[Node, ...]:
    """Return the columns of an open file as trees.

    Arrow's tree of fields and Parquet's list of primitive columns have the same order.
    """
    leaves = (_leaf(file.schema.column(index), index) for index in range(len(file.schema.names)))
    return tuple(_node(field.name, field.type, leaves) for field in file.schema_arrow)


_LONGEST_DECIMAL = 16  # bytes of a decimal128
_INTERVAL_BYTES = 12
_BYTES = "FIXED_LEN_BYTE_ARRAY"


def _leaf(column: pq.ColumnSchema, index: int) -> Leaf:
    details = json.loads(column.logical_type.to_json())
    kind = str(details["Type"]).upper()
    lost = ""
    # parquet-java annotates an INTERVAL as UNKNOWN too, which Arrow prefers. Nobody writes UNKNOWN as 12 bytes.
    if kind == "INTERVAL" or (kind == "NULL" and column.physical_type == _BYTES and column.length == _INTERVAL_BYTES):
        lost = "it is an INTERVAL, for which Arrow returns null"
    elif kind == "DECIMAL" and column.length > _LONGEST_DECIMAL and details["precision"] <= 38:
        lost = f"Arrow reads no DECIMAL({details['precision']}) of {column.length} bytes"
    return Leaf(column.path, column.physical_type, kind, details, index, column.max_repetition_level > 0, lost)


def _node(name: str, data_type: pa.DataType, leaves: Iterator[Leaf]) -> Node:
    storage = data_type.storage_type if isinstance(data_type, pa.BaseExtensionType) else data_type
    if isinstance(storage, pa.StructType):
        inside = list(storage)
    elif isinstance(storage, pa.MapType):
        inside = [storage.key_field, storage.item_field]
    elif isinstance(storage, LISTS):
        inside = [storage.value_field]
    else:
        return Node(name, data_type, leaf=next(leaves))
    return Node(name, data_type, tuple(_node(field.name, field.type, leaves) for field in inside))


def unreadable_column(column: str, path: str, reason: str) -> ConfigurationError:
    """Return the error for a column of a healthy file that Arrow cannot express; `reason` says why."""
    return ConfigurationError(
        f"column {column!r} of {path} cannot be read: {reason}",
        source=path,
        advice="read the file with a schema that leaves this column out, or with Spark's own Parquet source",
    )


def inferred_schema(file: pq.ParquetFile, path: str, case_sensitive: bool) -> pa.Schema:
    """Return the schema that Spark would infer from one open file; every column is nullable. `path` is for errors.

    Args:
        file: The open file.
        path: The path of the file, for errors.
        case_sensitive: Whether two names may differ in case only.

    Raises:
        ConfigurationError: Spark or Arrow cannot infer the type of a column, or two columns have the same name.
    """
    text = (file.metadata.metadata or {}).get(SPARK_SCHEMA_KEY)
    try:
        schema = None if text is None else _footer_schema(text)
    except NoArrowForm as error:
        raise ConfigurationError(
            f"{path} was written by Spark with a column of type {error}, which Arrow does not have",
            advice="read the file with a schema that leaves that column out; to find it, call "
            "spark.read.parquet(…).printSchema() for this file",
        ) from None
    if schema is None:
        schema = pa.schema([pa.field(node.name, _spark_type(node, node.name, path)) for node in columns_of(file)])
    hint = ", or set caseSensitive if the names differ in case only"
    check_names(schema, path, case_sensitive=case_sensitive, hint=hint)
    return schema


def _footer_schema(text: bytes) -> pa.Schema | None:
    try:
        written = json.loads(text.decode("utf-8", "replace"), object_hook=_stored_type)
        parsed = type_of_json(written, named_type)
    except ValueError:
        return None
    return pa.schema(list(parsed)) if isinstance(parsed, pa.StructType) else None


def _stored_type(type_json: dict[str, Any]) -> object:
    """Return the Spark type in which a user-defined type is stored. `type_json` is the type in Spark's JSON."""
    return type_json.get("sqlType") if type_json.get("type") == "udt" else type_json


def _spark_type(node: Node, column: str, path: str) -> pa.DataType:
    inside = [_spark_type(child, f"{column}.{child.name}", path) for child in node.children]
    if node.leaf is not None:
        if node.leaf.lost_values:
            raise unreadable_column(column, path, node.leaf.lost_values)
        data_type = _leaf_type(node.leaf)
        if data_type is None:
            raise ConfigurationError(
                f"column {column!r} of {path} has the type {node.leaf}, which Spark does not read",
                advice="read the file with a schema that leaves this column out or, unless it is a DECIMAL, declares "
                "it by its physical type (INT for INT32, BIGINT for INT64, BINARY for bytes)",
            )
        return data_type
    if pa.types.is_struct(node.type):
        return pa.struct([pa.field(child.name, kind) for child, kind in zip(node.children, inside, strict=True)])
    if pa.types.is_map(node.type):
        return pa.map_(inside[0], inside[1])
    return pa.list_(pa.field("element", inside[0]))


_PLAIN = {
    "BOOLEAN": pa.bool_(),
    "INT32": pa.int32(),
    "INT64": pa.int64(),
    "INT96": pa.timestamp("us", "UTC"),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "BYTE_ARRAY": pa.binary(),
    "FIXED_LEN_BYTE_ARRAY": pa.binary(),
}
_SIGNED = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
_UNSIGNED = {8: pa.int16(), 16: pa.int32(), 32: pa.int64(), 64: pa.decimal128(20, 0)}


def _leaf_type(leaf: Leaf) -> pa.DataType | None:
    """Return the type that Spark infers for a primitive column; None if Spark refuses it.

    The rules are those of ParquetToSparkSchemaConverter.convertPrimitiveField of Spark 4.2.0.
    """
    if leaf.signed_bits:
        return _SIGNED[leaf.signed_bits]
    if leaf.unsigned_bits:
        return _UNSIGNED[leaf.unsigned_bits]
    match leaf.kind:
        case "NONE":
            return _PLAIN[leaf.physical]
        case "STRING" | "ENUM" | "JSON":
            return pa.string()
        case "BSON":
            return pa.binary()
        case "DATE":
            return pa.date32()
        case "NULL" | "UNKNOWN":
            return _PLAIN[leaf.physical]
        case "DECIMAL" if leaf.details["precision"] <= 38:
            return pa.decimal128(leaf.details["precision"], leaf.details["scale"])
        case "TIMESTAMP" if leaf.unit != "ns":
            return pa.timestamp("us", "UTC" if leaf.details["isAdjustedToUTC"] else None)
    return None
