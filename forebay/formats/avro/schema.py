# SPDX-License-Identifier: Apache-2.0
"""Parses Avro schemas from JSON, and returns the types that Spark infers (SchemaConverters of spark-avro 4.1)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

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
