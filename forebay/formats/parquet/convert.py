# SPDX-License-Identifier: Apache-2.0
"""Converts columns of Arrow's Parquet reader to the types of the schema. A column's conversion is built once per file.

The supported pairs of types are those of Spark's vectorised reader (ParquetVectorUpdaterFactory, 4.2.0), except pairs
for which Spark silently reinterprets bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import ConfigurationError
from forebay.formats.base import damaged_file
from forebay.formats.parquet.footer import LISTS, Leaf, Node, unreadable_column
from forebay.formats.values.columns import Convert, ambiguous, folded, struct_of
from forebay.formats.values.numbers import exceeds_precision
from forebay.formats.values.rebase import Rebase


@dataclass(frozen=True, slots=True)
class ProjectedColumn:
    """The part of a file that is read for one column of the schema, and its conversion.

    `source` is the name of the column in the file; None if the file has no such column.
    """

    source: str | None
    leaves: tuple[Leaf, ...]
    convert: Convert | None


@dataclass(frozen=True, slots=True)
class Converter:
    """Builds the conversions for the columns of one file.

    `rebase` converts dates and timestamps of the old calendar, if the file has them.
    """

    path: str
    case_sensitive: bool
    rebase: Rebase
    unreadable: Mapping[str, str]
    """The columns of the file that Arrow cannot express, and why."""

    def column(self, field: pa.Field, columns: tuple[Node, ...]) -> ProjectedColumn:
        """Return the part of the file to read for a column of the schema; `columns` are all columns of the file.

        Raises:
            ConfigurationError: The column cannot be read as the schema's type, or two columns have this name.
        """
        key = folded(field.name, self.case_sensitive)
        for name, reason in self.unreadable.items():
            if folded(name, self.case_sensitive) == key:
                raise unreadable_column(name, self.path, reason)
        node = self._named(field.name, columns, field.name)
        if node is None:
            return ProjectedColumn(None, (), None)
        leaves: list[Leaf] = []
        convert = self._convert(node, field.type, field.name, leaves)
        return ProjectedColumn(node.name, tuple(leaves), convert)

    def _named(self, name: str, nodes: tuple[Node, ...], column: str) -> Node | None:
        key = folded(name, self.case_sensitive)
        matching = [node for node in nodes if folded(node.name, self.case_sensitive) == key]
        if len(matching) > 1:
            raise ambiguous(column, [node.name for node in matching], self.path)
        return matching[0] if matching else None

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
            return None if inside is None and source == target else _list_of(inside, target)
        if isinstance(source, pa.MapType) and isinstance(target, pa.MapType):
            key = self._convert(node.children[0], target.key_type, f"{column}.key", leaves)
            item = self._convert(node.children[1], target.item_type, f"{column}.value", leaves)
            return None if key is None and item is None and source == target else _map_of(key, item, target)
        raise self._mismatch(str(node.type), target, column)

    def _struct(self, node: Node, target: pa.StructType, column: str, leaves: list[Leaf]) -> Convert | None:
        children: list[tuple[str | None, Convert | None]] = []
        before = len(leaves)
        for field in target:
            child = self._named(field.name, node.children, f"{column}.{field.name}")
            inside = None
            if child is not None:
                inside = self._convert(child, field.type, f"{column}.{field.name}", leaves)
            children.append((None if child is None else child.name, inside))
        if len(leaves) == before:
            # Read one primitive column to know which structs are null.
            leaves.append(next(node.leaves()))
        if node.type == target and all(inside is None for _, inside in children):
            return None
        return struct_of(children, target)

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
        return convert if decode is None else _chain(decode, convert)

    def _value(self, leaf: Leaf, source: pa.DataType, target: pa.DataType, column: str) -> Convert | None:
        """Return the conversion of a primitive column from `source` to `target`.

        None if Arrow's cast converts the values, and nothing else is needed.
        """
        types = pa.types
        if isinstance(target, pa.TimestampType) and target.unit == "us":
            return self._timestamp(leaf, source, target, column)
        if types.is_date32(target) and (leaf.kind == "DATE" or (leaf.signed_bits and leaf.physical == "INT32")):
            return _chain(_viewed(source, pa.int32(), target), self.rebase.dates(self._place(column)))
        if types.is_integer(target) and types.is_signed_integer(target):
            return self._integer(leaf, source, target, column)
        if isinstance(target, pa.Decimal128Type):
            self._check_decimal(leaf, target, column)
            checked = self._decimals_in_range(column) if leaf.kind == "DECIMAL" else None
            return _chain(checked, None if source == target else _cast(target))
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
        raise self._mismatch(str(leaf), target, column)

    def _integer(self, leaf: Leaf, source: pa.DataType, target: pa.DataType, column: str) -> Convert | None:
        narrow = (leaf.physical == "INT64" or leaf.unsigned_bits >= 32) and target != pa.int64()
        if leaf.kind == "DECIMAL" or leaf.physical not in ("INT32", "INT64") or leaf.unsigned_bits > 32 or narrow:
            raise self._mismatch(str(leaf), target, column)
        raw = pa.int32() if leaf.physical == "INT32" else pa.int64()
        view = None if pa.types.is_integer(source) else _viewed(source, raw, raw)
        if leaf.kind == "TIMESTAMP":
            # Spark returns the stored number, in the unit of the file.
            view = _chain(_cast(pa.timestamp(leaf.unit)), _viewed(pa.timestamp(leaf.unit), raw, raw))
        if (source if view is None else raw) == target:
            return view
        return _chain(view, _cast(target))

    def _check_decimal(self, leaf: Leaf, target: pa.Decimal128Type, column: str) -> None:
        if leaf.kind == "DECIMAL":
            digits, scale = leaf.details["precision"] - leaf.details["scale"], leaf.details["scale"]
            holds = target.scale >= scale and target.precision - target.scale >= digits
        elif leaf.signed_bits:
            holds = target.precision - target.scale >= (10 if leaf.physical == "INT32" else 20)
        else:
            holds = leaf.unsigned_bits == 64 and target == pa.decimal128(20, 0)
        if not holds:
            raise self._mismatch(str(leaf), target, column)

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
            return _chain(_viewed(source, pa.int32(), pa.date32()), self.rebase.dates(place), _cast(target))
        if leaf.physical == "INT96":
            rebase = None if target.tz is None else self.rebase.int96(place)
            return _chain(_viewed(source, pa.int64(), naive), rebase, relabel)
        if leaf.kind != "TIMESTAMP" or leaf.unit == "ns" or not isinstance(source, pa.TimestampType):
            raise self._mismatch(str(leaf), target, column)
        rebase = None if target.tz is None else self.rebase.timestamps(place)
        if source == target and rebase is None:
            return None
        plain = pa.timestamp(source.unit)
        scaled = None if source.unit == "us" else _cast(naive)
        return _chain(_viewed(source, pa.int64(), plain), scaled, rebase, relabel)

    def _place(self, column: str) -> str:
        return f"column {column!r} of {self.path}"

    def _mismatch(self, stored_type: str, target: pa.DataType, column: str) -> ConfigurationError:
        return ConfigurationError(
            f"column {column!r} is {stored_type} in {self.path} and cannot be read as {target}",
            advice="in the schema, give the column a type that can represent the file's values, or remove the column",
        )


def _plain(data_type: pa.DataType) -> tuple[pa.DataType, Convert | None]:
    """Return a type without dictionaries and other layouts of the writer's Arrow schema, and the conversion to it."""
    types = pa.types
    if isinstance(data_type, pa.BaseExtensionType):
        inner, decode = _plain(data_type.storage_type)
        return inner, _chain(lambda array: cast("pa.ExtensionArray", array).storage, decode)
    if isinstance(data_type, pa.DictionaryType):
        inner, decode = _plain(data_type.value_type)
        return inner, _chain(pc.dictionary_decode, decode)
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
        return _chain(_cast(raw), _viewed(raw, raw, target))
    return lambda array: array.view(target)


def _chain(*steps: Convert | None) -> Convert | None:
    todo = [step for step in steps if step is not None]
    if len(todo) < 2:
        return todo[0] if todo else None

    def convert(array: pa.Array) -> pa.Array:
        for step in todo:
            array = step(array)
        return array

    return convert


def _list_of(inside: Convert | None, target: pa.ListType) -> Convert:
    def convert(array: pa.Array) -> pa.Array:
        if isinstance(array, (pa.ListViewArray, pa.LargeListViewArray)):
            array = _without_views(array)
        elif not isinstance(array, pa.ListArray):
            array = array.cast(pa.list_(cast("pa.ListType", array.type).value_field))
        lists = cast("pa.ListArray", array)
        values = lists.values if inside is None else inside(lists.values)
        return pa.Array.from_buffers(target, len(lists), lists.buffers()[:2], lists.null_count, lists.offset, [values])

    return convert


def _without_views(array: pa.ListViewArray | pa.LargeListViewArray) -> pa.ListArray:
    """Return lists whose values follow one another. Arrow's own cast returns too short a buffer of offsets."""
    lengths = pc.fill_null(pc.list_value_length(array), 0)
    offsets = pc.cumulative_sum(pa.concat_arrays([pa.array([0], lengths.type), lengths])).cast(pa.int32())
    mask = array.is_null() if array.null_count else None
    return pa.ListArray.from_arrays(offsets, array.flatten(), mask=mask)


def _map_of(key: Convert | None, item: Convert | None, target: pa.MapType) -> Convert:
    fields = [target.key_field, target.item_field]

    def convert(array: pa.Array) -> pa.Array:
        maps = cast("pa.MapArray", array)
        keys = maps.keys if key is None else key(maps.keys)
        items = maps.items if item is None else item(maps.items)
        entries = pa.StructArray.from_arrays([keys, items], fields=fields)
        return pa.Array.from_buffers(target, len(maps), maps.buffers()[:2], maps.null_count, maps.offset, [entries])

    return convert
