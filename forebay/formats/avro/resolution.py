# SPDX-License-Identifier: Apache-2.0
"""Schema resolution of Avro (option `avroSchema`): arrays of a file's types become arrays of the reader's types.

The rules are those of the Java library, Avro 1.12, which spark-avro calls. The arrays on both sides have the types that
`stored_type` returns. A value whose type is not a union is never null here, because the conversion of a union passes
only non-null values to the conversions of its branches.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import ConfigurationError, DataError
from forebay.formats.avro.convert import Convert, members_of, same
from forebay.formats.avro.decode import stored_type
from forebay.formats.avro.schema import PRIMITIVES, TYPES, Node

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
        found = [at for at, one in enumerate(writer.names) if renamed.get(one, one) == name]
        if len(found) > 1:
            fields = " and ".join(repr(writer.names[at]) for at in found)
            raise self._error(
                f"the aliases of {OPTION} make {fields} the same field {column!r}", "remove one of the aliases"
            )
        if found:
            at = found[0]
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
            found = table.take(array)
            if found.null_count:
                symbol = writer.symbols[array.filter(found.is_null())[0].as_py()]
                raise DataError(
                    f"the field {column!r} of {self._path} has the symbol {symbol!r}, which the enum of {OPTION} lacks",
                    option=OPTION,
                    advice=f"add the symbol to the enum in {OPTION}, or give the enum a default",
                )
            return found

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
            return pa.concat_arrays([one.cast(target) for one in done]).take(pa.array(np.argsort(order)))

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
        readable = [one for one in alike if one.kind == "record" and self._reads(writer, one, column)]
        short = name.rpartition(".")[2]
        same = [one for one in readable if one.name.rpartition(".")[2] == short]
        promoted = [one for one in reader.children if one.kind in _PROMOTED.get(writer.kind, ())]
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
            return [stored_default(node.children[0], one, f"{column}.element") for one in value]
        case "map" if isinstance(value, dict):
            item = node.children[0]
            return [{"key": key, "value": stored_default(item, one, f"{column}.value")} for key, one in value.items()]
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
            return all(ord(one) < 256 for one in value) and (node.kind == "bytes" or len(value) == node.size)
    return isinstance(value, str) and node.kind == "string"


def _mismatch(node: Node, value: object, column: str) -> ConfigurationError:
    return ConfigurationError(
        f"in avroSchema, the default {value!r} of the field {column!r} is not a value of the type {node}",
        option="avroSchema",
        advice=f"in avroSchema, give the field a default of the type {node}",
    )


def _record(node: Node, value: dict[str, object], column: str) -> object:
    given = {**node.defaults, **value}
    missing = [name for name in node.names if name not in given]
    if missing:
        raise ConfigurationError(
            f"in avroSchema, the default of the field {column!r} lacks the inner field {missing[0]!r}, "
            "which has no default of its own",
            option="avroSchema",
            advice=f"in avroSchema, add {missing[0]!r} to the default of {column!r}",
        )
    pairs = zip(node.names, node.children, strict=True)
    return {f"f{at}": stored_default(child, given[name], f"{column}.{name}") for at, (name, child) in enumerate(pairs)}


def _union(node: Node, value: object, column: str) -> object:
    """Return the default as a value of the first branch of the union for which it is valid."""
    if value is None and any(child.kind == "null" for child in node.children):
        return None
    branches = node.branches
    for at, branch in enumerate(branches):
        try:
            found = stored_default(branch, value, column)
        except ConfigurationError:
            if at + 1 == len(branches):
                raise
            continue
        return found if len(branches) == 1 else {f"m{at}": found}
    raise _mismatch(node, value, column)
