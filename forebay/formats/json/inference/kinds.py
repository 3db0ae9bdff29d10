# SPDX-License-Identifier: Apache-2.0
"""The types of values in schema inference ("kinds"), and how Spark merges them.

Merging follows JsonInferSchema.compatibleType of Spark 4.2.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

import pyarrow as pa

from forebay.formats.json.options import JsonOptions

_MAX_DIGITS = 38


class Simple(Enum):
    """The kinds of scalar values."""

    NULL = "null"
    BOOLEAN = "boolean"
    LONG = "long"
    DOUBLE = "double"
    STRING = "string"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True)
class Digits:
    """The kind of decimal numbers that fit into this precision and scale."""

    precision: int
    scale: int


@dataclass(frozen=True, slots=True)
class ListOf:
    """The kind of arrays."""

    element: Kind


@dataclass(frozen=True, slots=True)
class Struct:
    """The kind of objects. Its fields are sorted by name in Java's order; a name may occur more than once."""

    fields: tuple[tuple[str, Kind], ...]

    @staticmethod
    def of(fields: list[tuple[str, Kind]]) -> Struct:
        """Return the kind of objects with the given fields, which may be in any order."""
        return Struct(tuple(sorted(fields, key=lambda field: java_order(field[0]))))


Kind: TypeAlias = Simple | Digits | ListOf | Struct

NULL, LONG, DOUBLE, STRING = Simple.NULL, Simple.LONG, Simple.DOUBLE, Simple.STRING
_LONG_DIGITS = Digits(20, 0)


def java_order(name: str) -> bytes:
    """Return a sort key that orders names as Java does, which compares UTF-16 code units."""
    return name.encode("utf-16-be", "surrogatepass")


def merged(left: Kind, right: Kind) -> Kind:
    """Return the narrowest kind that covers all values of both kinds."""
    if left == right:
        return left
    if NULL in (left, right):
        return right if left == NULL else left
    if isinstance(left, Struct) and isinstance(right, Struct):
        return _merged_structs(left, right)
    if isinstance(left, ListOf) and isinstance(right, ListOf):
        return ListOf(merged(left.element, right.element))
    if isinstance(left, Digits) or isinstance(right, Digits):
        return _merged_digits(left, right)
    if {left, right} == {LONG, DOUBLE}:
        return DOUBLE
    return STRING


def _merged_digits(left: Kind, right: Kind) -> Kind:
    if DOUBLE in (left, right):
        return DOUBLE
    one = _LONG_DIGITS if left == LONG else left
    other = _LONG_DIGITS if right == LONG else right
    if not (isinstance(one, Digits) and isinstance(other, Digits)):
        return STRING
    scale = max(one.scale, other.scale)
    whole = max(one.precision - one.scale, other.precision - other.scale)
    return DOUBLE if whole + scale > _MAX_DIGITS else Digits(whole + scale, scale)


def _merged_structs(left: Struct, right: Struct) -> Struct:
    ones, others = list(left.fields), list(right.fields)
    fields: list[tuple[str, Kind]] = []
    one = other = 0
    while one < len(ones) and other < len(others):
        name, kind = ones[one]
        other_name, other_kind = others[other]
        if name == other_name:
            fields.append((name, merged(kind, other_kind)))
            one, other = one + 1, other + 1
        elif java_order(name) < java_order(other_name):
            fields.append(ones[one])
            one += 1
        else:
            fields.append(others[other])
            other += 1
    return Struct((*fields, *ones[one:], *others[other:]))


def levels(kind: Kind) -> int:
    """Return the number of levels of a kind. Does not recurse, because a record may have a thousand."""
    most, waiting = 0, [(kind, 1)]
    while waiting:
        found, level = waiting.pop()
        most = max(most, level)
        if isinstance(found, ListOf):
            waiting.append((found.element, level + 1))
        elif isinstance(found, Struct):
            waiting += [(inside, level + 1) for _, inside in found.fields]
    return most


class Merging:
    """Merges many kinds into one.

    It merges kinds of similar size in pairs, so that a wide kind is not copied each time.
    """

    def __init__(self) -> None:
        self._parts: list[tuple[int, Kind]] = []  # count and kind; counts descend

    @property
    def parts(self) -> list[Kind]:
        """The kinds that are not merged with one another yet."""
        return [kind for _, kind in self._parts]

    def add(self, kind: Kind) -> None:
        """Add one kind to merge."""
        if self._parts and self._parts[-1][1] == kind:
            return
        count = 1
        while self._parts and self._parts[-1][0] <= count:
            before, left = self._parts.pop()
            count, kind = before + count, merged(left, kind)
        self._parts.append((count, kind))

    def result(self) -> Kind:
        """Return the narrowest kind that covers all added kinds; NULL if there are none."""
        kind: Kind = NULL
        for _, left in reversed(self._parts):
            kind = merged(left, kind)
        return kind


_ARROW = {
    Simple.BOOLEAN: pa.bool_(),
    Simple.LONG: pa.int64(),
    Simple.DOUBLE: pa.float64(),
    Simple.STRING: pa.string(),
    Simple.TIMESTAMP: pa.timestamp("us", "UTC"),
}


def arrow_type(kind: Kind, options: JsonOptions) -> pa.DataType | None:
    """Return the Arrow type for a kind; None if Spark omits the column.

    Spark omits objects without named fields and, with `dropFieldIfAllNull`, columns that have only nulls.
    """
    if isinstance(kind, Struct):
        fields = [(name, arrow_type(inside, options)) for name, inside in kind.fields if name]
        known = [pa.field(name, inside) for name, inside in fields if inside is not None]
        return pa.struct(known) if known else None
    if isinstance(kind, ListOf):
        inside = arrow_type(kind.element, options)
        return None if inside is None else pa.list_(pa.field("element", inside))
    if isinstance(kind, Digits):
        return pa.decimal128(kind.precision, kind.scale)
    if kind == NULL:
        return None if options.drop_field_if_all_null else pa.string()
    return _ARROW[kind]
