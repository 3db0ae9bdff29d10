# SPDX-License-Identifier: Apache-2.0
"""Converts decoded Avro columns to the types of the schema. The conversion of a column is built once per file.

The supported pairs of types are those of AvroDeserializer (spark-avro 4.1), except pairs that change a value's meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import ConfigurationError
from forebay.formats.avro.damage import Malformed
from forebay.formats.avro.schema import Node
from forebay.formats.values.column_names import ambiguous, folded
from forebay.formats.values.rebase import Rebase

Convert: TypeAlias = Callable[[pa.Array], pa.Array]
"""A function that converts an array to another array of the same length."""

_DECIMAL_BYTES = 16
_MILLIS_PER_DAY = 86_400_000


@dataclass(frozen=True, slots=True)
class Converter:
    """Builds the conversions for the columns of one file.

    Attributes:
        path: The path of the file, for errors.
        case_sensitive: Whether names that differ only in case are different names.
        positional: Whether fields match columns by position instead of by name.
        rebase: The conversion of old dates to the Gregorian calendar.
    """

    path: str
    case_sensitive: bool
    positional: bool
    rebase: Rebase

    def column(self, place: int, field: pa.Field, root: Node) -> tuple[int, Convert] | None:
        """Return the index in `root` of the field for column `place`, and its conversion; None without such a field.

        Raises:
            ConfigurationError: The field cannot be read as the column's type, or two fields match the column.
        """
        found = self._matching(root, place, field.name, field.name)
        if found is None:
            return None
        return found, self.convert(root.children[found], field.type, field.name)

    def _matching(self, node: Node, place: int, name: str, column: str) -> int | None:
        if self.positional:
            return place if place < len(node.children) else None
        key = folded(name, self.case_sensitive)
        found = [at for at, one in enumerate(node.names) if folded(one, self.case_sensitive) == key]
        if len(found) > 1:
            raise ambiguous(column, [node.names[at] for at in found], self.path)
        return found[0] if found else None

    def convert(self, node: Node, target: pa.DataType, column: str) -> Convert:
        """Return the conversion from the Avro type `node` to `target`; raise ConfigurationError if there is none."""
        match node.kind:
            case "record" if isinstance(target, pa.StructType):
                children: list[tuple[int, Convert] | None] = []
                for place, field in enumerate(target):
                    inside = f"{column}.{field.name}"
                    found = self._matching(node, place, field.name, inside)
                    converted = None if found is None else self.convert(node.children[found], field.type, inside)
                    children.append(None if found is None or converted is None else (found, converted))
                return _struct_of(children, target)
            case "array" if isinstance(target, pa.ListType):
                return _list_of(self.convert(node.children[0], target.value_type, f"{column}.element"), target)
            case "map" if isinstance(target, pa.MapType) and target.key_type == pa.string():
                return _map_of(self.convert(node.children[0], target.item_type, f"{column}.value"), target)
            case "union":
                return self._union(node, target, column)
        found_leaf = self._leaf(node, target, column)
        if found_leaf is None:
            raise ConfigurationError(
                f"column {column!r} is {node} in {self.path} and cannot be read as {target}",
                advice="in the schema, give the column the type of the file and cast it in the query, or remove it",
            )
        return found_leaf

    def _union(self, node: Node, target: pa.DataType, column: str) -> Convert:
        branches = node.branches
        if not branches:
            return lambda array: pa.nulls(len(array), target)
        if len(branches) == 1:
            return self.convert(branches[0], target, column)
        kinds = {branch.kind for branch in branches}
        widened = {frozenset({"int", "long"}): pa.int64(), frozenset({"float", "double"}): pa.float64()}
        if widened.get(frozenset(kinds)) == target:
            return lambda array: pc.coalesce(*(part.cast(target) for part in members_of(array)))
        if isinstance(target, pa.StructType) and target.num_fields == len(branches):
            pairs = zip(branches, target, strict=True)
            children = [
                (at, self.convert(one, field.type, f"{column}.{field.name}")) for at, (one, field) in enumerate(pairs)
            ]
            return _struct_of(list(children), target)
        raise ConfigurationError(
            f"column {column!r} is {node} in {self.path} and cannot be read as {target}",
            advice="in the schema, make the column a struct with one field for each member of the union except null",
        )

    def _leaf(self, node: Node, target: pa.DataType, column: str) -> Convert | None:
        types = pa.types
        kind = node.kind
        if kind == "enum" and types.is_string(target):
            return pa.array(node.symbols, pa.string()).take
        if kind == "boolean":
            return _booleans if types.is_boolean(target) else None
        if kind in ("bytes", "fixed"):
            if isinstance(target, pa.Decimal128Type) and node.logical == "decimal":
                holds = target.scale == node.scale and target.precision >= node.precision
                return (lambda array: decimals(array, target)) if holds else None
            return same if types.is_binary(target) else None
        if types.is_null(target) or kind == "null":
            return lambda array: pa.nulls(len(array), target)
        if kind == "int" and types.is_date32(target):
            return self._rebased(self.rebase.dates(self._place(column)), target)
        if kind == "long":
            return self._long(node, target, column)
        return same if (kind, target) in _SAME else None

    def _long(self, node: Node, target: pa.DataType, column: str) -> Convert | None:
        logical = node.logical or ""
        if target == pa.int64():
            return same
        if pa.types.is_date32(target) and not logical:
            return lambda array: pc.divide(array, _MILLIS_PER_DAY).cast(pa.int32()).view(target)
        if not isinstance(target, pa.TimestampType) or target.unit != "us":
            return None
        local = target.tz is None
        if logical and logical.startswith("local-") != local:
            return None
        step = None if local else self.rebase.timestamps(self._place(column))
        micros = logical.endswith("micros")
        rebased = self._rebased(step, target)

        def convert(array: pa.Array) -> pa.Array:
            return rebased(array if micros else pc.multiply_checked(array, 1000))

        return convert

    @staticmethod
    def _rebased(step: Callable[[pa.Array], pa.Array] | None, target: pa.DataType) -> Convert:
        if step is None:
            return lambda array: array.view(target)
        return lambda array: step(array.view(pa.date32() if array.type == pa.int32() else pa.timestamp("us"))).view(
            target
        )

    def _place(self, column: str) -> str:
        return f"column {column!r} of {self.path}"


_SAME = {
    ("int", pa.int32()),
    ("int", pa.int64()),
    ("int", pa.float64()),
    ("float", pa.float32()),
    ("float", pa.float64()),
    ("double", pa.float64()),
    ("string", pa.string()),
}


def same(array: pa.Array) -> pa.Array:
    """Return the array itself: the conversion that changes nothing."""
    return array


def _booleans(array: pa.Array) -> pa.Array:
    """Convert integers to booleans: the decoder returns 0 for false and -1 for true. Raise Malformed for any other."""
    ends = pc.min_max(array).as_py()
    if ends["min"] is not None and (ends["min"] < -1 or ends["max"] > 0):
        raise Malformed("a boolean is neither 0 nor 1")
    return pc.less(array, 0)


def members_of(array: pa.Array) -> list[pa.Array]:
    """Return the fields of an array of structs. A field is null in each row where the struct is null."""
    return cast("pa.StructArray", array).flatten()


def decimals(array: pa.Array, target: pa.Decimal128Type) -> pa.Array:
    """Return decimals from big-endian two's complement bytes; raise ArrowInvalid if one does not fit into `target`."""
    array = pa.concat_arrays([array])
    if (pc.max(pc.binary_length(array)).as_py() or 0) > _DECIMAL_BYTES:
        array = pa.array([None if value is None else _shortened(value) for value in array.to_pylist()], pa.binary())
    offsets = np.frombuffer(cast("Any", array.buffers()[1]), np.int32, len(array) + 1, array.offset * 4)
    data = np.frombuffer(cast("Any", array.buffers()[2] or b""), np.uint8)
    starts, ends = offsets[:-1], offsets[1:]
    valid = np.asarray(pc.is_valid(array))
    lengths = np.where(valid, ends - starts, 1)
    if len(lengths) and lengths.min() < 1:
        raise pa.ArrowInvalid("a decimal has no bytes")
    data = np.append(data, np.uint8(0))
    negative = np.where(data[np.where(valid, starts, len(data) - 1)] > 127, np.uint8(255), np.uint8(0))
    out = np.empty((len(array), _DECIMAL_BYTES), np.uint8)
    for place in range(_DECIMAL_BYTES):
        at = ends - 1 - place
        out[:, place] = np.where(valid & (at >= starts), data[np.maximum(at, 0)], negative)
    bits = pa.array(valid).buffers()[1]
    found = pa.Array.from_buffers(target, len(array), [bits, pa.py_buffer(out.tobytes())])
    found.validate(full=True)
    return found


def _shortened(value: bytes) -> bytes:
    """Return a two's complement number in 16 bytes; raise ArrowInvalid if it needs more."""
    try:
        return int.from_bytes(value, "big", signed=True).to_bytes(_DECIMAL_BYTES, "big", signed=True)
    except OverflowError:
        raise pa.ArrowInvalid("a decimal has more than 38 digits") from None


def _list_of(inside: Convert, target: pa.ListType) -> Convert:
    def convert(array: pa.Array) -> pa.Array:
        lists = cast("pa.ListArray", array)
        values = cast_to(inside(lists.values), target.value_type)
        return pa.Array.from_buffers(target, len(lists), lists.buffers()[:2], lists.null_count, lists.offset, [values])

    return convert


def _map_of(item: Convert, target: pa.MapType) -> Convert:
    fields = [target.key_field, target.item_field]

    def convert(array: pa.Array) -> pa.Array:
        lists = cast("pa.ListArray", array)
        entries = cast("pa.StructArray", lists.values)
        items = cast_to(item(entries.field(1)), target.item_type)
        inside = pa.StructArray.from_arrays([entries.field(0), items], fields=fields)
        return pa.Array.from_buffers(target, len(lists), lists.buffers()[:2], lists.null_count, lists.offset, [inside])

    return convert


def _struct_of(children: list[tuple[int, Convert] | None], target: pa.StructType) -> Convert:
    fields = list(target)

    def convert(array: pa.Array) -> pa.Array:
        inside = []
        members = members_of(array)  # null where the struct is null, because the bytes stored there have no meaning
        for field, child in zip(fields, children, strict=True):
            if child is None:
                inside.append(pa.nulls(len(array), field.type))
            else:
                inside.append(cast_to(child[1](members[child[0]]), field.type))
        if not fields:
            return pa.array([None if null else {} for null in pc.is_null(array).to_pylist()], target)
        mask = pc.is_null(array) if array.null_count else None
        return pa.StructArray.from_arrays(inside, fields=fields, mask=mask)

    return convert


def cast_to(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Return the array, cast to `target` if its type differs."""
    return array if array.type == target else array.cast(target)
