# SPDX-License-Identifier: Apache-2.0
"""Leaves columns out of a Parquet footer, because Arrow reads no column of a file if it cannot express one of them.

A footer is a structure of Thrift's compact protocol. The lists that have an entry for each column are written again
with fewer entries, and all other bytes are copied.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.formats.compression.byte_streams import encoded_varint
from forebay.formats.values.columns import check_names
from forebay.formats.values.ddl import NoArrowForm, named_type, type_of_json

if TYPE_CHECKING:
    import pyarrow.parquet as pq


# -- Reads Parquet footers as Spark does: the tree of columns, and the inferred schema.


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


def inferred_schema(file: pq.ParquetFile, path: str, case_sensitive: bool, unreadable: Mapping[str, str]) -> pa.Schema:
    """Return the schema that Spark would infer from one open file; every column is nullable. `path` is for errors.

    Args:
        file: The open file.
        path: The path of the file, for errors.
        case_sensitive: Whether two names may differ in case only.
        unreadable: The columns of the file that Arrow cannot express, and why; `file` is without them.

    Raises:
        ConfigurationError: Spark or Arrow cannot infer the type of a column, or two columns have the same name.
    """
    for column, reason in unreadable.items():
        raise unreadable_column(column, path, reason)
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


_MAGIC: Final = b"PAR1"
_MOST_LEVELS: Final = 64

# Types of Thrift's compact protocol.
_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 0, 1, 2, 3, 7, 8, 9, 10, 11, 12
_VARINTS: Final = (4, 5, 6)

# Fields of FileMetaData, KeyValue, RowGroup and SchemaElement in parquet.thrift.
_SCHEMA, _ROW_GROUPS, _KEY_VALUES, _COLUMN_ORDERS = 2, 4, 5, 7
_KEY = _COLUMN_CHUNKS = 1
_NAME, _NUM_CHILDREN = 4, 5

_ARROW_SCHEMA: Final = b"ARROW:schema"
"""The key of the writer's Arrow schema. Arrow matches its fields with columns by index, so it is left out too."""


@dataclass(frozen=True, slots=True)
class _Entries:
    """A list of structures: the bytes from `start` are its header, and each entry ends at one of `ends`."""

    start: int
    first: int
    ends: list[int]

    def only(self, data: bytes, kept: Collection[int]) -> bytes:
        """Return the list with the entries at the indexes `kept` alone."""
        starts = [self.first, *self.ends]
        entries = [data[starts[index] : starts[index + 1]] for index in range(len(self.ends)) if index in kept]
        return _list_header(len(entries)) + b"".join(entries)


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of the top level: its name, and the ranges of its entries in the schema and among the leaves."""

    name: str
    elements: range
    leaves: range


class Footer:
    """The footer of a Parquet file, without its length and magic number.

    Raises:
        ValueError: The bytes are no footer.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._per_leaf: list[_Entries] = []
        self._elements = _Entries(0, 0, [])
        self._key_values = _Entries(0, 0, [])
        self._keys: list[bytes] = []
        names: list[str] = []
        children: list[int] = []
        try:
            walk = _Walk(data)
            for field, kind in walk.fields():
                if field == _SCHEMA and kind == _LIST:
                    self._elements = walk.entries(lambda: self._element(walk, names, children))
                elif field == _ROW_GROUPS and kind == _LIST:
                    walk.entries(lambda: self._row_group(walk))
                elif field == _KEY_VALUES and kind == _LIST:
                    self._key_values = walk.entries(lambda: self._keys.append(_key(walk)))
                elif field == _COLUMN_ORDERS and kind == _LIST:
                    self._per_leaf.append(walk.entries(lambda: walk.skip(_STRUCT)))
                else:
                    walk.skip(kind)
        except IndexError:
            raise ValueError("the footer ends inside a structure") from None
        if not names or len(self._keys) != len(self._key_values.ends) or len(names) != len(self._elements.ends):
            raise ValueError("the footer has no schema, or a list twice")
        self.signed = walk.at < len(data)
        """Whether a signature follows, which only files with encrypted columns have."""
        self.columns = list(_columns(names, children))
        """The columns of the top level, in the order of the file."""

    def file_with(self, kept: Collection[int]) -> bytes:
        """Return a Parquet file without data, whose footer has the columns at the indexes `kept` alone."""
        columns = [column for index, column in enumerate(self.columns) if index in kept]
        leaves = {leaf for column in columns for leaf in column.leaves}
        elements = {0, *(element for column in columns for element in column.elements)}
        lists = [(entries, entries.only(self._data, leaves)) for entries in self._per_leaf]
        schema = self._elements.only(self._data, elements)
        lists.append((self._elements, self._with_children(schema, len(elements), len(columns))))
        if _ARROW_SCHEMA in self._keys:
            others = [index for index, key in enumerate(self._keys) if key != _ARROW_SCHEMA]
            lists.append((self._key_values, self._key_values.only(self._data, others)))
        parts, at = [], 0
        for entries, written in sorted(lists, key=lambda item: item[0].start):
            parts += [self._data[at : entries.start], written]
            at = entries.ends[-1] if entries.ends else entries.first
        footer = b"".join([*parts, self._data[at:]])
        return _MAGIC + footer + len(footer).to_bytes(4, "little") + _MAGIC

    def _with_children(self, schema: bytes, elements: int, columns: int) -> bytes:
        """Return the list of the schema with the number of columns in its first entry, the root."""
        walk = _Walk(schema, len(_list_header(elements)))
        for field, kind in walk.fields():
            start = walk.at
            walk.skip(kind)
            if field == _NUM_CHILDREN:
                return schema[:start] + encoded_varint(columns << 1) + schema[walk.at :]
        raise ValueError("the root of the schema has no columns")

    @staticmethod
    def _element(walk: _Walk, names: list[str], children: list[int]) -> None:
        name, count = "", 0
        for field, kind in walk.fields():
            if field == _NAME and kind == _BINARY:
                name = walk.binary().decode("utf-8", "replace")
            elif field == _NUM_CHILDREN and kind in _VARINTS:
                count = walk.varint() >> 1
            else:
                walk.skip(kind)
        names.append(name)
        children.append(count)

    def _row_group(self, walk: _Walk) -> None:
        for field, kind in walk.fields():
            if field == _COLUMN_CHUNKS and kind == _LIST:
                self._per_leaf.append(walk.entries(lambda: walk.skip(_STRUCT)))
            else:
                walk.skip(kind)


def _key(walk: _Walk) -> bytes:
    """Walk over an entry of the metadata; return its key."""
    key = b""
    for field, kind in walk.fields():
        if field == _KEY and kind == _BINARY:
            key = walk.binary()
        else:
            walk.skip(kind)
    return key


def _columns(names: list[str], children: list[int]) -> Iterator[_Column]:
    """Yield the columns of a schema whose elements are in the order of depth first, the root first."""
    element, leaf = 1, 0
    while element < len(names):
        first, first_leaf, missing = element, leaf, 1
        while missing:
            if element == len(names):
                raise ValueError("the schema ends inside a column")
            missing += children[element] - 1
            leaf += not children[element]
            element += 1
        yield _Column(names[first], range(first, element), range(first_leaf, leaf))


def _list_header(size: int) -> bytes:
    return bytes([size << 4 | _STRUCT]) if size < 15 else bytes([0xF0 | _STRUCT]) + encoded_varint(size)


class _Walk:
    """Walks over Thrift's compact protocol. Methods raise IndexError at the end of the data."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self.at = at

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def binary(self) -> bytes:
        size = self.varint()
        self._skip_bytes(size)
        return self._data[self.at - size : self.at]

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield number and type of each field of a structure. The caller moves behind the value before the next."""
        number = 0
        while True:
            head = self._data[self.at]
            self.at += 1
            if head == _STOP:
                return
            number = number + (head >> 4) if head >> 4 else self.varint() >> 1
            yield number, head & 15

    def entries(self, skip_entry: Callable[[], None]) -> _Entries:
        """Walk over a list of structures; `skip_entry` moves behind one."""
        start = self.at
        kind, size = self._list_head()
        if kind != _STRUCT:
            raise ValueError("a list has entries of another type")
        first, ends = self.at, []
        for _ in range(size):
            skip_entry()
            ends.append(self.at)
        return _Entries(start, first, ends)

    def skip(self, kind: int, levels: int = 0) -> None:
        """Move behind a value of a type."""
        if levels > _MOST_LEVELS:
            raise ValueError("structures are nested too deeply")
        if kind in _VARINTS:
            self.varint()
        elif kind == _BINARY:
            self.binary()
        elif kind in (_BYTE, _DOUBLE):
            self._skip_bytes(1 if kind == _BYTE else 8)
        elif kind == _STRUCT:
            for _, inside in self.fields():
                self.skip(inside, levels + 1)
        elif kind in (_LIST, _SET, _MAP):
            self._skip_entries(kind, levels)
        elif kind not in (_TRUE, _FALSE):
            raise ValueError(f"there is no type {kind}")

    def _skip_entries(self, kind: int, levels: int) -> None:
        """Move behind a list, set or map. In these a boolean is a byte."""
        if kind == _MAP:
            size = self.varint()
            kinds = self._data[self.at] if size else 0
            self.at += bool(size)
            inside = [kinds >> 4, kinds & 15]
        else:
            entry, size = self._list_head()
            inside = [entry]
        for _ in range(size):
            for entry in inside:
                self.skip(_BYTE if entry in (_TRUE, _FALSE) else entry, levels + 1)

    def _list_head(self) -> tuple[int, int]:
        head = self._data[self.at]
        self.at += 1
        return head & 15, self.varint() if head >> 4 == 15 else head >> 4

    def _skip_bytes(self, count: int) -> None:
        self.at += count
        if self.at > len(self._data):
            raise IndexError
