# SPDX-License-Identifier: Apache-2.0
"""Schema resolution of Avro (option `avroSchema`): the type of a file, as the reader's schema names and completes it.

The rules are those of the Java library, Avro 1.12, which spark-avro calls. A union of several types is refused unless
both schemas have the same one: its values would be resolved one by one.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.formats.avro.decode import stored_type
from forebay.formats.avro.schema import OPTION, PRIMITIVES, Node

_NULL = Node("null")
_PROMOTED = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
"""Maps a type in a file to the other types that the reader's schema may have in its place."""
_LIMITS = {"int": 1 << 31, "long": 1 << 63}


class Resolver:
    """Resolves the schema of one file to the reader's schema.

    Args:
        path: The path of the file, for errors.
        reader: The reader's schema, a record.
    """

    def __init__(self, path: str, reader: Node) -> None:
        self._path = path
        self._names: dict[str, str] = {}
        self._fields: dict[str, dict[str, str]] = {}
        self._collect_aliases(reader)

    def record(self, writer: Node, reader: Node, column: str, wanted: set[str] | None = None) -> Node:
        """Return the file's record with the fields of the reader's record, or only with those that are wanted.

        Raises:
            ConfigurationError: Types cannot be resolved, or a field is missing in the file and has no default.
        """
        resolved = Node("record", places=[])
        for name, child in zip(reader.names, reader.children, strict=True):
            if wanted is None or name in wanted:
                place, node = self._field(writer, reader, name, child, f"{column}.{name}" if column else name)
                resolved.names.append(name)
                resolved.children.append(node)
                resolved.places = [*(resolved.places or []), place]
        return resolved

    def _field(self, writer: Node, reader: Node, name: str, child: Node, column: str) -> tuple[int | pa.Array, Node]:
        renamed = self._fields.get(self._name(writer), {})
        places = [at for at, alias in enumerate(writer.names) if renamed.get(alias, alias) == name]
        if len(places) > 1:
            fields = " and ".join(repr(writer.names[at]) for at in places)
            raise self._error(
                f"the aliases of {OPTION} make {fields} the same field {column!r}", "remove one of the aliases"
            )
        if places:
            return places[0], self._resolved(writer.children[places[0]], child, column)
        if name not in reader.defaults:
            raise self._error(
                f"the field {column!r} of {OPTION} has no default, and the record {writer.name!r} of this file "
                "does not have this field",
                f"in {OPTION}, give the field a default or an alias. Aliases of fields apply only if the record in "
                f"the file has the name {reader.name!r} or one of its aliases",
            )
        default = pa.array([stored_default(child, reader.defaults[name], column)], stored_type(child))
        return default, child

    def _resolved(self, writer: Node, reader: Node, column: str) -> Node:
        if writer == reader:
            return writer
        if "union" in (writer.kind, reader.kind):
            return self._union(writer, reader, column)
        if writer.kind != reader.kind:
            if reader.kind not in _PROMOTED.get(writer.kind, ()) or _contradict(writer, reader):
                raise self._mismatch(writer, reader, column)
            return replace(reader, promoted=writer.kind)
        match writer.kind:
            case "record":
                return self.record(writer, reader, column)
            case "array" | "map":
                inside = "element" if writer.kind == "array" else "value"
                child = self._resolved(writer.children[0], reader.children[0], f"{column}.{inside}")
                return Node(writer.kind, children=[child])
        if writer.kind not in PRIMITIVES and self._name(writer) != reader.name:
            raise self._error(
                f"the field {column!r} has the {writer.kind} {writer.name!r} as its type in this file, "
                f"but {reader.name!r} in {OPTION}",
                f"in {OPTION}, give the type the name {writer.name!r}, or add this name to its aliases",
            )
        if _contradict(writer, reader) or writer.size != reader.size:
            raise self._mismatch(writer, reader, column)
        if writer.kind == "enum":
            default = reader.default if reader.default in reader.symbols else None
            symbols = (symbol if symbol in reader.symbols else default for symbol in writer.symbols)
            return replace(writer, symbols=tuple(symbols))
        return reader

    def _union(self, writer: Node, reader: Node, column: str) -> Node:
        """Resolve types of which one is a union, or both are: of one type and maybe null."""
        for node in (writer, reader):
            if len(node.branches) > 1:
                raise ConfigurationError(
                    f"{self._path}: the field {column!r} is {writer} in this file and {reader} in {OPTION}: forebay "
                    "resolves no unions of several types",
                    option=OPTION,
                    advice="read the file with spark.read.format('avro')",
                )
        stored, read = (node.branches[0] if node.branches else _NULL for node in _as_unions(writer, reader))
        nullable = reader.kind in ("union", "null") and _NULL in (reader, *reader.children)
        if stored.kind == "null" and nullable:
            return _NULL
        if "null" in (stored.kind, read.kind):
            raise self._mismatch(writer, reader, column)
        resolved = self._resolved(stored, read, column)
        if writer.kind != "union" or _NULL not in writer.children:
            return resolved
        return Node("union", children=[_NULL, resolved] if nullable else [resolved])

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
            f"in {OPTION}, give the field the type of the file, or a union with null, and cast it in the query",
        )

    def _error(self, message: str, advice: str) -> ConfigurationError:
        return ConfigurationError(f"{self._path}: {message}", option=OPTION, advice=advice)


def _as_unions(*nodes: Node) -> list[Node]:
    return [node if node.kind == "union" else Node("union", children=[node]) for node in nodes]


def _contradict(writer: Node, reader: Node) -> bool:
    """Return whether the reader's logical type changes the meaning of values, such as milliseconds to microseconds.

    Avro itself does not notice, because it resolves only the underlying types.
    """
    if writer.logical is None or reader.logical is None:
        return False
    return (writer.logical, writer.scale) != (reader.logical, reader.scale)


def stored_default(node: Node, value: object, column: str) -> object:
    """Return the default of a field, which is parsed JSON, as `Decoder` stores values of the field's type in Arrow.

    Raises:
        ConfigurationError: The default does not have the type of the field.
    """
    match node.kind:
        case "array" if isinstance(value, list):
            return [stored_default(node.children[0], element, f"{column}.element") for element in value]
        case "map" if isinstance(value, dict):
            item = node.children[0]
            entries = value.items()
            return [{"key": key, "value": stored_default(item, entry, f"{column}.value")} for key, entry in entries]
        case "record" if isinstance(value, dict) and {*node.names} <= {*node.defaults, *value}:
            values = {**node.defaults, **value}
            fields = enumerate(zip(node.names, node.children, strict=True))
            return {f"f{at}": stored_default(child, values[name], f"{column}.{name}") for at, (name, child) in fields}
        case "union" if value is None and _NULL in node.children:
            return None
        case "union" if len(node.branches) == 1:
            return stored_default(node.branches[0], value, column)
        case "enum" if value in node.symbols:
            return node.symbols.index(str(value))
    if not _is_primitive(node, value):
        raise ConfigurationError(
            f"in avroSchema, the default {value!r} of the field {column!r} is not a value of the type {node}",
            option=OPTION,
            advice=f"in avroSchema, give the field a default of the type {node}, and no union of several types",
        )
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
