# SPDX-License-Identifier: Apache-2.0
"""Finds aggregates that add up changes by their sign: what a change adds, its retraction takes away (C14)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite
from typing import Final, TypeAlias

from forebay.spark.keys.plan.plan_node import Expression, PlanNode
from forebay.table.changelog.row_kind import RowKind

_ADDS: Final = (RowKind.INSERT.change_type, RowKind.UPDATE_AFTER.change_type)
_TAKES: Final = (RowKind.UPDATE_BEFORE.change_type, RowKind.DELETE.change_type)
_NUMBERS: Final = ("byte", "short", "integer", "long", "float", "double", "decimal")
_WIDE: Final = ("long", "double", "decimal")
"""Types to which numbers are cast without another absolute value for a negative number."""

_Product: TypeAlias = tuple[Fraction, tuple[object, ...]]
"""A number and factors: two products with opposite numbers and equal factors are opposite values."""


def adds_by_sign(node: PlanNode, kind: Collection[int], of_change: frozenset[int]) -> bool:
    """Return whether an aggregate only adds up values of rows, each with the sign of its change.

    Args:
        node: The aggregate.
        kind: The ids of the columns that are `_change_type`.
        of_change: The ids of the columns that depend on the kind or the place of a change.
    """
    functions = [part for one in node.made() for part in one.walk() if part.kind == "AggregateExpression"]
    made = {one.id: one.children[0] for below in node.walk() for one in below.made() if one.kind == "Alias"}
    kinds: set[int | None] = {*kind}
    while more := {made[one].id for one in kinds if one in made and made[one].kind == "AttributeReference"} - kinds:
        kinds |= more
    signs = _Signs(frozenset(kinds), of_change, made)
    return bool(functions) and all(
        one.children[0].kind == "Sum"
        and not one.fields.get("isDistinct")
        and not any(condition.references & of_change for condition in one.children[1:])
        and signs.turns(one.children[0].children[0])
        for one in functions
    )


@dataclass(frozen=True)
class _Signs:
    """Judges expressions by the kind of a change.

    Args:
        kind: The ids of the columns that are `_change_type`, in any node of the plan.
        of_change: The ids of the columns that depend on the kind or the place of a change.
        made: The expression of each computed column, by its id.
    """

    kind: frozenset[int | None]
    of_change: frozenset[int]
    made: Mapping[int | None, Expression]

    def turns(self, value: Expression) -> bool:
        """Return whether a value is the same for an added row, and has the opposite sign if that row is retracted."""
        match value.kind:
            case "AttributeReference":
                return value.id in self.of_change and value.id in self.made and self.turns(self.made[value.id])
            case "Cast":
                return _simple_type(value) in _WIDE and self.turns(value.children[0])
            case "UnaryMinus":
                return self.turns(value.children[0])
            case "Add" | "Subtract":
                return all(self.turns(one) for one in value.children)
            case "Multiply":
                first, second = value.children
                return (self.turns(first) and self._of_row(second)) or (self._of_row(first) and self.turns(second))
            case "Coalesce":
                return all(self.turns(one) or _is_zero(one) for one in value.children)
            case "CaseWhen" | "If":
                return self._chooses(value)
            case _:
                return False

    def _chooses(self, value: Expression) -> bool:
        cases = list(_cases(value))
        if all(condition is None or self._of_row(condition) for condition, _ in cases):
            return all(self.turns(one) or _is_zero(one) for _, one in cases)
        added, taken = ({self._product_for(cases, kind) for kind in kinds} for kinds in (_ADDS, _TAKES))
        if len(added) != 1 or len(taken) != 1:
            return False
        plus, minus = added.pop(), taken.pop()
        return plus is not None and minus == (-plus[0], plus[1])

    def _product_for(self, cases: list[tuple[Expression | None, Expression]], kind: str) -> _Product | None:
        """Return what a CASE gives for a kind of change; None if that is not known, or no value of the row."""
        for condition, value in cases:
            meets = True if condition is None else self._holds(condition, kind)
            if meets is None:
                return None
            if meets:
                return _product(value) if self._of_row(value) else None
        return None

    def _holds(self, condition: Expression, kind: str) -> bool | None:
        """Return whether a condition holds for a kind of change; None if other values decide, too."""
        match condition.kind:
            case "EqualTo" | "EqualNullSafe" | "In":
                tested, *others = condition.children
                if tested.kind == "Literal" and condition.kind != "In":
                    tested, *others = others[0], tested
                if self._source(tested).id not in self.kind or any(one.kind != "Literal" for one in others):
                    return None
                return kind in [one.fields.get("value") for one in others]
            case "Not":
                holds = self._holds(condition.children[0], kind)
                return None if holds is None else not holds
            case "And" | "Or":
                both = [self._holds(one, kind) for one in condition.children]
                if None in both:
                    return None
                return all(both) if condition.kind == "And" else any(both)
            case _:
                return None

    def _source(self, column: Expression) -> Expression:
        """Return the column that a renamed column is."""
        while column.id not in self.kind and column.id in self.made and self.made[column.id].id is not None:
            column = self.made[column.id]
        return column

    def _of_row(self, value: Expression) -> bool:
        return not value.references & self.of_change


def _cases(value: Expression) -> Iterator[tuple[Expression | None, Expression]]:
    """Yield the conditions of a CASE with their values; the condition of ELSE is None."""
    if value.kind == "If":
        condition, yes, no = value.children
        yield condition, yes
        yield None, no
        return
    pairs = len(value.children) // 2
    for place in range(pairs):
        yield value.children[2 * place], value.children[2 * place + 1]
    if len(value.children) % 2:
        yield None, value.children[-1]


def _product(value: Expression) -> _Product:
    """Return a value of a row as a number times factors."""
    if value.kind == "Literal" and _simple_type(value) in _NUMBERS and isfinite(float(value.fields["value"] or "nan")):
        return Fraction(str(value.fields["value"])), ()
    if value.kind == "UnaryMinus":
        number, factors = _product(value.children[0])
        return -number, factors
    if value.kind == "Cast" and _simple_type(value) in _WIDE:
        number, factors = _product(value.children[0])
        return number, tuple((str(value.fields["dataType"]), one) for one in factors)
    if value.kind == "Multiply":
        (one, mine), (other, theirs) = map(_product, value.children)
        return one * other, tuple(sorted((*mine, *theirs), key=repr))
    return Fraction(1), (_shown(value),)


def _shown(value: Expression) -> str:
    """Return an expression as text: the same text for expressions with the same value for each row."""
    fields = {name: field for name, field in value.fields.items() if name not in ("qualifier", "metadata", "name")}
    return f"{value.kind}{fields!r}({', '.join(map(_shown, value.children))})"


def _is_zero(value: Expression) -> bool:
    number, factors = _product(value)
    return number == 0 and not factors


def _simple_type(value: Expression) -> str:
    return str(value.fields.get("dataType")).partition("(")[0]
