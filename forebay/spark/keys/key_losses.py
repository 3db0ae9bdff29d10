# SPDX-License-Identifier: Apache-2.0
"""Finds in a plan where keys are lost, which the metadata of columns alone does not show (K12–K17)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from forebay.errors import ConfigurationError
from forebay.spark.keys.plan.plan_node import PlanNode
from forebay.table.keys.field_metadata import FIELD_KEY, Declaration, declarations
from forebay.table.keys.key_spec import KeySpec
from forebay.table.keys.propagation import JoinType, after_join, after_union

STATEFUL: Final = frozenset({"Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Distinct"})
"""Operators that keep the partition key and lose the primary key (K17)."""

FUNCTIONS: Final = frozenset(
    {
        "MapInPandas",
        "MapInArrow",
        "PythonMapInArrow",
        "FlatMapGroupsInPandas",
        "FlatMapGroupsInArrow",
        "FlatMapCoGroupsInPandas",
        "FlatMapCoGroupsInArrow",
        "FlatMapGroupsInPandasWithState",
        "TransformWithStateInPandas",
        "TransformWithStateInPySpark",
        "MapPartitions",
        "MapElements",
        "ScriptTransformation",
    }
)
"""Operators that pass whole rows to a user-defined function, and so lose the key (K16)."""

SET_OPERATORS: Final = frozenset({"Union", "Intersect", "Except"})
"""Operators whose sides must have the same key."""

_JOIN_TYPES: Final[dict[str, JoinType]] = {
    "Inner": "inner",
    "Cross": "cross",
    "LeftOuter": "left",
    "RightOuter": "right",
    "FullOuter": "full",
    "LeftSemi": "semi",
    "LeftAnti": "anti",
}


@dataclass
class KeyLosses:
    """What a plan loses of declared keys. Each field is a dict by the id of the key's declaration."""

    stateful: dict[str, str] = field(default_factory=dict)
    """The stateful operator that loses the primary key."""
    whole: dict[str, str] = field(default_factory=dict)
    """Why the whole key is lost."""
    columns: dict[str, dict[str, str]] = field(default_factory=dict)
    """Where each lost column was lost, by its declared name."""


def key_losses(plan: PlanNode) -> KeyLosses:
    """Return what the operators of a plan lose of the keys that its sources and `key_by` declare."""
    losses = KeyLosses()
    for node in plan.walk():
        present = set(carriers(node))
        if node.kind in STATEFUL:
            losses.stateful |= dict.fromkeys(present, node.text)
        elif node.kind in FUNCTIONS:
            below = {one for child in node.children for one in carriers(child)}
            losses.whole |= dict.fromkeys(present | below, f"a user-defined function gets whole rows: {node.text}")
        elif node.kind in SET_OPERATORS and _differ(node):
            losses.whole |= dict.fromkeys(present, f"the sides of {node.kind} have different keys")
        elif node.kind == "Join":
            losses.whole |= dict(_lost_by_join(node))
        for child in node.children:
            _note_lost_columns(node, child, losses)
    return losses


def carriers(node: PlanNode) -> dict[str, dict[str, set[int]]]:
    """Return the ids of the columns of a node that carry a key: declaration id → declared name → column ids."""
    found: dict[str, dict[str, set[int]]] = {}
    for column in node.output:
        entry = column.metadata.get(FIELD_KEY)
        if entry is not None:
            found.setdefault(entry["set"], {}).setdefault(entry["name"], set()).add(column.id)
    return found


def declared(node: PlanNode) -> list[Declaration]:
    """Return the declarations that the columns of a node carry."""
    return declarations((column.name, column.metadata) for column in node.output)


def join_type(node: PlanNode) -> JoinType:
    """Return the type of a join. An unknown type counts as full outer, which keeps no key."""
    found = node.fields.get("joinType")
    name = found.get("object", found.get("product-class", "")) if isinstance(found, dict) else str(found)
    return _JOIN_TYPES.get(str(name).rpartition(".")[2].rstrip("$"), "full")


def _differ(node: PlanNode) -> bool:
    first, *others = (_key_by_place(child) for child in node.children)
    return any(after_union(first, other) != first for other in others)


def _key_by_place(node: PlanNode) -> KeySpec:
    """Return the key with column indexes as names, because the sides of a union may name columns differently."""
    found = declarations((str(place), column.metadata) for place, column in enumerate(node.output))
    try:
        return found[0].present() if found else KeySpec()
    except ConfigurationError:
        return KeySpec()  # ambiguous; `keys_of` reports it for the columns of the result


def _lost_by_join(node: PlanNode) -> Iterator[tuple[str, str]]:
    """Yield (declaration id, reason) for the keys of the sides whose key does not hold after a join."""
    left, right = (set(carriers(child)) for child in node.children)
    kept = after_join(KeySpec(("left",)), KeySpec(("right",)), join_type(node))
    held = left if kept.partition == ("left",) else right if kept.partition == ("right",) else set()
    yield from dict.fromkeys((left | right) - held, f"a join of type {join_type(node)} does not keep it").items()


def _note_lost_columns(node: PlanNode, child: PlanNode, losses: KeyLosses) -> None:
    after = carriers(node)
    passed = {column.id for column in node.output}
    for expression in node.made():
        if expression.kind == "Alias" and expression.children[0].kind == "AttributeReference":
            passed.add(expression.children[0].id or 0)  # renamed, or given other metadata by `key_by`
    for declaration, columns in carriers(child).items():
        for name, numbers in columns.items():
            if name in after.get(declaration, {}) or numbers & passed:
                continue
            shown = {column.name for column in child.output if column.id in numbers}
            losses.columns.setdefault(declaration, {})[name] = _how(node, shown)


def _how(node: PlanNode, names: set[str]) -> str:
    """Return how a node loses the columns `names`, as text: it overwrites or drops them."""
    if node.kind == "Project":
        for place, expression in enumerate(node.expressions("projectList")):
            if expression.kind == "Alias" and expression.fields["name"] in names:
                text = node.jvm.projectList().apply(place).child().sql()
                return f"overwritten by {text}"
        return "dropped"
    return f"dropped by {node.kind}"
