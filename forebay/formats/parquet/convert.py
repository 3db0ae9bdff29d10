# SPDX-License-Identifier: Apache-2.0
"""Converts columns of Arrow's Parquet reader to the types of the schema. A column's conversion is built once per file.

The supported pairs of types are those of Spark's vectorised reader (ParquetVectorUpdaterFactory, 4.2.0), except pairs
for which Spark silently reinterprets bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc

from forebay.formats.base import damaged_file
from forebay.formats.parquet.schema import LISTS, Leaf, Node, unreadable_column
from forebay.formats.units import UnitColumn
from forebay.formats.values.columns import Convert, chain, list_of, map_of, mismatch, place_of, struct_of
from forebay.formats.values.numbers import exceeds_precision
from forebay.formats.values.rebase import Rebase


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
            raise unreadable_column(column, self.path, leaf.lost_values)
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
            checked = self._decimals_in_range(column) if leaf.kind == "DECIMAL" else None
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

    def _decimals_in_range(self, column: str) -> Convert:
        """Return a check that raises a DataError if damage gave a decimal more digits than the file's type allows."""

        def check(array: pa.Array) -> pa.Array:
            if exceeds_precision(array):
                raise damaged_file(f"{self._place(column)} has a value with more digits than {array.type} allows")
            return array

        return check

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
