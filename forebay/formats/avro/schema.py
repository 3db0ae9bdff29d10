# SPDX-License-Identifier: Apache-2.0
"""Avro schemas: parsed from JSON, as Spark's types (SchemaConverters of spark-avro 4.1), resolved to another schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.formats.units import Malformed

OPTION = "avroSchema"
"""The option that gives the reader's schema."""
PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_MAX_DECIMAL_DIGITS = 38
_LEAST_BYTES = {"null": 0, "float": 4, "double": 8}
_INSTANTS = ("timestamp-millis", "timestamp-micros")
_LOCAL_TIMES = ("local-timestamp-millis", "local-timestamp-micros")


@dataclass(slots=True)
class Node:
    """A type of an Avro schema.

    Attributes:
        kind: The name of a primitive type, or `record`, `enum`, `array`, `map`, `union`, `fixed`.
        name: The full name of a record, enum or fixed.
        aliases: The other full names of the type.
        names: The names of a record's fields.
        field_aliases: The other names of each field, in the order of `names`.
        defaults: The defaults of those fields that have one, by name, as parsed JSON.
        children: The types of a record's fields, an array's items, a map's values, or a union's branches.
        symbols: The symbols of an enum; None for one that another schema lacks.
        default: The default symbol of an enum.
        size: The number of bytes of a fixed.
        logical: The logical type.
        places: Of a record that is resolved to another schema, where the values of each field are.
        promoted: Of a type that is resolved to another one, the kind in the file.
    """

    kind: str
    name: str = ""
    aliases: tuple[str, ...] = ()
    names: list[str] = field(default_factory=list)
    field_aliases: list[tuple[str, ...]] = field(default_factory=list)
    defaults: dict[str, object] = field(default_factory=dict)
    children: list[Node] = field(default_factory=list)
    symbols: tuple[str | None, ...] = ()
    default: str | None = None
    size: int = 0
    logical: str | None = None
    precision: int = 0
    scale: int = 0
    places: list[int | pa.Array] | None = None
    promoted: str = ""

    @property
    def branches(self) -> list[Node]:
        """The branches of a union that are not null."""
        return [child for child in self.children if child.kind != "null"]

    @property
    def least_bytes(self) -> int:
        """The fewest bytes that an encoded value of this type can have."""
        if self.kind == "record":
            return sum(child.least_bytes for child in self.children)
        return self.size if self.kind == "fixed" else _LEAST_BYTES.get(self.kind, 1)

    def __str__(self) -> str:
        """Return the type as error messages show it."""
        inside = ", ".join(str(child) for child in self.children) if self.kind in ("union", "array", "map") else ""
        return (self.logical or self.kind) + (f"<{inside}>" if inside else "")


def parse_schema(text: str | bytes) -> Node:
    """Parse a schema in JSON; raise Malformed if it is invalid, and ConfigurationError if it is not supported."""
    try:
        return _Parser().node(json.loads(text), "")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise error if isinstance(error, Malformed) else Malformed(f"the Avro schema is invalid: {error!r}") from None


class _Parser:
    def __init__(self) -> None:
        self._known: dict[str, Node | None] = {}

    def node(self, spec: object, space: str) -> Node:
        if isinstance(spec, str):
            return self._named(spec, space)
        if isinstance(spec, list):
            return Node("union", children=[self.node(part, space) for part in spec])
        if not isinstance(spec, dict):
            raise Malformed(f"the Avro schema has {spec!r} where a type is required")
        kind = spec["type"]
        if kind == "error":
            kind = "record"
        if kind in ("record", "enum", "fixed"):
            return self._definition(kind, spec, space)
        if kind == "array":
            return self._with_bytes(Node("array", children=[self.node(spec["items"], space)]))
        if kind == "map":
            return Node("map", children=[self.node(spec["values"], space)])
        node = self.node(kind, space)
        return _logical(node, spec) if node.kind in PRIMITIVES else node

    @staticmethod
    def _with_bytes(array: Node) -> Node:
        if not array.children[0].least_bytes:
            raise ConfigurationError(
                "the Avro schema has an array whose items take no bytes, so a tiny file could state billions of them",
                advice="read the file with Spark's own reader",
            )
        return array

    def _named(self, name: str, space: str) -> Node:
        if name in PRIMITIVES:
            return Node(name)
        full = name if "." in name or not space else f"{space}.{name}"
        full = full if full in self._known else name
        node = self._known[full]
        if node is None:
            raise ConfigurationError(
                f"the Avro schema is recursive: {full} contains itself",
                advice="read the file with Spark's own reader, whose recursiveFieldMaxDepth limits the recursion",
            )
        return node

    def _definition(self, kind: str, spec: Mapping[str, object], space: str) -> Node:
        name = str(spec["name"])
        space = name.rpartition(".")[0] if "." in name else str(spec.get("namespace", space) or "")
        full = name if "." in name or not space else f"{space}.{name}"
        others = _texts(spec.get("aliases"))
        node = Node(kind, full, tuple(alias if "." in alias or not space else f"{space}.{alias}" for alias in others))
        self._known[full] = None
        if kind == "enum":
            node.symbols = _texts(spec["symbols"])
            node.default = None if spec.get("default") is None else str(spec["default"])
        elif kind == "fixed":
            node.size = int(str(spec["size"]))
            if node.size < 0:
                raise Malformed(f"the Avro schema is invalid: {full} has {node.size} bytes")
            _logical(node, spec)
        else:
            fields = spec["fields"]
            for item in fields if isinstance(fields, list) else []:
                node.names.append(str(item["name"]))
                node.field_aliases.append(_texts(item.get("aliases")))
                node.children.append(self.node(item["type"], space))
                if "default" in item:
                    node.defaults[node.names[-1]] = item["default"]
        self._known[full] = node
        return node


def _texts(values: object) -> tuple[str, ...]:
    return tuple(str(value) for value in values) if isinstance(values, list) else ()


def _logical(node: Node, spec: Mapping[str, object]) -> Node:
    """Set the logical type of `node` and return `node`. Ignore a logical type that is invalid for it, as Avro does."""
    name = str(spec.get("logicalType", ""))
    if name == "decimal" and node.kind in ("bytes", "fixed"):
        precision, scale = spec.get("precision"), spec.get("scale", 0)
        most = most_digits(node.size) if node.kind == "fixed" else None
        if not isinstance(precision, int) or not isinstance(scale, int) or not 0 <= scale <= precision:
            return node
        if precision <= 0 or (most is not None and precision > most):
            return node
        node.logical, node.precision, node.scale = name, precision, scale
    elif (name == "date" and node.kind == "int") or (name in _INSTANTS + _LOCAL_TIMES and node.kind == "long"):
        node.logical = name
    return node


def most_digits(size: int) -> int:
    """Return how many decimal digits always fit into a two's complement number of `size` bytes."""
    return len(str((1 << (8 * size - 1)) - 1)) - 1 if size else 0


def spark_type(node: Node) -> pa.DataType:
    """Return the type that Spark infers for an Avro type.

    Raises:
        ConfigurationError: Spark has no such type.
    """
    match node.kind:
        case "record":
            pairs = zip(node.names, node.children, strict=True)
            return pa.struct([pa.field(name, spark_type(child)) for name, child in pairs])
        case "array":
            return pa.list_(pa.field("element", spark_type(node.children[0])))
        case "map":
            return pa.map_(pa.string(), spark_type(node.children[0]))
        case "union":
            return _union_type(node.branches)
    if node.logical == "decimal":
        if node.precision > _MAX_DECIMAL_DIGITS:
            raise ConfigurationError(
                f"the Avro schema has a decimal of {node.precision} digits, but Spark supports {_MAX_DECIMAL_DIGITS}",
                advice="give a schema, or an avroSchema, without the column whose Avro type has "
                f'"precision": {node.precision}',
            )
        return pa.decimal128(node.precision, node.scale)
    if node.logical is not None:
        return LOGICAL[node.logical]
    return TYPES[node.kind]


def _union_type(branches: list[Node]) -> pa.DataType:
    kinds = {branch.kind for branch in branches}
    if not branches:
        return pa.null()
    if len(branches) == 1:
        return spark_type(branches[0])
    if kinds == {"int", "long"}:
        return pa.int64()
    if kinds == {"float", "double"}:
        return pa.float64()
    return pa.struct([pa.field(f"member{at}", spark_type(branch)) for at, branch in enumerate(branches)])


TYPES: dict[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
LOGICAL: dict[str, pa.DataType] = {
    "date": pa.date32(),
    **dict.fromkeys(_INSTANTS, pa.timestamp("us", "UTC")),
    **dict.fromkeys(_LOCAL_TIMES, pa.timestamp("us")),
}


def stored_type(node: Node) -> pa.DataType:
    """Return the Arrow type to which `Decoder` decodes an Avro type."""
    match node.kind:
        case "record":
            return pa.struct([pa.field(f"f{at}", stored_type(child)) for at, child in enumerate(node.children)])
        case "array":
            return pa.list_(stored_type(node.children[0]))
        case "map":
            entry = [pa.field("key", pa.string()), pa.field("value", stored_type(node.children[0]))]
            return pa.list_(pa.struct(entry))
        case "union" if not node.branches:
            return pa.null()
        case "union" if len(node.branches) == 1:
            return stored_type(node.branches[0])
        case "union":
            return pa.struct([pa.field(f"m{at}", stored_type(branch)) for at, branch in enumerate(node.branches)])
        case "enum" | "boolean":
            return pa.int32()
    return TYPES[node.kind]


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
        taken = [alias for alias, field in renamed.items() if field == name and alias in reader.names]
        if taken and name in writer.names:
            raise self._error(
                f"the field {column!r} of {OPTION} has the alias {taken[0]!r}, which is another of its fields, and the "
                "file has both",
                "remove this alias",
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
            if node.kind == "union" and len(node.branches) > 1:
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
