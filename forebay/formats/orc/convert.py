# SPDX-License-Identifier: Apache-2.0
"""Converts columns of ORC files to the types of the schema. The conversion of a column is built once per stripe.

The supported pairs of types are those of ORC's Java reader 2.3, which Spark 4.2.0 uses, except pairs that change a
value's meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import ConfigurationError
from forebay.formats.orc.projection import Pick
from forebay.formats.orc.schema import TYPES
from forebay.formats.orc.stripes import Part
from forebay.formats.orc.times import Times
from forebay.formats.orc.types import TEXTS, Kind, Node
from forebay.formats.orc.wire import Malformed
from forebay.formats.records.encodings import with_valid_utf8
from forebay.formats.values.column_names import ambiguous, folded
from forebay.formats.values.decimals import exceeds_precision
from forebay.formats.values.struct_columns import Convert, struct_of

_WHOLE = frozenset({Kind.BOOLEAN, Kind.BYTE, Kind.SHORT, Kind.INT, Kind.LONG})
_FLOATS = frozenset({Kind.FLOAT, Kind.DOUBLE})
_TIMES = frozenset({Kind.TIMESTAMP, Kind.TIMESTAMP_INSTANT})
_INSTANT = pa.timestamp("us", "UTC")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The data to read for one column of the schema, and their conversion. `pick` is None if all values are null."""

    pick: Pick | None
    convert: Convert | None


@dataclass(frozen=True, slots=True)
class Converter:
    """Builds the conversions for the columns of one stripe."""

    path: str
    case_sensitive: bool
    times: Times

    def column(self, place: int, field: pa.Field, root: Node) -> Wanted:
        """Return the data to read for the column at `place` of the schema, and their conversion.

        As in Spark, columns are matched by position if all columns of the file are named `_col…`, as Hive names them.

        Raises:
            ConfigurationError: The types do not match, or two columns of the file have this name.
        """
        if root.names and all(name.startswith("_col") for name in root.names):
            node = root.children[place] if place < len(root.children) else None
        else:
            node = self._named(field.name, root, unique=True)
        if node is None:
            return Wanted(None, None)
        return self._wanted(node, field.type, field.name)

    def _named(self, name: str, struct: Node, *, unique: bool = False) -> Node | None:
        key = folded(name, self.case_sensitive)
        found = [place for place, other in enumerate(struct.names) if folded(other, self.case_sensitive) == key]
        if len(found) > 1 and unique:
            raise ambiguous(name, [struct.names[place] for place in found], self.path)
        return struct.children[found[0]] if found else None

    def _wanted(self, node: Node, target: pa.DataType, column: str) -> Wanted:
        if pa.types.is_null(target):
            return Wanted(None, None)
        match node.kind:
            case Kind.STRUCT if isinstance(target, pa.StructType):
                return self._struct(node, target, column)
            case Kind.LIST if isinstance(target, pa.ListType):
                item = self._part(node.children[0], target.value_type, f"{column}.element")
                return Wanted(Pick(node, node.kind, (_pick(item),)), _list_of(item.convert, target))
            case Kind.MAP if isinstance(target, pa.MapType):
                key = self._part(node.children[0], target.key_type, f"{column}.key")
                value = self._part(node.children[1], target.item_type, f"{column}.value")
                # Read as a list of entries: a map with a null key, as in a damaged file, makes Arrow end the process.
                entries = Pick(node, Kind.STRUCT, (_pick(key), _pick(value)), ())
                return Wanted(Pick(node, Kind.LIST, (entries,)), _map_of(key.convert, value.convert, target))
            case kind if kind in _TIMES:
                return self._timestamp(node, target, column)
        return Wanted(_leaf(node), self._value(node, target, column))

    def _part(self, node: Node, target: pa.DataType, column: str) -> Wanted:
        """Return the data to read for a list element, map key or map value. If all are null, only count them."""
        found = self._wanted(node, target, column)
        if found.pick is None:
            return Wanted(Pick(node, Kind.STRUCT, (), ()), lambda array: pa.nulls(len(array), target))
        return found

    def _struct(self, node: Node, target: pa.StructType, column: str) -> Wanted:
        children: list[tuple[int | None, Convert | None]] = []
        picks: list[Pick] = []
        for field in target:
            child = self._named(field.name, node)
            inside = Wanted(None, None)
            if child is not None:
                inside = self._wanted(child, field.type, f"{column}.{field.name}")
            children.append((None if inside.pick is None else len(picks), inside.convert))
            if inside.pick is not None:
                picks.append(inside.pick)
        return Wanted(Pick(node, node.kind, tuple(picks)), struct_of(children, target))

    def _timestamp(self, node: Node, target: pa.DataType, column: str) -> Wanted:
        if target != _INSTANT:
            raise self._mismatch(node, target, column)
        seconds = Pick(node, Kind.LONG, (), ((Part.DATA, Part.DATA),))
        nanos = Pick(node, Kind.TIMESTAMP_INSTANT, (), ((Part.SECONDARY, Part.SECONDARY),), zeros=True)
        pick = Pick(node, Kind.STRUCT, (seconds, nanos), ((Part.PRESENT, Part.PRESENT),))
        local = node.kind is Kind.TIMESTAMP
        return Wanted(pick, lambda array: self.times.timestamps(array, column, local=local))

    def _value(self, node: Node, target: pa.DataType, column: str) -> Convert | None:
        """Return the conversion of a primitive column that is not a timestamp."""
        types = pa.types
        kind = node.kind
        if kind is Kind.DATE and types.is_date32(target):
            return lambda array: self.times.dates(array, column)
        if kind is Kind.DECIMAL:
            stored: pa.DataType = pa.decimal128(node.precision, node.scale)
            if isinstance(target, pa.Decimal128Type):
                return check_precision if stored == target else lambda array: rescaled(check_precision(array), target)
            if types.is_floating(target):
                return lambda array: check_precision(array).cast(pa.float64()).cast(target)
        elif kind in TEXTS and (types.is_string(target) or types.is_binary(target)):
            return _text(node) if types.is_string(target) else lambda array: array.view(target)
        elif kind in _WHOLE or kind in _FLOATS:
            found = _of_number(kind, target)
            if found is not None:
                return found if TYPES[kind] != target else None
        elif kind is Kind.BINARY and types.is_binary(target):
            return None
        raise self._mismatch(node, target, column)

    def _mismatch(self, node: Node, target: pa.DataType, column: str) -> ConfigurationError:
        return ConfigurationError(
            f"column {column!r} is {node} in {self.path} and cannot be read as {target}",
            advice="in the schema, give the column the type of the file and cast it in the query, or remove it",
        )


def _of_number(kind: Kind, target: pa.DataType) -> Convert | None:
    """Return the conversion of integers, booleans or floating point to a type; None if there is none."""
    types = pa.types
    if types.is_floating(target):
        return lambda array: array.cast(pa.int8() if kind is Kind.BOOLEAN else array.type).cast(target, safe=False)
    if kind in _FLOATS:
        return (lambda array: truncated(array, target)) if types.is_signed_integer(target) else None
    if types.is_boolean(target):
        return lambda array: pc.not_equal(array, 0) if kind is not Kind.BOOLEAN else array
    if types.is_signed_integer(target):
        return lambda array: narrowed(array, target)
    if isinstance(target, pa.Decimal128Type):
        return lambda array: rescaled(array.cast(pa.int64()).cast(pa.decimal128(19, 0)), target)
    if types.is_string(target):
        return number_texts
    if kind is Kind.LONG and (types.is_duration(target) or target == pa.timestamp("us")):
        # As Spark stores intervals and timestamps without a time zone.
        return lambda array: array.view(target)
    return None


def _leaf(node: Node) -> Pick:
    return Pick(node, Kind.STRING if node.kind in TEXTS else node.kind)


def _pick(wanted: Wanted) -> Pick:
    return cast("Pick", wanted.pick)


def _text(node: Node) -> Convert:
    """Return the conversion of texts to UTF-8. It cuts CHAR and VARCHAR to their length, and removes CHAR's padding."""
    if node.kind is Kind.STRING:
        return _valid

    def cut(array: pa.Array) -> pa.Array:
        array = _valid(array)
        if (pc.max(pc.binary_length(array)).as_py() or 0) > node.length:
            array = pc.utf8_slice_codeunits(array, 0, node.length)
        return pc.ascii_rtrim(array, " ") if node.kind is Kind.CHAR else array

    return cut


def _valid(array: pa.Array) -> pa.Array:
    """Return the texts with U+FFFD in place of bytes that are not UTF-8."""
    raw = array.view(pa.binary())
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return with_valid_utf8(raw)[0].cast(pa.string())


def _list_of(inside: Convert | None, target: pa.ListType) -> Convert:
    def convert(array: pa.Array) -> pa.Array:
        lists = cast("pa.ListArray", array)
        values = lists.values if inside is None else inside(lists.values)
        return pa.Array.from_buffers(target, len(lists), lists.buffers()[:2], lists.null_count, lists.offset, [values])

    return convert


def _map_of(key: Convert | None, item: Convert | None, target: pa.MapType) -> Convert:
    fields = [target.key_field, target.item_field]

    def convert(array: pa.Array) -> pa.Array:
        lists = cast("pa.ListArray", array)
        values = cast("pa.StructArray", lists.values)
        keys, items = values.field(0), values.field(1)
        if keys.null_count:
            raise Malformed("a map has a null key")
        keys = keys if key is None else key(keys)
        if keys.null_count:
            raise pa.ArrowInvalid("a key of a map does not fit")
        entries = pa.StructArray.from_arrays([keys, items if item is None else item(items)], fields=fields)
        return pa.Array.from_buffers(target, len(lists), lists.buffers()[:2], lists.null_count, lists.offset, [entries])

    return convert


# -- Converts numbers to other types as ORC's Java reader does: a value that does not fit becomes null.


def narrowed(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Convert integers or booleans to integers of another width; a value that does not fit becomes null."""
    if pa.types.is_boolean(array.type) or array.type.bit_width <= target.bit_width:
        return array.cast(target)
    most = (1 << (target.bit_width - 1)) - 1
    fits = pc.and_(pc.greater_equal(array, -most - 1), pc.less_equal(array, most))
    return pc.if_else(fits, array, pa.scalar(None, array.type)).cast(target)


def truncated(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Convert floating-point numbers to integers without the fraction; a value that does not fit becomes null."""
    values = array.cast(pa.float64())
    # A double can represent -2^63, but not 2^63 - 1.
    fits = pc.and_(pc.greater_equal(values, -(2.0**63)), pc.less(values, 2.0**63))
    whole = pc.if_else(fits, pc.trunc(values), pa.scalar(None, pa.float64())).cast(pa.int64(), safe=False)
    return narrowed(whole, target)


def check_precision(array: pa.Array) -> pa.Array:
    """Return the decimals unchanged.

    Raises:
        Malformed: A decimal has more digits than its type allows.
    """
    if exceeds_precision(array):
        raise Malformed(f"a decimal does not fit into {array.type}")
    return array


def rescaled(array: pa.Array, target: pa.Decimal128Type) -> pa.Array:
    """Convert decimals to another precision and scale, rounded half up; a value that does not fit becomes null."""
    stored = cast("pa.Decimal128Type", array.type)
    digits = target.precision - target.scale
    # Rounding may add a digit.
    wide = pa.decimal256(max(stored.precision, digits + stored.scale) + 1, stored.scale)
    values = array.cast(wide)
    if target.scale < stored.scale:
        values = pc.round(values, target.scale, "half_towards_infinity")
    fits = pc.less(pc.abs(values), pa.scalar(Decimal(10) ** digits, wide))
    return pc.if_else(fits, values, pa.scalar(None, wide)).cast(pa.decimal256(76, target.scale)).cast(target)


def number_texts(array: pa.Array) -> pa.Array:
    """Convert integers or booleans to strings; booleans become TRUE and FALSE."""
    if pa.types.is_boolean(array.type):
        return pc.if_else(array, "TRUE", "FALSE")
    return array.cast(pa.string())
