# SPDX-License-Identifier: Apache-2.0
"""Derives the order and the unique keys of the rows of a join from its inputs (C6)."""

from __future__ import annotations

from dataclasses import replace

from forebay.spark.keys.key_losses import join_type
from forebay.spark.keys.lineage import Lineage, UniqueKey
from forebay.spark.keys.plan.column_origins import equal_columns, origins_after
from forebay.spark.keys.plan.plan_node import PlanNode
from forebay.table.changelog.shape import CHANGE_TYPE


def joined(node: PlanNode, left: Lineage, right: Lineage) -> Lineage:
    """Return the lineage of the rows that a join puts out.

    A join shuffles each side by the columns that its condition equates, unless the other side is broadcast. A semi
    or anti join keeps the keys of the left side. Another join keeps the keys of a side if each row of this side finds
    at most one row of the other side, and the join adds no rows without this side. If no key is kept, each key of the
    left side and each key of the right side are a key together.
    """
    how = join_type(node)
    pairs = equal_columns(node.expressions("condition"), left.origins, right.origins)
    on_left = None if pairs is None else frozenset(mine for mine, _ in pairs)
    on_right = None if pairs is None else frozenset(theirs for _, theirs in pairs)
    left_moves, right_moves = (_moves(child) for child in node.children)
    left_broadcast, right_broadcast = (_broadcast(child) for child in node.children)
    left_rows = left if right_broadcast else left.shuffled(on_left, node.text)
    right_rows = right if left_broadcast else right.shuffled(on_right, node.text)
    keys = _keys(how, _finds_one(left, on_left), _finds_one(right, on_right), left_rows, right_rows)
    from_right = right_moves and not left_moves
    lanes = (right_rows if from_right else left_rows).lanes
    if left_moves and right_moves:  # a row waits in state for its match
        lanes = replace(lanes.lost(f"rows of two streams meet in {node.text}"), transactional=False)
    elif how in ("full", "left" if from_right else "right"):
        lanes = lanes.lost(f"{node.text} puts out rows without the key")
    origins = dict(left.origins) if how in ("semi", "anti") else {**left.origins, **right.origins}
    found = Lineage(origins, lanes, keys)
    if how == "inner" and pairs:
        found = found.renumbered({theirs: mine for mine, theirs in pairs})
    return replace(found, origins=origins_after(node, found.origins))


def _keys(how: str, left_one: bool, right_one: bool, left: Lineage, right: Lineage) -> tuple[UniqueKey, ...]:
    if how in ("semi", "anti"):
        return left.keys
    found: list[UniqueKey] = []
    if right_one and how in ("inner", "left", "cross"):
        found += left.keys
    if left_one and how in ("inner", "right", "cross"):
        found += right.keys
    return tuple(found) or tuple(mine.joined(theirs) for mine in left.keys for theirs in right.keys)


def _finds_one(side: Lineage, on: frozenset[int] | None) -> bool:
    """Return whether a row of the other side finds at most one row of this side; `on` are the equated columns."""
    return on is not None and any(key.columns <= on for key in side.keys)


def _moves(side: PlanNode) -> bool:
    """Return whether a side is a stream or a changelog, and not a table that is only looked up."""
    return side.streaming or any(column.name == CHANGE_TYPE for column in side.output)


def _broadcast(side: PlanNode) -> bool:
    """Return whether a side is sent whole to each task, so that the other side is not shuffled."""
    return any(node.kind == "ResolvedHint" and "broadcast" in node.text for node in (side, *side.children))
