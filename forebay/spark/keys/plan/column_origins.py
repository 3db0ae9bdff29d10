# SPDX-License-Identifier: Apache-2.0
"""Follows values through a plan: columns have one origin if their values are equal, or convertible without loss."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from forebay.spark.keys.plan.plan_node import Expression, PlanNode

Origins: TypeAlias = Mapping[int, int]
"""Id of each column → its origin: the id of the column in which its value first appeared in the plan."""

_WHOLE_NUMBERS: Final = ("byte", "short", "integer", "long")
_DISTINCT_AS_TEXT: Final = (*_WHOLE_NUMBERS, "boolean", "date")


def origins_after(node: PlanNode, before: Origins) -> dict[int, int]:
    """Return the origins of the columns that a node puts out, given those of its inputs."""
    made = {one.id: one for one in node.made() if one.kind == "Alias" and one.id is not None}
    found = {}
    for column in node.output:
        origin = before.get(column.id)
        if origin is None and column.id in made:
            origin = origin_of(made[column.id].children[0], before)
        found[column.id] = column.id if origin is None else origin
    return found


def origin_of(expression: Expression, origins: Origins) -> int | None:
    """Return the origin of an expression that is a column, or a lossless cast of a column; otherwise None."""
    if expression.kind == "AttributeReference" and expression.id is not None:
        return origins.get(expression.id)
    if expression.kind == "Cast" and _lossless(expression):
        return origin_of(expression.children[0], origins)
    return None


def ordered_as(expression: Expression) -> int | None:
    """Return the id of the column that an expression is, or is a wider whole number of: both order rows alike."""
    if expression.kind == "Cast" and expression.fields.get("dataType") in _WHOLE_NUMBERS and _lossless(expression):
        return ordered_as(expression.children[0])
    return expression.id if expression.kind == "AttributeReference" else None


def origins_of(expressions: Iterable[Expression], origins: Origins) -> frozenset[int] | None:
    """Return the origins of expressions; None if one is neither a column nor a lossless cast of a column."""
    found = [origin_of(one, origins) for one in expressions]
    known = [one for one in found if one is not None]
    return frozenset(known) if len(known) == len(found) else None


def equal_columns(condition: Iterable[Expression], left: Origins, right: Origins) -> list[tuple[int, int]] | None:
    """Return the pairs of columns that a join condition equates, each as (origin on the left, origin on the right).

    Returns:
        None if the condition equates nothing, or equates an expression that is not a column.
    """
    pairs: list[tuple[int, int]] = []
    for one in conjuncts(condition):
        if one.kind not in ("EqualTo", "EqualNullSafe"):
            continue
        first, second = one.children
        for here, there in ((first, second), (second, first)):
            mine, others = origin_of(here, left), origin_of(there, right)
            if mine is not None and others is not None:
                pairs.append((mine, others))
                break
        else:
            return None
    return pairs or None


def conjuncts(condition: Iterable[Expression]) -> Iterator[Expression]:
    """Yield the conditions that are combined by AND."""
    for one in condition:
        if one.kind == "And":
            yield from conjuncts(one.children)
        else:
            yield one


def _lossless(cast: Expression) -> bool:
    """Return whether a cast of a column converts different values to different values."""
    source, target = cast.children[0].fields.get("dataType"), cast.fields.get("dataType")
    if cast.children[0].kind not in ("AttributeReference", "Cast"):
        return False
    if source == target or (target == "string" and source in _DISTINCT_AS_TEXT):
        return True
    if source in _WHOLE_NUMBERS and target in _WHOLE_NUMBERS:
        return _WHOLE_NUMBERS.index(source) <= _WHOLE_NUMBERS.index(target)
    return False
