# SPDX-License-Identifier: Apache-2.0
"""Finds columns whose values differ each time they are computed (C12)."""

from __future__ import annotations

from typing import Final

from forebay.spark.keys.plan.plan_node import Expression, PlanNode

_CLOCKS: Final = frozenset({"CurrentTimestamp", "CurrentDate", "CurrentTime", "LocalTimestamp", "Now"})
"""Deterministic for Spark, because they are constant within a micro-batch; they differ between micro-batches."""


def unrepeatable(plan: PlanNode) -> list[str]:
    """Return what in a plan gives another result when it is computed again: columns by name, conditions by their text.

    Only what the rows of the plan depend on counts; a column that was dropped does not.
    """
    tainted, conditions = _tainted(plan)
    return [column.name for column in plan.output if column.id in tainted] + conditions


def _tainted(node: PlanNode) -> tuple[set[int], list[str]]:
    """Return the numbers of the columns of a node that are not repeatable, and the conditions."""
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
    if condition and (others or any(_depends(one, tainted) for one in condition)):
        conditions.append(node.text)
    return tainted, conditions


def _nondeterministic(node: PlanNode) -> tuple[set[int], bool]:
    """Return the columns that a node makes by non-deterministic expressions, and whether it has others of them."""
    made: set[int] = set()
    others = False
    if not node.jvm.deterministic():  # of the node or of one below it
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
