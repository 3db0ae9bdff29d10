# SPDX-License-Identifier: Apache-2.0
"""Schema resolution of Avro (option `avroSchema`): arrays of a file's types become arrays of the reader's types.

The rules are those of the Java library, Avro 1.12, which spark-avro calls. The arrays on both sides have the types that
`stored_type` returns. A value whose type is not a union is never null here, because the conversion of a union passes
only non-null values to the conversions of its branches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import ConfigurationError, DataError
from forebay.formats.avro.container import stored_type
from forebay.formats.avro.schema import PRIMITIVES, TYPES, Malformed, Node
from forebay.formats.values.columns import ambiguous, folded
from forebay.formats.values.rebase import Rebase

# -- Converts decoded Avro columns to the types of the schema. The conversion of a column is built once per file.
#
# The supported pairs of types are those of AvroDeserializer (spark-avro 4.1), except pairs that change a value's
# meaning.


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
        match = self._matching(root, place, field.name, field.name)
        if match is None:
            return None
        return match, self.convert(root.children[match], field.type, field.name)

    def _matching(self, node: Node, place: int, name: str, column: str) -> int | None:
        if self.positional:
            return place if place < len(node.children) else None
        key = folded(name, self.case_sensitive)
        places = [at for at, child_name in enumerate(node.names) if folded(child_name, self.case_sensitive) == key]
        if len(places) > 1:
            raise ambiguous(column, [node.names[at] for at in places], self.path)
        return places[0] if places else None

    def convert(self, node: Node, target: pa.DataType, column: str) -> Convert:
        """Return the conversion from the Avro type `node` to `target`; raise ConfigurationError if there is none."""
        match node.kind:
            case "record" if isinstance(target, pa.StructType):
                children: list[tuple[int, Convert] | None] = []
                for place, field in enumerate(target):
                    inside = f"{column}.{field.name}"
                    match = self._matching(node, place, field.name, inside)
                    converted = None if match is None else self.convert(node.children[match], field.type, inside)
                    children.append(None if match is None or converted is None else (match, converted))
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
                (at, self.convert(branch, field.type, f"{column}.{field.name}"))
                for at, (branch, field) in enumerate(pairs)
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
    converted = pa.Array.from_buffers(target, len(array), [bits, pa.py_buffer(out.tobytes())])
    converted.validate(full=True)
    return converted


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


OPTION = "avroSchema"

_NULL = Node("null")
_PROMOTED = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
"""Maps a type in a file to the other types that the reader's schema may have in its place."""


class Resolver:
    """Builds the conversions from the schema of one file to the reader's schema.

    Args:
        path: The path of the file, for errors.
        reader: The reader's schema, a record.
    """

    def __init__(self, path: str, reader: Node) -> None:
        self._path = path
        self._names: dict[str, str] = {}
        self._fields: dict[str, dict[str, str]] = {}
        self._collect_aliases(reader)

    def field(self, writer: Node, reader: Node, place: int, column: str) -> Convert:
        """Return the conversion from the file's records to the values of field `place` of the reader's record.

        Raises:
            ConfigurationError: Types cannot be resolved, or a field is missing in the file and has no default.
        """
        name = reader.names[place]
        renamed = self._fields.get(self._name(writer), {})
        places = [at for at, alias in enumerate(writer.names) if renamed.get(alias, alias) == name]
        if len(places) > 1:
            fields = " and ".join(repr(writer.names[at]) for at in places)
            raise self._error(
                f"the aliases of {OPTION} make {fields} the same field {column!r}", "remove one of the aliases"
            )
        if places:
            at = places[0]
            convert = self.convert(writer.children[at], reader.children[place], column)
            return lambda records: convert(cast("pa.StructArray", records).field(at))
        if name not in reader.defaults:
            raise self._error(
                f"the field {column!r} of {OPTION} has no default, and the record {writer.name!r} of this file "
                "does not have this field",
                f"in {OPTION}, give the field a default or an alias. Aliases of fields apply only if the record in "
                f"the file has the name {reader.name!r} or one of its aliases",
            )
        child = reader.children[place]
        value = pa.array([stored_default(child, reader.defaults[name], column)], stored_type(child))
        return lambda records: value.take(pa.repeat(pa.scalar(0), len(records)))

    def convert(self, writer: Node, reader: Node, column: str) -> Convert:
        """Return the conversion from the file's type to the reader's; raise ConfigurationError if there is none."""
        if writer == reader:
            return same
        if writer.kind == "union":
            return self._from_union(writer, reader, column)
        if reader.kind == "union":
            return self._to_union(writer, reader, column)
        if writer.kind != reader.kind:
            if reader.kind not in _PROMOTED.get(writer.kind, ()) or _contradict(writer, reader):
                raise self._mismatch(writer, reader, column)
            return _promotion(reader)
        match writer.kind:
            case "record":
                return self._record(writer, reader, column)
            case "array":
                return _items(self.convert(writer.children[0], reader.children[0], f"{column}.element"), reader)
            case "map":
                return _items(_entries(self.convert(writer.children[0], reader.children[0], f"{column}.value")), reader)
        return self._leaf(writer, reader, column)

    def _leaf(self, writer: Node, reader: Node, column: str) -> Convert:
        if writer.kind not in PRIMITIVES and self._name(writer) != reader.name:
            raise self._error(
                f"the field {column!r} has the {writer.kind} {writer.name!r} as its type in this file, "
                f"but {reader.name!r} in {OPTION}",
                f"in {OPTION}, give the type the name {writer.name!r}, or add this name to its aliases",
            )
        if _contradict(writer, reader) or writer.size != reader.size:
            raise self._mismatch(writer, reader, column)
        return self._enum(writer, reader, column) if writer.kind == "enum" else same

    def _record(self, writer: Node, reader: Node, column: str) -> Convert:
        fields = [self.field(writer, reader, at, f"{column}.{name}") for at, name in enumerate(reader.names)]
        target = cast("pa.StructType", stored_type(reader))

        def convert(array: pa.Array) -> pa.Array:
            if not fields:
                return pa.array([{}] * len(array), target)
            return pa.StructArray.from_arrays([field(array) for field in fields], fields=list(target))

        return convert

    def _enum(self, writer: Node, reader: Node, column: str) -> Convert:
        places = {symbol: at for at, symbol in enumerate(reader.symbols)}
        default = None if reader.default is None else places.get(reader.default)
        table = pa.array([places.get(symbol, default) for symbol in writer.symbols], pa.int32())

        def convert(array: pa.Array) -> pa.Array:
            taken = table.take(array)
            if taken.null_count:
                symbol = writer.symbols[array.filter(taken.is_null())[0].as_py()]
                raise DataError(
                    f"the field {column!r} of {self._path} has the symbol {symbol!r}, which the enum of {OPTION} lacks",
                    option=OPTION,
                    advice=f"add the symbol to the enum in {OPTION}, or give the enum a default",
                )
            return taken

        return convert

    def _from_union(self, writer: Node, reader: Node, column: str) -> Convert:
        """Return a conversion that converts the values of each branch separately.

        A branch without a conversion is an error only if the file has a value of it.
        """
        parts = [self._if_any(branch, reader, column) for branch in writer.branches]
        nulls = self._if_any(_NULL, reader, column)
        if parts == [same] and _NULL.kind in {child.kind for child in reader.children}:
            return same
        target = stored_type(reader)

        def convert(array: pa.Array) -> pa.Array:
            members = [array] if len(parts) == 1 else members_of(array) if parts else []
            valid = [np.asarray(member.is_valid()) for member in members]
            missing = ~np.logical_or.reduce([*valid, np.zeros(len(array), bool)])
            done = [part(member.drop_null()) for part, member in zip(parts, members, strict=True)]
            done.append(nulls(pa.nulls(int(missing.sum()))))
            order = np.concatenate([np.flatnonzero(rows) for rows in (*valid, missing)])
            return pa.concat_arrays([part.cast(target) for part in done]).take(pa.array(np.argsort(order)))

        return convert

    def _to_union(self, writer: Node, reader: Node, column: str) -> Convert:
        chosen = self._branch(writer, reader, column)
        target = stored_type(reader)
        if chosen.kind == "null":
            return lambda array: pa.nulls(len(array), target)
        inside = self.convert(writer, chosen, column)
        branches = reader.branches
        if len(branches) == 1:
            return inside
        fields = list(cast("pa.StructType", target))

        def convert(array: pa.Array) -> pa.Array:
            members = [
                inside(array) if branch is chosen else pa.nulls(len(array), field.type)
                for branch, field in zip(branches, fields, strict=True)
            ]
            return pa.StructArray.from_arrays(members, fields=fields)

        return convert

    def _branch(self, writer: Node, reader: Node, column: str) -> Node:
        """Return the branch of the union `reader` that takes values of the file's type `writer`.

        It is a branch of the same type and name, else a record that can be resolved, else a wider type.
        """
        alike = [branch for branch in reader.children if branch.kind == writer.kind]
        name = self._name(writer)
        for branch in alike:
            if writer.kind not in ("record", "enum", "fixed") or branch.name == name:
                return branch
        readable = [
            candidate for candidate in alike if candidate.kind == "record" and self._reads(writer, candidate, column)
        ]
        short = name.rpartition(".")[2]
        same = [candidate for candidate in readable if candidate.name.rpartition(".")[2] == short]
        promoted = [candidate for candidate in reader.children if candidate.kind in _PROMOTED.get(writer.kind, ())]
        for branch in (*same[-1:], *readable, *promoted):
            return branch
        raise self._mismatch(writer, reader, column)

    def _reads(self, writer: Node, reader: Node, column: str) -> bool:
        try:
            self.convert(writer, reader, column)
        except ConfigurationError:
            return False
        return True

    def _if_any(self, writer: Node, reader: Node, column: str) -> Convert:
        """Return the conversion of a branch; if there is none, a function that raises the error if it gets a value."""
        try:
            return self.convert(writer, reader, column)
        except ConfigurationError as failure:
            error = failure
        target = stored_type(reader)

        def refuse(array: pa.Array) -> pa.Array:
            if len(array):
                raise error
            return pa.array([], target)

        return refuse

    def _name(self, writer: Node) -> str:
        return self._names.get(writer.name, writer.name)

    def _collect_aliases(self, node: Node) -> None:
        """Collect the aliases of all types, and for each record the aliases of its fields, as Avro does."""
        self._names |= dict.fromkeys(node.aliases, node.name)
        for name, aliases in zip(node.names, node.field_aliases, strict=True):
            self._fields.setdefault(node.name, {}).update(dict.fromkeys(aliases, name))
        for child in node.children:
            self._collect_aliases(child)

    def _mismatch(self, writer: Node, reader: Node, column: str) -> ConfigurationError:
        return self._error(
            f"the field {column!r} is {writer} in this file, and cannot be read as {reader}",
            f"in {OPTION}, give the field the type of the file, or a union with that type, and cast it in the query",
        )

    def _error(self, message: str, advice: str) -> ConfigurationError:
        return ConfigurationError(f"{self._path}: {message}", option=OPTION, advice=advice)


def _contradict(writer: Node, reader: Node) -> bool:
    """Return whether the reader's logical type changes the meaning of values, such as milliseconds to microseconds.

    Avro itself does not notice, because it resolves only the underlying types.
    """
    if writer.logical is None or reader.logical is None:
        return False
    return (writer.logical, writer.scale) != (reader.logical, reader.scale)


def _promotion(reader: Node) -> Convert:
    target = TYPES[reader.kind]

    def convert(array: pa.Array) -> pa.Array:
        try:
            return array.cast(target, safe=reader.kind == "string")  # numbers are rounded as in Java
        except pa.ArrowInvalid:
            return pa.array([value.decode("utf-8", "replace") for value in array.to_pylist()], target)

    return convert


def _items(convert_items: Convert, reader: Node) -> Convert:
    target = stored_type(reader)

    def convert(array: pa.Array) -> pa.Array:
        lists = cast("pa.ListArray", array)
        offsets = pc.subtract(lists.offsets, lists.offsets[0])
        return pa.ListArray.from_arrays(offsets, convert_items(lists.flatten())).cast(target)

    return convert


def _entries(convert_values: Convert) -> Convert:
    def convert(array: pa.Array) -> pa.Array:
        entries = cast("pa.StructArray", array)
        return pa.StructArray.from_arrays([entries.field(0), convert_values(entries.field(1))], ["key", "value"])

    return convert


# -- Converts default values in the reader's schema from JSON to values as `Decoder` stores them in Arrow.


_LIMITS = {"int": 1 << 31, "long": 1 << 63}


def stored_default(node: Node, value: object, column: str) -> object:
    """Return the default of a field as `Decoder` stores values of the field's type in Arrow.

    Args:
        node: The type of the field.
        value: The default as parsed JSON.
        column: The path of the field, for errors.

    Raises:
        ConfigurationError: The default does not have the type of the field.
    """
    match node.kind:
        case "array" if isinstance(value, list):
            return [stored_default(node.children[0], element, f"{column}.element") for element in value]
        case "map" if isinstance(value, dict):
            item = node.children[0]
            return [
                {"key": key, "value": stored_default(item, entry, f"{column}.value")} for key, entry in value.items()
            ]
        case "record" if isinstance(value, dict):
            return _record(node, value, column)
        case "union":
            return _union(node, value, column)
        case "enum" if value in node.symbols:
            return node.symbols.index(str(value))
    if not _is_primitive(node, value):
        raise _mismatch(node, value, column)
    if isinstance(value, bool):
        return -int(value)  # the decoder stores true as -1
    if isinstance(value, str) and node.kind != "string":
        return value.encode("latin-1")
    return value


def _is_primitive(node: Node, value: object) -> bool:
    """Return whether a JSON value is a valid default of `node`, if that is a primitive type or a fixed."""
    match value:
        case None:
            return node.kind == "null"
        case bool():
            return node.kind == "boolean"
        case int() if node.kind in _LIMITS:
            return -_LIMITS[node.kind] <= value < _LIMITS[node.kind]
        case int() | float():
            return node.kind in ("float", "double")
        case str() if node.kind in ("bytes", "fixed"):  # a character is a byte
            return all(ord(char) < 256 for char in value) and (node.kind == "bytes" or len(value) == node.size)
    return isinstance(value, str) and node.kind == "string"


def _mismatch(node: Node, value: object, column: str) -> ConfigurationError:
    return ConfigurationError(
        f"in avroSchema, the default {value!r} of the field {column!r} is not a value of the type {node}",
        option="avroSchema",
        advice=f"in avroSchema, give the field a default of the type {node}",
    )


def _record(node: Node, value: dict[str, object], column: str) -> object:
    values = {**node.defaults, **value}
    missing = [name for name in node.names if name not in values]
    if missing:
        raise ConfigurationError(
            f"in avroSchema, the default of the field {column!r} lacks the inner field {missing[0]!r}, "
            "which has no default of its own",
            option="avroSchema",
            advice=f"in avroSchema, add {missing[0]!r} to the default of {column!r}",
        )
    pairs = zip(node.names, node.children, strict=True)
    return {f"f{at}": stored_default(child, values[name], f"{column}.{name}") for at, (name, child) in enumerate(pairs)}


def _union(node: Node, value: object, column: str) -> object:
    """Return the default as a value of the first branch of the union for which it is valid."""
    if value is None and any(child.kind == "null" for child in node.children):
        return None
    branches = node.branches
    for at, branch in enumerate(branches):
        try:
            stored = stored_default(branch, value, column)
        except ConfigurationError:
            if at + 1 == len(branches):
                raise
            continue
        return stored if len(branches) == 1 else {f"m{at}": stored}
    raise _mismatch(node, value, column)
