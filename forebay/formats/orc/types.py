# SPDX-License-Identifier: Apache-2.0
"""Parses the tree of types in the footer of an ORC file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from forebay.formats.orc import wire
from forebay.formats.orc.wire import Malformed

_MOST_DEPTH = 250


class Kind(IntEnum):
    """The kinds of types, as numbered in orc_proto.proto."""

    BOOLEAN = 0
    BYTE = 1
    SHORT = 2
    INT = 3
    LONG = 4
    FLOAT = 5
    DOUBLE = 6
    STRING = 7
    BINARY = 8
    TIMESTAMP = 9
    LIST = 10
    MAP = 11
    STRUCT = 12
    UNION = 13
    DECIMAL = 14
    DATE = 15
    VARCHAR = 16
    CHAR = 17
    TIMESTAMP_INSTANT = 18


TEXTS = frozenset({Kind.STRING, Kind.VARCHAR, Kind.CHAR})
_PARTS = {Kind.LIST: 1, Kind.MAP: 2}
_NAMES = {
    Kind.BYTE: "tinyint",
    Kind.SHORT: "smallint",
    Kind.LONG: "bigint",
    Kind.LIST: "array",
    Kind.UNION: "uniontype",
}


@dataclass(frozen=True, slots=True)
class Node:
    """A type of a file.

    Args:
        id: The number of the type. Streams name their column by this number.
        kind: The kind of the type.
        names: The names of a struct's fields.
        children: The types inside this type.
        length: The maximum length of CHAR and VARCHAR.
        precision: The precision of DECIMAL.
        scale: The scale of DECIMAL.
        attributes: Attributes that the writer added, such as Spark's own type.
    """

    id: int
    kind: Kind
    names: tuple[str, ...] = ()
    children: tuple[Node, ...] = ()
    length: int = 0
    precision: int = 38
    scale: int = 0
    attributes: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the type as ORC and Hive write it."""
        name = _NAMES.get(self.kind, self.kind.name.lower())
        match self.kind:
            case Kind.STRUCT:
                inside = (f"{name}:{child}" for name, child in zip(self.names, self.children, strict=True))
                return f"{name}<{','.join(inside)}>"
            case Kind.LIST | Kind.MAP | Kind.UNION:
                return f"{name}<{','.join(map(str, self.children))}>"
            case Kind.CHAR | Kind.VARCHAR:
                return f"{name}({self.length})"
            case Kind.DECIMAL:
                return f"{name}({self.precision},{self.scale})"
            case Kind.TIMESTAMP_INSTANT:
                return "timestamp with local time zone"
        return name

    def walk(self) -> Iterator[Node]:
        """Yield this type and the types inside it, in the order of their ids."""
        yield self
        for child in self.children:
            yield from child.walk()


def parse_types(parts: Sequence[bytes]) -> Node:
    """Return the root of the types of a footer; raise Malformed unless they form a tree in the order of their ids."""
    raw = [wire.parse(part) for part in parts]
    if not raw:
        raise Malformed("the footer has no types")
    taken = [0]
    root = _node(raw, taken, 0)
    if taken[0] != len(raw):
        raise Malformed(f"{len(raw) - taken[0]} types in the footer belong to no column")
    return root


def _node(raw: Sequence[wire.Fields], taken: list[int], depth: int) -> Node:
    number = taken[0]
    if number >= len(raw) or depth > _MOST_DEPTH:
        raise Malformed("the types in the footer do not form a tree")
    taken[0] += 1
    fields = raw[number]
    try:
        kind = Kind(wire.number(fields, 1))
    except ValueError as error:
        raise Malformed(f"a type in the footer has the unknown kind {wire.number(fields, 1)}") from error
    inside = wire.numbers(fields, 2)
    names = tuple(_decoded(name) for name in wire.messages(fields, 3))
    nested = kind in (Kind.STRUCT, Kind.UNION)
    if (not nested and len(inside) != _PARTS.get(kind, 0)) or (kind is Kind.STRUCT and len(names) != len(inside)):
        raise Malformed(f"type {number} of kind {kind.name} cannot have {len(inside)} children and {len(names)} names")
    children = []
    for child in inside:
        if child != taken[0]:
            raise Malformed("the types in the footer are not in the order of their ids")
        children.append(_node(raw, taken, depth + 1))
    precision, scale = wire.number(fields, 5, 38) or 38, wire.number(fields, 6)
    if kind is Kind.DECIMAL and not (precision <= 38 and scale <= precision):
        raise Malformed(f"a decimal type has {precision} digits and scale {scale}, which is not valid")
    pairs = [wire.parse(pair) for pair in wire.messages(fields, 7)]
    attributes = {wire.text(pair, 1) or "": wire.text(pair, 2) or "" for pair in pairs}
    return Node(number, kind, names, tuple(children), wire.number(fields, 4), precision, scale, attributes)


def _decoded(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise Malformed("the name of a column is not UTF-8") from error
