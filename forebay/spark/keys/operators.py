# SPDX-License-Identifier: Apache-2.0
"""The rule of each plan node for order and identity: Flink's rules for upsert keys, and Spark's shuffles (C6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from forebay.spark.keys.joins import joined
from forebay.spark.keys.key_losses import FUNCTIONS, declared
from forebay.spark.keys.lineage import GONE, Lanes, Lineage, UniqueKey
from forebay.spark.keys.plan.column_origins import origin_of, origins_after, origins_of
from forebay.spark.keys.plan.plan_node import Expression, PlanNode
from forebay.spark.keys.upsert_mark import marked_keys
from forebay.table.changelog.shape import POSITION, SPLIT
from forebay.table.keys.field_metadata import Declaration

_NARROW: Final = frozenset(
    {
        "Project",
        "Filter",
        "SubqueryAlias",
        "View",
        "EventTimeWatermark",
        "LocalLimit",
        "Sample",
        "ResolvedHint",
        "CTERelationDef",
        "CollectMetrics",
    }
)
"""Operators that handle each row on its own, without a shuffle, and put out at most one row for it."""

_MULTIPLYING: Final = frozenset({"Generate", "Expand"})
"""Operators that put out several rows for one row, so that keys of the input do not identify rows any more."""

_SOURCES: Final = frozenset({"StreamingRelationV2", "DataSourceV2Relation"})
"""Leaves that are sources: no shuffle is hidden behind them."""


def lineage_of(plan: PlanNode) -> Lineage:
    """Return the lineage of the rows of a plan."""
    return _lineage(plan, {})


def _lineage(node: PlanNode, named: dict[int, Lineage]) -> Lineage:
    """Return the lineage of a node. `named` has the lineages of common table expressions, by their ids."""
    if node.kind == "WithCTE":
        for definition in node.children[:-1]:
            named[definition.fields["id"]] = _lineage(definition, named)
        return _lineage(node.children[-1], named)
    if node.kind == "CTERelationRef" and node.fields["cteId"] in named:
        return replace(named[node.fields["cteId"]], origins={column.id: column.id for column in node.output})
    inputs = [_lineage(child, named) for child in node.children]
    if not inputs:
        return _asserted(node, _leaf(node), known=set())
    if node.kind == "Join":
        return joined(node, inputs[0], inputs[1])
    if len(inputs) > 1:
        return _set_operator(node, inputs)
    before = inputs[0]
    after = _RULES.get(node.kind, _unknown)(node, before)
    after = replace(after, origins=origins_after(node, after.origins))
    if node.kind == "Project":
        after = _keyed_again(node, after)
    return _asserted(node, after, known=set(_marks(node.children[0])))


def _leaf(node: PlanNode) -> Lineage:
    origins = {column.id: column.id for column in node.output}
    found = next(iter(declared(node)), None)
    names = [column.name for column in node.output]
    hidden = None if node.kind in _SOURCES else f"the plan behind {node.kind} is not known"
    if found is None or not found.ordered:
        split = SPLIT in names and POSITION in names
        lanes = Lanes(weakest=None if split else f"{node.kind} promises no order", shuffle=hidden)
        return Lineage(origins, lanes, () if found is None else _primary(found, node, ordered=False))
    columns = frozenset(_numbers(found, found.key.partition, node))
    lanes = Lanes(found.key.partition, columns, shuffle=hidden, transactional=found.transactional)
    ordered = set(found.key.partition) <= set(found.key.primary or ())
    lineage = Lineage(origins, lanes, _primary(found, node, ordered=ordered))
    return lineage if hidden is None else lineage.shuffled(None, hidden)


def _primary(found: Declaration, node: PlanNode, *, ordered: bool) -> tuple[UniqueKey, ...]:
    """Return the declared primary key as a unique key; () if one of its columns is lost."""
    if found.present().primary is None:
        return ()
    return (UniqueKey(frozenset(_numbers(found, found.key.primary or (), node)), ordered=ordered),)


def _numbers(found: Declaration, names: tuple[str, ...], node: PlanNode) -> list[int]:
    numbers = {column.name: column.id for column in node.output}
    return [numbers[found.columns[name][0]] if name in found.columns else GONE for name in names]


def _marks(node: PlanNode) -> dict[str, frozenset[int]]:
    return marked_keys((column.id, column.metadata) for column in node.output)


def _asserted(node: PlanNode, lineage: Lineage, *, known: set[str]) -> Lineage:
    """Add the upsert keys that `with_upsert_key` asserts at this node."""
    new = [columns for mark, columns in _marks(node).items() if mark not in known]
    keys = tuple(UniqueKey(frozenset(lineage.origins[one] for one in columns)) for columns in new)
    return replace(lineage, keys=(*lineage.keys, *keys)) if keys else lineage


def _keyed_again(node: PlanNode, lineage: Lineage) -> Lineage:
    """Return the lineage after a projection that may be a `key_by`.

    The order is kept only if the new key contains the lanes (K28), or if a converter declares the key as ordered: it
    may know more than the plan, such as that message keys are the key columns.
    """
    known = {one.id for one in declared(node.children[0])}
    found = next((one for one in declared(node) if one.id not in known), None)
    if found is None:
        return lineage
    columns = frozenset(lineage.origins.get(one, GONE) for one in _numbers(found, found.key.partition, node))
    lanes = lineage.lanes
    kept = found.ordered or (bool(lanes.names) and lanes.columns <= columns)
    transactional = lanes.transactional or found.transactional
    if kept:
        lanes = replace(lanes, names=found.key.partition, columns=columns, transactional=transactional)
    else:
        text = f"key_by({', '.join(found.key.partition)}) cannot restore an order that was not kept before"
        lanes = replace(lanes.lost(text), shuffle=lanes.shuffle)
    if found.key.primary is None:
        return replace(lineage, lanes=lanes)
    spread: frozenset[int] | None = frozenset() if lanes.shuffle is None else None
    primary = frozenset(lineage.origins.get(one, GONE) for one in _numbers(found, found.key.primary, node))
    key = UniqueKey(primary, spread, ordered=kept and columns <= primary)
    known_already = any(one.columns == primary for one in lineage.keys)
    return replace(lineage, lanes=lanes, keys=lineage.keys if known_already else (*lineage.keys, key))


def _sort(node: PlanNode, before: Lineage) -> Lineage:
    return before.shuffled(None, node.text) if node.fields.get("global") else before


def _repartition(node: PlanNode, before: Lineage) -> Lineage:
    return before.shuffled(None, node.text) if node.fields.get("shuffle") else before


def _shuffle(node: PlanNode, before: Lineage) -> Lineage:
    expressions = node.expressions("partitionExpressions")
    by = origins_of(expressions, before.origins) if expressions else None
    return before.shuffled(by, node.text)


def _aggregate(node: PlanNode, before: Lineage) -> Lineage:
    """Return the lineage after an aggregate. A group changes once in a micro-batch, so no shuffle disorders its key."""
    groups = node.expressions("groupingExpressions")
    origins = dict(before.origins)
    columns = set()
    for group in groups:
        origin = origin_of(group, before.origins)
        columns.add(_made_as(node, group) if origin is None else origin)
    by = origins_of(groups, before.origins)
    lanes = before.lanes
    if lanes.names and by is not None and lanes.columns <= by:
        lanes = replace(lanes, once=True)
    else:
        lanes = lanes.lost(f"{node.text} puts rows of several keys together")
    keys = () if GONE in columns else (UniqueKey(frozenset(columns), once=True),)
    return Lineage(origins, lanes, keys)


def _made_as(node: PlanNode, group: Expression) -> int:
    """Return the id of the output column that has the value of a grouping expression; GONE if there is none."""
    found = (one.id for one in node.made() if one.kind == "Alias" and one.children[0] == group)
    return next((one for one in found if one is not None), GONE)


def _deduplicate(node: PlanNode, before: Lineage) -> Lineage:
    """Return the lineage after a deduplication. Its columns are a unique key, unless a watermark limits its memory."""
    by = origins_of(node.expressions("keys"), before.origins)
    after = before.shuffled(by, node.text)
    if by is None or node.kind == "DeduplicateWithinWatermark":
        return after
    return replace(after, keys=(*after.keys, UniqueKey(by, once=True)))


def _window(node: PlanNode, before: Lineage) -> Lineage:
    """Return the lineage after a window. The partition columns and a `row_number()` together are a unique key."""
    by = origins_of(node.expressions("partitionSpec"), before.origins)
    after = before.shuffled(by, node.text)
    numbered = [one for one in node.made() if any(part.kind == "RowNumber" for part in one.walk())]
    if by is None or not numbered or numbered[0].id is None:
        return after
    return replace(after, keys=(*after.keys, UniqueKey(by | {numbered[0].id}, once=True)))


def _unknown(node: PlanNode, before: Lineage) -> Lineage:
    """Return the lineage after a user-defined function or an operator without a rule: no order and no keys are left."""
    why = "a user-defined function gets whole rows" if node.kind in FUNCTIONS else "no rule for this operator"
    return Lineage({}, replace(before.lanes.lost(f"{why}: {node.text}"), transactional=False))


def _set_operator(node: PlanNode, inputs: list[Lineage]) -> Lineage:
    """Return the lineage after a union, which mixes all inputs, or a set operation that keeps rows of the left one."""
    if node.kind in ("Intersect", "Except"):
        return inputs[0].shuffled(None, node.text)
    why = f"{node.kind} puts the rows of several inputs together"
    transactional = all(one.lanes.transactional for one in inputs)
    lanes = replace(inputs[0].lanes.lost(why), transactional=transactional)
    return Lineage({column.id: column.id for column in node.output}, lanes)


_RULES: Final[dict[str, Callable[[PlanNode, Lineage], Lineage]]] = {
    **dict.fromkeys(_NARROW, lambda _, before: before),
    **dict.fromkeys(_MULTIPLYING, lambda _, before: replace(before, keys=())),
    "Sort": _sort,
    "Repartition": _repartition,
    "RepartitionByExpression": _shuffle,
    "RebalancePartitions": _shuffle,
    "GlobalLimit": lambda node, before: before.shuffled(None, node.text),
    "Aggregate": _aggregate,
    "Deduplicate": _deduplicate,
    "DeduplicateWithinWatermark": _deduplicate,
    "Distinct": lambda node, before: before.shuffled(None, node.text),
    "Window": _window,
}
