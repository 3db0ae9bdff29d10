# SPDX-License-Identifier: Apache-2.0
"""The columns of Parquet files: the tree, the schema that Spark infers, and the conversion to the types of a schema.

The supported pairs of types are those of Spark's vectorised reader (ParquetVectorUpdaterFactory, 4.2.0), except pairs
for which Spark silently reinterprets bits. A column's conversion is built once per file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import ConfigurationError
from forebay.formats.units import UnitColumn, unreadable_column, within_precision
from forebay.formats.values.columns import Convert, chain, list_of, map_of, mismatch, place_of, struct_of
from forebay.formats.values.ddl import NoArrowForm, named_type, type_of_json
from forebay.formats.values.rebase import Rebase

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


def inferred_schema(file: pq.ParquetFile, path: str) -> pa.Schema:
    """Return the schema that Spark would infer from one open file; every column is nullable. `path` is for errors.

    Raises:
        ConfigurationError: Spark or Arrow cannot infer the type of a column.
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
            raise unreadable_column(column, path, f"cannot be read: {node.leaf.lost_values}", "parquet")
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


class StoredColumn(NamedTuple):
    """A column of a file: its name, and its primitive columns that are read."""

    name: str
    leaves: tuple[Leaf, ...]


@dataclass(frozen=True, slots=True)
class Converter:
    """Builds the conversions for the columns of one file.

    `rebase` converts dates and timestamps of the old calendar, if the file has them.
    """

    path: str
    case_sensitive: bool
    rebase: Rebase

    def column(self, field: pa.Field, columns: tuple[Node, ...]) -> UnitColumn[StoredColumn]:
        """Return the part of the file to read for a column of the schema; `columns` are all columns of the file.

        Raises:
            ConfigurationError: The column cannot be read as the schema's type, or two columns have this name.
        """
        node = self._named(field.name, columns, field.name)
        if node is None:
            return UnitColumn(field)
        leaves: list[Leaf] = []
        convert = self._convert(node, field.type, field.name, leaves)
        return UnitColumn(field, StoredColumn(node.name, tuple(leaves)), convert)

    def _named(self, name: str, nodes: tuple[Node, ...], column: str) -> Node | None:
        names = [node.name for node in nodes]
        place = place_of(name, names, column, self.path, case_sensitive=self.case_sensitive)
        return None if place is None else nodes[place]

    def _convert(self, node: Node, target: pa.DataType, column: str, leaves: list[Leaf]) -> Convert | None:
        """Return the conversion of a column or nested field to the type `target`; None if it needs none.

        The method appends the primitive columns that must be read to `leaves`. `column` is the name, for errors.
        """
        if node.leaf is not None:
            leaves.append(node.leaf)
            return self._leaf(node, node.leaf, target, column)
        source = node.type.storage_type if isinstance(node.type, pa.BaseExtensionType) else node.type
        if isinstance(source, pa.StructType) and isinstance(target, pa.StructType):
            return self._struct(node, target, column, leaves)
        if isinstance(source, LISTS) and isinstance(target, pa.ListType):
            inside = self._convert(node.children[0], target.value_type, f"{column}.element", leaves)
            return None if inside is None and source == target else chain(_plain_lists, list_of(inside, target))
        if isinstance(source, pa.MapType) and isinstance(target, pa.MapType):
            key = self._convert(node.children[0], target.key_type, f"{column}.key", leaves)
            item = self._convert(node.children[1], target.item_type, f"{column}.value", leaves)
            return None if key is None and item is None and source == target else map_of(key, item, target)
        raise mismatch(column, str(node.type), target, self.path)

    def _struct(self, node: Node, target: pa.StructType, column: str, leaves: list[Leaf]) -> Convert | None:
        converts: dict[str, Convert | None] = {}
        before = len(leaves)
        fields: list[str | None] = []
        for field in target:
            child = self._named(field.name, node.children, f"{column}.{field.name}")
            fields.append(None if child is None else child.name)
            if child is not None:
                converts[child.name] = self._convert(child, field.type, f"{column}.{field.name}", leaves)
        if len(leaves) == before:
            # Read one primitive column to know which structs are null.
            leaves.append(next(node.leaves()))
        if node.type == target and not any(converts.values()):
            return None
        # Arrow returns the fields that are read, in the order of the file.
        read = [child.name for child in node.children if child.name in converts]
        places = [(None, None) if name is None else (read.index(name), converts[name]) for name in fields]
        return struct_of(places, target)

    def _leaf(self, node: Node, leaf: Leaf, target: pa.DataType, column: str) -> Convert | None:
        if leaf.lost_values:
            raise unreadable_column(column, self.path, f"cannot be read: {leaf.lost_values}", "parquet")
        source, decode = _plain(node.type)
        if pa.types.is_null(source):
            return None if source == target else lambda array: pa.nulls(len(array), target)
        if pa.types.is_null(target):
            return lambda array: pa.nulls(len(array))
        convert = self._value(leaf, source, target, column)
        if convert is None and source != target:
            convert = _cast(target)
        return convert if decode is None else chain(decode, convert)

    def _value(self, leaf: Leaf, source: pa.DataType, target: pa.DataType, column: str) -> Convert | None:
        """Return the conversion of a primitive column from `source` to `target`.

        None if Arrow's cast converts the values, and nothing else is needed.
        """
        types = pa.types
        if isinstance(target, pa.TimestampType) and target.unit == "us":
            return self._timestamp(leaf, source, target, column)
        if types.is_date32(target) and (leaf.kind == "DATE" or (leaf.signed_bits and leaf.physical == "INT32")):
            return chain(_viewed(source, pa.int32(), target), self.rebase.dates(self._place(column)))
        if types.is_integer(target) and types.is_signed_integer(target):
            return self._integer(leaf, source, target, column)
        if isinstance(target, pa.Decimal128Type):
            self._check_decimal(leaf, target, column)
            checked = partial(within_precision, column=column, path=self.path) if leaf.kind == "DECIMAL" else None
            return chain(checked, None if source == target else _cast(target))
        castable = (
            (types.is_boolean(target) and leaf.physical == "BOOLEAN")
            or (types.is_float32(target) and leaf.physical == "FLOAT")
            or (types.is_float64(target) and leaf.physical in ("FLOAT", "DOUBLE"))
            or (types.is_float64(target) and (0 < leaf.signed_bits <= 32 or 0 < leaf.unsigned_bits <= 16))
        )
        if castable:
            return None
        if leaf.physical == "BYTE_ARRAY" and leaf.kind != "DECIMAL" and target in (pa.string(), pa.binary()):
            return None if source == target else lambda array: array.view(target)
        if leaf.physical == "FIXED_LEN_BYTE_ARRAY" and leaf.kind != "DECIMAL" and types.is_binary(target):
            # Spark reads a half float as its two bytes.
            fixed = types.is_fixed_size_binary(source)
            return _cast(target) if fixed else lambda array: array.view(pa.binary(2)).cast(pa.binary())
        if types.is_duration(target) and leaf.physical == "INT64" and leaf.signed_bits:
            return _viewed(source, pa.int64(), pa.duration("us"))
        raise mismatch(column, str(leaf), target, self.path)

    def _integer(self, leaf: Leaf, source: pa.DataType, target: pa.DataType, column: str) -> Convert | None:
        narrow = (leaf.physical == "INT64" or leaf.unsigned_bits >= 32) and target != pa.int64()
        if leaf.kind == "DECIMAL" or leaf.physical not in ("INT32", "INT64") or leaf.unsigned_bits > 32 or narrow:
            raise mismatch(column, str(leaf), target, self.path)
        raw = pa.int32() if leaf.physical == "INT32" else pa.int64()
        view = None if pa.types.is_integer(source) else _viewed(source, raw, raw)
        if leaf.kind == "TIMESTAMP":
            # Spark returns the stored number, in the unit of the file.
            view = chain(_cast(pa.timestamp(leaf.unit)), _viewed(pa.timestamp(leaf.unit), raw, raw))
        if (source if view is None else raw) == target:
            return view
        return chain(view, _cast(target))

    def _check_decimal(self, leaf: Leaf, target: pa.Decimal128Type, column: str) -> None:
        if leaf.kind == "DECIMAL":
            digits, scale = leaf.details["precision"] - leaf.details["scale"], leaf.details["scale"]
            holds = target.scale >= scale and target.precision - target.scale >= digits
        elif leaf.signed_bits:
            holds = target.precision - target.scale >= (10 if leaf.physical == "INT32" else 20)
        else:
            holds = leaf.unsigned_bits == 64 and target == pa.decimal128(20, 0)
        if not holds:
            raise mismatch(column, str(leaf), target, self.path)

    def _timestamp(self, leaf: Leaf, source: pa.DataType, target: pa.TimestampType, column: str) -> Convert | None:
        place = self._place(column)
        naive = pa.timestamp("us")
        relabel = None if target.tz is None else _viewed(naive, pa.int64(), target)
        if leaf.kind == "DATE" and target.tz is None:
            return chain(_viewed(source, pa.int32(), pa.date32()), self.rebase.dates(place), _cast(target))
        if leaf.physical == "INT96":
            rebase = None if target.tz is None else self.rebase.int96(place)
            return chain(_viewed(source, pa.int64(), naive), rebase, relabel)
        if leaf.kind != "TIMESTAMP" or leaf.unit == "ns" or not isinstance(source, pa.TimestampType):
            raise mismatch(column, str(leaf), target, self.path)
        rebase = None if target.tz is None else self.rebase.timestamps(place)
        if source == target and rebase is None:
            return None
        plain = pa.timestamp(source.unit)
        scaled = None if source.unit == "us" else _cast(naive)
        return chain(_viewed(source, pa.int64(), plain), scaled, rebase, relabel)

    def _place(self, column: str) -> str:
        return f"column {column!r} of {self.path}"


def _plain(data_type: pa.DataType) -> tuple[pa.DataType, Convert | None]:
    """Return a type without dictionaries and other layouts of the writer's Arrow schema, and the conversion to it."""
    types = pa.types
    if isinstance(data_type, pa.BaseExtensionType):
        inner, decode = _plain(data_type.storage_type)
        return inner, chain(lambda array: cast("pa.ExtensionArray", array).storage, decode)
    if isinstance(data_type, pa.DictionaryType):
        inner, decode = _plain(data_type.value_type)
        return inner, chain(pc.dictionary_decode, decode)
    if types.is_large_string(data_type) or types.is_string_view(data_type):
        return pa.string(), _cast(pa.string())
    if types.is_decimal32(data_type) or types.is_decimal64(data_type):
        wide = pa.decimal128(data_type.precision, data_type.scale)
        return wide, _cast(wide)
    if types.is_large_binary(data_type) or types.is_binary_view(data_type):
        return pa.binary(), _cast(pa.binary())
    return data_type, None


def _cast(target: pa.DataType) -> Convert:
    return lambda array: array.cast(target)


def _viewed(source: pa.DataType, raw: pa.DataType, target: pa.DataType) -> Convert | None:
    """Return the conversion that reads the bits of `source` as `target`, a type of the same width.

    The conversion goes through the integer type `raw`. None if the types are equal.
    """
    if source == target:
        return None
    if source.bit_width != raw.bit_width:
        return chain(_cast(raw), _viewed(raw, raw, target))
    return lambda array: array.view(target)


def _plain_lists(array: pa.Array) -> pa.Array:
    """Return lists of any layout as Arrow's plain lists."""
    if isinstance(array, (pa.ListViewArray, pa.LargeListViewArray)):
        return _without_views(array)
    if isinstance(array, pa.ListArray):
        return array
    return array.cast(pa.list_(cast("pa.ListType", array.type).value_field))


def _without_views(array: pa.ListViewArray | pa.LargeListViewArray) -> pa.ListArray:
    """Return lists whose values follow one another. Arrow's own cast returns too short a buffer of offsets."""
    lengths = pc.fill_null(pc.list_value_length(array), 0)
    offsets = pc.cumulative_sum(pa.concat_arrays([pa.array([0], lengths.type), lengths])).cast(pa.int32())
    mask = array.is_null() if array.null_count else None
    return pa.ListArray.from_arrays(offsets, array.flatten(), mask=mask)
