# SPDX-License-Identifier: Apache-2.0
"""Tells what a projection declares of its rows from metadata that were copied from another DataFrame.

Spark copies metadata of columns with a schema: `df.to(other.schema)` gives the rows of `df` what was declared of those
of `other`. So the id of a declaration depends on the plan that it was made for.
"""

from __future__ import annotations

from collections.abc import Collection

from forebay.spark.keys.key_losses import declared
from forebay.spark.keys.plan.plan_node import PlanNode
from forebay.spark.keys.upsert_mark import asserted_keys
from forebay.table.changelog.shape import CHANGE_TYPE
from forebay.table.changelog.traits import ChangeTraits, declared_traits
from forebay.table.keys.field_metadata import Declaration, declaration_id


def key_declared_by(node: PlanNode) -> Declaration | None:
    """Return the key that a projection declares; None if it carries that of its input, or of other rows."""
    known = {one.id for one in declared(node.children[0])}
    new = [one for one in declared(node) if one.id not in known]
    made_for = node.children[0].semantic_hash if new else 0
    return next((one for one in new if one.id == declaration_id(made_for, one.key)), None)


def traits_of(node: PlanNode) -> tuple[str, ChangeTraits] | None:
    """Return the declaration in the metadata of `_change_type`, if a node has it."""
    found = (declared_traits(column.metadata) for column in node.output if column.name == CHANGE_TYPE)
    return next((one for one in found if one is not None), None)


def traits_declared_by(node: PlanNode) -> ChangeTraits | None:
    """Return what a projection declares of its changes; None if it carries that of its input, or of other rows."""
    found, before = traits_of(node), traits_of(node.children[0])
    if found is None or (before is not None and found[0] == before[0]):
        return None
    child = node.children[0]
    columns = tuple(column.name for column in child.output)
    keys = [(), *(one.key.partition for one in declared(node))]
    ids = (found[1].declaration(child.semantic_hash, columns, key) for key in keys)
    return found[1] if found[0] in ids else None


def marks_made_by(node: PlanNode, known: Collection[str]) -> dict[str, frozenset[int]]:
    """Return the upsert keys that `with_upsert_key` asserts of the rows of a node, by mark.

    A leaf may have stored them with its columns.
    """
    new = asserted_keys((column.id, column.metadata) for column in node.output)
    return {
        mark: frozenset(columns.values())
        for mark, columns in new.items()
        if mark not in known
        and (not node.children or mark == declaration_id(node.children[0].semantic_hash, tuple(columns)))
    }
