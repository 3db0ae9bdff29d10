# SPDX-License-Identifier: Apache-2.0
"""Finds columns and conditions whose values differ each time they are computed (C12)."""

from __future__ import annotations

from typing import Final

from forebay.spark.keys.plan.plan_node import Expression, PlanNode

_CLOCKS: Final = frozenset({"CurrentTimestamp", "CurrentDate", "CurrentTime", "LocalTimestamp", "Now"})
"""Expressions that Spark calls deterministic: constant within a micro-batch, but different between micro-batches."""


def unrepeatable(plan: PlanNode) -> tuple[list[str], list[str]]:
    """Return the output columns (names) and the conditions (texts) of a plan that differ each time they are computed.

    A column that the plan drops does not count, unless another column or a condition depends on it.
    """
    tainted, conditions = _tainted(plan)
    return [column.name for column in plan.output if column.id in tainted], conditions


def reads_unrepeatable(node: PlanNode) -> bool:
    """Return whether an expression of a node differs each time it is computed."""
    tainted = {number for child in node.children for number in _tainted(child)[0]}
    made, others = _nondeterministic(node)
    return bool(made) or others or any(_depends(one, tainted) for one in node.all_expressions())


def _tainted(node: PlanNode) -> tuple[set[int], list[str]]:
    """Return the ids of the columns, and the texts of the conditions, that differ each time they are computed."""
    tainted: set[int] = set()
    conditions: list[str] = []
    for child in node.children:
        below, texts = _tainted(child)
        tainted |= below
        conditions += texts
    made, others = _nondeterministic(node)
    tainted |= made
    tainted |= {one.id for one in node.made() if one.id is not None and _depends(one, tainted)}
    condition = node.expressions("condition")
    if node.kind == "Generate":  # how many rows it makes
        condition = tuple(node.all_expressions())
    if condition and (others or any(_depends(one, tainted) for one in condition)):
        conditions.append(node.text)
    return tainted, conditions


def _nondeterministic(node: PlanNode) -> tuple[set[int], bool]:
    """Return the ids of columns that non-deterministic expressions make, and whether one of these makes no column."""
    made: set[int] = set()
    others = False
    if not node.jvm.deterministic():  # False also if only a node below it is not
        expressions = node.jvm.expressions()
        for place in range(expressions.size()):
            one = expressions.apply(place)
            if one.deterministic():
                continue
            if one.getClass().getSimpleName() == "Alias":
                made.add(int(one.exprId().id()))
            else:
                others = True
    return made, others


def _depends(expression: Expression, tainted: set[int]) -> bool:
    return any(
        one.kind in _CLOCKS or (one.kind == "AttributeReference" and one.id in tainted) for one in expression.walk()
    )
